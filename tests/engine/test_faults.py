"""llama_decode fails anywhere: a typed error, and the next turn is as in an engine that never failed."""

import numpy as np
import pytest

from npc_runtime.engine.commands import AdapterSource
from npc_runtime.engine.core import EngineCore
from npc_runtime.llama import LlamaModel
from npc_runtime.llama import context as llama_context
from tests.engine.scene import GREEDY, Scene, cold, engine_settings, heard, scripted_core, source
from tests.engine.scripted_backend import ScriptedBackend
from tests.support.random_adapter import write_random_adapter

CODES = [1, 2, -1, -2, -3]
"""What ``llama_decode`` is documented to return: no slot, aborted, bad batch, and two that are fatal to the batch."""
LONG = "The old mill has stood by the river for longer than anybody remembers, and so has its keeper."


# On the scripted model, at every call


def prefill_calls(scene: Scene, line: str) -> int:
    """How many calls the session's next prompt takes beyond what is there."""
    plan = scene.core.plan(scene.conversation("s", line))
    return len(plan.calls) - plan.said


@pytest.mark.parametrize("code", CODES)
def test_a_decode_that_fails_at_any_call_of_a_turn_ends_it_and_nothing_of_it_stays(code):
    for after in range(16):
        scene = Scene(scripted_core(lanes=1 + after % 2, ram_bytes=4000))
        scene.say("s", "Hello")
        scene.say("t", "Hello")
        assert 6 < prefill_calls(scene, LONG) < 12, "the first calls are the prompt's, the others the reply's"
        scene.core.backend.fail_next(code, after=after)
        failed = scene.fail(scene.turn("s", LONG))
        assert failed.code == "decode_failed" and f"returned {code};" in failed.message
        for session in "st":
            turn = scene.turn(session, "Are you well?", max_tokens=8)
            assert heard(scene.finish(turn)) == heard(cold(scripted_core, turn)), f"call {after}"


def test_a_turn_fails_whose_adapters_make_numbers_that_are_none_and_the_lane_is_clean_afterwards(tmp_path):
    (tmp_path / "inf.gguf").write_bytes(b"GGUF inf")
    scene = Scene(scripted_core(lanes=1))
    failed = scene.fail(scene.turn("s", LONG, [source(tmp_path / "inf.gguf")]))
    assert (
        failed.code == "adapter_invalid"
        and "under 'inf' × 1 " in failed.message
        and "lower the scale" in failed.message
    )
    turn = scene.turn("s", LONG)
    assert heard(scene.finish(turn)) == heard(cold(scripted_core, turn))


# On real models: llama_decode itself is replaced


class FailingDecode:
    """Returns ``code`` at one call. Where the code says that parts of the batch stay, they do."""

    def __init__(self, code: int, at: int) -> None:
        self._code = code
        self._at = at
        self._real = llama_context.lib.llama_decode

    def __call__(self, context, batch) -> int:
        self._at -= 1
        if self._at != -1:
            return self._real(context, batch)
        if self._code not in (1, -1):
            self._real(context, batch)
        return self._code


def real_core(model: LlamaModel) -> EngineCore:
    return EngineCore(model, engine_settings(lanes=2, context_tokens=256), base_digest="base", build="test")


@pytest.fixture(params=["smollm2", pytest.param("gemma3", marks=pytest.mark.gemma3)])
def real(request) -> tuple[LlamaModel, list[AdapterSource]]:
    return request.getfixturevalue(request.param), [source(request.getfixturevalue(f"{request.param}_adapters")[0])]


def test_llama_decode_that_fails_in_the_prompt_or_in_the_reply_ends_the_turn_and_nothing_of_it_stays(real, monkeypatch):
    model, adapters = real
    scene = Scene(real_core(model), sampling=GREEDY)
    scene.say("s", "Hello.", adapters, max_tokens=4)
    turn = scene.turn("s", "Where does the old ferryman live?", adapters, max_tokens=3)
    expected = heard(cold(lambda: real_core(model), turn))
    for code in CODES if model.architecture == "llama" else (2, -1):
        for at in (0, 2):  # in the prompt, in the reply
            with monkeypatch.context() as patch:
                patch.setattr(llama_context.lib, "llama_decode", FailingDecode(code, at))
                failed = scene.fail(scene.turn("s", "What? " * 12, adapters, max_tokens=6))
            assert failed.code == "decode_failed" and f"returned {code};" in failed.message
            assert heard(scene.finish(turn)) == expected, f"code {code} at call {at}"
    scene.close()


def test_an_adapter_with_infinite_weights_is_a_typed_failure_and_the_next_turn_is_a_cold_engines(smollm2, tmp_path):
    path = write_random_adapter(tmp_path / "inf.gguf", 1, blocks=2, strength=np.inf)
    scene = Scene(real_core(smollm2), sampling=GREEDY)
    failed = scene.fail(scene.turn("s", "Hello.", [source(path)]))
    assert (
        failed.code == "adapter_invalid"
        and "under 'inf' × 1 " in failed.message
        and "lower the scale" in failed.message
    )
    turn = scene.turn("s", "Hello.", max_tokens=6)
    done = scene.finish(turn)
    scene.close()
    assert heard(done) == heard(cold(lambda: real_core(smollm2), turn))


def test_the_scripted_model_fails_as_the_real_one_does():
    """``fail_next`` leaves in the cache what llama.cpp leaves there."""
    for code, left in ((1, 0), (-1, 0), (2, 3), (-2, 3), (-3, 3)):
        backend = ScriptedBackend()
        scene = Scene(scripted_core(backend))
        context = scene.core.lanes.lanes[0].context
        backend.fail_next(code)
        with pytest.raises(llama_context.DecodeFailed):
            context.decode((1, 2, 3, 4), 0, want_logits=True)
        assert len(context.cells) == left
