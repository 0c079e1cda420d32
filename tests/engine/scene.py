"""Conversations with an engine in this process: what the daemon does around it, in the fewest words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from npc_runtime.base_model import file_digest
from npc_runtime.engine.commands import (
    AdapterSource,
    AnyEvent,
    EngineSettings,
    Prepare,
    Prepared,
    ReplyDelta,
    RunTurn,
    StopTurn,
    TurnDone,
    TurnFailed,
)
from npc_runtime.engine.core import EngineCore
from npc_runtime.prompt import Call, Conversation, Exchange
from npc_runtime.sampling import Sampling
from tests.engine.scripted_backend import ScriptedBackend

GREEDY = Sampling(temperature=0, repeat_penalty=1.0)
DRAWN = Sampling()


def scripted_core(
    backend: ScriptedBackend | None = None,
    *,
    lanes: int = 2,
    context_tokens: int = 512,
    chunk_tokens: int = 16,
    clock: Callable[[], float] = lambda: 0.0,
    notify: Callable[[AnyEvent], None] = lambda event: None,
    **more: Any,
) -> EngineCore:
    """An engine over a scripted model, whose clock stands still."""
    backend = backend or ScriptedBackend()
    settings = engine_settings(lanes=lanes, context_tokens=context_tokens, chunk_tokens=chunk_tokens, **more)
    return EngineCore(backend, settings, base_digest=backend.weights, build="test", clock=clock, notify=notify)


def engine_settings(**changed: Any) -> EngineSettings:
    """Settings for a small engine."""
    values = {"base_model": "", "lanes": 2, "context_tokens": 512, "chunk_tokens": 32, "threads": 2}
    return EngineSettings(**(values | changed))


def source(path: Path, scale: float = 1.0) -> AdapterSource:
    """The adapter file at ``path``, as a turn names it."""
    return AdapterSource(path.stem, file_digest(path), str(path), scale)


def at(adapter: AdapterSource, scale: float) -> AdapterSource:
    """The adapter at another scale."""
    return msgspec.structs.replace(adapter, scale=scale)


class Clock:
    """A clock that goes on only when it is told to, or by ``tick`` with every look at it."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now = 0.0
        self.tick = tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class Scene:
    """An engine and the conversations with it, by session id. ``systems`` are the personas of single sessions."""

    def __init__(self, core: EngineCore, *, system: str = "You are Mira.", sampling: Sampling = DRAWN) -> None:
        self.core = core
        self.system = system
        self.systems: dict[str, str] = {}
        self.sampling = sampling
        self.history: dict[str, list[Exchange]] = {}
        self.primed: dict[str, tuple[Call, ...]] = {}
        self._turns = 0

    def conversation(self, session: str, line: str) -> Conversation:
        """What the session's next prompt is made of."""
        return Conversation(
            system=self.systems.get(session, self.system),
            greeting="",
            exchanges=tuple(self.history.get(session, ())),
            line=line,
            player="Anna",
            character="Mira",
            primed=self.primed.get(session, ()),
        )

    def turn(
        self,
        session: str,
        line: str,
        adapters: Sequence[AdapterSource] = (),
        *,
        max_tokens: int = 24,
        min_tokens: int = 0,
    ) -> RunTurn:
        """The session's next turn, not yet submitted."""
        self._turns += 1
        conversation = self.conversation(session, line)
        self.primed.pop(session, None)
        return RunTurn(
            turn_id=f"turn-{self._turns}",
            session_id=session,
            persona_id=conversation.system,
            conversation=conversation,
            adapters=tuple(adapters),
            sampling=self.sampling,
            seed=7,
            stops=(),
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            max_seconds=60.0,
        )

    def run(self, turn: RunTurn, *, cancel_after: int | None = None) -> list[AnyEvent]:
        """All events of a turn. ``cancel_after`` stops it after that many steps; 0: before it begins."""
        self.core.submit(turn)
        events: list[AnyEvent] = []
        steps = 0
        while self.core.busy:
            if steps == cancel_after:
                self.core.submit(StopTurn(turn.turn_id))
            assert self.core.wait_seconds() is not None, "the engine waits for a command"
            events.extend(self.core.step())
            steps += 1
        return events

    def finish(self, turn: RunTurn) -> TurnDone:
        """Run a turn that must not fail, and check that its pieces are its text."""
        events = self.run(turn)
        done = events[-1]
        assert isinstance(done, TurnDone), done
        assert "".join(event.text for event in events if isinstance(event, ReplyDelta)) == done.text
        return done

    def fail(self, turn: RunTurn) -> TurnFailed:
        """Run a turn that must fail."""
        failed = self.run(turn)[-1]
        assert isinstance(failed, TurnFailed), failed
        return failed

    def keep(self, session: str, line: str, done: TurnDone) -> None:
        """Let the conversation have the exchange, as the daemon does: where it says something, without what no longer
        fits."""
        history = self.history.setdefault(session, [])
        del history[: done.dropped_exchanges]
        if done.text:
            history.append(Exchange(line, done.text, done.tokens, done.rest, done.cuts))
            del history[: done.drop_next]

    def say(self, session: str, line: str, adapters: Sequence[AdapterSource] = (), *, max_tokens: int = 24) -> TurnDone:
        """One whole exchange."""
        done = self.finish(self.turn(session, line, adapters, max_tokens=max_tokens))
        self.keep(session, line, done)
        return done

    def prepare(
        self, session: str, text: str = "", adapters: Sequence[AdapterSource] = (), *, complete: bool = False
    ) -> Prepare:
        """What is computed before the session's next turn, not yet submitted; ``text``: the line so far."""
        self._turns += 1
        conversation = self.conversation(session, text)
        if not text:
            conversation = msgspec.structs.replace(conversation, primed=())
        return Prepare(
            prepare_id=f"preparation-{self._turns}",
            session_id=session,
            persona_id=conversation.system,
            conversation=conversation,
            adapters=tuple(adapters),
            complete=complete,
        )

    def rehearse(self, command: Prepare) -> Prepared:
        """Have it computed; what it says of the line is part of the session's next turn."""
        self.core.submit(command)
        while True:
            for event in self.core.step():
                if isinstance(event, Prepared) and event.prepare_id == command.prepare_id:
                    if command.conversation.line and not event.error_code and not event.superseded:
                        self.primed[command.session_id] = event.primed
                    return event

    def rest(self) -> list[AnyEvent]:
        """Everything that the engine does while nobody asks for anything."""
        events: list[AnyEvent] = []
        while self.core.wait_seconds() == 0:
            events.extend(self.core.step())
        return events

    def leave(self) -> None:
        """The engine is told to leave: it keeps on disk what is to be kept."""
        self.core.persist_all(60)
        self.close()

    def close(self) -> None:
        """Free the engine's contexts and adapters (a real model needs that before it is freed)."""
        if self.core.kv.disk is not None:
            self.core.kv.disk.close()
        self.core.adapters.release(frozenset(), self.core.lanes.unbind)
        for lane in self.core.lanes.lanes:
            lane.context.close()


def heard(done: TurnDone) -> tuple[object, ...]:
    """What of a reply must not depend on what else the engine has done."""
    return done.text, done.tokens, done.rest, done.finish_reason, done.prompt_tokens, done.dropped_exchanges


def cold(new_core: Callable[[], EngineCore], turn: RunTurn) -> TurnDone:
    """The same turn in an engine that has never done anything else."""
    scene = Scene(new_core())
    try:
        return scene.finish(msgspec.structs.replace(turn, turn_id="cold"))
    finally:
        scene.close()


def check_isolation(
    new_core: Callable[[], EngineCore],
    schedule: Sequence[tuple[str, str, Sequence[AdapterSource]]],
    *,
    sampling: Sampling = GREEDY,
    max_tokens: int = 16,
) -> list[TurnDone]:
    """Run the schedule in one engine; every reply must be the one of a cold engine. Raises AssertionError."""
    scene = Scene(new_core(), sampling=sampling)
    replies = []
    try:
        for session, line, adapters in schedule:
            turn = scene.turn(session, line, adapters, max_tokens=max_tokens)
            done = scene.finish(turn)
            alone = cold(new_core, turn)
            assert heard(done) == heard(alone), f"{session} with {[(a.name, a.scale) for a in adapters]}"
            scene.keep(session, line, done)
            replies.append(done)
    finally:
        scene.close()
    return replies
