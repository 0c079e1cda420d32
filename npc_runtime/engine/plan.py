"""Which tokens a prompt is, and in which decode calls they are computed.

A call's size is a function of the conversation alone: replies are decoded token by token (as they were generated),
all else in chunks of a fixed size that begin anew after the persona's fixed part, after every reply, and where the
player's line begins. A line that was computed while it was still being typed keeps the calls it was computed in; they
are part of the conversation from then on. So KV that is computed again after an eviction or a restart has the same
bits as the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npc_runtime.engine.backend import Backend
from npc_runtime.prompt import Call, Segment


@dataclass(frozen=True)
class Plan:
    """The decode calls of a whole prompt from position 0.

    The first ``persona`` of them are the persona's fixed part, the first ``said`` all that a turn before this one has
    decoded, the first ``history`` all that comes before the newest player line, whose own tokens are ``line``.
    ``joints`` are the counts of calls after which the persona's part ends or a line begins: there, a cache with a
    sliding window is brought into the form that a restored one has.
    """

    calls: tuple[Call, ...]
    persona: int
    history: int
    line: Call
    said: int
    joints: frozenset[int] = frozenset()

    @property
    def tokens(self) -> int:
        """Tokens of the whole prompt."""
        return count_tokens(self.calls)

    @property
    def said_tokens(self) -> int:
        """Tokens before the last one that was generated (or up to the end of the persona's fixed part)."""
        return count_tokens(self.calls[: self.said])

    @property
    def line_cuts(self) -> tuple[int, ...]:
        """The sizes of the calls in which the newest line is computed."""
        return tuple(len(call) for call in self.calls[self.history :])


class _Calls:
    """Collects tokens into calls."""

    def __init__(self, chunk_tokens: int) -> None:
        self.calls: list[Call] = []
        self.block: list[int] = []
        self._cuts: tuple[int, ...] = ()
        self._primed: tuple[Call, ...] = ()
        self._chunk_tokens = chunk_tokens

    def begin(self, segment: Segment) -> None:
        """Begin a block that is computed as ``segment`` says."""
        self.close()
        self._cuts, self._primed = segment.cuts, segment.primed

    def close(self) -> None:
        """The block so far becomes calls."""
        block, at = tuple(self.block), 0
        for size in self._known_sizes(block):
            self.calls.append(block[at : at + size])
            at += size
        self.calls.extend(
            block[start : start + self._chunk_tokens] for start in range(at, len(block), self._chunk_tokens)
        )
        self.block.clear()
        self._cuts = self._primed = ()

    def _known_sizes(self, block: Call) -> list[int]:
        sizes: list[int] = []
        at = 0
        for size in self._cuts:
            if not 0 < size <= min(self._chunk_tokens, len(block) - at):
                return sizes
            sizes.append(size)
            at += size
        for call in self._primed:
            if not call or len(call) > self._chunk_tokens or block[at : at + len(call)] != call:
                return sizes
            sizes.append(len(call))
            at += len(call)
        return sizes


def make_plan(segments: Sequence[Segment], backend: Backend, *, bos: int | None, chunk_tokens: int) -> Plan:
    """The plan of a prompt; ``bos`` goes in front where the model wants it."""
    out = _Calls(chunk_tokens)
    persona = history = said = 0
    joints: set[int] = set()
    line: Call = ()
    if bos is not None:
        out.block.append(bos)
    for segment in segments:
        if segment.begins_line:
            out.begin(segment)
            history = len(out.calls)
            joints.add(history)
        if segment.tokens:
            out.close()
            out.calls.extend((token,) for token in segment.tokens)
            said = len(out.calls) - 1  # the last one may have been said without being decoded
        if segment.text:
            tokens = backend.tokenize(segment.text, special=segment.special)
            out.block.extend(tokens)
            line = tuple(tokens) if segment.begins_line else line
        if segment.ends_block:
            out.close()
            persona = persona or len(out.calls)
            said = said or persona
    out.close()
    return Plan(tuple(out.calls), persona, history, line, said, frozenset(joints | {persona}))


def count_tokens(calls: Sequence[Call]) -> int:
    """How many tokens the calls decode."""
    return sum(map(len, calls))


def usable_calls(have: Sequence[Call], want: Sequence[Call], *, cuttable: bool) -> int:
    """How many of the first ``want`` a copy of ``have`` gives. What cannot be cut (see ``Context``) is used whole or
    not at all."""
    shared = shared_calls(have, want)
    return shared if cuttable or shared == len(have) else 0


def shared_calls(have: Sequence[Call], want: Sequence[Call]) -> int:
    """How many calls from the start are the same in both."""
    same = 0
    for one, other in zip(have, want, strict=False):
        if one != other:
            break
        same += 1
    return same
