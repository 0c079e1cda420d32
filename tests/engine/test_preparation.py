"""What is computed before the player speaks: it is never wasted where it fits, and never changes a reply."""

from pathlib import Path

import msgspec
import pytest

from npc_runtime.engine.commands import DropKv, KeepAdapters, MeasurePersona, PersonaMeasured, Prepared, RunTurn
from npc_runtime.engine.idle_work import PAUSE_SECONDS
from npc_runtime.engine.preparation import stable_words
from tests.engine.scene import Clock, Scene, cold, heard, scripted_core, source
from tests.engine.scripted_backend import ScriptedBackend

LONG = "The old mill has stood by the river for longer than anybody remembers."
WORDS = "Do you know who lives in the old mill by the river?"


@pytest.fixture
def scene() -> Scene:
    return Scene(scripted_core())


def check(scene: Scene, turn: RunTurn, new_tokens: int | None = None) -> None:
    """The reply is a cold engine's, and so many tokens of the prompt had to be computed for it."""
    done = scene.finish(turn)
    assert heard(done) == heard(cold(scripted_core, turn))
    if new_tokens is not None:
        assert done.prompt_tokens - done.reused_tokens == new_tokens


def ends_of(events: list) -> list[tuple[str, bool]]:
    return [(event.prepare_id, event.superseded) for event in events if isinstance(event, Prepared)]


AFTER_LINE = len("<|im_end|>\n<|im_start|>assistant\n") - len("<|im_end|><|im_start|>") + 2
"""Tokens that the template writes after the player's line: letters, and two control tokens."""


def test_the_words_of_a_line_are_stable_up_to_the_last_one():
    assert [stable_words(text) for text in ("", "  ", "Do", "Do ", "Do you", " Do you ", "Do you\nkn")] == [
        "",
        "",
        "",
        "Do",
        "Do",
        "Do you",
        "Do you",
    ]


# After a reply, and when the player comes near


def test_after_a_reply_all_before_the_players_next_line_is_computed(scene):
    scene.say("s", "Hello")
    prepared = scene.rehearse(scene.prepare("s"))
    turn = scene.turn("s", "And?")
    plan = scene.core.plan(turn.conversation)
    before = sum(map(len, plan.calls[: plan.history]))
    assert (prepared.ready_tokens, prepared.primed, prepared.superseded, prepared.error_code) == (before, (), False, "")
    assert 0 < prepared.computed_tokens < before
    check(scene, turn, len("And?") + AFTER_LINE)


def test_a_warm_session_that_is_new_pays_for_its_line_only(scene):
    scene.rehearse(scene.prepare("s"))
    check(scene, scene.turn("s", "Hello"), len("Hello") + AFTER_LINE)


def test_a_warm_persona_gives_every_new_session_its_fixed_part(scene):
    prepared = scene.rehearse(scene.prepare(""))
    for session in "st":
        turn = scene.turn(session, "Hello")
        plan = scene.core.plan(turn.conversation)
        fixed = sum(map(len, plan.calls[: plan.persona]))
        assert prepared.ready_tokens == prepared.computed_tokens == fixed
        check(scene, turn)
        assert scene.core.stats().decoded_tokens > 0
    check(scene, scene.turn("u", LONG))


def test_a_warm_persona_under_one_adapter_set_gives_another_set_nothing(scene, tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF a")
    a = source(tmp_path / "a.gguf")
    scene.rehearse(scene.prepare("", adapters=[a]))
    for adapters in ([], [msgspec.structs.replace(a, scale=0.80001)], [msgspec.structs.replace(a, scale=-1.0)]):
        turn = scene.turn(str(adapters), "Hello", adapters)
        assert scene.finish(turn).reused_tokens == 0
    turn = scene.turn("s", "Hello", [a])
    assert scene.finish(turn).reused_tokens > 0


def test_what_is_ready_already_is_not_computed_again(scene):
    first = scene.rehearse(scene.prepare("s"))
    again = scene.rehearse(scene.prepare("s"))
    assert (again.ready_tokens, again.computed_tokens) == (first.ready_tokens, 0)


def test_a_warm_session_keeps_what_its_lane_has_beyond(scene):
    scene.say("s", "Hello")
    scene.rehearse(scene.prepare("s", "Do you know the "))
    decoded = scene.core.stats().decoded_tokens
    scene.rehearse(scene.prepare("s"))
    scene.rehearse(scene.prepare("s", "Do you know the "))
    assert scene.core.stats().decoded_tokens == decoded


# While the line is being typed


def test_a_line_that_is_primed_word_by_word_is_computed_once_and_the_reply_is_the_same(scene):
    scene.say("s", "Hello")
    scene.rehearse(scene.prepare("s"))
    computed = 0
    for end in range(1, len(WORDS) + 1):
        prepared = scene.rehearse(scene.prepare("s", WORDS[:end]))
        computed += prepared.computed_tokens
    stable = len(stable_words(WORDS))
    assert computed == stable == sum(map(len, prepared.primed))
    check(scene, scene.turn("s", WORDS), len(WORDS) - stable + AFTER_LINE)


def test_the_calls_of_a_primed_line_stay_with_the_conversation(scene):
    scene.rehearse(scene.prepare("s", WORDS[:20]))
    scene.rehearse(scene.prepare("s", WORDS[:33]))
    done = scene.say("s", WORDS)
    plain = Scene(scripted_core()).say("s", WORDS)
    assert done.cuts != plain.cuts
    assert sum(done.cuts) == sum(plain.cuts)
    check(scene, scene.turn("s", "And?"))


def test_a_primed_line_is_said_as_a_cold_engine_says_it_with_the_same_calls_and_maybe_not_with_others(scene):
    scene.rehearse(scene.prepare("s", WORDS[:20]))
    turn = scene.turn("s", WORDS)
    other = msgspec.structs.replace(turn, conversation=msgspec.structs.replace(turn.conversation, primed=()))
    done = scene.finish(turn)
    assert heard(done) == heard(cold(scripted_core, turn)) != heard(cold(scripted_core, other))


def test_a_line_that_is_complete_leaves_its_turn_one_token(scene):
    scene.say("s", "Hello")
    prepared = scene.rehearse(scene.prepare("s", WORDS, complete=True))
    turn = scene.turn("s", WORDS)
    assert prepared.ready_tokens == scene.core.plan(turn.conversation).tokens - 1
    check(scene, turn, 1)


def test_a_line_that_is_complete_and_goes_on_pays_for_what_is_new(scene):
    scene.say("s", "Hello")
    scene.rehearse(scene.prepare("s", WORDS, complete=True))
    check(scene, scene.turn("s", WORDS + " Say!"), len("river? Say!") + 1 + AFTER_LINE)


def test_a_line_that_is_complete_twice_is_computed_once(scene):
    scene.rehearse(scene.prepare("s", WORDS, complete=True))
    again = scene.rehearse(scene.prepare("s", WORDS, complete=True))
    assert again.computed_tokens == 0
    check(scene, scene.turn("s", WORDS), 1)


@pytest.mark.parametrize("line", ["Do", "Do you know him? "])
def test_a_complete_line_may_be_one_word_or_end_in_a_blank(scene, line):
    scene.rehearse(scene.prepare("s", line, complete=True))
    check(scene, scene.turn("s", line.strip()), 1)


def test_a_complete_line_whose_reply_is_lost_with_its_kv_is_computed_in_the_same_calls(scene):
    scene.rehearse(scene.prepare("s", WORDS, complete=True))
    done = scene.say("s", WORDS)
    scene.core.submit(DropKv())
    assert done.cuts[-1] == 1
    check(scene, scene.turn("s", "And?"))


@pytest.mark.parametrize(
    "said",
    ["Do you know him?", "Did anybody see the ferryman?", "Do", "", "Something else altogether.", WORDS + " Say!"],
)
def test_a_line_that_was_edited_pays_for_what_differs(scene, said):
    scene.say("s", "Hello")
    for end in (11, 30, len(WORDS)):
        scene.rehearse(scene.prepare("s", WORDS[:end]))
    again = scene.rehearse(scene.prepare("s", said))
    assert again.error_code == ""
    turn = scene.turn("s", said)
    done = scene.finish(turn)
    assert heard(done) == heard(cold(scripted_core, turn))
    plan = scene.core.plan(turn.conversation)
    assert done.reused_tokens >= sum(map(len, plan.calls[: plan.history]))


def test_a_line_that_was_primed_and_is_never_said_changes_nothing(scene):
    scene.say("s", "Hello")
    scene.rehearse(scene.prepare("s", WORDS))
    scene.primed.clear()
    check(scene, scene.turn("s", "Goodbye."))


def test_a_primed_conversation_that_loses_its_lane_and_the_engine_says_the_same(scene, tmp_path):
    def new_core():
        return scripted_core(lanes=1, kv_dir=str(tmp_path))

    scene = Scene(new_core())
    scene.rehearse(scene.prepare("s", WORDS[:30]))
    scene.say("t", "Hello")
    scene.leave()
    scene.core = new_core()
    turn = scene.turn("s", WORDS)
    done = scene.finish(turn)
    assert done.reused_from == "disk"
    assert heard(done) == heard(cold(scripted_core, turn))


# What ends it


def test_a_newer_preparation_of_the_session_takes_the_place_of_the_older_one(scene):
    first, second = scene.prepare("s", LONG), scene.prepare("s", WORDS)
    scene.core.submit(first)
    scene.core.step()
    scene.core.submit(second)
    assert ends_of(scene.rest()) == [(first.prepare_id, True), (second.prepare_id, False)]


def test_the_sessions_turn_takes_the_place_of_its_preparation(scene):
    preparation, turn = scene.prepare("s", LONG), scene.turn("s", LONG)
    scene.core.submit(preparation)
    scene.core.step()
    events = scene.run(turn)
    assert ends_of(events) == [(preparation.prepare_id, True)]
    assert heard(events[-1]) == heard(cold(scripted_core, turn))


def test_a_turn_of_another_session_goes_first_and_the_preparation_goes_on_afterwards(scene):
    preparation = scene.prepare("s", LONG * 2)
    scene.core.submit(preparation)
    scene.core.step()
    scene.core.step()
    events = scene.run(scene.turn("t", "Hello"))
    assert ends_of(events) == []
    assert ends_of(scene.rest()) == [(preparation.prepare_id, False)]


def test_a_preparation_whose_lane_went_to_a_turn_is_given_up():
    scene = Scene(scripted_core(lanes=1))
    preparation = scene.prepare("s", LONG * 2)
    scene.core.submit(preparation)
    scene.core.step()
    scene.say("t", "Hello")
    assert ends_of(scene.rest()) == [(preparation.prepare_id, True)]
    check(scene, scene.turn("s", LONG))


@pytest.mark.parametrize("drop", [DropKv(session_id="s"), DropKv(persona_id="You are Mira."), DropKv()])
def test_a_preparation_whose_kv_is_dropped_is_given_up(scene, drop):
    preparation = scene.prepare("s", LONG * 2)
    scene.core.submit(preparation)
    scene.core.step()
    scene.core.step()
    scene.core.submit(drop)
    assert ends_of(scene.rest()) == [(preparation.prepare_id, True)]
    assert scene.core.stats().lanes_bound == 0


def test_a_preparation_whose_adapter_is_freed_is_given_up(scene, tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF a")
    adapters = [source(tmp_path / "a.gguf")]
    preparation = scene.prepare("s", LONG * 2, adapters)
    scene.core.submit(preparation)
    scene.core.step()
    scene.core.submit(KeepAdapters(()))
    assert ends_of(scene.rest()) == [(preparation.prepare_id, True)]
    check(scene, scene.turn("s", LONG, adapters))


def test_a_preparation_whose_adapter_makes_room_for_a_turns_is_given_up(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.gguf").write_bytes(b"GGUF" + name.encode())
    scene = Scene(scripted_core(max_loaded_adapters=1))
    preparation = scene.prepare("s", LONG * 2, [source(tmp_path / "a.gguf")])
    scene.core.submit(preparation)
    scene.core.step()
    scene.say("t", "Hello", [source(tmp_path / "b.gguf")])
    assert ends_of(scene.rest()) == [(preparation.prepare_id, True)]
    check(scene, scene.turn("s", LONG, [source(tmp_path / "a.gguf")]))


def test_a_preparation_of_a_session_and_one_with_the_sessions_name_are_two(scene):
    session, persona = scene.prepare("s", LONG), msgspec.structs.replace(scene.prepare(""), prepare_id="s")
    scene.core.submit(session)
    scene.core.submit(persona)
    assert sorted(ends_of(scene.rest())) == [(session.prepare_id, False), ("s", False)]


# Errors


@pytest.mark.parametrize("code", [1, 2, -1, -2, -3])
@pytest.mark.parametrize("after", [0, 2])
def test_a_failed_decode_is_a_typed_end_and_the_next_turn_is_a_cold_engines(scene, code, after):
    scene.say("s", "Hello")
    scene.say("t", "Hello")
    scene.core.backend.fail_next(code, after=after)
    prepared = scene.rehearse(scene.prepare("s", LONG))
    assert (prepared.error_code, prepared.ready_tokens, prepared.superseded) == ("decode_failed", 0, False)
    assert str(code) in prepared.error
    for session in "st":
        check(scene, scene.turn(session, LONG))


def test_a_missing_adapter_is_a_typed_end(scene, tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF a")
    adapters = [source(tmp_path / "a.gguf")]
    Path(adapters[0].path).unlink()
    prepared = scene.rehearse(scene.prepare("s", LONG, adapters))
    assert prepared.error_code == "adapter_missing" and "a.gguf" in prepared.error
    check(scene, scene.turn("s", LONG))


def test_a_defect_inside_a_preparation_is_a_typed_end_and_the_engine_lives(scene, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ScriptedBackend, "tokenize", lambda *args, **kwargs: 1 / 0)
        prepared = scene.rehearse(scene.prepare("s", LONG))
    assert prepared.error_code == "internal" and "ZeroDivisionError" in prepared.error
    check(scene, scene.turn("s", LONG))


def test_what_does_not_fit_the_context_is_not_computed_in_advance():
    scene = Scene(scripted_core(context_tokens=128))
    prepared = scene.rehearse(scene.prepare("s", LONG * 3 + " "))
    assert (prepared.ready_tokens, prepared.computed_tokens, prepared.error_code) == (0, 0, "")
    assert scene.core.stats().decoded_tokens == 0


# Idle time


def test_what_nobody_asked_for_waits_until_no_turn_has_run_for_a_moment():
    clock = Clock()
    scene = Scene(scripted_core(clock=clock))
    scene.say("s", "Hello")
    decoded = scene.core.stats().decoded_tokens
    unasked = msgspec.structs.replace(scene.prepare("s"), prepare_id="")
    scene.core.submit(unasked)
    assert scene.rest() == []
    assert scene.core.wait_seconds() == PAUSE_SECONDS
    asked = scene.prepare("t")
    scene.core.submit(asked)
    assert ends_of(scene.rest()) == [(asked.prepare_id, False)], "what was asked for does not wait"
    clock.now += PAUSE_SECONDS
    assert ends_of(scene.rest()) == [("", False)]
    assert scene.core.stats().decoded_tokens > decoded


def test_old_exchanges_that_no_longer_fit_leave_before_the_player_speaks():
    def new_core():
        return scripted_core(context_tokens=256)

    scene = Scene(new_core())
    for number in range(12):
        done = scene.say("s", f"Line {number}")
        scene.rehearse(scene.prepare("s"))
        turn = scene.turn("s", "Still there?")
        plan = scene.core.plan(turn.conversation)
        before = sum(map(len, plan.calls[: plan.history]))
        assert scene.core.lanes.find("s", scene.core.lanes.lanes[0].key).position == before
        if done.drop_next:
            again = scene.finish(turn)
            assert (again.dropped_exchanges, again.reused_tokens, again.rebuilt) == (0, before, False)
            assert heard(again) == heard(cold(new_core, turn))
            return
    pytest.fail("nothing was dropped")


def test_a_persona_is_measured_in_idle_time_without_a_decode(scene):
    conversation = scene.conversation("s", "")
    scene.core.submit(MeasurePersona(version="v1", conversation=conversation))
    assert scene.core.wait_seconds() == 0
    plan = scene.core.plan(conversation)
    assert scene.rest() == [PersonaMeasured("v1", sum(map(len, plan.calls[: plan.persona])))]
    assert scene.core.stats().decode_calls == 0
