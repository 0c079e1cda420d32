"""No reply depends on what else the engine has done: not on other conversations, adapters, scales, evictions, restarts.

Every reply is held against that of an engine that is given the same turn and has never done anything else. To show that
this would notice a mistake, the KV's identity is broken on purpose, and the same checks must fail.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npc_runtime.engine import core as core_module
from npc_runtime.engine.commands import AdapterSource
from npc_runtime.engine.core import EngineCore
from npc_runtime.engine.identity import kv_key
from npc_runtime.engine.lanes import Lane
from tests.engine.play import Character, Play, Step
from tests.engine.scene import GREEDY, Clock, Scene, at, check_isolation, cold, heard, scripted_core, source
from tests.engine.scripted_backend import ScriptedBackend

LONG = "The old mill has stood by the river for longer than anybody remembers."


# One after the other


def schedule(a: AdapterSource, b: AdapterSource) -> list[tuple[str, str, list[AdapterSource]]]:
    """A, B, base and A at another scale: each in its own session, then all in one."""
    sets: list[list[AdapterSource]] = [[a], [b], [], [at(a, 0.4)], [at(a, 0.40001)], [a, b], [b, a], [a]]
    apart = [(f"session {index}", LONG, adapters) for index, adapters in enumerate(sets[:4])] * 2
    return [*apart, *(("one for all", LONG, adapters) for adapters in sets)]


@pytest.mark.parametrize("lanes", [1, 2, 8])
def test_every_reply_is_as_in_a_cold_engine_whatever_ran_before(a, b, lanes):
    replies = check_isolation(lambda: scripted_core(lanes=lanes), schedule(a, b))
    assert len({reply.text for reply in replies[:4]}) == 4


# From every tier, and what each check is worth


def without_adapters(base: str, adapters: object, layout: str) -> str:
    return kv_key(base, (), layout)


def without_scales(base: str, adapters: tuple[AdapterSource, ...], layout: str) -> str:
    return kv_key(base, [at(adapter, 1.0) for adapter in adapters], layout)


def without_order(base: str, adapters: tuple[AdapterSource, ...], layout: str) -> str:
    return kv_key(base, sorted(adapters, key=lambda adapter: adapter.digest), layout)


def with_rounded_scales(base: str, adapters: tuple[AdapterSource, ...], layout: str) -> str:
    return kv_key(base, [at(adapter, round(adapter.scale, 2)) for adapter in adapters], layout)


def without_signs(base: str, adapters: tuple[AdapterSource, ...], layout: str) -> str:
    return kv_key(base, [at(adapter, abs(adapter.scale)) for adapter in adapters], layout)


def without_base(base: str, adapters: tuple[AdapterSource, ...], layout: str) -> str:
    return kv_key("", adapters, layout)


TIERS = ["resident", "ram", "disk"]


def check_coming_back(
    tier: str,
    folder: Path,
    first: Sequence[AdapterSource],
    second: Sequence[AdapterSource],
    *,
    second_base: str = "base",
) -> str:
    """A conversation whose KV is in ``tier`` only goes on under another adapter set or base; where its KV came from.

    Raises AssertionError where it does not speak as in a cold engine.
    """

    def new_core(base: str) -> EngineCore:
        return scripted_core(ScriptedBackend(weights=base), lanes=1, kv_dir=str(folder) if tier == "disk" else "")

    scene = Scene(new_core("base"), sampling=GREEDY)
    scene.systems["other"] = "You are somebody else entirely."
    scene.say("s", LONG, first)
    if tier == "ram":
        scene.say("other", "Hello", first)
    if tier == "disk":
        scene.leave()
        scene.core = new_core(second_base)
    scene.core.backend.weights = scene.core.base_digest = second_base
    turn = scene.turn("s", "And?", second)
    done = scene.finish(turn)
    scene.close()
    assert heard(done) == heard(cold(lambda: scripted_core(ScriptedBackend(weights=second_base)), turn))
    return done.reused_from


def others(a: AdapterSource, b: AdapterSource) -> list[list[AdapterSource]]:
    """Adapter sets that are none of them ``[A at 0.8]``."""
    scales = (0.80001, 0.80004, -0.8, 1.0)
    return [[], [at(b, 0.8)], [at(a, 0.8), at(b, 0.8)], [at(b, 0.8), at(a, 0.8)], *([at(a, scale)] for scale in scales)]


@pytest.mark.parametrize("tier", TIERS)
def test_a_conversation_finds_its_kv_under_the_same_set_only(tmp_path, a, b, tier):
    same = [at(a, 0.8)]
    assert check_coming_back(tier, tmp_path / "same", same, same) == tier
    for number, other in enumerate(others(a, b)):
        assert check_coming_back(tier, tmp_path / str(number), same, other) == ""


@pytest.mark.parametrize("tier", TIERS)
def test_kv_of_another_base_model_is_never_used(tmp_path, a, tier):
    assert check_coming_back(tier, tmp_path, [a], [a], second_base="another base") == ""


MUTANTS = {
    "adapters": (without_adapters, 1.0, 1.0),
    "scales": (without_scales, 0.8, 0.4),
    "near scales": (with_rounded_scales, 0.80001, 0.80004),
    "signs": (without_signs, 0.8, -0.8),
}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("lost", MUTANTS)
def test_the_check_fails_for_a_kv_key_that_leaves_something_out(tmp_path, a, b, tier, lost, monkeypatch):
    mutant, first, second = MUTANTS[lost]
    monkeypatch.setattr(core_module, "kv_key", mutant)
    with pytest.raises(AssertionError):
        check_coming_back(tier, tmp_path, [at(a, first)], [at(b if lost == "adapters" else a, second)])


@pytest.mark.parametrize("tier", TIERS)
def test_the_check_fails_for_a_kv_key_that_leaves_out_the_order(tmp_path, a, b, tier, monkeypatch):
    monkeypatch.setattr(core_module, "kv_key", without_order)
    with pytest.raises(AssertionError):
        check_coming_back(tier, tmp_path, [a, b], [b, a])


@pytest.mark.parametrize("tier", TIERS)
def test_the_check_fails_for_a_kv_key_that_leaves_out_the_base(tmp_path, a, tier, monkeypatch):
    monkeypatch.setattr(core_module, "kv_key", without_base)
    with pytest.raises(AssertionError):
        check_coming_back(tier, tmp_path, [a], [a], second_base="another base")


@pytest.mark.parametrize("mutant", [without_adapters, without_scales, without_order, with_rounded_scales])
def test_the_check_of_whole_schedules_fails_for_such_a_key_too(a, b, mutant, monkeypatch):
    monkeypatch.setattr(core_module, "kv_key", mutant)
    with pytest.raises(AssertionError, match=r"with \["):
        check_isolation(lambda: scripted_core(lanes=1), schedule(a, b))


# Personas that begin with the same words


def shared_beginning() -> str:
    """Well over 500 tokens of the scripted model."""
    return "The ferry, the mill and the inn stand by the river. " * 11


def personas(a: AdapterSource, b: AdapterSource, beginning: str) -> list[tuple[str, str, list[AdapterSource]]]:
    """Session, system text, adapters."""
    return [
        ("mira", beginning + "You are Mira.", [at(a, 0.8)]),
        ("bram", beginning + "You are Bram.", [at(b, 0.8)]),
        ("near", beginning + "You are Mira.", [at(a, 0.80001)]),
        ("nearer", beginning + "You are Mira.", [at(a, 0.80004)]),
        ("negative", beginning + "You are Mira.", [at(a, -0.8)]),
        ("base", beginning + "You are Mira.", []),
    ]


@pytest.mark.parametrize("lanes", [1, 2, 8])
def test_a_long_common_beginning_is_never_shared_across_adapter_sets(tmp_path, a, b, lanes):
    def new_core() -> EngineCore:
        return scripted_core(lanes=lanes, context_tokens=1024, kv_dir=str(tmp_path))

    def cold_core() -> EngineCore:
        return scripted_core(context_tokens=1024)

    scene = Scene(new_core(), sampling=GREEDY)
    for round_number in range(3):
        for session, system, adapters in personas(a, b, shared_beginning()):
            scene.systems[session] = system
            turn = scene.turn(session, "Hello", adapters, max_tokens=6)
            done = scene.finish(turn)
            scene.keep(session, "Hello", done)
            assert heard(done) == heard(cold(cold_core, turn)), session
            assert (done.reused_tokens >= 500) == (round_number > 0), session
        scene.leave()
        scene.core = new_core()
    scene.close()


def test_under_one_adapter_set_a_long_common_beginning_is_shared(a):
    scene = Scene(scripted_core(lanes=2, context_tokens=1024), sampling=GREEDY)
    for session, name in (("s", "Mira"), ("t", "Bram")):
        scene.systems[session] = f"{shared_beginning()}You are {name}."
        done = scene.say(session, "Hello", [a])
    assert done.reused_tokens >= 500


# Anything, in any order


NUMBERS = st.integers(0, 5)
LENGTHS = st.integers(0, 3)
BITS = st.tuples(st.integers(0, 7), st.integers(0, 12))
STEPS = st.one_of(
    st.tuples(st.just("say"), NUMBERS, LENGTHS),
    st.tuples(st.just("say"), NUMBERS, LENGTHS),
    st.tuples(st.just("typed"), NUMBERS, LENGTHS, st.integers(1, 4)),
    st.tuples(st.just("heard"), NUMBERS, LENGTHS, st.booleans()),
    st.tuples(st.just("together"), st.lists(NUMBERS, min_size=1, max_size=3), st.just(3), st.lists(BITS, max_size=4)),
    st.tuples(st.just("settle"), NUMBERS),
    st.tuples(st.just("warm"), NUMBERS),
    st.tuples(st.just("cancel"), NUMBERS, st.integers(0, 16), st.booleans()),
    st.tuples(st.just("scale"), NUMBERS, st.integers(0, 3)),
    st.tuples(st.just("fail"), NUMBERS, st.integers(0, 12), st.sampled_from([1, 2, -1, -2, -3])),
    st.tuples(st.just("drop"), NUMBERS, st.integers(0, 2)),
    st.tuples(st.just("free"), NUMBERS),
    st.tuples(st.just("rest")),
    st.tuples(st.just("restart"), st.booleans()),
)
KINDS = st.sampled_from(["full", "full", "window", "recurrent"])


def scripted_play(folder: Path, lanes: int, ram: int, kind: str, adapters: int) -> Play:
    """Three characters, one with two adapters, in an engine that is short of everything."""
    for name in "ab":
        (folder / f"{name}.gguf").write_bytes(b"GGUF" + name.encode())
    a, b = (source(folder / f"{name}.gguf") for name in "ab")
    characters = [
        Character("You are Mira.", [[at(a, 0.8)], [at(a, 0.80001)], [at(a, -0.8)]]),
        Character("You are Mira. You are old.", [[b], [a]]),
        Character("You are Bram, and you keep the mill.", [[at(a, 0.5), b], [b, at(a, 0.5)], []]),
    ]

    def core(clock: Clock, **more: object) -> EngineCore:
        backend = ScriptedBackend()
        backend.can_truncate, backend.window = kind != "recurrent", 60 if kind == "window" else 0
        return scripted_core(backend, context_tokens=256, clock=clock, **more)

    def warm_core(clock: Clock) -> EngineCore:
        kv_dir = str(folder / "kv")
        return core(clock, lanes=lanes, ram_bytes=ram, kv_dir=kv_dir, max_loaded_adapters=adapters)

    return Play(warm_core, lambda: core(Clock(), lanes=1, ram_bytes=0), characters)


@settings(max_examples=60)
@given(st.integers(1, 3), st.sampled_from([0, 6_000, 1 << 20]), KINDS, st.integers(1, 2), st.lists(STEPS, max_size=14))
def test_no_schedule_of_anything_reaches_into_a_reply(lanes, ram, kind, adapters, steps):
    with tempfile.TemporaryDirectory() as folder:
        play = scripted_play(Path(folder), lanes, ram, kind, adapters)
        steps = [(what, how[0], lanes, how[2]) if what == "together" else (what, *how) for what, *how in steps]
        assert play.play(steps) == []


TOUR: list[Step] = [
    ("say", 0, 2),
    ("say", 2, 2),
    ("say", 4, 2),
    ("rest",),
    ("typed", 0, 2, 3),
    ("heard", 2, 1, True),
    ("heard", 2, 0, False),
    ("scale", 0, 1),
    ("say", 0),
    ("scale", 0, 0),
    ("restart", False),
    ("together", [0, 2, 4], 2, [(1, 6), (2, 4), (3, 9), (0, 2)]),
    ("scale", 4, 1),
    ("say", 4),
    ("say", 1),
    ("rest",),
    ("cancel", 2, 9, True),
    ("restart", True),
    ("say", 2),
    ("say", 0, 3),
    ("say", 0, 3),
    ("say", 0, 3),
]
"""A schedule that meets every tier."""


@pytest.mark.parametrize("kind", ["full", "window", "recurrent"])
def test_a_tour_through_all_tiers_is_as_in_a_cold_engine(tmp_path, kind):
    play = scripted_play(tmp_path, 2, 12_000, kind, 2)
    assert play.play(TOUR) == []
    assert {"resident", "disk"} <= set(play.from_where)


def broken_key(mutant: Callable[..., str]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(core_module, "kv_key", mutant)


def broken_joint(patch: pytest.MonkeyPatch) -> None:
    """A cache beyond its sliding window is copied as it is."""

    def pass_joint(lane: Lane) -> None:
        lane.joint = len(lane.calls)

    patch.setattr(Lane, "pass_joint", pass_joint)


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        ("full", broken_key(without_adapters)),
        ("full", broken_key(without_scales)),
        ("full", broken_key(with_rounded_scales)),
        ("window", broken_joint),
        ("window", lambda patch: patch.setattr(Lane, "can_copy", lambda lane: True)),
    ],
    ids=["adapters", "scales", "near scales", "joints", "copies beyond joints"],
)
def test_the_tour_fails_in_an_engine_that_is_broken_on_purpose(tmp_path, kind, broken, monkeypatch):
    broken(monkeypatch)
    (difference,) = scripted_play(tmp_path, 2, 12_000, kind, 2).play(TOUR)
    assert difference.startswith("session")
