"""Which tokens a prompt is, and in which decode calls they are computed.

A call's size is a function of the conversation alone: replies are decoded token by token (as they were generated), all
else in chunks of a fixed size that begin anew after the persona's fixed part and after every reply. So KV that is
computed again after an eviction or a restart has the same bits as the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npc_runtime.engine.backend import Backend
from npc_runtime.prompt import Segment

Call = tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The decode calls of a whole prompt from position 0. ``history_tokens`` come before the newest player line."""

    calls: tuple[Call, ...]
    history_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of the whole prompt."""
        return count_tokens(self.calls)


def make_plan(segments: Sequence[Segment], backend: Backend, *, bos: int | None, chunk_tokens: int) -> Plan:
    """The plan of a prompt; ``bos`` goes in front where the model wants it."""
    calls: list[Call] = []
    block: list[int] = [] if bos is None else [bos]

    def close_block() -> None:
        calls.extend(tuple(block[at : at + chunk_tokens]) for at in range(0, len(block), chunk_tokens))
        block.clear()

    for segment in segments:
        if segment.tokens:
            close_block()
            calls.extend((token,) for token in segment.tokens)
        if segment.text:
            block.extend(backend.tokenize(segment.text, special=segment.special))
        if segment.ends_block:
            close_block()
    history_tokens = count_tokens(calls)
    close_block()
    return Plan(tuple(calls), history_tokens)


def count_tokens(calls: Sequence[Call]) -> int:
    """How many tokens the calls decode."""
    return sum(len(call) for call in calls)


def shared_calls(have: Sequence[Call], want: Sequence[Call]) -> int:
    """How many calls from the start are the same in both."""
    same = 0
    for one, other in zip(have, want, strict=False):
        if one != other:
            break
        same += 1
    return same
