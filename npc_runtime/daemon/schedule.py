"""Which turn goes first: one rule, without sockets or an engine.

By priority (``player``, ``normal``, ``ambient``), then by arrival. At most ``max_active`` turns are computed side by
side; one of a higher priority takes the place of a lower one at once, which waits where it is and goes on later. A
turn that has waited for ``starvation_seconds``, in the queue or after it had begun, counts as ``player`` from then
on; so nothing waits longer than that time and the turns of rank ``player`` that were there before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from npc_runtime.daemon.turns import Turn
from npc_runtime.protocol.messages import Priority

RANKS: dict[Priority, int] = {"ambient": 0, "normal": 1, "player": 2}


class Schedule:
    """The rule, with its numbers. ``lanes`` bounds how many turns may have begun: each holds one."""

    def __init__(self, *, max_active: int, starvation_seconds: float, clock: Callable[[], float]) -> None:
        self._max_active = max_active
        self._starvation_seconds = starvation_seconds
        self._clock = clock

    def running(self, active: Sequence[Turn], queue: Sequence[Turn]) -> list[Turn]:
        """Of the turns that have begun, those that are computed now."""
        ranks = self._ranks(active, queue)
        return sorted(active, key=lambda turn: (-ranks[turn.id], turn.number))[: self._max_active]

    def in_order(self, queue: Sequence[Turn]) -> list[Turn]:
        """The waiting turns, the next one first."""
        return sorted(queue, key=lambda turn: (-self.rank(turn), turn.number))

    def may_begin(self, turn: Turn, active: Sequence[Turn], queue: Sequence[Turn], lanes: int) -> bool:
        """Whether it would be computed at once, has a lane, and its conversation no other turn."""
        if len(active) >= lanes or any(other.session is turn.session for other in active):
            return False
        ranks = self._ranks(active, queue)
        return sum(ranks[other.id] >= self.rank(turn) for other in active) < self._max_active

    def rank(self, turn: Turn) -> int:
        """A number that is higher for what goes first. Marks the turn where it has waited too long."""
        if turn.waiting_since is not None and self._clock() - turn.waiting_since >= self._starvation_seconds:
            turn.promoted = True
        return RANKS["player"] if turn.promoted else RANKS[turn.request.priority]

    def _ranks(self, active: Sequence[Turn], queue: Sequence[Turn]) -> dict[str, int]:
        """The active turns' ranks. A turn that others of its own conversation wait for has the highest of theirs."""
        ranks = {}
        for turn in active:
            behind = [self.rank(other) for other in queue if other.session is turn.session]
            ranks[turn.id] = max([self.rank(turn), *behind])
        return ranks
