"""A client in another language, on bare sockets, against a running daemon."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.daemon import Daemon

ROOT = Path(__file__).parent.parent.parent
NODE = shutil.which("node")

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(NODE is None, reason="Node.js is not installed: the raw client in clients/node is not tested"),
]


def run_node(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert NODE is not None
    return subprocess.run([NODE, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)


def test_the_node_client_reads_every_split_of_the_stream():
    done = run_node("--test", "clients/node/link.test.mjs")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("persona", ["a", "base"])
def test_the_node_client_passes_the_greeting_stream_and_error_vectors(daemon: Daemon, persona: str):
    done = run_node("clients/node/conformance.mjs", "127.0.0.1", str(daemon.port), "tests/vectors", persona)
    assert done.returncode == 0, done.stdout + done.stderr + daemon.log_text()
    assert done.stdout.splitlines()[-1] == "PASS"


def test_the_node_client_says_so_where_nobody_answers():
    done = run_node("clients/node/conformance.mjs", "127.0.0.1", "1", "tests/vectors", "a")
    assert done.returncode == 1
    assert "PASS" not in done.stdout
    assert "ECONNREFUSED" in done.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("answers", '"index": 70000', '"index": 70001', "turn_delta.unicode"),
        ("malformed", '"code": "unknown_type"', '"code": "invalid_field"', "empty_map"),
        ("malformed", '"reply_to": 5', '"reply_to": 6', "bad_utf8"),
    ],
)
def test_a_vector_that_differs_is_named(daemon: Daemon, tmp_path: Path, file: str, old: str, new: str, named: str):
    shutil.copytree(ROOT / "tests/vectors", tmp_path, dirs_exist_ok=True)
    text = (tmp_path / f"{file}.json").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / f"{file}.json").write_text(text.replace(old, new), encoding="utf-8")
    done = run_node("clients/node/conformance.mjs", "127.0.0.1", str(daemon.port), str(tmp_path), "base")
    assert done.returncode == 1
    assert "PASS" not in done.stdout
    assert named in done.stderr
