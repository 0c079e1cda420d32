"""Turns from their arrival to their end: what a client may still ask of each."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from npc_runtime.catalog import CatalogEntry
from npc_runtime.daemon.sessions import Session
from npc_runtime.errors import TurnConflict
from npc_runtime.protocol.messages import AdapterUse, Answer, RequestId, StartTurn


class Listener(NamedTuple):
    """A request that is answered: the connection it came from, and its id."""

    client: bytes
    reply_to: RequestId


@dataclass(eq=False)
class Turn:
    """One player line and the reply to it.

    ``listeners`` are the requests that asked for it (one, and every repetition). ``answers`` are all answers so far, so
    that a repeated request gets them too. ``entry`` and ``adapters`` are fixed when the turn leaves the queue.
    ``files`` tells whether the files behind its persona were looked at. Times are seconds of the daemon's clock; 0
    means "not yet". ``number`` counts arrivals; ``waiting_since`` is None while the turn is computed; ``promoted``: it
    has waited too long and goes first.
    """

    request: StartTurn
    session: Session
    listeners: list[Listener]
    arrived: float
    number: int = 0
    waiting_since: float | None = None
    promoted: bool = False
    state: Literal["queued", "running", "finished"] = "queued"
    entry: CatalogEntry | None = None
    adapters: tuple[AdapterUse, ...] = ()
    seed: int = 0
    cancelled: bool = False
    keep: bool = False
    started_again: bool = False
    files: Literal["not checked", "being read", "current"] = "not checked"
    left_queue: float = 0
    first_text: float = 0
    deltas: int = 0
    answers: list[Answer] = field(default_factory=list)

    @property
    def deadline(self) -> float | None:
        """When it must have ended, by the daemon's clock."""
        limit = self.request.deadline_ms
        return None if limit is None else self.arrived + limit / 1e3

    @property
    def id(self) -> str:
        """The id that the client chose."""
        return self.request.turn_id

    def same_body(self, request: StartTurn) -> bool:
        """Whether ``request`` asks for the same thing (its ``id`` may differ)."""
        fields = [name for name in request.__struct_fields__ if name != "id"]
        return all(getattr(self.request, name) == getattr(request, name) for name in fields)


class Turns:
    """The queue, the turns that have begun, and the finished ones that can still be fetched."""

    def __init__(self, *, max_queued: int, finished_kept: int) -> None:
        self.queue: list[Turn] = []
        self.active: list[Turn] = []
        self.finished: OrderedDict[str, Turn] = OrderedDict()
        self.max_queued = max_queued
        self._finished_kept = finished_kept
        self._arrivals = 0

    def find(self, turn_id: str) -> Turn | None:
        """The turn of that id in any state."""
        found = next((turn for turn in self.open_turns() if turn.id == turn_id), None)
        return found or self.finished.get(turn_id)

    def repeated(self, request: StartTurn) -> Turn | None:
        """The turn that ``request`` repeats. Raises TurnConflict where the id was used for something else."""
        turn = self.find(request.turn_id)
        if turn is not None and not turn.same_body(request):
            raise TurnConflict(
                f"turn_id '{request.turn_id}' was used for another request; choose a new turn_id for every turn"
            )
        return turn

    def enqueue(self, turn: Turn) -> None:
        """Let it wait."""
        self._arrivals += 1
        turn.number = self._arrivals
        turn.waiting_since = turn.arrived
        self.queue.append(turn)

    def begin(self, turn: Turn, now: float) -> None:
        """It leaves the queue."""
        self.queue.remove(turn)
        self.active.append(turn)
        turn.state, turn.left_queue = "running", now

    def put_back(self, turn: Turn, now: float) -> None:
        """It waits again, at its old place."""
        self.active.remove(turn)
        turn.state, turn.waiting_since = "queued", now
        self.queue.append(turn)

    def finish(self, turn: Turn) -> None:
        """Move a turn to the finished ones."""
        if turn in self.active:
            self.active.remove(turn)
        elif turn in self.queue:
            self.queue.remove(turn)
        turn.state = "finished"
        self.finished[turn.id] = turn
        while len(self.finished) > self._finished_kept:
            self.finished.popitem(last=False)

    def open_turns(self) -> list[Turn]:
        """Those that have begun and those that wait."""
        return [*self.active, *self.queue]
