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
    ReplyDelta,
    RunTurn,
    StopTurn,
    TurnDone,
    TurnFailed,
)
from npc_runtime.engine.core import EngineCore
from npc_runtime.prompt import Conversation, Exchange
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


class Scene:
    """An engine and the conversations with it, by session id."""

    def __init__(self, core: EngineCore, *, system: str = "You are Mira.", sampling: Sampling = DRAWN) -> None:
        self.core = core
        self.system = system
        self.sampling = sampling
        self.history: dict[str, list[Exchange]] = {}
        self._turns = 0

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
        return RunTurn(
            turn_id=f"turn-{self._turns}",
            session_id=session,
            conversation=Conversation(
                system=self.system,
                greeting="",
                exchanges=tuple(self.history.get(session, ())),
                line=line,
                player="Anna",
                character="Mira",
            ),
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
        """Let the conversation have the exchange, as the daemon does with a reply that says something."""
        if done.text:
            self.history.setdefault(session, []).append(Exchange(line, done.text, done.tokens, done.rest, done.cuts))

    def say(self, session: str, line: str, adapters: Sequence[AdapterSource] = (), *, max_tokens: int = 24) -> TurnDone:
        """One whole exchange."""
        done = self.finish(self.turn(session, line, adapters, max_tokens=max_tokens))
        self.keep(session, line, done)
        return done

    def close(self) -> None:
        """Free the engine's contexts and adapters (a real model needs that before it is freed)."""
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
