"""The same engine and the same rules without a daemon."""

import pytest

from npc_runtime import Runtime
from npc_runtime.client import AdapterScale
from npc_runtime.errors import InvalidField, ShuttingDown, UnknownPersona
from npc_runtime.protocol.messages import PastExchange
from tests.support.daemon import SETTINGS, Folders, running

LINES = ("Who are you?", "What do you sell on a cold morning?", "And what else?")


def runtime(folders: Folders, **settings: object) -> Runtime:
    return Runtime(
        **{**SETTINGS, "personas_dir": str(folders.personas), "adapters_dir": str(folders.adapters), **settings}
    )


def test_it_says_what_the_daemon_says(folders):
    with running(folders) as daemon, daemon.client() as client:
        session = client.open_session("a")
        told = [session.say(line, include_tokens=True).wait().tokens for line in LINES]
    with runtime(folders) as here:
        session = here.open_session("a")
        assert [session.say(line, include_tokens=True).wait().tokens for line in LINES] == told


def test_a_reply_comes_in_pieces_and_ends_once(folders):
    with runtime(folders) as here:
        session = here.open_session("b", player="Anna")
        assert session.greeting == "What do you want?"
        reply = session.say("Hello!")
        assert "".join(reply) == reply.finished.text
        assert list(reply) == []
        assert [use.name for use in reply.started.adapters] == ["b"]


def test_idle_time_is_used_so_that_the_next_line_costs_only_itself(folders):
    with runtime(folders) as here:
        session = here.open_session("a")
        done = session.say(LINES[0]).wait()
        here.idle()
        warmed = session.warm()
        assert warmed.computed_tokens == 0 and warmed.ready_tokens > done.usage.prompt_tokens
        primed = session.prime(LINES[1])
        assert session.say(LINES[1]).wait().usage.reused_tokens == primed.ready_tokens


def test_a_saved_conversation_comes_back_from_disk(folders, tmp_path):
    with runtime(folders, kv_dir=str(tmp_path / "kv")) as here:
        session = here.open_session("a")
        session.say(LINES[0]).wait()
        history = session.history()
    with runtime(folders, kv_dir=str(tmp_path / "kv")) as here:
        done = here.open_session("a", history=history).say(LINES[1]).wait()
        assert done.usage.reused_disk > 0


def test_mistakes_are_the_daemons_errors(folders):
    here = runtime(folders)
    with pytest.raises(UnknownPersona):
        here.open_session("nobody")
    session = here.open_session("a")
    here.close()
    here.close()
    for ask in (
        here.stats,
        here.idle,
        here.reload,
        session.warm,
        session.history,
        session.close,
        here.flush,
        lambda: session.say("Hello?"),
    ):
        with pytest.raises(ShuttingDown):
            ask()


def test_a_reply_that_is_read_after_the_end_is_an_error_and_no_crash(folders):
    here = runtime(folders)
    reply = here.open_session("a").say("Hello.")
    assert next(iter(reply))
    here.close()
    with pytest.raises(ShuttingDown):
        reply.wait()


def test_a_reply_that_failed_says_so_whenever_it_is_read(folders):
    with runtime(folders) as here:
        reply = here.open_session("a", history=[PastExchange("Hello.", "Yes.", tokens=(2**31 - 1,))]).say("And?")
        for _ in range(2):
            with pytest.raises(InvalidField, match="another model"):
                reply.wait()


def test_what_is_out_of_range_is_refused_as_the_daemon_refuses_it(folders):
    with runtime(folders) as here:
        session = here.open_session("a")
        for wrong in ({"max_tokens": 0}, {"adapters": [AdapterScale("a", 1e300)]}, {"deadline_ms": -1.0}):
            with pytest.raises(InvalidField):
                session.say("Hello.", **wrong)
        assert session.say("Hello.", max_tokens=2).wait().text
