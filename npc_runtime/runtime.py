"""The whole runtime inside this process: no sockets, no second process. For tools, tests and games written in Python.

The same dialogue rules and the same engine as in the daemon, stepped by whoever reads a reply. Mind what the daemon's
second process is for: a native abort inside llama.cpp ends the caller. Everything belongs to one thread.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from npc_runtime.catalog import BaseIdentity, CatalogBuilder
from npc_runtime.client.session import Link
from npc_runtime.config import Settings, load_settings
from npc_runtime.daemon.conversations import Conversations, is_about_conversations
from npc_runtime.daemon.dialogue import Dialogue
from npc_runtime.daemon.turns import Turn
from npc_runtime.engine.child import new_core
from npc_runtime.engine.commands import AnyCommand, EngineStats, engine_settings
from npc_runtime.engine.core import EngineCore
from npc_runtime.errors import InternalError, InvalidField, NpcError, ShuttingDown
from npc_runtime.persona import Persona
from npc_runtime.protocol.messages import Answer, Request

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


class Runtime(Link):
    """A model, its lanes and a catalog. Use as a context manager, or call :meth:`close`.

    ``settings`` are those of ``docs/configuration.md`` by name; environment variables count as they do for the daemon.
    Those about sockets, clients and the engine's process (``spin_count`` and ``low_priority`` are) have no effect.
    Raises ConfigError. After :meth:`close` everything raises ShuttingDown.
    """

    def __init__(self, config: Path | None = None, **settings: Any) -> None:
        super().__init__()
        self.settings: Settings = load_settings(config, flags=settings)
        self._core = new_core(engine_settings(self.settings))
        self._engine = _InProcess(self._core)
        self._dialogue = Dialogue(self.settings, self._engine, self._deliver, self._look_again, time.monotonic)
        self._dialogue.voices.base_known = True
        self._conversations = Conversations(self._dialogue, self._engine)
        self._builder = CatalogBuilder.from_settings(self.settings)
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
        self._check_open()
        catalog = self._builder.scan()
        until = time.monotonic() + SETTLE_SECONDS
        while self._builder.unsettled and time.monotonic() < until:
            time.sleep(0.02)
            catalog = self._builder.scan()
        self._dialogue.voices.use(catalog)

    def personas(self) -> tuple[Persona, ...]:
        """The personas that can be talked to, by id."""
        voices = self._dialogue.voices
        entries = [entry for _, entry in sorted(voices.catalog.entries.items())]
        return tuple(entry.persona for entry in entries if entry.error is None and voices.too_long(entry) is None)

    def stats(self) -> EngineStats:
        """Counters of lanes, tiers, adapters and decodes."""
        self._check_open()
        return self._core.stats()

    def idle(self) -> None:
        """Do what there is idle time for: compute what comes next, copy KV. Call it while the game waits."""
        self._check_open()
        while (wait := self._core.wait_seconds()) is not None:
            time.sleep(wait)
            self._step()

    # The inside

    def _check_open(self) -> None:
        if error := self._engine.unavailable():
            raise error

    def _deliver(self, _client: bytes, answer: Answer) -> bool:
        self._sort(answer)
        return True

    def _look_again(self, turn: Turn) -> None:
        self.reload()
        turn.files = "current"

    def _send(self, request: Request) -> None:
        self._check_open()
        if not is_about_conversations(request):
            raise InvalidField(f"{type(request).__name__}: only a daemon takes this; connect to one with a Client")
        try:
            checked = msgspec.convert(msgspec.to_builtins(request), type(request))
        except msgspec.ValidationError as error:
            raise InvalidField(f"{type(request).__name__}: {error}") from None
        answer = self._conversations.take(b"", checked)
        if answer is not None:
            self._sort(answer)

    def _receive(self, timeout_s: float) -> None:
        """Do a step. However long it takes: nobody else computes what is waited for."""
        self._check_open()
        wait = self._core.wait_seconds()
        if wait is None:
            raise InternalError("no answer can come: nothing is left to compute; ask again")
        time.sleep(wait)
        self._step()

    def _step(self) -> None:
        for event in self._core.step():
            self._dialogue.take(event)
        self._dialogue.pump()
