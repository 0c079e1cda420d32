"""The daemon and its engine as processes: crashes, restarts, stopping."""

import json
import signal
import subprocess
import sys

import psutil
import pytest

from npc_runtime.errors import ConnectionLost, EngineCrashed
from tests.support.daemon import Daemon, running


def test_when_the_engine_is_killed_the_turn_fails_the_session_lives_and_the_next_turn_works(daemon, client):
    session = client.open_session("a")
    before = session.say("Who are you?", include_tokens=True).wait()
    reply = session.say("Tell me everything.", max_tokens=900, min_tokens=900)
    pieces = iter(reply)
    next(pieces)
    engine = daemon.engine_process()
    engine.kill()
    with pytest.raises(EngineCrashed, match="engine process"):
        list(pieces)
    after = session.say("Are you still there?").wait()
    assert after.usage.prompt_tokens > before.usage.prompt_tokens + before.usage.generated_tokens
    assert after.rebuilt
    status = client.status()
    assert (status.engine.restarts, status.engine.state) == (1, "ready")
    assert status.engine.pid != engine.pid
    assert client.open_session("a", session_id=session.id).turns == 2


def test_a_conversation_that_is_rebuilt_goes_on_exactly_as_it_would_have(daemon, client):
    def talk(*, killed: bool) -> tuple[int, ...]:
        session = client.open_session("a")
        session.say("Who are you?").wait()
        session.say("What do you sell?").wait()
        if killed:
            daemon.engine_process().kill()
        return session.say("Farewell.", include_tokens=True).wait().tokens

    assert talk(killed=True) == talk(killed=False)


def test_an_engine_that_is_killed_while_idle_is_started_again(daemon, client):
    engine = daemon.engine_process()
    engine.kill()
    assert client.open_session("b").say("Hello.", max_tokens=2).wait().text
    assert client.status().engine.pid != engine.pid


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("busy", [False, True])
def test_a_signal_ends_the_daemon_and_leaves_nothing_behind(folders, tmp_path, sig, busy):
    ipc = tmp_path / "npc.sock"
    daemon = Daemon(folders, ipc_path=ipc)
    client = daemon.client()
    engine = daemon.engine_process()
    if busy:
        reply = client.open_session("a").say("Tell me everything.", max_tokens=900, min_tokens=900)
        pieces = iter(reply)
        next(pieces)
    assert daemon.stop(sig) == 0
    if busy:
        list(pieces)
        assert reply.finished.finish_reason == "cancelled"
    client.close()
    assert not psutil.pid_exists(engine.pid)
    assert not daemon.ready_file.exists()
    assert not ipc.exists()


def test_when_the_daemon_is_killed_the_engine_goes_too(folders):
    daemon = Daemon(folders)
    engine = daemon.engine_process()
    client = daemon.client()
    reply = client.open_session("a").say("Tell me everything.", max_tokens=900, min_tokens=900)
    pieces = iter(reply)
    next(pieces)
    daemon.stop(signal.SIGKILL)
    engine.wait(timeout=20)
    with pytest.raises(ConnectionLost):
        list(pieces)
    client.close()


def test_the_ready_file_and_the_first_line_tell_where_the_daemon_is(daemon):
    facts = json.loads(daemon.ready_file.read_text(encoding="utf-8"))
    assert facts["pid"] == daemon.process.pid
    assert facts["endpoint"] == daemon.endpoint == f"tcp://127.0.0.1:{facts['port']}"
    assert facts["protocol"] == 1
    assert daemon.ready_file.stat().st_mode & 0o777 == 0o600


def test_ipc_is_offered_beside_tcp(folders, tmp_path):
    from npc_runtime.client import Client

    ipc = tmp_path / "npc.sock"
    with running(folders, ipc_path=ipc), Client(f"ipc://{ipc}") as client:
        assert client.welcome.protocol == 1


def serve_and_fail(*arguments: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-m", "npc_runtime", "serve", "--ready-file", "", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode == 2
    assert "Traceback" not in finished.stderr
    return finished.stderr


def test_a_daemon_that_cannot_start_says_why_and_exits_with_2(daemon, tmp_path):
    assert f"port {daemon.port}" in serve_and_fail("--port", str(daemon.port))
    assert "no-model.gguf" in serve_and_fail("--base-model", str(tmp_path / "no-model.gguf"))
    file = tmp_path / "file"
    file.write_text("precious")
    assert "not a socket" in serve_and_fail("--ipc-path", str(file))
    assert file.read_text() == "precious"
    assert "103" in serve_and_fail("--ipc-path", str(tmp_path / ("x" * 120)))


def test_a_live_ipc_socket_is_not_taken_over(folders, tmp_path):
    ipc = tmp_path / "npc.sock"
    with running(folders, ipc_path=ipc) as daemon:
        assert "in use" in serve_and_fail("--ipc-path", str(ipc))
        with daemon.client() as client:
            client.ping()


def test_a_model_that_cannot_be_loaded_leaves_a_daemon_that_says_so(folders, tmp_path):
    from npc_runtime.errors import EngineUnavailable

    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 64)
    with running(folders, base_model=broken) as daemon, daemon.client() as client:
        session = client.open_session("base")
        with pytest.raises(EngineUnavailable, match=r"broken\.gguf"):
            session.say("Hello.").wait()
        assert client.status().state == "failed"
