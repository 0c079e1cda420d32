"""Prompts and replies as the token ids that serving sees: the runtime's prompt builder and llama.cpp's tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

from npc_runtime.errors import ConfigError
from npc_runtime.llama import LlamaModel
from npc_runtime.persona import Persona
from npc_runtime.prompt import (
    Conversation,
    Exchange,
    JinjaTemplate,
    PromptTemplate,
    Segment,
    TranscriptTemplate,
    greeting_text,
    system_text,
)

PLAYER = "Player"
"""The player's name in training; sessions have it unless the client gives another."""


class ServingTokens:
    """Token ids for one base model. Raises ConfigError where the model's template cannot be used for training."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._template = _template(model)
        self.end_of_turn = self._find_end_of_turn()

    def prompt(self, persona: Persona, line: str) -> tuple[int, ...]:
        """The prompt of a first turn, up to where the reply begins."""
        bos = [self._model.bos] if self._model.adds_bos and self._model.bos is not None else []
        segments = self._template.render(_first_turn(persona, line))
        return (*bos, *self._ids(segments))

    def reply(self, text: str) -> tuple[int, ...]:
        """The ids of a reply as the model would generate it, without the end of the turn."""
        lead = " " if isinstance(self._template, TranscriptTemplate) else ""
        return tuple(self._model.tokenize(lead + text, special=False))

    def exchange(self, persona: Persona, line: str, reply: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Prompt ids, and the ids that carry loss: the reply and the end of the turn."""
        return self.prompt(persona, line), (*self.reply(reply), self.end_of_turn)

    def _ids(self, segments: Iterable[Segment]) -> list[int]:
        ids: list[int] = []
        for segment in segments:
            ids.extend(segment.tokens)
            if segment.text:
                ids.extend(self._model.tokenize(segment.text, special=segment.special))
        return ids

    def _find_end_of_turn(self) -> int:
        """The first id that the template writes after a reply."""
        said = Exchange("player line", "reply")
        segments = self._template.render(
            Conversation(system="s", greeting="", exchanges=(said,), line="l", player="P", character="C")
        )
        place = next(i for i, segment in enumerate(segments) if segment.text.strip() == said.reply)
        token = self._ids(segments[place + 1 :])[0]
        if token not in self._model.end_tokens and not isinstance(self._template, TranscriptTemplate):
            raise ConfigError(
                f"the base model's chat template writes token {token} after a reply, which does not end one; "
                "train on a model whose template closes a turn with its end-of-turn token"
            )
        return token


def _template(model: LlamaModel) -> PromptTemplate:
    return JinjaTemplate(model.chat_template, model.eos_text) if model.chat_template else TranscriptTemplate()


def _first_turn(persona: Persona, line: str) -> Conversation:
    return Conversation(
        system=system_text(persona, PLAYER),
        greeting=greeting_text(persona, PLAYER),
        exchanges=(),
        line=line,
        player=PLAYER,
        character=persona.name,
    )
