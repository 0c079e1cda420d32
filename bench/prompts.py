"""Prompts as token ids, exactly as the daemon makes them, for the systems that are given ids."""

from __future__ import annotations

from pathlib import Path

from npc_runtime.llama import LlamaModel
from npc_runtime.prompt import Conversation, JinjaTemplate


class Prompts:
    """The model's chat template and vocabulary, without its weights."""

    def __init__(self, model: Path) -> None:
        self._model = LlamaModel(model, vocab_only=True)
        self._template = JinjaTemplate(self._model.chat_template, self._model.eos_text)

    def count(self, text: str) -> int:
        """How many tokens a piece of plain text has."""
        return len(self._model.tokenize(text, special=False))

    def tokens(self, conversation: Conversation) -> list[int]:
        """The whole prompt, up to where the reply begins."""
        ids: list[int] = []
        for segment in self._template.render(conversation):
            ids.extend(segment.tokens)
            if segment.text:
                ids.extend(self._model.tokenize(segment.text, special=segment.special))
        return ids

    def opening_tokens(self, system: str) -> int:
        """How many tokens come before the player's first line."""
        count = 0
        conversation = Conversation(system=system, greeting="", exchanges=(), line="x", player="P", character="C")
        for segment in self._template.render(conversation):
            count += len(self._model.tokenize(segment.text, special=segment.special))
            if segment.ends_block:
                break
        return count

    def text(self, tokens: list[int]) -> str:
        """The text of generated tokens."""
        return b"".join(self._model.piece(token) for token in tokens).decode("utf-8", "replace")
