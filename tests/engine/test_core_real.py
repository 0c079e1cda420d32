"""The most important promises of the engine on a real model: SmolLM2 with two adapters of random weights."""

import pytest

from npc_runtime.engine import core as core_module
from npc_runtime.engine.commands import AdapterSource
from npc_runtime.engine.core import EngineCore
from npc_runtime.engine.identity import kv_key
from npc_runtime.llama import DecodeFailed, LlamaContext, LlamaModel
from tests.engine.scene import GREEDY, Scene, at, check_isolation, cold, engine_settings, heard, source
from tests.engine.test_isolation import without_adapters, without_scales

LINE = "Where does the old ferryman live?"


def real_core(model: LlamaModel, lanes: int) -> EngineCore:
    settings = engine_settings(lanes=lanes)
    return EngineCore(model, settings, base_digest="smollm2", build="test")


@pytest.fixture
def a(smollm2_adapters) -> AdapterSource:
    return source(smollm2_adapters[0])


@pytest.fixture
def b(smollm2_adapters) -> AdapterSource:
    return source(smollm2_adapters[1])


LINES = (LINE, "Tell me more.")


def voices(a: AdapterSource, b: AdapterSource) -> dict[str, list[AdapterSource]]:
    return {"A": [a], "B": [b], "base": [], "A at 0.4": [at(a, 0.4)]}


@pytest.fixture(scope="module")
def alone(smollm2, smollm2_adapters) -> dict[tuple[str, str], tuple[object, ...]]:
    """What each voice says in an engine of its own."""
    replies = {}
    for name, adapters in voices(*map(source, smollm2_adapters)).items():
        scene = Scene(real_core(smollm2, 1), sampling=GREEDY)
        for line in LINES:
            replies[name, line] = heard(scene.say(name, line, adapters, max_tokens=8))
        scene.close()
    return replies


@pytest.mark.parametrize("lanes", [1, 4])
def test_interleaved_voices_are_token_for_token_what_each_is_alone(smollm2, a, b, lanes, alone):
    scene = Scene(real_core(smollm2, lanes), sampling=GREEDY)
    for line in LINES:
        for name, adapters in voices(a, b).items():
            assert heard(scene.say(name, line, adapters, max_tokens=8)) == alone[name, line], name
    scene.close()


def test_the_voices_can_be_told_apart(alone):
    assert len({reply[0] for (_, line), reply in alone.items() if line == LINE}) == 4


def one_conversation(a: AdapterSource, b: AdapterSource) -> list[tuple[str, str, list[AdapterSource]]]:
    """One conversation whose adapters and scale change from turn to turn and back."""
    return [("one for all", LINE, adapters) for adapters in ([a], [at(a, -1.0)], [b], [a])]


def test_a_change_of_adapter_or_scale_within_a_conversation_is_as_in_a_cold_engine(smollm2, a, b):
    check_isolation(lambda: real_core(smollm2, 1), one_conversation(a, b), max_tokens=8)


@pytest.mark.parametrize("mutant", [without_adapters, without_scales])
def test_the_isolation_check_fails_for_a_kv_key_that_leaves_something_out(smollm2, a, b, mutant, monkeypatch):
    monkeypatch.setattr(core_module, "kv_key", mutant)
    with pytest.raises(AssertionError, match="one for all"):
        check_isolation(lambda: real_core(smollm2, 1), one_conversation(a, b), max_tokens=8)
    assert core_module.kv_key is not kv_key


def test_from_the_second_turn_on_only_the_new_line_is_decoded(smollm2, a):
    scene = Scene(real_core(smollm2, 2), sampling=GREEDY)
    before = scene.say("s", LINE, [a], max_tokens=8)
    for line in ("Is he kind?", "Thank you."):
        decoded = scene.core.stats().decoded_tokens
        done = scene.say("s", line, [a], max_tokens=8)
        assert done.reused_tokens == before.prompt_tokens + len(before.tokens)
        new = done.prompt_tokens - done.reused_tokens
        assert new <= len(smollm2.tokenize(line + before.rest, special=False)) + 12
        assert done.stats.decoded_tokens - decoded == new + done.generated_tokens
        before = done
    scene.close()


def test_after_a_cancel_and_a_failed_decode_the_next_turn_is_as_in_a_cold_engine(smollm2, a, monkeypatch):
    scene = Scene(real_core(smollm2, 2), sampling=GREEDY)
    scene.say("s", LINE, [a], max_tokens=8)
    for after in (0, 1, 2, 8):
        assert scene.run(scene.turn("s", "Wait!", [a]), cancel_after=after)[-1].finish_reason == "cancelled"

    real_decode = LlamaContext.decode

    def failing(self: LlamaContext, *args: object, **kwargs: object) -> None:
        real_decode(self, *args, **kwargs)
        if self.decode_calls % 4 == 0:
            raise DecodeFailed(-3)

    with monkeypatch.context() as patch:
        patch.setattr(LlamaContext, "decode", failing)
        assert scene.fail(scene.turn("s", "Wait again!", [a])).code == "decode_failed"

    turn = scene.turn("s", "Never mind.", [a], max_tokens=8)
    done = scene.finish(turn)
    scene.close()
    assert heard(done) == heard(cold(lambda: real_core(smollm2, 1), turn))
