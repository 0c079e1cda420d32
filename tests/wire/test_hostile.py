"""What other programs, other people's files and other processes do to a daemon: nobody else may notice."""

import os
import signal

import pytest

from npc_runtime.errors import AdapterInvalid, EngineCrashed, MessageTooLarge, PersonaInvalid
from npc_runtime.protocol import decode_answer, encode
from npc_runtime.protocol.messages import Error, Hello, Ping, StartTurn, Welcome
from tests.support.daemon import persona_text, replace_file, running
from tests.support.random_adapter import write_random_adapter


def test_half_a_character_in_a_persona_is_refused_before_it_can_do_harm(client):
    with pytest.raises(PersonaInvalid, match="wire, line"):
        client.add_persona(persona_text("odd", extra='background: "odd \\ud800 text"\n'))
    assert client.open_session("a").say("Hello.", max_tokens=2).wait().text


def test_a_pipe_in_the_folders_is_a_problem_and_nothing_waits_for_it(daemon, client):
    pipes = [daemon.folders.personas / "pipe.yaml", daemon.folders.adapters / "pipe.gguf"]
    for pipe in pipes:
        os.mkfifo(pipe)
    daemon.folders.write_persona("beside", {"a": 1.0})
    assert client.open_session("beside").say("Hello.", max_tokens=2).wait().adapters[0].name == "a"
    client.personas()
    problems = {problem.file: problem.message for problem in client.status().problems}
    for pipe in pipes:
        assert "not an ordinary file" in problems[pipe.name]
        pipe.unlink()


def test_a_save_that_lost_its_adapters_does_not_take_the_voice_away(daemon, client):
    daemon.folders.write_persona("voiced", {"a": 1.0})
    session = client.open_session("voiced")
    path = daemon.folders.personas / "voiced.yaml"
    whole = path.read_text(encoding="utf-8")
    # In place and in pieces, as some editors save: what is there for a moment is valid, and without adapters.
    path.write_text(whole[: whole.index("adapters:")], encoding="utf-8")
    assert session.say("Hello.", max_tokens=2).wait().adapters[0].name == "a"
    path.write_text(whole, encoding="utf-8")
    assert session.say("Hello.", max_tokens=2).wait().adapters[0].name == "a"


def test_when_the_good_version_of_an_adapter_is_gone_with_the_engine_the_error_says_what_the_file_is(daemon, client):
    write_random_adapter(daemon.folders.adapters / "fragile.gguf", 21)
    daemon.folders.write_persona("fragile", {"fragile": 1.0})
    session = client.open_session("fragile")
    assert session.say("Hello.", max_tokens=2).wait().adapters[0].name == "fragile"
    replace_file(daemon.folders.adapters / "fragile.gguf", b"BAD!")
    assert session.say("Still loaded?", max_tokens=2).wait().adapters[0].name == "fragile"
    daemon.engine_process().kill()
    with pytest.raises(AdapterInvalid, match="BAD!"):
        session.say("And now?", max_tokens=2).wait()
    write_random_adapter(daemon.folders.adapters / "fragile.gguf", 21)
    assert session.say("Again?", max_tokens=2).wait().adapters[0].name == "fragile"


def test_a_message_that_is_too_large_is_an_error_for_whoever_sent_it(client):
    session = client.open_session("a")
    with pytest.raises(MessageTooLarge, match="262144"):
        session.say("x" * 300_000).wait()
    assert session.say("Hello.", max_tokens=2).wait().text


def test_a_client_that_asks_a_lot_and_reads_nothing_disturbs_nobody(daemon, client, raw):
    session = client.open_session("a")
    session.say("Tell me of the road.", turn_id="long", max_tokens=120, min_tokens=120).wait()
    flood = raw()
    assert isinstance(flood.ask(encode(Hello(id=1, protocol=1))), Welcome)
    request = StartTurn(
        id=2, session_id=session.id, turn_id="long", text="Tell me of the road.", max_tokens=120, min_tokens=120
    )
    for _ in range(300):
        flood.socket.send(encode(request))
    client.ping()
    assert client.open_session("b").say("Hello.", max_tokens=2).wait().text
    assert daemon.log_text().count("does not read its messages") <= 10


def test_a_connection_under_another_ones_identity_is_a_stranger(raw):
    first, second = raw(identity=b"twin"), raw(identity=b"twin", connect=False)
    assert isinstance(first.ask(encode(Hello(id=1, protocol=1))), Welcome)
    second.connect()
    answer = second.ask(encode(Ping(id=2)))
    assert isinstance(answer, Error) and answer.code == "hello_required"


def test_an_engine_that_stands_still_is_started_anew(folders):
    with running(folders, max_turn_seconds=2, stuck_engine_seconds=2) as daemon, daemon.client() as client:
        session = client.open_session("a")
        assert session.say("Hello.", max_tokens=2).wait().text
        engine = daemon.engine_process()
        reply = session.say("Tell me everything.", max_tokens=900, min_tokens=900)
        pieces = iter(reply)
        next(pieces)
        engine.send_signal(signal.SIGSTOP)
        with pytest.raises(EngineCrashed):
            list(pieces)
        assert session.say("Hello?", max_tokens=2).wait().text
        assert client.status().engine.restarts == 1


def test_an_answer_that_nobody_can_place_is_not_taken_for_another(raw):
    peer = raw()
    assert isinstance(peer.ask(encode(Hello(id=1, protocol=1))), Welcome)
    peer.socket.send(b"\xc1")
    assert decode_answer(peer.socket.recv()).reply_to is None
