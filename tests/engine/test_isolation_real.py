"""The schedules of ``test_isolation.py`` on real models, as many as there is time for. A test's name has its seed."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from npc_runtime.engine.commands import AdapterSource
from npc_runtime.engine.core import EngineCore
from npc_runtime.llama import LlamaModel
from tests.engine.play import Character, Play, Step
from tests.engine.scene import GREEDY, Clock, Scene, at, cold, engine_settings, heard, source

RIVER = (
    "The village lies where the river bends. There is a ferry, since the storm took the bridge, and a mill with a "
    "broken wheel, and an inn whose keeper has not smiled for a year. In the evening fog comes up from the water, and "
    "people shut their doors and speak of the lights that were seen on the other bank. "
)
"""Some 70 tokens."""


def play_on(
    model: LlamaModel,
    folder: Path,
    characters: Sequence[Character],
    *,
    context_tokens: int,
    ram_bytes: int,
    lanes: int,
    max_tokens: int = 5,
) -> Play:
    def core(clock: Clock, **more: object) -> EngineCore:
        settings = engine_settings(context_tokens=context_tokens, **more)
        return EngineCore(model, settings, base_digest=model.architecture, build="test", clock=clock)

    def warm_core(clock: Clock) -> EngineCore:
        return core(clock, lanes=lanes, ram_bytes=ram_bytes, kv_dir=str(folder), max_loaded_adapters=1)

    return Play(warm_core, lambda: core(Clock(), lanes=1, ram_bytes=0), characters, max_tokens=max_tokens)


def schedule(seed: int, count: int, lanes: int) -> list[Step]:
    """Steps for six conversations of three characters."""
    pick = random.Random(seed)

    def step() -> Step:
        number, length = pick.randrange(6), pick.randrange(2)
        others = [pick.randrange(6) for _ in range(lanes)]
        switches = [(pick.randrange(4), pick.randrange(8)) for _ in range(3)]
        return pick.choice(
            [
                ("say", number, length),
                ("typed", number, length, pick.randrange(1, 4)),
                ("heard", number, length, pick.random() < 0.5),
                ("together", others, lanes, switches),
                ("settle", number),
                ("warm", number),
                ("cancel", number, pick.randrange(6), pick.random() < 0.5),
                ("scale", number, pick.randrange(3)),
                ("drop", number, pick.randrange(3)),
                ("free", number),
                ("rest",),
                ("restart", pick.random() < 0.5),
            ]
        )

    # Each character has spoken, and its first conversation lost its lane, before chance takes over.
    return [
        ("say", 0),
        ("say", 2),
        ("say", 4),
        *(step() for _ in range(count)),
        ("rest",),
        ("restart", False),
        ("say", 0),
    ]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_schedule_of_anything_reaches_into_a_reply(smollm2, smollm2_adapters, tmp_path, seed):
    a, b = map(source, smollm2_adapters)
    characters = [
        Character("You are Mira, who rows the ferry.", [[at(a, 0.8)], [at(a, 0.80001)], [at(a, -0.8)]]),
        Character("You are Mira, who owns the inn.", [[b], [a]]),
        Character("You are Bram, and you keep the mill.", [[at(a, 0.5), b], [at(b, 0.4)], []]),
    ]
    play = play_on(smollm2, tmp_path, characters, context_tokens=256, ram_bytes=6 << 20, lanes=2)
    assert play.play(schedule(seed, 12, 2)) == []


@pytest.mark.gemma3
def test_conversations_beyond_the_sliding_window_that_are_cut_after_a_restore_say_what_they_say_alone(
    gemma3, gemma3_adapters, tmp_path
):
    a, b = map(source, gemma3_adapters)
    characters = [
        Character(RIVER * 8 + "You are Mira, who rows the ferry.", [[at(a, 0.8)], [at(a, 0.80001)]]),
        Character("You are Bram, and you keep the mill.", [[b, at(a, 0.5)]]),
    ]
    play = play_on(gemma3, tmp_path, characters, context_tokens=768, ram_bytes=40 << 20, lanes=1)
    tokens = len(gemma3.tokenize(characters[0].system, special=False))
    assert 512 < tokens < 600, "beyond the window, and with room for a few exchanges"
    differs = play.play(
        [
            ("say", 0),
            ("settle", 0),
            ("say", 2),  # 0 goes to memory
            ("typed", 0, 1, 2),  # comes back, is primed, and what is said differs: cut after a restore
            ("say", 2),
            ("typed", 0, 1, 3),
            ("heard", 0, 1, True),
            ("say", 2),
            ("heard", 0, 0, False),
            ("rest",),
            ("restart", False),
            ("typed", 0, 2, 2),  # the same from disk
            ("cancel", 0, 4, True),
            ("say", 1),  # another conversation begins with the same persona
            ("say", 0, 3),  # what no longer fits is left out
            ("settle", 0),
            ("restart", True),
            ("say", 0),
        ]
    )
    assert differs == []
    assert {"ram", "disk"} <= set(play.from_where)


def test_a_long_common_beginning_is_never_shared_across_adapter_sets(smollm2, smollm2_adapters):
    a, b = map(source, smollm2_adapters)

    def core() -> EngineCore:
        settings = engine_settings(context_tokens=768, lanes=1)
        return EngineCore(smollm2, settings, base_digest="smollm2", build="test")

    scene = Scene(core(), sampling=GREEDY)
    reused = []
    alone: dict[str, tuple[object, ...]] = {}
    voices: list[tuple[str, str, AdapterSource]] = [
        ("mira", "You are Mira.", at(a, 0.8)),
        ("bram", "You are Bram.", b),
        ("near", "You are Mira.", at(a, 0.80004)),
        ("mira", "You are Mira.", at(a, 0.8)),
    ]
    for session, name, adapter in voices:
        scene.systems[session] = RIVER * 8 + name
        turn = scene.turn(session, "Hello", [adapter], max_tokens=5)
        done = scene.finish(turn)
        if session not in alone:
            alone[session] = heard(cold(core, turn))
        assert heard(done) == alone[session], session
        reused.append(done.reused_tokens)
    scene.close()
    assert reused[:3] == [0, 0, 0] and reused[3] >= 500
