"""What is computed before it is needed, and what is kept over evictions and restarts."""

import pytest

from npc_runtime.client import Client
from npc_runtime.errors import (
    Busy,
    InvalidField,
    MessageTooLarge,
    PersonaTooLong,
    UnknownPersona,
    UnknownSession,
)
from npc_runtime.protocol import PROTOCOL_VERSION, encode
from npc_runtime.protocol.messages import Hello, PastExchange, Warm, Warmed
from tests.support.daemon import Folders, running

LINE = "What do you sell on a cold morning like this?"


def talk(client: Client, *lines: str, primes: tuple[str, ...] = ()) -> list[tuple[int, ...]]:
    session = client.open_session("a")
    replies = []
    for line in lines:
        for text in primes:
            session.prime(text)
        replies.append(session.say(line, include_tokens=True).wait().tokens)
    return replies


def test_a_warm_persona_has_its_fixed_part_ready_for_every_new_session(client):
    client.flush()
    warmed = client.warm("b")
    assert warmed.computed_tokens == warmed.ready_tokens > 30
    usage = client.open_session("b").say("Hello.").wait().usage
    assert usage.reused_tokens >= warmed.ready_tokens
    assert client.warm("b").computed_tokens == 0


def test_a_warm_session_pays_for_the_players_words_only(client, smollm2):
    session = client.open_session("a")
    session.say("Hello.").wait()
    warmed = session.warm()
    usage = session.say(LINE).wait().usage
    assert usage.reused_tokens == warmed.ready_tokens
    tail = smollm2.tokenize("<|im_end|>\n<|im_start|>assistant\n", special=True)
    assert usage.new_tokens == len(smollm2.tokenize(LINE, special=False)) + len(tail)


def test_a_primed_line_pays_for_what_came_after_the_last_prime_only(client, smollm2):
    session = client.open_session("a")
    words = LINE.split()
    primed = [session.prime(" ".join(words[:count])) for count in range(1, len(words) + 1)]
    assert not any(answer.superseded for answer in primed)
    ready = [answer.ready_tokens for answer in primed]
    assert ready == sorted(ready)
    usage = session.say(LINE).wait().usage
    assert usage.reused_tokens == ready[-1]
    assert usage.new_tokens <= len(smollm2.tokenize(" this?<|im_end|>\n<|im_start|>assistant\n", special=True))


def test_a_complete_line_leaves_its_turn_one_token(client):
    session = client.open_session("a")
    session.prime("What do you")
    primed = session.prime(LINE, complete=True)
    usage = session.say(LINE).wait().usage
    assert (usage.reused_tokens, usage.new_tokens) == (primed.ready_tokens, 1)


def test_a_line_that_was_changed_after_it_was_primed_is_computed_as_it_is(client):
    session, other = client.open_session("a"), client.open_session("a")
    session.prime("What do you buy on a warm evening, friend?")
    session.prime("What do you sell")
    done = session.say(LINE, include_tokens=True).wait()
    assert done.usage.reused_tokens > 0
    other.prime("What do you sell")
    assert other.say(LINE, include_tokens=True).wait().tokens == done.tokens


def test_what_was_primed_is_replayed_when_the_kv_is_lost(client):
    primes = ("What do", "What do you sell on a cold")
    kept = talk(client, LINE, LINE, "And?", primes=primes)
    session = client.open_session("a")
    again = []
    for line in (LINE, LINE, "And?"):
        for text in primes:
            session.prime(text)
        client.flush()
        again.append(session.say(line, include_tokens=True).wait().tokens)
        client.flush(session_id=session.id)
    assert again == kept


def test_warm_and_prime_name_what_they_do_not_know(client):
    with pytest.raises(UnknownPersona):
        client.warm("nobody")
    session = client.open_session("a")
    session.close()
    for ask in (session.warm, session.history, lambda: session.prime("Hello")):
        with pytest.raises(UnknownSession):
            ask()
    with pytest.raises(UnknownSession):
        client.flush(session_id="nowhere")
    with pytest.raises(UnknownPersona):
        client.flush(persona="nobody")


def test_warm_knows_a_persona_that_was_saved_just_now(new_folders):
    folders = new_folders()
    with running(folders) as daemon, daemon.client() as client:
        with pytest.raises(UnknownPersona):
            client.warm("late")
        folders.write_persona("late", {"a": 1.0})
        assert client.warm("late").ready_tokens > 30


def test_one_clients_warms_do_not_keep_another_out(daemon):
    with daemon.client() as greedy, daemon.client() as other:
        posted = [greedy.post(Warm(id=greedy.new_id(), persona="a")) for _ in range(200)]
        ends = []
        assert other.warm("b").ready_tokens > 0
        for number in posted:
            try:
                ends.append(greedy.next_answer(number, 60))
            except Busy as error:
                ends.append(error)
        assert len(ends) == 200 and any(isinstance(end, Warmed) for end in ends)


def test_warm_wants_a_persona_or_a_session(raw):
    socket = raw()
    socket.ask(encode(Hello(id=1, protocol=PROTOCOL_VERSION)))
    for request in (Warm(id=7), Warm(id=7, persona="a", session_id="s")):
        answer = socket.ask(encode(request))
        assert (answer.reply_to, answer.code) == (7, InvalidField.code)


def test_more_characters_than_lanes_come_back_from_memory_word_for_word(new_folders):
    def play(lanes: int) -> tuple[list[object], int, int]:
        with running(new_folders(), lanes=lanes) as daemon, daemon.client() as client:
            sessions = [client.open_session(name) for name in ("a", "b", "base", "a", "b")]
            said, rebuilt, from_ram = [], 0, 0
            for line in ("Hello.", LINE, "And?"):
                for session in sessions:
                    done = session.say(line, include_tokens=True).wait()
                    said.append(done.tokens)
                    rebuilt += done.rebuilt
                    from_ram += done.usage.reused_ram > 0
            return said, rebuilt, from_ram

    few, many = play(2), play(5)
    assert few[0] == many[0]
    assert (few[1], many[1]) == (0, 0)
    assert few[2] >= 10


def test_after_a_restart_a_saved_conversation_goes_on_from_disk_word_for_word(folders: Folders, tmp_path):
    lines = ("Hello.", LINE, "And what else?")
    with running(folders, kv_dir="") as daemon, daemon.client() as client:
        unbroken = talk(client, *lines)
    with running(folders, kv_dir=tmp_path / "kv") as daemon, daemon.client() as client:
        session = client.open_session("a")
        before = [session.say(line, include_tokens=True).wait().tokens for line in lines[:2]]
        history = session.history()
    assert list((tmp_path / "kv").glob("*.kv"))
    with running(folders, kv_dir=tmp_path / "kv") as daemon, daemon.client() as client:
        session = client.open_session("a", history=history)
        done = session.say(lines[2], include_tokens=True).wait()
        assert done.usage.reused_disk > 0 and not done.rebuilt
        session.close()
    assert [*before, done.tokens] == unbroken


def test_a_persona_that_is_too_long_is_told_when_it_is_loaded(daemon, client):
    sections = "".join(
        f"  The smith knows road number {number} and all who dwell beside it.\n" for number in range(150)
    )
    daemon.folders.write_persona("long", extra="background: |\n" + sections)
    info = next(info for info in client.personas() if info.id == "long")
    while info.prompt_tokens is None:
        info = next(info for info in client.personas() if info.id == "long")
    assert not info.available
    assert str(info.prompt_tokens) in info.problem and "context has 1024 tokens" in info.problem
    with pytest.raises(PersonaTooLong, match="shorten it"):
        client.open_session("long")
    assert client.open_session("a").say("Hello.", max_tokens=2).wait().text


def test_texts_beyond_their_limits_are_refused_before_they_reach_the_model(client):
    session = client.open_session("a")
    with pytest.raises(MessageTooLarge, match="max_line_chars"):
        session.prime("A" * 5000)
    with pytest.raises(InvalidField):
        client.open_session("a", history=[PastExchange("Hello.", "A" * 20_001)])
    with pytest.raises(InvalidField):
        session.say("Hello.", deadline_ms=1e300).wait()
    assert session.say("Hello.", max_tokens=2).wait().text


def test_a_past_with_impossible_tokens_is_that_sessions_error_only(client):
    bad = client.open_session("a", history=[PastExchange("Hello.", "Yes.", tokens=(2**31 - 1,))])
    reply = bad.say("And?")
    for _ in range(2):  # the error that a reply ended with is raised whenever it is read
        with pytest.raises(InvalidField, match="none of this model's"):
            reply.wait()
    odd = client.open_session("a", history=[PastExchange("Hello.", "Yes.", cuts=(0, 10**9, 1))])
    assert odd.say("And?", max_tokens=2).wait().text
    assert client.status().engine.restarts == 0
