"""The whole runtime inside this process: no sockets, no second process. For tools, tests and games written in Python.

The same dialogue rules and the same engine as in the daemon, stepped by whoever reads a reply. Mind what the daemon's
second process is for: a native abort inside llama.cpp ends the caller. Everything belongs to one thread.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from npc_runtime.catalog import BaseIdentity, CatalogBuilder
from npc_runtime.config import Settings, load_settings
from npc_runtime.daemon.dialogue import Dialogue
from npc_runtime.daemon.turns import Turn
from npc_runtime.engine.child import new_core
from npc_runtime.engine.commands import AnyCommand, EngineStats, engine_settings
from npc_runtime.engine.core import EngineCore
from npc_runtime.errors import NpcError, ShuttingDown
from npc_runtime.persona import Persona
from npc_runtime.protocol import answered_error
from npc_runtime.protocol.messages import (
    AdapterScale,
    Answer,
    Error,
    Flush,
    History,
    OpenSession,
    PastExchange,
    Prime,
    Primed,
    Priority,
    SessionOpened,
    StartTurn,
    TurnDelta,
    TurnFinished,
    TurnStarted,
    Warm,
    Warmed,
)
from npc_runtime.sampling import SamplingOverrides

SETTLE_SECONDS = 3.0
"""How long a start waits for files that were put in place just now."""


class _InProcess:
    """What the dialogue asks of an engine, without a process of its own."""

    state: Literal["starting", "ready", "failed"] = "ready"

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self.context_tokens = core.context_tokens
        self.lanes = len(core.lanes.lanes)

    def send(self, command: AnyCommand) -> None:
        """Hand a command over."""
        self._core.submit(command)

    def check_adapter(self, digest: str, name: str) -> None:
        """Nothing is known against any adapter: what takes the engine down takes this process down."""

    def unavailable(self) -> NpcError | None:
        """Why no turn can run."""
        return None if self.state == "ready" else ShuttingDown("the runtime is closed; make a new one")


class Runtime:
    """A model, its lanes and a catalog. Use as a context manager, or call :meth:`close`.

    ``settings`` are those of ``docs/configuration.md`` by name; environment variables count as they do for the daemon.
    Raises ConfigError.
    """

    def __init__(self, config: Path | None = None, **settings: Any) -> None:
        self.settings: Settings = load_settings(config, flags=settings)
        self._core = new_core(engine_settings(self.settings))
        self._engine = _InProcess(self._core)
        self._answers: dict[bytes, deque[Answer]] = {}
        self._numbers = itertools.count(1)
        self._dialogue = Dialogue(self.settings, self._engine, self._deliver, self._look_again, time.monotonic)
        self._dialogue.base_known = True
        s = self.settings
        self._builder = CatalogBuilder(
            Path(s.personas_dir),
            Path(s.adapters_dir),
            max_persona_bytes=s.max_persona_bytes,
            max_personas=s.max_personas,
            max_adapter_bytes=s.max_adapter_bytes,
            allow_base_mismatch=s.allow_base_mismatch,
        )
        made_for = self._core.backend.source_digest or self._core.base_digest
        self._builder.set_base(BaseIdentity(self._core.backend.architecture, made_for))
        self.reload()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Keep KV on disk where ``kv_dir`` is set, and free everything; may be called again."""
        if self._engine.state == "ready":
            self._engine.state = "failed"
            self._core.close()

    def reload(self) -> None:
        """Read the folders again (a turn does so by itself where its files have changed)."""
        catalog = self._builder.scan()
        until = time.monotonic() + SETTLE_SECONDS
        while self._builder.unsettled and time.monotonic() < until:
            time.sleep(0.02)
            catalog = self._builder.scan()
        self._dialogue.voices.use(catalog)

    def personas(self) -> tuple[Persona, ...]:
        """The personas that can be talked to, by id."""
        entries = self._dialogue.voices.catalog.entries
        return tuple(entries[key].persona for key in sorted(entries) if entries[key].error is None)

    def stats(self) -> EngineStats:
        """Counters of lanes, tiers, adapters and decodes."""
        return self._core.stats()

    def open_session(
        self,
        persona: str,
        *,
        session_id: str | None = None,
        player: str = "Player",
        history: History | Sequence[PastExchange] = (),
    ) -> RuntimeSession:
        """Begin a conversation, or take up the one of this ``session_id``."""
        past = history.exchanges if isinstance(history, History) else tuple(history)
        request = OpenSession(id=0, persona=persona, session_id=session_id, player=player, history=past)
        return RuntimeSession(self, self._dialogue.open_session(request))

    def warm(self, persona: str, *, player: str = "Player") -> Warmed:
        """Compute a persona's prompt before anybody speaks with it."""
        answer = self._rehearse(Warm(id=0, persona=persona, player=player))
        assert isinstance(answer, Warmed)
        return answer

    def flush(self, *, persona: str | None = None, session_id: str | None = None) -> None:
        """Drop computed KV."""
        self._dialogue.flush(Flush(id=0, persona=persona, session_id=session_id))

    def idle(self) -> None:
        """Do what there is idle time for: compute what comes next, copy KV. Call it while the game waits."""
        while (wait := self._core.wait_seconds()) is not None:
            time.sleep(wait)
            self._step()

    # The inside

    def _deliver(self, client: bytes, answer: Answer) -> bool:
        if client in self._answers:
            self._answers[client].append(answer)
        return True

    def _look_again(self, turn: Turn) -> None:
        self.reload()
        turn.files = "current"

    def _mailbox(self) -> bytes:
        name = str(next(self._numbers)).encode()
        self._answers[name] = deque()
        return name

    def _rehearse(self, request: Warm | Prime) -> Answer:
        client = self._mailbox()
        try:
            self._dialogue.rehearsals.take(client, request)
            return self._next_answer(client)
        finally:
            del self._answers[client]

    def _next_answer(self, client: bytes) -> Answer:
        """The next answer, computing until there is one. Raises the error that it is."""
        while not self._answers[client]:
            time.sleep(self._core.wait_seconds() or 0)
            self._step()
        answer = self._answers[client].popleft()
        if isinstance(answer, Error):
            raise answered_error(answer)
        return answer

    def _step(self) -> None:
        for event in self._core.step():
            self._dialogue.take(event)
        self._dialogue.pump()


class RuntimeSession:
    """One conversation. ``greeting`` is the character's first line."""

    def __init__(self, runtime: Runtime, opened: SessionOpened) -> None:
        self._runtime = runtime
        self.id = opened.session_id
        self.persona = opened.persona
        self.name = opened.name
        self.greeting = opened.greeting

    def say(
        self,
        text: str,
        *,
        adapters: Sequence[AdapterScale] | None = None,
        sampling: SamplingOverrides | None = None,
        max_tokens: int | None = None,
        min_tokens: int = 0,
        include_tokens: bool = False,
        priority: Priority = "normal",
        deadline_ms: float | None = None,
    ) -> RuntimeReply:
        """The player says ``text``; iterate over the reply to compute it."""
        runtime = self._runtime
        request = StartTurn(
            id=0,
            session_id=self.id,
            turn_id=f"turn {next(runtime._numbers)}",
            text=text,
            adapters=None if adapters is None else tuple(adapters),
            sampling=sampling,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            include_tokens=include_tokens,
            priority=priority,
            deadline_ms=deadline_ms,
        )
        return RuntimeReply(runtime, request)

    def warm(self) -> Warmed:
        """Compute all up to where the player's line begins."""
        answer = self._runtime._rehearse(Warm(id=0, session_id=self.id))
        assert isinstance(answer, Warmed)
        return answer

    def prime(self, text_so_far: str, *, complete: bool = False) -> Primed:
        """Read the line so far, all but its last word; ``complete``: to its end, and what follows it too."""
        answer = self._runtime._rehearse(Prime(id=0, session_id=self.id, text=text_so_far, complete=complete))
        assert isinstance(answer, Primed)
        return answer

    def history(self) -> History:
        """What the next prompt remembers."""
        return self._runtime._dialogue.history(self.id)

    def close(self) -> None:
        """Forget the conversation."""
        self._runtime._dialogue.close_session(self.id)


class RuntimeReply:
    """A reply in the making: iterate for its pieces, or call :meth:`wait`. ``finished`` is set at its end."""

    def __init__(self, runtime: Runtime, request: StartTurn) -> None:
        self._runtime = runtime
        self._client = runtime._mailbox()
        self.turn_id = request.turn_id
        self.started: TurnStarted | None = None
        self.finished: TurnFinished | None = None
        try:
            runtime._dialogue.start_turn(self._client, request)
        except NpcError:
            del runtime._answers[self._client]
            raise

    def __iter__(self) -> Iterator[str]:
        while self.finished is None:
            answer = self._runtime._next_answer(self._client)
            if isinstance(answer, TurnStarted):
                self.started = answer
            elif isinstance(answer, TurnDelta):
                yield answer.text
            elif isinstance(answer, TurnFinished):
                self.finished = answer
        self._runtime._answers.pop(self._client, None)

    def wait(self) -> TurnFinished:
        """Compute to the end and return it."""
        for _ in self:
            pass
        assert self.finished is not None
        return self.finished

    def cancel(self, *, keep: bool = False) -> None:
        """Stop it; the end still comes, with finish reason ``cancelled``."""
        self._runtime._dialogue.cancel(self.turn_id, keep=keep)
