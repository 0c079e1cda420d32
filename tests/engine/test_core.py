"""The engine core over a scripted model whose replies change with everything that KV depends on."""

import itertools
from pathlib import Path

import msgspec
import pytest

from npc_runtime.engine.commands import (
    AdapterLoaded,
    AdapterLoading,
    AnyEvent,
    DropKv,
    KeepAdapters,
    ReplyDelta,
    RunTurn,
    StopTurn,
    TurnBegan,
    TurnDone,
    TurnFailed,
)
from npc_runtime.engine.repetition import MIN_TOKENS
from npc_runtime.prompt import Exchange, JinjaTemplate, TranscriptTemplate
from tests.engine.scene import GREEDY, Scene, at, cold, heard, scripted_core, source
from tests.engine.scripted_backend import BOS, EOS, IM_END, ScriptedBackend
from tests.prompt.templates import CHATML, STRICT_TURNS

LONG = "The old mill has stood by the river for longer than anybody remembers."


# One turn


def test_a_turn_begins_once_streams_its_text_and_is_done_once():
    backend = ScriptedBackend()
    backend.say(b"Good evening.")
    scene = Scene(scripted_core(backend))
    turn = scene.turn("s", "Hello")

    events = scene.run(turn)

    assert events[0] == TurnBegan(turn.turn_id)
    assert [type(event) for event in events[1:-1]] == [ReplyDelta] * (len(events) - 2)
    done = events[-1]
    assert isinstance(done, TurnDone)
    assert done.text == "".join(event.text for event in events[1:-1]) == "Good evening."
    assert (done.finish_reason, done.generated_tokens, done.tokens) == ("end", 13, tuple(b"Good evening."))
    assert not scene.core.busy


def test_an_idle_engine_has_nothing_to_step():
    core = scripted_core()
    assert not core.busy
    assert core.step() == []


def test_queued_turns_run_one_after_the_other_in_the_order_they_came():
    scene = Scene(scripted_core())
    turns = [scene.turn(session, "Hello") for session in "abc"]
    for turn in turns:
        scene.core.submit(turn)

    events = []
    while scene.core.busy:
        events.extend(scene.core.step())

    order = [event.turn_id for event in events]
    assert order == sorted(order), "events of two turns are mixed"
    assert [event.turn_id for event in events if isinstance(event, TurnDone)] == [turn.turn_id for turn in turns]


@pytest.mark.parametrize("end", [IM_END, EOS])
def test_every_end_token_of_the_vocabulary_ends_a_reply(end):
    backend = ScriptedBackend()
    backend.say([*b"Yes.", end, *b" never said"])
    done = Scene(scripted_core(backend)).say("s", "Hello")
    assert (done.text, done.finish_reason) == ("Yes.", "end")


def test_a_reply_that_never_ends_is_cut_at_max_tokens():
    backend = ScriptedBackend()
    backend.say_for_ever(range(ord("a"), ord("z") + 1))
    done = Scene(scripted_core(backend)).say("s", "Hello", max_tokens=20)
    assert (done.text, done.finish_reason, done.generated_tokens) == ("abcdefghijklmnopqrst", "length", 20)


def test_a_reply_that_never_ends_is_cut_where_the_context_is_full():
    backend = ScriptedBackend()
    backend.say_for_ever(range(32, 127))
    scene = Scene(scripted_core(backend, context_tokens=128))
    done = scene.say("s", "Hello", max_tokens=8000)
    assert done.finish_reason == "length"
    assert done.prompt_tokens + done.generated_tokens == 128


def test_a_reply_that_goes_round_in_circles_is_cut():
    backend = ScriptedBackend()
    backend.say_for_ever(b"hum")
    done = Scene(scripted_core(backend)).say("s", "Hello", max_tokens=400)
    assert (done.finish_reason, done.generated_tokens) == ("loop", MIN_TOKENS)


def test_a_reply_that_takes_too_long_ends_with_what_was_said():
    backend = ScriptedBackend()
    backend.say_for_ever(range(ord("a"), ord("z") + 1))
    ticks = itertools.count()
    scene = Scene(scripted_core(backend, clock=lambda: float(next(ticks))))
    turn = msgspec.structs.replace(scene.turn("s", "Hello", max_tokens=400), max_seconds=20.0)
    done = scene.finish(turn)
    assert done.finish_reason == "time"
    assert "abcdefghijklmnopqrstuvwxyz".startswith(done.text) and done.text


def test_time_that_runs_out_in_prefill_ends_the_turn_without_a_word():
    ticks = itertools.count()
    scene = Scene(scripted_core(clock=lambda: float(next(ticks))))
    turn = msgspec.structs.replace(scene.turn("s", LONG * 4), max_seconds=6.0)
    done = scene.finish(turn)
    assert (done.finish_reason, done.text, done.generated_tokens) == ("time", "", 0)


def test_min_tokens_keep_a_reply_from_ending_early():
    backend = ScriptedBackend()
    backend.say(b"Hi")
    scene = Scene(scripted_core(backend))
    done = scene.finish(scene.turn("s", "Hello", min_tokens=6))
    assert len(done.tokens) == 6 and done.text.startswith("Hi")


def test_a_stop_string_ends_the_reply_and_is_not_part_of_the_conversation():
    backend = ScriptedBackend()
    backend.say(b"Well met.###and more")
    scene = Scene(scripted_core(backend))
    done = scene.finish(msgspec.structs.replace(scene.turn("s", "Hello"), stops=("###",)))
    assert (done.text, done.finish_reason) == ("Well met.", "stop")
    assert (done.tokens, done.rest) == (tuple(b"Well met."), "")


def test_the_players_own_line_is_never_part_of_a_reply():
    backend = ScriptedBackend()
    backend.say(b"Halt!\nAnna: I run.\nMira: Stop!")
    done = Scene(scripted_core(backend)).say("s", "Hello", max_tokens=60)
    assert (done.text, done.finish_reason, done.tokens) == ("Halt!", "stop", tuple(b"Halt!"))


# Empty replies


@pytest.mark.parametrize("empty", [b"", b" \n ", b"Anna: hello", b"\xf0", b"Mira:"])
def test_an_empty_reply_is_tried_once_more_with_the_end_barred(empty):
    backend = ScriptedBackend()
    backend.say(empty, b"Hm.")
    done = Scene(scripted_core(backend)).say("s", "Hello")
    assert done.text == "Hm.x", "the end tokens are barred for four draws"
    assert done.generated_tokens >= 4


@pytest.mark.parametrize("truncates", [True, False])
def test_the_second_attempt_is_computed_on_the_prompt_alone(truncates):
    backend = ScriptedBackend()
    backend.can_truncate = truncates
    backend.say(b"   ")
    scene = Scene(scripted_core(backend))
    scene.finish(scene.turn("s", LONG))
    turn = scene.turn("s", LONG)
    plain = cold(scripted_core, msgspec.structs.replace(turn, seed=turn.seed + 1, min_tokens=4))
    backend.say(b"   ")
    again = scene.finish(turn)
    assert again.text == plain.text != ""


def test_a_model_that_says_nothing_twice_gives_the_empty_text_and_no_tokens():
    backend = ScriptedBackend()
    backend.say(b"", b"\n \n \n")
    done = Scene(scripted_core(backend)).say("s", "Hello")
    assert (done.text, done.tokens, done.rest, done.finish_reason) == ("", (), "", "end")


def test_an_empty_reply_leaves_no_trace_in_the_next_turn():
    backend = ScriptedBackend()
    scene = Scene(scripted_core(backend))
    scene.say("s", "Hello")
    backend.say(b"", b"     ")
    assert scene.say("s", "And?").text == ""
    turn = scene.turn("s", "Well?")
    assert heard(scene.finish(turn)) == heard(cold(scripted_core, turn))


# Reuse


def test_from_the_second_turn_on_only_the_new_line_is_prefilled():
    scene = Scene(scripted_core())
    before = scene.say("s", "Hello")
    for line in ("Who are you?", "And where is the ferry?", "Thanks."):
        decoded = scene.core.stats().decoded_tokens
        done = scene.say("s", line)
        scaffold = len("<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")
        assert done.reused_tokens == before.prompt_tokens + len(before.tokens)
        assert done.prompt_tokens - done.reused_tokens <= len(line) + len(before.rest.encode()) + scaffold
        assert not done.rebuilt
        count = done.stats.decoded_tokens - decoded
        assert count == done.prompt_tokens - done.reused_tokens + done.generated_tokens
        before = done


def test_a_reply_is_decoded_to_its_last_token_so_that_the_next_turn_finds_all_of_it():
    backend = ScriptedBackend()
    backend.say_for_ever(range(ord("a"), ord("z") + 1))
    scene = Scene(scripted_core(backend))
    first = scene.say("s", "Hello", max_tokens=10)
    second = scene.say("s", "And?")
    assert second.reused_tokens == first.prompt_tokens + 10


def persona_tokens(scene: Scene, turn: RunTurn) -> int:
    plan = scene.core.plan(turn.conversation)
    return sum(map(len, plan.calls[: plan.persona]))


@pytest.mark.parametrize("ram_bytes", [0, 1 << 20])
def test_of_two_conversations_with_the_same_persona_the_second_begins_with_its_fixed_part(ram_bytes):
    scene = Scene(scripted_core(ram_bytes=ram_bytes))
    one, turn = scene.say("s", "Hello"), scene.turn("t", "Good evening")
    other = scene.finish(turn)
    assert other.reused_tokens >= persona_tokens(scene, turn) > 0
    assert other.reused_from == "resident", "the other conversation's lane holds the template's next words as well"
    assert heard(other) == heard(cold(scripted_core, turn)) != heard(one)


def test_another_adapter_set_never_reuses_the_conversations_kv(a, b):
    scene = Scene(scripted_core(lanes=1))
    scene.say("s", "Hello", [a])
    for adapters in ([b], [a, b], [b, a], [], [at(a, 0.4)], [at(a, 0.40001)], [at(a, -1.0)], [at(a, 0.80001)]):
        assert scene.say("s", "Hello", adapters).reused_tokens == 0
    assert scene.say("s", "Hello", [at(a, 0.80004)]).reused_tokens == 0
    assert scene.say("s", "Hello", [a]).reused_from == "ram"


def test_going_back_to_an_adapter_set_finds_its_lane_and_still_says_what_a_cold_engine_says(a, b):
    scene = Scene(scripted_core(lanes=2))
    scene.say("s", "Hello", [a])
    scene.say("s", "Hello again", [b])
    turn = scene.turn("s", "And again", [a])
    done = scene.finish(turn)
    assert done.reused_tokens > 0
    assert heard(done) == heard(cold(scripted_core, turn))


def test_an_unchanged_set_is_not_set_again(a):
    scene = Scene(scripted_core())
    for line in ("one", "two", "three"):
        done = scene.say("s", line, [a])
    assert done.stats.adapter_switches == 1


def test_adapters_and_scales_and_their_order_change_the_reply(a, b):
    replies = {
        Scene(scripted_core()).say("s", "Hello", adapters).text
        for adapters in ([], [a], [b], [at(a, 0.4)], [at(a, -0.4)], [a, b], [b, a])
    }
    assert len(replies) == 7


def test_a_conversation_that_lost_its_lane_comes_back_from_memory():
    scene = Scene(scripted_core(lanes=1))
    first = scene.say("s", "Hello")
    scene.say("t", "Hello")
    turn = scene.turn("s", "And?")
    done = scene.finish(turn)
    assert (done.reused_from, done.rebuilt) == ("ram", False)
    assert done.reused_tokens == first.prompt_tokens + len(first.tokens)
    assert heard(done) == heard(cold(scripted_core, turn))


def test_a_conversation_of_which_nothing_was_kept_is_rebuilt_and_says_so():
    scene = Scene(scripted_core(lanes=1, ram_bytes=0))
    scene.say("s", "Hello")
    scene.say("t", "Hello")
    turn = scene.turn("s", "And?")
    done = scene.finish(turn)
    assert done.rebuilt and done.reused_tokens == 0
    assert heard(done) == heard(cold(scripted_core, turn))


def test_a_model_whose_kv_cannot_be_cut_is_computed_anew_instead():
    backend = ScriptedBackend()
    backend.can_truncate = False
    scene = Scene(scripted_core(backend))
    scene.say("s", "Hello")
    scene.history["s"][-1] = Exchange("Hello", "changed")
    turn = scene.turn("s", "And?")
    assert heard(scene.finish(turn)) == heard(cold(scripted_core, turn))


def test_oldest_exchanges_leave_and_the_conversation_goes_on():
    scene = Scene(scripted_core(context_tokens=256))
    dropped = 0
    for number in range(20):
        done = scene.say("s", f"Line {number}")
        lane = scene.core.lanes.lanes[0]
        said = bytes(token for token in lane.context.tokens if token < 256)
        assert b"You are Mira." in said and f"Line {number}".encode() in said
        assert done.dropped_exchanges == 0, "room was made after the reply that needed it"
        dropped += done.drop_next
        assert len(scene.history["s"]) == number + 1 - dropped
    assert dropped > 10
    turn = scene.turn("s", "Still there?")
    assert heard(scene.finish(turn)) == heard(cold(lambda: scripted_core(context_tokens=256), turn))


@pytest.mark.parametrize(("text", "code"), [("persona", "persona_too_long"), ("line", "line_too_long")])
def test_what_does_not_fit_is_a_typed_failure_and_the_conversation_stays_usable(text, code):
    scene = Scene(scripted_core(context_tokens=256))
    scene.say("s", "Hello")
    turn = scene.turn("s", LONG * 10 if text == "line" else "Hello")
    if text == "persona":
        turn = msgspec.structs.replace(turn, conversation=msgspec.structs.replace(turn.conversation, system=LONG * 10))
    assert scene.fail(turn).code == code
    turn = scene.turn("s", "Sorry.")
    assert heard(scene.finish(turn)) == heard(cold(lambda: scripted_core(context_tokens=256), turn))


# The beginning-of-sequence token


@pytest.mark.parametrize("template", [CHATML, STRICT_TURNS, ""])
@pytest.mark.parametrize("adds_bos", [True, False])
def test_the_beginning_token_stands_once_at_the_front_where_model_or_template_want_it(template, adds_bos):
    backend = ScriptedBackend(chat_template=template, adds_bos=adds_bos)
    scene = Scene(scripted_core(backend))
    for line in ("Hello", "And?", "Well?"):
        scene.say("s", line)
    wanted = adds_bos or template == STRICT_TURNS
    tokens = scene.core.lanes.lanes[0].context.tokens
    assert (tokens[0] == BOS, tokens.count(BOS)) == (wanted, int(wanted))


def test_a_chat_template_that_cannot_be_used_gives_way_to_a_transcript():
    assert isinstance(scripted_core(ScriptedBackend()).template, JinjaTemplate)
    assert isinstance(scripted_core(ScriptedBackend(chat_template="")).template, TranscriptTemplate)
    assert isinstance(scripted_core(ScriptedBackend(chat_template="{% if %}")).template, TranscriptTemplate)


# Cancel


@pytest.mark.parametrize("after", [0, 1, 2, 3, 6, 9, 14])
def test_a_cancel_in_any_phase_ends_the_turn_and_the_next_one_is_as_in_a_cold_engine(after):
    backend = ScriptedBackend()
    scene = Scene(scripted_core(backend))
    scene.say("s", LONG)
    backend.say_for_ever(range(ord("a"), ord("z") + 1))
    events = scene.run(scene.turn("s", LONG, max_tokens=200), cancel_after=after)
    done = events[-1]
    assert isinstance(done, TurnDone)
    assert done.finish_reason == "cancelled"
    assert sum(isinstance(event, (TurnDone, TurnFailed)) for event in events) == 1
    assert "".join(event.text for event in events if isinstance(event, ReplyDelta)) == done.text
    backend.say_freely()

    turn = scene.turn("s", "Never mind.")
    assert heard(scene.finish(turn)) == heard(cold(scripted_core, turn))


def test_the_phases_of_the_cancel_test_are_what_they_are_meant_to_be():
    scene = Scene(scripted_core())
    scene.say("s", LONG)
    generated = []
    for after in (0, 2, 14):
        events = scene.run(scene.turn("s", LONG, max_tokens=200), cancel_after=after)
        generated.append(events[-1].generated_tokens)
    assert generated[:2] == [0, 0] and generated[2] > 0


@pytest.mark.parametrize("after", [1, 3, 12])
def test_nothing_more_is_computed_after_a_cancel(after):
    scene = Scene(scripted_core())
    turn = scene.turn("s", LONG, max_tokens=200)
    scene.core.submit(turn)
    for _ in range(after):
        scene.core.step()
    decoded = scene.core.stats().decode_calls
    scene.core.submit(StopTurn(turn.turn_id))
    while scene.core.busy:
        scene.core.step()
    assert scene.core.stats().decode_calls == decoded


def test_a_cancelled_turn_that_is_kept_is_part_of_the_next_prompt():
    backend = ScriptedBackend()
    scene = Scene(scripted_core(backend))
    backend.say_for_ever(range(ord("a"), ord("z") + 1))
    done = scene.run(scene.turn("s", "Hello", max_tokens=200), cancel_after=20)[-1]
    scene.keep("s", "Hello", done)
    turn = scene.turn("s", "Go on.")
    next_done = scene.finish(turn)
    # The token that was said last is decoded by whoever needs it.
    assert next_done.reused_tokens == done.prompt_tokens + len(done.tokens) - 1 > done.prompt_tokens
    assert heard(next_done) == heard(cold(scripted_core, turn))


def test_a_cancel_of_an_unknown_or_finished_turn_does_nothing():
    scene = Scene(scripted_core())
    turn = scene.turn("s", "Hello")
    scene.core.submit(StopTurn("nobody"))
    done = scene.finish(turn)
    scene.core.submit(StopTurn(turn.turn_id))
    assert done.finish_reason != "cancelled"
    assert scene.say("s", "And?").finish_reason != "cancelled"


# Failures


@pytest.mark.parametrize("code", [1, 2, -1, -2, -3])
@pytest.mark.parametrize("after", [0, 2, 8])
def test_a_failed_decode_ends_the_turn_and_the_next_one_is_as_in_a_cold_engine(code, after):
    backend = ScriptedBackend()
    scene = Scene(scripted_core(backend))
    scene.say("s", "Hello")
    scene.say("t", "Hello")
    backend.fail_next(code, after=after)
    failed = scene.fail(scene.turn("s", LONG))
    assert failed.code == "decode_failed"
    assert str(code) in failed.message

    for session in "st":
        turn = scene.turn(session, "Are you well?")
        assert heard(scene.finish(turn)) == heard(cold(scripted_core, turn))


def test_a_defect_inside_a_turn_is_a_typed_failure_and_the_engine_lives(monkeypatch):
    scene = Scene(scripted_core())
    with monkeypatch.context() as patch:
        patch.setattr(ScriptedBackend, "piece", lambda *args, **kwargs: 1 / 0)
        failed = scene.fail(scene.turn("s", "Hello"))
    assert failed.code == "internal" and "ZeroDivisionError" in failed.message
    assert scene.say("s", "Hello").text


def test_every_sampler_is_freed_whatever_ends_the_turn():
    backend = ScriptedBackend()
    scene = Scene(scripted_core(backend))
    scene.say("s", "Hello")
    scene.run(scene.turn("s", "Hello"), cancel_after=7)
    backend.fail_next(-3, after=8)
    scene.fail(scene.turn("s", LONG))
    assert len(backend.samplers) >= 3
    assert all(sampler.closed for sampler in backend.samplers)


def test_a_lane_under_other_adapters_than_the_turns_is_never_decoded(a):
    scene = Scene(scripted_core())
    scene.core.submit(scene.turn("s", "Hello", [a], max_tokens=200))
    for _ in range(6):
        scene.core.step()
    lane = next(lane for lane in scene.core.lanes.lanes if lane.session_id == "s")
    lane.context.set_adapters(())
    decoded = scene.core.stats().decode_calls
    events = [event for _ in range(3) for event in scene.core.step()]
    assert [event.code for event in events if isinstance(event, TurnFailed)] == ["internal"]
    assert scene.core.stats().decode_calls == decoded


# Adapter files


def test_a_missing_adapter_file_is_a_typed_failure_and_never_base_text(a):
    Path(a.path).unlink()
    scene = Scene(scripted_core())
    events = scene.run(scene.turn("s", "Hello", [a]))
    assert [type(event) for event in events] == [TurnFailed]
    assert events[0].code == "adapter_missing" and a.path in events[0].message
    assert scene.core.stats().decoded_tokens == 0


def test_a_file_with_other_content_than_asked_for_is_a_typed_failure_and_never_base_text(a):
    Path(a.path).write_bytes(b"GGUF something else")
    scene = Scene(scripted_core())
    assert scene.fail(scene.turn("s", "Hello", [a])).code == "adapter_changed"
    assert scene.core.stats().decoded_tokens == 0


def test_a_file_that_is_replaced_while_it_is_read_is_a_typed_failure(a):
    def replace_it(event: AnyEvent) -> None:
        if isinstance(event, AdapterLoading):
            other = Path(a.path).with_suffix(".new")
            other.write_bytes(b"GGUF something else")
            other.replace(a.path)

    backend = ScriptedBackend()
    scene = Scene(scripted_core(backend, notify=replace_it))
    assert scene.fail(scene.turn("s", "Hello", [a])).code == "adapter_changed"
    assert [adapter.freed for adapter in backend.adapters] == [True]


def test_a_file_that_llama_refuses_is_a_typed_failure_and_others_still_work(a, b):
    Path(a.path).write_bytes(b"BAD!")
    scene = Scene(scripted_core())
    assert scene.fail(scene.turn("s", "Hello", [source(Path(a.path))])).code == "adapter_invalid"
    assert scene.say("s", "Hello", [b]).text


def test_loading_a_file_is_announced_before_and_after(a):
    told: list[AnyEvent] = []
    scene = Scene(scripted_core(notify=told.append))
    scene.say("s", "Hello", [a])
    scene.say("s", "Hello", [at(a, 0.4)])
    assert told == [AdapterLoading(a.digest), AdapterLoaded(a.digest)], "one content is loaded once"


def test_a_loaded_adapter_needs_its_file_no_more(a):
    scene = Scene(scripted_core())
    scene.say("s", "Hello", [a])
    turn = scene.turn("s", "And?", [a])
    alone = cold(scripted_core, turn)
    Path(a.path).unlink()
    assert heard(scene.finish(turn)) == heard(alone)


def test_an_adapter_that_is_not_kept_is_taken_out_of_every_lane_and_freed(a, b):
    backend = ScriptedBackend()
    scene = Scene(scripted_core(backend, lanes=3))
    for session, adapters in (("s", [a]), ("t", [a, b]), ("u", [b])):
        scene.say(session, "Hello", adapters)
    scene.core.submit(KeepAdapters((b.digest,)))
    assert [adapter.freed for adapter in backend.adapters] == [True, False]
    assert scene.core.stats().adapters_loaded == 1
    for session, adapters in (("s", [a]), ("t", [a, b]), ("u", [b])):
        turn = scene.turn(session, "And?", adapters)
        assert heard(scene.finish(turn)) == heard(cold(scripted_core, turn))


def test_an_adapter_is_not_freed_under_a_running_turn(a):
    backend = ScriptedBackend()
    scene = Scene(scripted_core(backend))
    turn = scene.turn("s", "Hello", [a])
    alone = cold(scripted_core, turn)
    scene.core.submit(turn)
    scene.core.step()
    scene.core.submit(KeepAdapters(()))
    assert not backend.adapters[0].freed
    events = []
    while scene.core.busy:
        events.extend(scene.core.step())
    assert heard(events[-1]) == heard(alone)
    assert backend.adapters[0].freed


# Sessions


def test_a_forgotten_session_leaves_its_lane_to_others():
    scene = Scene(scripted_core(ram_bytes=0))
    scene.say("s", "Hello")
    assert scene.core.stats().lanes_bound == 1
    scene.core.submit(DropKv(session_id="s"))
    assert scene.core.stats().lanes_bound == 0
    assert scene.say("s", "And?").reused_tokens == 0


def test_a_session_that_is_forgotten_while_its_turn_runs_is_forgotten_when_that_has_ended():
    scene = Scene(scripted_core())
    turn = scene.turn("s", "Hello")
    scene.core.submit(turn)
    scene.core.step()
    scene.core.submit(DropKv(session_id="s"))
    scene.core.submit(StopTurn(turn.turn_id))
    while scene.core.busy:
        scene.core.step()
    assert scene.core.stats().lanes_bound == 0


# The same every time


def test_greedy_replies_do_not_depend_on_the_seed():
    scene = Scene(scripted_core(), sampling=GREEDY)
    turn = scene.turn("s", "Hello")
    assert len({cold(scripted_core, msgspec.structs.replace(turn, seed=seed)).text for seed in range(4)}) == 1


def test_the_same_seed_gives_the_same_reply_and_another_seed_another():
    turn = Scene(scripted_core()).turn("s", "Hello")
    assert cold(scripted_core, turn).text == cold(scripted_core, turn).text
    assert len({cold(scripted_core, msgspec.structs.replace(turn, seed=seed)).text for seed in range(4)}) > 1


def test_the_engine_tells_what_it_runs():
    core = scripted_core(lanes=3, context_tokens=256)
    ready = core.ready("base.gguf")
    assert (ready.architecture, ready.digest, ready.name) == ("scripted", "base", "base.gguf")
    assert (ready.stats.lanes, ready.stats.context_tokens, ready.stats.decoded_tokens) == (3, 256, 0)
