"""Schedules of all that an engine is asked to do, each reply held against an engine that has done nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from npc_runtime.engine.commands import (
    AdapterSource,
    AnyEvent,
    DropKv,
    KeepAdapters,
    RunTurn,
    SetRunning,
    StopTurn,
    TurnDone,
    TurnFailed,
)
from npc_runtime.engine.core import EngineCore
from npc_runtime.engine.idle_work import REST_SECONDS
from tests.engine.scene import GREEDY, Clock, Scene, cold, heard

Step = tuple[Any, ...]
"""What is done, by its name in ``Play``, and with what."""


@dataclass
class Character:
    """A persona and the adapter sets that it may speak under: its own first, others after a change of scales."""

    system: str
    sets: Sequence[Sequence[AdapterSource]]


class Play:
    """Plays steps. ``warm_core`` makes the engine that is tried, ``cold_core`` one of its kind that keeps nothing."""

    def __init__(
        self,
        warm_core: Callable[[Clock], EngineCore],
        cold_core: Callable[[], EngineCore],
        characters: Sequence[Character],
        *,
        max_tokens: int = 8,
    ) -> None:
        self._clock = Clock()
        self._warm_core = warm_core
        self._cold_core = cold_core
        self._characters = characters
        self._max_tokens = max_tokens
        self._lines = 0
        self._voice: dict[int, int] = {}
        self.scene = Scene(warm_core(self._clock), sampling=GREEDY)
        self.from_where: list[str] = []
        self._differs: list[str] = []

    def play(self, steps: Sequence[Step]) -> list[str]:
        """All steps, up to the first reply that is not a cold engine's: what differs (empty: nothing)."""
        try:
            for what, *how in steps:
                getattr(self, what)(*how)
                if self._differs:
                    break
        finally:
            self.scene.close()
        return self._differs

    # Who speaks

    def _session(self, number: int) -> str:
        """Every character has two conversations."""
        name = f"session {number}"
        self.scene.systems[name] = self._character(number).system
        return name

    def _character(self, number: int) -> Character:
        return self._characters[number // 2 % len(self._characters)]

    def _adapters(self, number: int) -> Sequence[AdapterSource]:
        character = self._character(number)
        return character.sets[self._voice.get(number, 0) % len(character.sets)]

    def _line(self, length: int) -> str:
        self._lines += 1
        return f"This is line {self._lines}." + " And more of it." * length

    def _turn(self, number: int, length: int) -> RunTurn:
        name = self._session(number)
        return self.scene.turn(name, self._line(length), self._adapters(number), max_tokens=self._max_tokens)

    def _run(self, turn: RunTurn, *, cancel_after: int | None = None) -> list[AnyEvent]:
        self.scene.core.submit(SetRunning((turn.turn_id,)))
        return self.scene.run(turn, cancel_after=cancel_after)

    def _check(self, turn: RunTurn, done: AnyEvent) -> None:
        assert isinstance(done, TurnDone), done
        self.from_where.append(done.reused_from)
        alone = cold(self._cold_core, turn)
        if heard(done) != heard(alone):
            under = [(a.name, a.scale) for a in turn.adapters]
            where = f"{turn.session_id} from '{done.reused_from}' with {under}"
            self._differs.append(f"{where}: {heard(done)} instead of {heard(alone)}")
        self.scene.keep(turn.session_id, turn.conversation.line, done)

    # What can be asked for

    def say(self, number: int, length: int = 0) -> None:
        """A whole turn."""
        turn = self._turn(number, length)
        self._check(turn, self._run(turn)[-1])

    def typed(self, number: int, length: int, pieces: int) -> None:
        """A line that is read while it is typed, then said (or something else is said)."""
        text = self._line(length + 1)
        for end in range(pieces):
            self._prime(number, text[: 9 + 7 * end])
        said = text if pieces % 2 else text[:12] + "something else"
        turn = self.scene.turn(self._session(number), said, self._adapters(number), max_tokens=self._max_tokens)
        self._check(turn, self._run(turn)[-1])

    def heard(self, number: int, length: int, goes_on: bool) -> None:
        """A line that seems to be complete twice, and then is (or goes on)."""
        text = self._line(length + 1)
        self._prime(number, text[:12], complete=True)
        self._prime(number, text, complete=True)
        said = text + " And so on." if goes_on else text
        turn = self.scene.turn(self._session(number), said, self._adapters(number), max_tokens=self._max_tokens)
        self._check(turn, self._run(turn)[-1])

    def _prime(self, number: int, text: str, *, complete: bool = False) -> None:
        session, adapters = self._session(number), self._adapters(number)
        self.scene.rehearse(self.scene.prepare(session, text, adapters, complete=complete))

    def settle(self, number: int) -> None:
        """What comes after a reply: the next prompt's beginning is computed."""
        self.scene.rehearse(self.scene.prepare(self._session(number), "", self._adapters(number)))

    def warm(self, number: int) -> None:
        """A character's fixed part is computed."""
        self.scene.systems[""] = self._character(number).system
        self.scene.rehearse(self.scene.prepare("", "", self._adapters(number)))

    def cancel(self, number: int, after: int, keep: bool) -> None:
        """A turn that is stopped after so many steps; what it said stays in the conversation, or not."""
        turn = self._turn(number, 1)
        done = self._run(turn, cancel_after=after)[-1]
        assert isinstance(done, TurnDone), done
        if keep and turn.turn_id:
            self.scene.keep(turn.session_id, turn.conversation.line, done)

    def together(self, numbers: Sequence[int], lanes: int, switches: Sequence[tuple[int, int]]) -> None:
        """Turns of several conversations; again and again others of them run (a bit each), some for so many steps."""
        turns = [self._turn(number, 1) for number in dict.fromkeys(numbers)][:lanes]
        ended: dict[str, AnyEvent] = {}
        for turn in turns:
            self.scene.core.submit(turn)
        for bits, count in [*switches, (-1, 10_000)]:
            running = tuple(turn.turn_id for index, turn in enumerate(turns) if bits >> index & 1)
            self.scene.core.submit(SetRunning(running))
            for _ in range(count):
                if not self.scene.core.busy:
                    break
                for event in self.scene.core.step():
                    if isinstance(event, (TurnDone, TurnFailed)):
                        ended[event.turn_id] = event
        for turn in turns:
            self._check(turn, ended[turn.turn_id])

    def scale(self, number: int, voice: int) -> None:
        """The conversation goes on under another adapter set."""
        self._voice[number] = voice

    def fail(self, number: int, after: int, code: int) -> None:
        """A decode fails (scripted model only)."""
        turn = self._turn(number, 1)
        self.scene.core.backend.fail_next(code, after=after)
        ended = self._run(turn)[-1]
        self.scene.core.backend.fail_at = {}
        if isinstance(ended, TurnDone):  # it was over before the decode that would have failed
            self._check(turn, ended)

    def drop(self, number: int, what: int) -> None:
        """KV of a conversation, of a persona or of all is dropped; conversations stay."""
        name = self._session(number)
        self.scene.core.submit(
            (DropKv(session_id=name), DropKv(persona_id=self.scene.systems[name]), DropKv())[what % 3]
        )

    def free(self, number: int) -> None:
        """Adapters that are not this conversation's are freed."""
        self.scene.core.submit(KeepAdapters(tuple(source.digest for source in self._adapters(number))))

    def stop_nobody(self) -> None:
        """A cancel of a turn that is not there."""
        self.scene.core.submit(StopTurn("nobody"))

    def rest(self) -> None:
        """Nobody asks for anything for a while: copies are made and written."""
        self._clock.now += 2 * REST_SECONDS
        self.scene.rest()

    def restart(self, killed: bool) -> None:
        """Another engine goes on with the same folder; the old one was told to leave, or killed."""
        if killed:
            self.scene.close()
        else:
            self.scene.leave()
        self.scene.core = self._warm_core(self._clock)
