"""The engine is ended or stopped at any moment of turns that evict, restore and load: nothing wrong is ever said."""

import random
import signal

import pytest

from npc_runtime.errors import NpcError
from tests.support.daemon import running

SEED = 20261203
ROUNDS = 5
NAMES = ("a", "b", "base")


def talk(session) -> tuple[int, ...] | None:
    try:
        return session.say("Hello there, what is new?", include_tokens=True).wait().tokens
    except NpcError as error:
        assert error.retryable, error
        return None


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
def test_whatever_the_engine_was_doing_the_next_turns_are_right(new_folders, tmp_path, sig):
    print(f"seed {SEED}")
    moments = random.Random(SEED)
    settings = {"lanes": 1, "kv_dir": tmp_path / "kv", "max_loaded_adapters": 1, "stuck_engine_seconds": 1.5}
    with running(new_folders(), **settings) as daemon, daemon.client() as client:
        right = {name: talk(client.open_session(name)) for name in NAMES}
        assert None not in right.values()
        for round_number in range(ROUNDS):
            engine = daemon.engine_process()
            sessions = {name: client.open_session(name) for name in NAMES}
            replies = [session.say("Hello there, what is new?", include_tokens=True) for session in sessions.values()]
            # Another moment each time: one is loaded, restored or read, one speaks, one is copied away.
            pieces = iter(replies[moments.randrange(3)])
            for _ in range(moments.choice((0, 0, 1, 2, 5, 50))):
                next(pieces, "")
            engine.send_signal(sig)
            for name, reply in zip(NAMES, replies, strict=True):
                try:
                    assert reply.wait().tokens == right[name], (
                        f"round {round_number}, {name}"
                    )  # also where it had ended
                except NpcError as error:
                    assert error.retryable, error
            for name, session in sessions.items():
                said = talk(session)
                assert said is not None, f"round {round_number}, {name}"
            fresh = {name: talk(client.open_session(name)) for name in NAMES}
            assert fresh == right, f"round {round_number}"
