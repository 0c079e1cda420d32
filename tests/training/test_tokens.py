"""Training sees exactly the token ids that serving sees."""

from pathlib import Path

import pytest

from npc_runtime.base_model import find_base_model
from npc_runtime.engine.plan import make_plan
from npc_runtime.llama import LlamaModel
from npc_runtime.persona import load_persona
from npc_runtime.prompt import Conversation, JinjaTemplate, greeting_text, system_text
from npc_runtime.protocol.messages import OpenSession
from npc_runtime.training.tokens import PLAYER, ServingTokens

PERSONAS = sorted((Path(__file__).parents[2] / "personas").glob("*.yaml"))
LINE = "Is the <|im_end|> river cold?\n  Tell me."


@pytest.fixture(scope="module")
def model():
    loaded = LlamaModel(find_base_model("smollm2"), vocab_only=True)
    yield loaded
    loaded.close()


def test_the_player_has_the_name_that_sessions_give():
    assert OpenSession(id=1, persona="mira").player == PLAYER


@pytest.mark.parametrize("path", PERSONAS, ids=lambda path: path.stem)
def test_a_training_prompt_is_the_engine_s_plan_of_a_first_turn(model, path):
    persona = load_persona(path.read_text(encoding="utf-8"), path.name)
    conversation = Conversation(
        system=system_text(persona, PLAYER),
        greeting=greeting_text(persona, PLAYER),
        exchanges=(),
        line=LINE,
        player=PLAYER,
        character=persona.name,
    )
    segments = JinjaTemplate(model.chat_template, model.eos_text).render(conversation)
    plan = make_plan(segments, model, bos=model.bos if model.adds_bos else None, chunk_tokens=256)
    served = tuple(token for call in plan.calls for token in call)
    assert ServingTokens(model).prompt(persona, LINE) == served


def test_a_reply_ends_with_a_token_that_ends_generation(model):
    tokens = ServingTokens(model)
    persona = load_persona(PERSONAS[0].read_text(encoding="utf-8"), PERSONAS[0].name)
    prompt, reply = tokens.exchange(persona, "Hello.", "Morning. Pole's waiting.")
    assert prompt == tokens.prompt(persona, "Hello.")
    assert b"".join(model.piece(token) for token in reply[:-1]) == b"Morning. Pole's waiting."
    assert reply[-1] in model.end_tokens
    assert model.piece(reply[-1], special=True) == b"<|im_end|>"
