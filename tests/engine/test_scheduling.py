"""Turns side by side: who goes next, what waits, what ends while it waits, and that none of it changes a reply."""

import itertools

import msgspec
import pytest

from npc_runtime.engine.commands import (
    Alive,
    AnyEvent,
    DropKv,
    KeepAdapters,
    Leave,
    Probe,
    ReplyDelta,
    RunTurn,
    SetRunning,
    StopTurn,
    TurnBegan,
    TurnDone,
    TurnFailed,
)
from npc_runtime.engine.core import EngineCore
from npc_runtime.engine.idle_work import REST_SECONDS
from tests.engine.scene import Clock, Scene, cold, heard, scripted_core
from tests.engine.scripted_backend import ScriptedBackend

LONG = "The old mill has stood by the river for longer than anybody remembers."
ALPHABET = range(ord("b"), ord("z") + 1)
"""No reply that begins so can become the player's name, so every letter is said at once."""


def running(core: EngineCore, *turns: RunTurn) -> None:
    core.submit(SetRunning(tuple(turn.turn_id for turn in turns)))


def started(scene: Scene, *turns: RunTurn, run: bool = True) -> None:
    """The turns are there, and all of them run."""
    for turn in turns:
        scene.core.submit(turn)
    if run:
        running(scene.core, *turns)


def steps(core: EngineCore, count: int = 10_000) -> list[AnyEvent]:
    """The events of so many steps, or until there is no turn any more."""
    events: list[AnyEvent] = []
    for _ in range(count):
        if not core.busy:
            break
        events.extend(core.step())
    return events


def done_of(events: list[AnyEvent], turn: RunTurn) -> TurnDone:
    (done,) = [event for event in events if isinstance(event, (TurnDone, TurnFailed)) and event.turn_id == turn.turn_id]
    assert isinstance(done, TurnDone), done
    return done


def speakers(events: list[AnyEvent]) -> list[str]:
    return [event.turn_id for event in events if isinstance(event, ReplyDelta)]


def endless(scene: Scene, session: str, **changes) -> RunTurn:
    """A turn that goes on saying the alphabet."""
    scene.core.backend.say_for_ever(ALPHABET)
    return msgspec.structs.replace(scene.turn(session, "Hello", max_tokens=400), **changes)


# Who goes next


def test_turns_that_run_are_computed_in_turn_and_say_what_each_says_alone(a, b):
    scene = Scene(scripted_core(lanes=3, clock=Clock(0.001)))
    turns = [scene.turn(session, LONG, adapters) for session, adapters in zip("stu", ([a], [b], []), strict=True)]
    started(scene, *turns)
    events = steps(scene.core)
    for turn in turns:
        assert heard(done_of(events, turn)) == heard(cold(scripted_core, turn))
    changes = sum(one != other for one, other in itertools.pairwise(speakers(events)))
    assert changes > 20, "they were not interleaved"


def test_the_turn_that_has_had_the_least_time_goes_next():
    clock = Clock()
    scene = Scene(scripted_core(clock=clock))
    slow, quick = endless(scene, "s"), endless(scene, "t")
    started(scene, slow, quick)
    cost = {slow.turn_id: 3.0, quick.turn_id: 1.0}
    real_decode = type(scene.core.lanes.lanes[0]).decode

    def timed_decode(lane, *args, **kwargs):
        clock.now += cost[slow.turn_id if lane.session_id == "s" else quick.turn_id]
        real_decode(lane, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(scene.core.lanes.lanes[0]), "decode", timed_decode)
        steps(scene.core, 20)  # both prompts
        said = speakers(steps(scene.core, 60))
    assert 2.5 < said.count(quick.turn_id) / said.count(slow.turn_id) < 3.6


def test_a_turn_that_does_not_run_waits_where_it_is_and_goes_on_without_loss():
    scene = Scene(scripted_core())
    ambient, player = scene.turn("s", LONG), scene.turn("t", "Quick!")
    for before in range(1, 30, 3):
        scene = Scene(scripted_core())
        started(scene, ambient)
        first = steps(scene.core, before)
        started(scene, player)
        between = steps(scene.core, 1)
        while any(run.turn is player for run, _ in scene.core._runs.values()):
            between += scene.core.step()
        assert {event.turn_id for event in between} == {player.turn_id}
        assert scene.core.wait_seconds() is None
        decoded = scene.core.stats().decode_calls
        assert scene.core.step() == [] and scene.core.stats().decode_calls == decoded
        running(scene.core, ambient)
        rest = steps(scene.core)
        assert heard(done_of(between, player)) == heard(cold(scripted_core, player))
        assert heard(done_of([*first, *rest], ambient)) == heard(cold(scripted_core, ambient))
        assert sum(isinstance(event, TurnBegan) for event in [*first, *rest]) == 1


def test_one_that_comes_back_does_not_silence_those_that_ran_meanwhile():
    scene = Scene(scripted_core(lanes=3, clock=Clock(0.001)))
    waiting, long = endless(scene, "s"), endless(scene, "t")
    started(scene, waiting)
    steps(scene.core, 12)
    started(scene, long)
    steps(scene.core, 80)
    new = endless(scene, "u")
    started(scene, new, run=False)
    running(scene.core, waiting, long, new)
    said = speakers(steps(scene.core, 45))
    assert min(said.count(turn.turn_id) for turn in (waiting, long)) > 12
    assert said.count(new.turn_id) > 5


def test_turns_that_meet_when_nobody_else_runs_begin_as_equals():
    scene = Scene(scripted_core(clock=Clock(0.001)))
    old, new = endless(scene, "s"), endless(scene, "t")
    started(scene, old)
    steps(scene.core, 80)
    running(scene.core)
    started(scene, new, run=False)
    running(scene.core, old, new)
    said = speakers(steps(scene.core, 40))
    assert min(said.count(turn.turn_id) for turn in (old, new)) > 8


def test_turns_that_nobody_chooses_among_run_one_after_the_other():
    scene = Scene(scripted_core())
    turns = [scene.turn(session, "Hello") for session in "stu"]
    for turn in turns:
        scene.core.submit(turn)
    events = steps(scene.core)
    assert [turn for turn, _ in itertools.groupby(speakers(events))] == [turn.turn_id for turn in turns]


def test_names_that_are_no_turns_are_passed_over():
    scene = Scene(scripted_core())
    turn = scene.turn("s", "Hello")
    scene.core.submit(SetRunning(("nobody", turn.turn_id)))
    assert heard(scene.finish(turn)) == heard(cold(scripted_core, turn))


def test_more_turns_than_lanes_is_a_typed_failure_and_those_that_have_lanes_go_on():
    scene = Scene(scripted_core(lanes=1))
    one, two = scene.turn("s", LONG), scene.turn("t", LONG)
    started(scene, one)
    steps(scene.core, 3)
    started(scene, two)
    (failed,) = steps(scene.core, 1)
    assert isinstance(failed, TurnFailed) and failed.code == "busy"
    running(scene.core, one)
    assert heard(done_of(steps(scene.core), one)) == heard(cold(scripted_core, one))


def test_a_failure_in_one_turn_leaves_those_beside_it_alone(a, b):
    scene = Scene(scripted_core(lanes=2, clock=Clock(0.001)))
    one, two = scene.turn("s", LONG, [a]), scene.turn("t", LONG, [b])
    started(scene, one, two)
    early = steps(scene.core, 14)
    scene.core.backend.fail_next(-3)
    events = [*early, *steps(scene.core)]
    failed = [event for event in events if isinstance(event, TurnFailed)]
    assert [event.code for event in failed] == ["decode_failed"]
    other = two if failed[0].turn_id == one.turn_id else one
    assert heard(done_of(events, other)) == heard(cold(scripted_core, other))


def test_adapters_of_turns_that_wait_are_never_freed(a, b):
    scene = Scene(scripted_core(lanes=3, max_loaded_adapters=1))
    one, two = scene.turn("s", LONG, [a]), scene.turn("t", LONG, [b])
    started(scene, one)
    early = steps(scene.core, 8)
    started(scene, two)
    early += steps(scene.core, 8)
    scene.core.submit(KeepAdapters(()))
    assert [adapter.freed for adapter in scene.core.backend.adapters] == [False, False]
    running(scene.core, one, two)
    events = [*early, *steps(scene.core)]
    for turn in (one, two):
        assert heard(done_of(events, turn)) == heard(cold(scripted_core, turn))
    assert [adapter.freed for adapter in scene.core.backend.adapters] == [True, True]


# What ends while it waits


@pytest.mark.parametrize("before", [0, 1, 2, 5, 12])
def test_a_cancel_of_a_waiting_turn_ends_it_at_the_next_step(before):
    scene = Scene(scripted_core())
    waiting = endless(scene, "s")
    started(scene, waiting)
    steps(scene.core, before)
    scene.core.backend.say_freely()
    other = scene.turn("t", LONG)
    started(scene, other)
    early = steps(scene.core, 4)
    scene.core.submit(StopTurn(waiting.turn_id))
    decoded = scene.core.stats().decode_calls
    assert scene.core.wait_seconds() == 0
    tail = steps(scene.core, 2)
    done = done_of(tail, waiting)
    assert done.finish_reason == "cancelled"
    assert done.generated_tokens == (0 if before < 5 else done.generated_tokens)
    assert scene.core.stats().decode_calls - decoded <= 1, "only the other turn goes on"
    assert heard(done_of([*early, *tail, *steps(scene.core)], other)) == heard(cold(scripted_core, other))


def test_a_turn_that_ends_before_it_began_takes_no_lane_and_loads_no_adapter(a):
    scene = Scene(scripted_core(lanes=1))
    one = scene.turn("s", LONG)
    started(scene, one)
    steps(scene.core, 3)
    for number, changes in enumerate(({}, {"deadline_seconds": 0.0})):
        turn = msgspec.structs.replace(scene.turn("t", LONG, [a]), **changes)
        scene.core.submit(turn)
        if not changes:
            scene.core.submit(StopTurn(turn.turn_id))
        done = done_of(steps(scene.core, 1), turn)
        assert (done.finish_reason, done.text) == (("cancelled", "time")[number], "")
    assert scene.core.stats().adapter_loads == 0
    assert scene.core.lanes.lanes[0].session_id == "s"
    assert heard(done_of(steps(scene.core), one)) == heard(cold(scripted_core, one))


def test_a_deadline_that_passes_while_the_turn_waits_ends_it_even_where_nothing_runs():
    clock = Clock()
    scene = Scene(scripted_core(clock=clock))
    turn = msgspec.structs.replace(scene.turn("s", "Hello"), deadline_seconds=3.0)
    later = msgspec.structs.replace(scene.turn("t", "Hello"), deadline_seconds=5.0)
    scene.core.submit(SetRunning(()))
    scene.core.submit(later)
    scene.core.submit(turn)
    assert scene.core.wait_seconds() == 3.0
    clock.now = 2.0
    assert scene.core.wait_seconds() == 1.0 and scene.core.step() == []
    clock.now = 3.0
    assert scene.core.wait_seconds() == 0
    assert done_of(scene.core.step(), turn).finish_reason == "time"
    assert scene.core.wait_seconds() == 2.0


@pytest.mark.parametrize("after", [1, 2, 4, 9, 20])
def test_a_deadline_is_kept_in_prefill_and_at_every_token(after):
    clock = Clock()
    backend = ScriptedBackend()
    scene = Scene(scripted_core(backend, clock=clock))
    turn = endless(scene, "s", deadline_seconds=1.0)
    turn = msgspec.structs.replace(turn, conversation=msgspec.structs.replace(turn.conversation, line=LONG))
    scene.core.submit(turn)
    events = steps(scene.core, after)
    clock.now = 1.0
    decoded = scene.core.stats().decode_calls
    done = done_of([*events, *steps(scene.core)], turn)
    assert done.finish_reason == "time"
    assert scene.core.stats().decode_calls == decoded, "nothing is computed after the deadline"


def test_time_that_others_took_counts_for_the_deadline_and_not_for_the_computing():
    clock = Clock(0.01)
    scene = Scene(scripted_core(clock=clock))
    turn = msgspec.structs.replace(scene.turn("s", LONG), max_seconds=40.0)
    started(scene, turn)
    early = steps(scene.core, 5)
    started(scene, endless(scene, "t"))
    steps(scene.core, 50)
    clock.now += 100
    running(scene.core, turn)
    scene.core.backend.say_freely()
    done = done_of([*early, *steps(scene.core, 300)], turn)
    assert done.finish_reason in ("end", "length")
    assert done.waited_ms > 0


# The rate


def test_tokens_come_no_faster_than_the_rate_and_the_prompt_does_not_wait():
    clock = Clock()
    scene = Scene(scripted_core(clock=clock, max_tokens_per_second=10.0))
    turn = endless(scene, "s")
    scene.core.submit(turn)
    times: list[float] = []
    while len(times) < 12:
        wait = scene.core.wait_seconds()
        assert wait is not None
        clock.now += wait
        times += [clock.now for event in scene.core.step() if isinstance(event, ReplyDelta)]
    assert times[0] == 0.0, "neither prompt nor first token wait"
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == pytest.approx([0.1] * 11)


def test_the_rate_is_one_for_all_turns():
    clock = Clock()
    scene = Scene(scripted_core(clock=clock, max_tokens_per_second=10.0))
    started(scene, endless(scene, "s"), endless(scene, "t"))
    said = 0
    while clock.now < 2.0:
        clock.now += scene.core.wait_seconds() or 0.0
        said += sum(isinstance(event, ReplyDelta) for event in scene.core.step())
    assert 19 <= said <= 22


def test_a_prompt_is_read_while_another_turn_waits_for_its_next_token():
    clock = Clock()
    scene = Scene(scripted_core(clock=clock, max_tokens_per_second=1.0))
    one, other = endless(scene, "s"), endless(scene, "t")
    started(scene, one)
    while not scene.core.wait_seconds():
        scene.core.step()
    scene.core.submit(other)
    running(scene.core, one, other)
    clock.now += 0.5
    events = []
    while scene.core.wait_seconds() == 0:
        events += scene.core.step()
    assert [event.turn_id for event in events if isinstance(event, TurnBegan)] == [other.turn_id]
    lane = scene.core.lanes.find("t", scene.core.lanes.lanes[0].key)
    assert lane is not None and lane.position == scene.core.plan(other.conversation).tokens


def test_a_cancel_does_not_wait_for_the_rate():
    scene = Scene(scripted_core(clock=Clock(), max_tokens_per_second=0.01))
    turn = endless(scene, "s")
    scene.core.submit(turn)
    while not scene.core.wait_seconds():
        scene.core.step()
    scene.core.submit(StopTurn(turn.turn_id))
    assert scene.core.wait_seconds() == 0
    assert done_of(scene.core.step(), turn).finish_reason == "cancelled"


# Idle work


def test_idle_work_never_goes_before_a_turn(tmp_path):
    clock = Clock()
    scene = Scene(scripted_core(lanes=2, clock=clock, kv_dir=str(tmp_path)))
    scene.say("s", "Hello")
    scene.say("t", "Hello")
    clock.now += REST_SECONDS
    scene.core.submit(scene.prepare("s", LONG))
    snapshots = scene.core.stats().ram_snapshots
    turn = scene.turn("t", "And?")
    scene.core.submit(turn)
    events: list[AnyEvent] = []
    while scene.core.busy:
        events += scene.core.step()
        assert (scene.core.stats().ram_snapshots, scene.core.stats().disk_snapshots) == (snapshots, 0)
    assert {event.turn_id for event in events} == {turn.turn_id}
    scene.core.submit(SetRunning(()))
    scene.core.submit(scene.turn("u", "Hello"))
    assert scene.core.wait_seconds() is None and scene.core.step() == [], "a turn waits: it may go on at any moment"


def test_kv_is_written_to_disk_after_a_rest_and_then_the_engine_sleeps(tmp_path):
    clock = Clock()
    scene = Scene(scripted_core(clock=clock, kv_dir=str(tmp_path)))
    scene.say("s", "Hello")
    scene.rest()
    assert scene.core.wait_seconds() == REST_SECONDS
    clock.now += REST_SECONDS
    scene.rest()
    scene.core.kv.disk.flush(30)
    assert scene.core.stats().disk_snapshots == 2, "the conversation and the persona's fixed part"
    assert scene.core.wait_seconds() is None


def test_what_did_not_fit_in_the_queue_of_files_is_written_later(tmp_path, monkeypatch):
    clock = Clock()
    scene = Scene(scripted_core(lanes=4, clock=clock, kv_dir=str(tmp_path)))
    monkeypatch.setattr("npc_runtime.engine.disk_tier.MAX_PENDING", 1)
    for session in "stu":
        scene.say(session, "Hello")
    for _ in range(20):
        clock.now += REST_SECONDS
        scene.rest()
        scene.core.kv.disk.flush(30)
    assert scene.core.stats().disk_snapshots == 4
    assert scene.core.wait_seconds() is None


def test_an_engine_that_leaves_keeps_every_conversation(tmp_path):
    def new_core() -> EngineCore:
        return scripted_core(lanes=2, kv_dir=str(tmp_path))

    scene = Scene(new_core())
    for session in "stuv":
        scene.say(session, f"{session} {LONG}")
    scene.core.submit(Leave())
    assert scene.core.left
    scene.leave()
    scene.core = new_core()
    for session in "stuv":
        turn = scene.turn(session, "And?")
        done = scene.finish(turn)
        assert (done.reused_from, done.rebuilt) == ("disk", False)
        assert heard(done) == heard(cold(scripted_core, turn))


def test_a_sign_of_life_is_given_between_two_steps_of_a_turn():
    scene = Scene(scripted_core())
    scene.core.submit(scene.turn("s", LONG))
    scene.core.step()
    scene.core.submit(Probe(7))
    (alive,) = scene.core.step()
    assert isinstance(alive, Alive) and alive.number == 7 and alive.stats.lanes == 2


# Dropping


@pytest.mark.parametrize("drop", [DropKv(session_id="s"), DropKv(persona_id="You are Mira."), DropKv()])
def test_kv_that_is_dropped_under_a_turn_goes_when_it_has_ended_and_the_reply_is_whole(drop):
    scene = Scene(scripted_core())
    turn = scene.turn("s", LONG)
    scene.core.submit(turn)
    early = steps(scene.core, 6)
    scene.core.submit(drop)
    assert heard(done_of([*early, *steps(scene.core)], turn)) == heard(cold(scripted_core, turn))
    assert scene.core.stats().lanes_bound == 0


def test_dropping_one_persona_leaves_the_others_kv():
    scene = Scene(scripted_core())
    scene.systems["t"] = "You are Bram."
    scene.say("s", "Hello")
    scene.say("t", "Hello")
    scene.core.submit(DropKv(persona_id="You are Mira."))
    assert scene.say("t", "And?").reused_from == "resident"
    turn = scene.turn("s", "And?")
    done = scene.finish(turn)
    assert done.rebuilt and heard(done) == heard(cold(scripted_core, turn))


# Loaded adapters


def test_the_adapter_that_was_used_the_longest_time_ago_makes_room_and_comes_back(a, b):
    scene = Scene(scripted_core(lanes=4, max_loaded_adapters=1))
    for adapters in ([a], [b], [b], [a]):
        turn = scene.turn(adapters[0].name, LONG, adapters)
        assert heard(scene.finish(turn)) == heard(cold(scripted_core, turn))
    assert (scene.core.stats().adapters_loaded, scene.core.stats().adapter_loads) == (1, 3)
    assert [adapter.freed for adapter in scene.core.backend.adapters] == [True, True, False]


def test_a_set_that_is_larger_than_the_limit_is_loaded_whole(a, b):
    scene = Scene(scripted_core(max_loaded_adapters=1))
    turn = scene.turn("s", LONG, [a, b])
    assert heard(scene.finish(turn)) == heard(cold(scripted_core, turn))
    assert scene.core.stats().adapters_loaded == 2


def test_kv_survives_the_loaded_copy_of_its_adapter(a, b):
    scene = Scene(scripted_core(lanes=4, max_loaded_adapters=1))
    scene.say("s", LONG, [a])
    scene.say("t", LONG, [b])
    turn = scene.turn("s", "And?", [a])
    done = scene.finish(turn)
    assert (done.reused_from, done.rebuilt) == ("resident", False)
    assert heard(done) == heard(cold(scripted_core, turn))
