"""The commands and the example programs, run as a person would, on the shipped characters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import SETTINGS

ROOT = Path(__file__).parents[2]


def run(*command: str, given: str = "", code: int = 0, **environment: str) -> str:
    finished = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        input=given,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"COLUMNS": "200", "NPC_RUNTIME_THREADS": "1"} | environment,
    )
    assert finished.returncode == code, finished.stderr
    assert "Traceback" not in finished.stderr
    return finished.stdout + finished.stderr


def npc(*arguments: str, **options) -> str:
    return run("-m", "npc_runtime", *arguments, **options)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A daemon on the shipped personas and adapters: its ready file and its endpoint."""
    ready = tmp_path_factory.mktemp("shipped") / "ready.json"
    settings = {f"NPC_RUNTIME_{name.upper()}": str(value) for name, value in SETTINGS.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "npc_runtime", "serve", "--ready-file", str(ready), "--log-level", "error"],
        cwd=ROOT,
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    yield ready, line.split("listening on ")[1].split()[0]
    process.terminate()
    assert process.wait(timeout=30) == 0
    assert not ready.exists()


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("say_hello.py", "Mira Quill: "),
        ("two_characters.py", "[mira × 1]"),
        ("hot_add.py", "Gone again: no persona 'example-guard'"),
    ],
)
def test_every_example_runs(shipped, program, expected):
    assert expected in run(f"examples/{program}", str(shipped[0]))


def test_say_prints_the_reply(shipped):
    printed = npc("say", "mira", "Who are you?", "--endpoint", shipped[1])
    assert printed.startswith("Mira Quill: ") and len(printed) > 20


def test_chat_greets_switches_lists_explains_and_quits(shipped):
    typed = "Good evening.\n/to osric\nWho are you?\n/who\n/to nobody\n/dance\n\n/quit\nnever read\n"
    printed = npc("chat", "mira", "--endpoint", shipped[1], given=typed)
    assert "Osric Vaune: " in printed
    assert "pim: Pim Sedgely" in printed
    assert "unknown_persona: no persona 'nobody'" in printed
    assert printed.count("/quit leaves") == 2
    assert printed.count("Mira Quill: ") == 2  # greeting and reply


def test_personas_lists_adapters_with_scales_and_where_they_come_from(shipped):
    printed = npc("personas", "--endpoint", shipped[1])
    assert "marsh × 0.7, pim × 1" in printed
    assert "mira.yaml" in printed


def test_status_shows_model_and_engine(shipped):
    printed = npc("status", "--endpoint", shipped[1])
    assert "SmolLM2-135M-Instruct.Q4_1.gguf" in printed
    assert "ready" in printed


def test_without_a_daemon_the_commands_say_how_to_start_one(tmp_path):
    printed = npc("status", code=1, XDG_RUNTIME_DIR=str(tmp_path))
    assert "npc-runtime serve" in printed


def test_the_demo_plays_its_scene_and_leaves_nothing_running():
    printed = npc("demo", "--no-chat")
    for name in ("Mira Quill", "Osric Vaune", "Pim Sedgely"):
        assert printed.count(f"{name}: ") >= 4
    assert "marsh × 0.7 + pim × 1" in printed
    assert "first token" in printed and "reused" in printed


def test_a_wrong_setting_is_named_with_what_is_allowed(tmp_path):
    config = tmp_path / "npc.yaml"
    config.write_text("prot: 5710\n")
    assert "unknown setting 'prot'. Did you mean 'port'?" in npc("serve", "--config", str(config), code=2)
    assert "port" in npc("serve", "--ready-file", "", code=2, NPC_RUNTIME_PORT="high")
