"""A conversation as the prompt sees it: fixed persona text, exchanges so far, and the player's new line."""

from __future__ import annotations

import msgspec


class Exchange(msgspec.Struct, frozen=True):
    """One player line and the reply to it.

    ``tokens`` are the reply's token ids as they were generated, and ``rest`` the part of the reply after them that has
    to be tokenised (not empty only where a reply was cut inside a token). Keeping the ids matters: text that is
    tokenised again may give other ids than those the KV cache was computed with.
    """

    player: str
    reply: str
    tokens: tuple[int, ...] = ()
    rest: str = ""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """All that a prompt is made of. ``player`` and ``character`` are display names."""

    system: str
    greeting: str
    exchanges: tuple[Exchange, ...]
    line: str
    player: str
    character: str

    def without_oldest(self, count: int) -> Conversation:
        """The same conversation with the ``count`` oldest exchanges left out."""
        return msgspec.structs.replace(self, exchanges=self.exchanges[count:])
