"""The daemon: one thread that owns the sockets and all state, fed by three others through one inbox.

What other threads have to say (the engine's events, new catalogs, a signal to stop) is put into the inbox and handled
here, in order. So nothing in the daemon needs a lock.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Callable

from npc_runtime.catalog import BaseIdentity, CatalogBuilder
from npc_runtime.config import Settings
from npc_runtime.daemon.catalog_thread import CatalogResult, CatalogThread, Scan, UseBase
from npc_runtime.daemon.conversations import Conversations
from npc_runtime.daemon.dialogue import Dialogue
from npc_runtime.daemon.engine_client import EngineClient
from npc_runtime.daemon.engine_process import EngineDied, EngineMessage, EngineProcess
from npc_runtime.daemon.ready_file import ReadyFile
from npc_runtime.daemon.requests import Requests
from npc_runtime.daemon.server import Server, new_daemon_id
from npc_runtime.daemon.turns import Turn
from npc_runtime.engine.commands import (
    EngineReady,
    engine_settings,
)
from npc_runtime.errors import InternalError, SlowConsumer
from npc_runtime.protocol import encode, error_answer
from npc_runtime.protocol.messages import (
    Answer,
)

log = logging.getLogger("npc_runtime.daemon")

POLL_MS = 500
CANCEL_S = 0.3
"""How long cancelled turns may take to end at stop."""
ENGINE_STOP_S = 1.0
"""How long the engine may take to leave, its KV kept on disk included."""


class Daemon:
    """Everything of one running daemon. ``run`` returns after ``stop``."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.daemon_id = new_daemon_id()
        self._clock = clock
        self._stop_at: float | None = None
        self._inbox: queue.SimpleQueue[CatalogResult | tuple[EngineProcess, EngineMessage]] = queue.SimpleQueue()
        self.server = Server(
            host=settings.host,
            port=settings.port,
            ipc_path=settings.ipc_path,
            max_message_bytes=settings.max_message_bytes,
            max_outbox=settings.max_outbox_messages,
        )
        self.engine = EngineClient(
            engine_settings(settings),
            lambda process, message: self._post((process, message)),
            clock,
            start_timeout_s=settings.engine_start_timeout_s,
            stuck_s=settings.stuck_engine_seconds,
        )
        self.catalog_thread = CatalogThread(CatalogBuilder.from_settings(settings), self._post)
        self.dialogue = Dialogue(settings, self.engine, self._send, self._look_again, clock)
        self.requests = Requests(
            settings,
            self.server,
            self.dialogue,
            Conversations(self.dialogue, self.engine),
            self.engine,
            self.catalog_thread,
            self.daemon_id,
            clock,
        )
        self.ready_file = ReadyFile(settings, self.server.port, self.daemon_id)

    # The loop

    def _post(self, item: CatalogResult | tuple[EngineProcess, EngineMessage]) -> None:
        self._inbox.put(item)
        self.server.wake()

    def stop(self) -> None:
        """Ask ``run`` to end: the running turn has ``drain_seconds`` to finish. May be called from a signal handler."""
        if self._stop_at is None:
            self._stop_at = self._clock() + self.settings.drain_seconds
        self.server.wake()

    def run(self) -> None:
        """Serve until ``stop``."""
        self.catalog_thread.start()
        self.ready_file.write()
        try:
            while not self._is_over():
                for peer, data in self.server.receive(self._poll_ms()):
                    self._look_after_clients()
                    self.requests.take(peer, data)
                self._empty_inbox()
                self._look_after_clients()
                self.engine.check_start()
                self.engine.check_alive()
                self.dialogue.pump()
        finally:
            self._close()

    def _poll_ms(self) -> int:
        if self._stop_at is not None:
            return 10
        wait = self.dialogue.seconds_to_deadline()
        return POLL_MS if wait is None else min(POLL_MS, int(wait * 1e3) + 1)

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        self.dialogue.draining = True
        if not self.dialogue.turns.open_turns():
            return True
        if self._clock() < self._stop_at:
            return False
        self.dialogue.cancel_all()
        return self._clock() >= self._stop_at + CANCEL_S

    def _close(self) -> None:
        self.ready_file.remove()
        self.catalog_thread.stop()
        self.engine.stop(ENGINE_STOP_S)
        self.server.close(linger_ms=200)

    def _empty_inbox(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._take_in(self._inbox.get_nowait())

    def _take_in(self, item: CatalogResult | tuple[EngineProcess, EngineMessage]) -> None:
        try:
            if isinstance(item, CatalogResult):
                self._on_catalog(item)
            else:
                self._on_engine(*item)
        except Exception:
            # A defect here must not take the other characters down with the turn that ran into it.
            log.exception("event failed")
            self.dialogue.give_up_active(InternalError("the daemon failed on this turn; see its log"))

    def _look_after_clients(self) -> None:
        while self.server.lost:
            self.dialogue.cancel_of(self.server.lost.pop())
        while self.server.slow:
            identity = self.server.slow.pop()
            peer = self.server.peers.get(identity)
            if peer is None:
                continue
            log.warning("a client does not read its messages; its turns are cancelled")
            self.server.forgive(peer)
            self.dialogue.cancel_of(identity)
            error = SlowConsumer("messages were dropped because they were not read in time; read faster, then repeat")
            self._send(identity, error_answer(error, None))

    def _send(self, client: bytes, answer: Answer) -> bool:
        return self.server.send(client, encode(answer))

    # What the other threads say

    def _look_again(self, turn: Turn) -> None:
        self.catalog_thread.submit(Scan(), turn)

    def _on_catalog(self, result: CatalogResult) -> None:
        if result.catalog is not self.dialogue.voices.catalog:
            self.dialogue.voices.use(result.catalog)
        self.requests.on_catalog(result)
        if isinstance(result.token, Turn):
            result.token.files = "current"
        elif isinstance(result.token, EngineReady):
            self.dialogue.voices.base_known = True
        self.dialogue.pump()

    def _on_engine(self, process: EngineProcess, message: EngineMessage) -> None:
        if not self.engine.take(process, message):
            return
        match message:
            case EngineReady():
                made_for = message.source_digest or message.digest
                self.catalog_thread.submit(UseBase(BaseIdentity(message.architecture, made_for)), message)
                self.dialogue.on_engine_ready()
            case EngineDied():
                self.dialogue.on_engine_lost()
            case _:
                self.dialogue.take(message)
