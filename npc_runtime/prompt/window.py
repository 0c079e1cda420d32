"""Fitting a conversation into the context: whole oldest exchanges go first, the persona and the newest line never."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import msgspec

from npc_runtime.errors import LineTooLong, PersonaTooLong
from npc_runtime.prompt.conversation import Conversation

REFILL = 0.75


def fit(
    conversation: Conversation, count: Callable[[Conversation], int], *, context_tokens: int, reserve: int
) -> tuple[Conversation, int]:
    """The conversation with as many oldest exchanges left out as needed, and how many those are.

    ``count`` gives the prompt tokens of a conversation; ``reserve`` tokens stay free for the reply. Where something has
    to go, room is made down to three quarters of the window, so that not every later turn has to drop again.
    Raises PersonaTooLong or LineTooLong where not even the persona and the newest line fit.
    """
    room = context_tokens - reserve
    if count(conversation) <= room:
        return conversation, 0
    _check_minimum(conversation, count, context_tokens, reserve)

    def fits_without(dropped: int) -> bool:
        return count(conversation.without_oldest(dropped)) <= room * REFILL

    # The first number of exchanges without which it fits; a search by halves, for each count renders the whole prompt.
    dropped = 1 + bisect_left(range(1, len(conversation.exchanges)), True, key=fits_without)
    return conversation.without_oldest(dropped), dropped


def _check_minimum(
    conversation: Conversation, count: Callable[[Conversation], int], context_tokens: int, reserve: int
) -> None:
    bare = conversation.without_oldest(len(conversation.exchanges))
    total = count(bare)
    if total <= context_tokens - reserve:
        return
    persona = count(msgspec.structs.replace(bare, line="", primed=()))
    numbers = f"the context has {context_tokens} tokens and keeps {reserve} free for the reply"
    if persona > context_tokens - reserve:
        raise PersonaTooLong(
            f"the persona of {bare.character} takes {persona} tokens; {numbers}; shorten it or raise context_tokens"
        )
    raise LineTooLong(
        f"the player's line takes {total - persona} tokens beside a persona of {persona}; {numbers}; say less at once"
    )
