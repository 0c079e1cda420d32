"""What the engine does while no turn can go on: preparations, measuring personas, copies of KV into memory and to disk.

What a client asked for goes first, then personas are measured. The rest never stands in the way: it waits for a pause,
and what goes to disk for a longer rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from npc_runtime.engine.commands import AnyEvent, MeasurePersona, PersonaMeasured, Prepare
from npc_runtime.engine.failure import typed_error
from npc_runtime.engine.plan import count_tokens
from npc_runtime.engine.preparation import Preparation
from npc_runtime.engine.turn import Steps
from npc_runtime.errors import NpcError

if TYPE_CHECKING:
    from npc_runtime.engine.core import EngineCore

REST_SECONDS = 1.0
"""How long nothing must have been computed before KV is written to disk: in a quick dialogue a write would soon be
outdated."""

PAUSE_SECONDS = 0.05
"""How long nothing that was asked for must have been computed before anything else is computed or copied: in a quick
exchange between several characters it would stand in the way of the next one, and a line that is being typed ends with
a turn."""

Name = tuple[str, str]
"""There is one preparation of a session; one without a session is known by its own id."""


class IdleWork:
    """``say`` takes events that a command causes; what a step causes, ``step`` returns."""

    def __init__(self, core: EngineCore, clock: Callable[[], float], say: Callable[[AnyEvent], None]) -> None:
        self._core = core
        self._clock = clock
        self._say = say
        self._preparations: dict[Name, tuple[Preparation, Steps]] = {}
        self._measures: list[MeasurePersona] = []
        self._paused_at = 0.0
        self._rested_at = 0.0
        self._all_persisted = True

    def measure(self, command: MeasurePersona) -> None:
        """Take on the measuring of a persona."""
        self._measures.append(command)

    def prepare(self, command: Prepare) -> None:
        """Take on a preparation, in place of an older one of the session."""
        self.give_up(command.session_id)
        preparation = Preparation(command, self._core)
        name = command.session_id, "" if command.session_id else command.prepare_id
        self._preparations[name] = preparation, preparation.steps()

    def give_up(self, session_id: str) -> None:
        """End the session's preparation: a newer one or a turn takes its place, or its KV is dropped."""
        if session_id and (session_id, "") in self._preparations:
            preparation, _ = self._preparations.pop((session_id, ""))
            self._say(preparation.ended(superseded=True))

    def begin_pause(self) -> None:
        """Something that was asked for has been computed."""
        self._paused_at = self._clock() + PAUSE_SECONDS
        self._begin_rest()

    def _begin_rest(self) -> None:
        self._rested_at = self._clock() + REST_SECONDS
        self._all_persisted = self._core.kv.disk is None

    def wait_seconds(self) -> float | None:
        """How long until ``step`` has something to do: 0 now; None: not before another command."""
        if self._measures or self._next_preparation() is not None:
            return 0.0
        waits = [self._paused_at] if self._preparations or self._core.kv.has_chore() else []
        waits += [] if self._all_persisted else [self._rested_at]
        return max(0.0, min(waits) - self._clock()) if waits else None

    def step(self) -> list[AnyEvent]:
        """Do one piece of it."""
        name = self._next_preparation()
        if self._measures and (name is None or not self._preparations[name][0].asked_for):
            return self._measured(self._measures.pop(0))
        if name is not None:
            return self._step_preparation(name, *self._preparations[name])
        now, kv = self._clock(), self._core.kv
        copied = now >= self._paused_at and kv.chore()
        if not copied and now >= self._rested_at and not kv.persist():
            self._all_persisted = kv.disk is None or not kv.disk.full
            self._rested_at = now + REST_SECONDS
        return []

    def _measured(self, command: MeasurePersona) -> list[AnyEvent]:
        try:
            plan = self._core.plan(command.conversation)
        except Exception as error:
            typed_error(error, "the measuring of a persona")
            return []  # its length stays unknown, and its first turn will say what is wrong
        return [PersonaMeasured(command.version, count_tokens(plan.calls[: plan.persona]))]

    def _next_preparation(self) -> Name | None:
        """The one that goes next: what was asked for before what was not; None: there is none, or not yet."""
        asked = [name for name, (preparation, _) in self._preparations.items() if preparation.asked_for]
        if asked:
            return min(asked, key=lambda name: not name[0])  # a session, where somebody speaks, before a persona
        return next(iter(self._preparations), None) if self._clock() >= self._paused_at else None

    def _step_preparation(self, name: Name, preparation: Preparation, steps: Steps) -> list[AnyEvent]:
        try:
            events = next(steps)
        except Exception as error:
            events = [self._failed(preparation, typed_error(error, "a preparation", preparation.command.adapters))]
        if events:
            del self._preparations[name]
        if preparation.asked_for:
            self.begin_pause()
        else:
            self._begin_rest()
        return events

    def _failed(self, preparation: Preparation, error: NpcError) -> AnyEvent:
        for lane in self._core.lanes:
            if not lane.held and lane.session_id == preparation.command.session_id:
                lane.release()
        return preparation.ended(code=error.code, error=error.message)
