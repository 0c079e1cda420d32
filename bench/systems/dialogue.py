"""The conversation as the systems keep it that are given whole prompts."""

from __future__ import annotations

import msgspec

from bench.cast import Cast
from npc_runtime.prompt.conversation import Exchange


class Dialogue:
    """What was said so far, and the prompt for the next line."""

    def __init__(self, cast: Cast, character: int) -> None:
        self._prompts = cast.prompts
        self._conversation = cast.conversation(character)

    def prompt(self, line: str) -> list[int]:
        """Token ids of the whole prompt with ``line`` as the newest."""
        return self._prompts.tokens(msgspec.structs.replace(self._conversation, line=line))

    def before_line(self) -> list[int]:
        """The tokens of the next prompt that are known before the player speaks."""
        one, other = self.prompt("A"), self.prompt("7")
        same = next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        return one[:same]

    def add(self, line: str, tokens: list[int]) -> None:
        """Both lines were said."""
        exchange = Exchange(line, self._prompts.text(tokens), tuple(tokens))
        self._conversation = msgspec.structs.replace(
            self._conversation, exchanges=(*self._conversation.exchanges, exchange)
        )
