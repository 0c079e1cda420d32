"""The same engine and the same rules without a daemon."""

import pytest

from npc_runtime import Runtime
from npc_runtime.errors import ShuttingDown, UnknownPersona
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
    for ask in (session.warm, session.history, session.close, here.flush, lambda: session.say("Hello?")):
        with pytest.raises(ShuttingDown):
            ask()
