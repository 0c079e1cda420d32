"""Settings: where a value comes from, and what is said of a wrong one."""

import pytest

from npc_runtime.config import ENV_OTHER, ENV_PREFIX, Settings, load_settings
from npc_runtime.errors import ConfigError


def write(tmp_path, text: str):
    path = tmp_path / "npc.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_defaults_are_those_of_the_definition():
    assert load_settings(environ={}) == Settings()


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    config = write(tmp_path, "lanes: 2\nport: 1\nthreads: 1\n")
    settings = load_settings(config, {"NPC_RUNTIME_PORT": "2", "NPC_RUNTIME_THREADS": "2", "HOME": "x"}, {"port": 3})
    assert (settings.lanes, settings.threads, settings.port) == (2, 2, 3)
    assert load_settings(config, {}, {"port": None}).port == 1


def test_paths_in_a_file_are_relative_to_it(tmp_path):
    settings = load_settings(write(tmp_path, "personas_dir: cast\nbase_model: smollm2\nready_file: auto\n"), {})
    assert settings.personas_dir == str(tmp_path / "cast")
    assert (settings.base_model, settings.ready_file) == ("smollm2", "auto")
    assert load_settings(write(tmp_path, "base_model: models/x.gguf\n"), {}).base_model == str(
        tmp_path / "models/x.gguf"
    )


@pytest.mark.parametrize("name", ENV_OTHER)
def test_variables_of_the_commands_are_no_settings(name):
    assert load_settings(environ={ENV_PREFIX + name.upper(): "anything"}) == Settings()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lane: 2\n", "unknown setting 'lane'. Did you mean 'lanes'"),
        ("lanes: none\n", "lanes"),
        ("lanes: 0\n", "lanes"),
        ("port: 70000\n", "port"),
        ("- lanes\n", "must be a map"),
        ("lanes: [\n", "cannot be read"),
        ("host: 0.0.0.0\n", "not loopback"),
        ("context_tokens: 256\nprefill_chunk_tokens: 512\n", "larger than"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_wrong(tmp_path, text, expected):
    with pytest.raises(ConfigError, match=expected):
        load_settings(write(tmp_path, text), {})


def test_a_missing_file_and_a_wrong_variable_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        load_settings(tmp_path / "none.yaml", {})
    with pytest.raises(ConfigError, match="NPC_RUNTIME_LAINES"):
        load_settings(environ={"NPC_RUNTIME_LAINES": "3"})


def test_an_empty_file_is_the_defaults(tmp_path):
    assert load_settings(write(tmp_path, "# nothing yet\n"), {}) == Settings()
