"""Writing settings into a file that a person wrote."""

import stat

import pytest
import yaml

from npc_runtime.config import load_settings
from npc_runtime.errors import ConfigError
from npc_runtime.tuning.settings_file import as_yaml, write_settings

FOUND = {"threads": 3, "flash_attention": "on", "kv_type": "q8_0"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "npc-runtime.yaml"


def test_a_new_file_holds_the_settings(path):
    assert write_settings(path, FOUND)
    assert yaml.safe_load(path.read_text()) == FOUND
    assert load_settings(path, {}).kv_type == "q8_0"


def test_what_else_is_in_the_file_stays_with_its_comments(path):
    path.write_text("# ours\nport: 5710   # the game's\n\nthreads: 1  # was too few\npersonas_dir: 'cast'\n")
    assert write_settings(path, FOUND)
    assert path.read_text() == (
        "# ours\nport: 5710   # the game's\n\nthreads: 3  # was too few\npersonas_dir: 'cast'\n"
        "flash_attention: 'on'\nkv_type: q8_0\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "{port: 5710, threads: 1}",
        "port: 5710\nthreads: !!int\n  1\n",
        "threads: &t 1\nport: 5710\nlanes: *t\n",
        '"threads": 1\nport: 5710\n',
    ],
)
def test_other_ways_to_write_a_map_lose_no_setting(path, text):
    path.write_text(text)
    before = yaml.safe_load(text)
    write_settings(path, FOUND)
    assert yaml.safe_load(path.read_text()) == {**before, **FOUND}


def test_a_text_that_only_looks_like_a_setting_is_not_touched(path):
    path.write_text("personas_dir: |-\n  cast\n  threads: 1\nport: 1\n")
    write_settings(path, {"threads": 2})
    assert yaml.safe_load(path.read_text()) == {"personas_dir": "cast\nthreads: 1", "port": 1, "threads": 2}


def test_writing_twice_is_writing_once(path):
    write_settings(path, FOUND)
    once = path.read_bytes()
    write_settings(path, FOUND)
    assert path.read_bytes() == once


def test_the_last_line_may_lack_its_end(path):
    path.write_text("port: 1")
    write_settings(path, {"threads": 2})
    assert path.read_text() == "port: 1\nthreads: 2\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- port\n", "must be a map"),
        ("port: [\n", "cannot be read"),
        ("flash_attention: 'off'\nlains: 3\n", "unknown setting 'lains'"),
    ],
)
def test_a_file_that_is_no_sound_one_is_told_and_stays(path, text, expected):
    path.write_text(text)
    with pytest.raises(ConfigError, match=expected) as caught:
        write_settings(path, {"threads": 2})
    assert str(path) in caught.value.message
    assert ".draft" not in caught.value.message
    assert path.read_text() == text


def test_settings_that_contradict_the_file_are_not_written(path):
    path.write_text("flash_attention: 'off'\n")
    with pytest.raises(ConfigError, match="nothing was written: with these settings, kv_type q8_0 needs flash"):
        write_settings(path, {"kv_type": "q8_0"})
    assert path.read_text() == "flash_attention: 'off'\n"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        write_settings(tmp_path / "none" / "npc.yaml", FOUND)


def test_mode_and_link_stay(tmp_path, path):
    real = tmp_path / "real.yaml"
    real.write_text("port: 1\n")
    real.chmod(0o640)
    path.symlink_to(real)
    write_settings(path, {"threads": 2})
    assert path.is_symlink()
    assert real.read_text() == "port: 1\nthreads: 2\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_path_is_printed_on_one_line_as_yaml(tmp_path):
    long = "/" + "a b: c/" * 30 + "x.gguf"
    text = as_yaml({"base_model": long, "threads": 1})
    assert text.count("\n") == 2
    assert yaml.safe_load(text) == {"base_model": long, "threads": 1}
