"""A conversation as the prompt sees it: fixed persona text, exchanges so far, and the player's new line."""

from __future__ import annotations

import msgspec

Call = tuple[int, ...]
"""The tokens of one decode call."""


class Exchange(msgspec.Struct, frozen=True):
    """One player line and the reply to it.

    ``tokens`` are the reply's token ids as they were generated, and ``rest`` the part of the reply after them that has
    to be tokenised (not empty only where a reply was cut inside a token). Keeping the ids matters: text that is
    tokenised again may give other ids than those the KV cache was computed with. ``cuts`` are the sizes of the decode
    calls in which the player's line was computed, for the same reason; empty: in chunks of the usual size.
    """

    player: str
    reply: str
    tokens: tuple[int, ...] = ()
    rest: str = ""
    cuts: tuple[int, ...] = ()


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """All that a prompt is made of. ``player`` and ``character`` are display names.

    ``primed``: the calls in which the first tokens of ``line`` were computed while it was still being typed.
    """

    system: str
    greeting: str
    exchanges: tuple[Exchange, ...]
    line: str
    player: str
    character: str
    primed: tuple[Call, ...] = ()

    def without_oldest(self, count: int) -> Conversation:
        """The same conversation with the ``count`` oldest exchanges left out."""
        return msgspec.structs.replace(self, exchanges=self.exchanges[count:])
