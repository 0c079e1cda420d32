"""``npc-runtime tune`` as people call it: what it says, what it prints, what it writes."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from npc_runtime.cli import tune as command
from npc_runtime.cli.app import app
from npc_runtime.errors import ConfigError, EngineCrashed
from npc_runtime.tuning.jobs import Agreement, Speed, VoiceFigures, VoiceRow, Work
from npc_runtime.tuning.machine import Load
from npc_runtime.tuning.tables import quality_table
from npc_runtime.tuning.texts import quality_texts
from npc_runtime.tuning.worker import OutOfTime

ROOT = Path(__file__).parents[2]


class PaperLab:
    """In place of measuring: flash attention and one thread are fast here, and q4_0 is."""

    crash = ""
    adapter = Path("mira.gguf")
    work = Work(prefill=128, history=512)

    def __init__(self, settings, base, facts, original, seconds, clock):
        self.facts = facts

    def begin(self, start):
        pass

    def measure(self, setup, figures):
        if self.crash and getattr(setup, self.crash) != "f16":
            raise EngineCrashed("llama.cpp ended its process (signal 6): GGML_ASSERT(n > 0)")
        speed = 2.0 if setup.file_type == "q4_0" else 1.0
        speed *= 2.0 if setup.flash_attention == "on" else 1.0
        return Speed(prefill=100.0 * speed, line_ms=200.0 / speed, decode=100.0 / setup.threads)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


@pytest.fixture
def run(tmp_path, monkeypatch, cache, worker):
    """Runs the command in an own folder, on paper, with the child process of all tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "Worker", lambda spin_count: contextlib.nullcontext(worker))
    monkeypatch.setattr(command, "Lab", PaperLab)
    monkeypatch.setattr(command, "load_now", lambda: Load(0.1, 2, 0.0))
    monkeypatch.setattr("npc_runtime.tuning.machine.default_threads", lambda: 2)
    for name in ("NPC_RUNTIME_THREADS", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*arguments: str):
        return CliRunner().invoke(app, ["tune", *arguments], env={"COLUMNS": "200"})

    return invoke


def test_it_prints_a_table_and_the_settings_and_writes_nothing(run, tmp_path):
    result = run()
    assert result.exit_code == 0, result.output
    assert "now" in result.stdout and "best" in result.stdout and "gain" in result.stdout
    assert "all together, side by side" in result.stdout
    printed = result.stdout[result.stdout.index("threads: 1") :]
    assert yaml.safe_load(printed) == {"threads": 1, "flash_attention": "on", "prefill_threads": 2}
    assert list(tmp_path.iterdir()) == []
    assert "--write" in result.stderr


def test_with_write_the_file_of_this_folder_gets_the_settings_and_keeps_the_others(run, tmp_path):
    path = tmp_path / "npc-runtime.yaml"
    path.write_text("port: 5710\nthreads: 2\n")
    result = run("--write")
    assert result.exit_code == 0, result.output
    assert yaml.safe_load(path.read_text()) == {
        "port": 5710,
        "threads": 1,
        "flash_attention": "on",
        "prefill_threads": 2,
    }
    assert "npc-runtime serve --config npc-runtime.yaml" in result.stderr


def test_what_is_best_already_is_not_changed(run, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("threads: 1\nprefill_threads: 2\nflash_attention: 'on'\n")
    before = path.read_text()
    result = run("--config", str(path), "--write")
    assert "Nothing to change" in result.stdout
    assert path.read_text() == before


def test_a_faster_file_type_is_offered_with_the_command_that_makes_it(run):
    result = run()
    assert "q4_0 makes a turn" in result.stderr
    assert "npc-runtime tune --prepare-model q4_0" in result.stderr
    assert "base_model:" not in result.stdout


def test_a_setting_that_crashes_llama_cpp_is_told_in_the_table(run, monkeypatch):
    monkeypatch.setattr(PaperLab, "crash", "kv_type")
    result = run()
    assert result.exit_code == 0
    assert "GGML_ASSERT(n > 0)" in " ".join(result.stdout.split())


def test_a_variable_that_wins_over_the_file_is_named(run, monkeypatch):
    monkeypatch.setenv("NPC_RUNTIME_THREADS", "2")
    result = run("--write")
    assert "unset NPC_RUNTIME_THREADS" in result.stderr


def test_a_busy_machine_is_told(run, monkeypatch):
    monkeypatch.setattr(command, "load_now", lambda: Load(3.2, 2, 0.9))
    assert "this machine is busy: 90% of its 2 cores in use, load 3.2" in run().stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--seconds", "1"], "--seconds is 1; allowed is 5 or more"),
        (["--config", "none.yaml"], "none.yaml"),
        (["--prepare-model", "q4"], "file type 'q4' cannot be prepared. Did you mean 'q4_0'?"),
    ],
)
def test_mistakes_are_told_with_what_is_allowed(run, arguments, expected):
    error = run(*arguments).exception
    assert isinstance(error, ConfigError)
    assert expected in error.message


def test_a_limit_that_is_too_short_for_anything_is_told(run, monkeypatch):
    def begin(self, start):
        raise OutOfTime

    monkeypatch.setattr(PaperLab, "begin", begin)
    error = run("--seconds", "5").exception
    assert isinstance(error, ConfigError)
    assert "5 seconds are not enough" in error.message


def test_preparing_prints_the_path_only_and_takes_what_was_made_before(run, q4_0):
    before = q4_0.stat().st_mtime_ns
    result = run("--prepare-model", "Q4_0", "--no-quality")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{q4_0}\n"
    assert "was made before" in result.stderr
    assert q4_0.stat().st_mtime_ns == before


def test_preparing_with_write_makes_it_the_base(run, q4_0, tmp_path):
    result = run("--prepare-model", "q4_0", "--no-quality", "--write", "--config", str(tmp_path / "npc.yaml"))
    assert result.exit_code == 0, result.output
    assert yaml.safe_load((tmp_path / "npc.yaml").read_text()) == {"base_model": str(q4_0)}
    again = run("--prepare-model", "q4_0", "--no-quality", "--config", str(tmp_path / "npc.yaml"))
    assert again.stdout == f"{q4_0}\n"


def test_a_prepared_base_whose_original_is_gone_is_not_made_worse_twice(run, monkeypatch):
    monkeypatch.setattr(command, "find_original", lambda path, facts, worker: None)
    error = run("--prepare-model", "q8_0").exception
    assert isinstance(error, ConfigError)
    assert "set base_model to it" in error.message


def test_a_real_run_measures_a_real_model_with_a_real_adapter(tmp_path, monkeypatch, cache):
    """Few seconds, one thread: what it finds is of no interest, that it finds its way is."""
    shutil.copytree(ROOT / "adapters", tmp_path / "adapters")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPC_RUNTIME_THREADS", "1")
    monkeypatch.setenv("NPC_RUNTIME_PREFILL_THREADS", "1")
    monkeypatch.setattr("npc_runtime.tuning.machine.default_threads", lambda: 1)
    result = CliRunner().invoke(app, ["tune", "--seconds", "8"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "The adapter marsh is active." in result.stdout
    assert "prefill_chunk_tokens" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code"), [(["adapter", "train", "nobody"], 1), (["tune", "--none"], 2), (["tune", "--help"], 0)]
)
def test_commands_that_are_imported_when_called_keep_their_exit_code(tmp_path, monkeypatch, arguments, code):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, arguments).exit_code == code


def test_the_quality_table_has_every_voice_and_marks_the_one_that_is_lost():
    agreement = Agreement(tokens=100, source=20.0, prepared=21.0, difference=0.0488, error=0.01, same_choice=0.9)
    old, new = (
        VoiceFigures(rows=(VoiceRow(persona_id="mira", own=-2.0, over_base=base, over_others=0.5, holds=holds),))
        for base, holds in ((0.9, True), (0.2, False))
    )
    table = quality_table(agreement, [old, new], "q4_1", "q4_0")
    cells = [list(column.cells) for column in table.columns]
    assert "perplexity (100 tokens)" in cells[0]
    assert "+5.0% ± 1.1% (standard error)" in cells[3]
    assert "-0.70 nat a token" in cells[3]
    assert "red" in [row.style for row in table.rows]
    assert "red" not in [row.style for row in quality_table(agreement, [old, old], "q4_1", "q4_0").rows]


def test_quality_is_measured_on_lines_that_no_adapter_was_trained_on(tmp_path):
    (tmp_path / "dialogue").mkdir()
    lines = [
        {"player": "Seen?", "reply": "Yes, in training.", "split": "train"},
        {"player": "New?", "reply": "Never seen.", "split": "held_out"},
    ]
    (tmp_path / "dialogue" / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "dialogue" / "broken.jsonl").write_text("{")
    prose, *dialogues = quality_texts(tmp_path)
    assert "Harrow Ford" in prose
    assert dialogues == ["New?\nNever seen."]
    assert quality_texts(tmp_path / "none") == (prose,)
    assert len(quality_texts(ROOT / "personas")) == 5
