"""Who is answered first, by when, and what happens when too many ask."""

import signal

import pytest

from npc_runtime.errors import Busy, DeadlineExceeded, EngineCrashed, NpcError
from tests.support.daemon import running

LONG = {"max_tokens": 300, "min_tokens": 300}


@pytest.fixture(scope="module")
def alone(daemon):
    """What a long reply of each persona is when nothing else is asked."""
    with daemon.client() as client:
        return {
            name: client.open_session(name).say("Tell me everything.", include_tokens=True, **LONG).wait().tokens
            for name in ("a", "b")
        }


def test_the_players_line_is_answered_before_an_ambient_reply_that_runs_which_then_goes_on_unchanged(client, alone):
    ambient = client.open_session("a").say("Tell me everything.", priority="ambient", include_tokens=True, **LONG)
    pieces = iter(ambient)
    next(pieces)
    reply = client.open_session("b").say("Hello!", priority="player", max_tokens=8).wait()
    assert ambient.finished is None and client.status().running_turn == ambient.turn_id
    done = ambient.wait()
    assert done.tokens == alone["a"]
    assert done.timings.preempted_ms > 0 and reply.timings.queue_ms < done.timings.decode_ms


def test_turns_side_by_side_are_each_what_they_are_alone(new_folders, alone):
    with running(new_folders(), max_active_turns=2) as daemon, daemon.client() as client:
        replies = [
            client.open_session(name).say("Tell me everything.", include_tokens=True, **LONG) for name in ("a", "b")
        ]
        for reply in replies:
            next(iter(reply))
        assert client.status().turns_active == 2
        assert [reply.wait().tokens for reply in replies] == [alone["a"], alone["b"]]


def test_a_deadline_that_passes_in_the_queue_is_an_error_and_in_a_reply_its_end(client):
    running_one = client.open_session("a").say("Tell me everything.", **LONG)
    next(iter(running_one))
    late = client.open_session("b").say("Hello?", deadline_ms=1)
    with pytest.raises(DeadlineExceeded, match="deadline_ms of 1"):
        late.wait()
    running_one.cancel()
    running_one.wait()
    cut = client.open_session("b").say("Tell me everything.", deadline_ms=2500, **LONG).wait()
    assert cut.finish_reason == "time" and cut.text and cut.kept


def test_a_full_queue_says_how_many_wait_and_when_to_try_again_and_the_player_takes_an_ambient_place(new_folders):
    with running(new_folders(), max_queued_turns=2) as daemon, daemon.client() as client:
        first = client.open_session("a").say("Tell me everything.", **LONG)
        next(iter(first))
        waiting = [client.open_session("b").say("Hello.", priority="ambient", max_tokens=2) for _ in range(2)]
        with pytest.raises(Busy) as busy:
            client.open_session("b").say("Hello.", priority="ambient").wait()
        assert "2 waiting" in str(busy.value)
        first_cancelled = client.open_session("base").say("Hello.", priority="normal", max_tokens=2)
        with pytest.raises(Busy):
            waiting[1].wait()
        first.cancel()
        assert first_cancelled.wait().text and waiting[0].wait().text


def test_busy_carries_its_numbers_over_the_wire(new_folders):
    with running(new_folders(), max_queued_turns=1) as daemon, daemon.client() as client:
        first = client.open_session("a").say("Tell me everything.", **LONG)
        next(iter(first))
        client.open_session("b").say("Hello.")
        with pytest.raises(Busy) as busy:
            client.open_session("b").say("Hello.").wait()
        assert busy.value.position == 1 and busy.value.retry_after_ms > 0
        first.cancel()


@pytest.mark.parametrize("moment", ["idle", "prefill", "decode"])
def test_an_engine_that_is_stopped_is_found_out_and_the_next_turn_is_right(new_folders, moment):
    with running(new_folders(), stuck_engine_seconds=2) as daemon, daemon.client() as client:
        session = client.open_session("a")
        expected = client.open_session("a").say("Hello.", include_tokens=True).wait().tokens
        engine = daemon.engine_process()
        reply = None
        if moment != "idle":
            reply = client.open_session("b").say("Tell me everything.", **LONG)
            if moment == "decode":
                next(iter(reply))
        engine.send_signal(signal.SIGSTOP)
        if moment == "decode":
            with pytest.raises(EngineCrashed):
                reply.wait()
        elif reply is not None:
            try:
                assert reply.wait().text, "it was begun again, since nothing of it had been said"
            except NpcError as error:
                assert isinstance(error, EngineCrashed)
        assert session.say("Hello.", include_tokens=True).wait().tokens == expected
        status = client.status()
        assert status.engine.restarts == 1 and status.engine.pid != engine.pid
