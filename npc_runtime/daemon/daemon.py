"""The daemon: one thread that owns the sockets and all state, fed by three others through one inbox.

What other threads have to say (the engine's events, new catalogs, a signal to stop) is put into the inbox and handled
here, in order. So nothing in the daemon needs a lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from npc_runtime import __version__
from npc_runtime.base_model import find_base_model
from npc_runtime.catalog import BaseIdentity, Catalog, CatalogBuilder, CatalogEntry
from npc_runtime.config import Settings, default_threads
from npc_runtime.daemon.adapter_set import scaled_adapters
from npc_runtime.daemon.catalog_thread import AddText, CatalogResult, CatalogThread, RemoveId, Scan, UseBase
from npc_runtime.daemon.dialogue import Dialogue
from npc_runtime.daemon.engine_client import EngineClient
from npc_runtime.daemon.engine_process import EngineDied, EngineMessage, EngineProcess
from npc_runtime.daemon.ready_file import ReadyFile
from npc_runtime.daemon.server import Peer, Server, new_daemon_id
from npc_runtime.daemon.turns import Turn
from npc_runtime.engine.commands import (
    EngineReady,
    EngineSettings,
    KeepAdapters,
    ReplyDelta,
    TurnBegan,
    TurnDone,
    TurnFailed,
)
from npc_runtime.errors import Busy, HelloRequired, InternalError, NpcError, ProtocolMismatch, SlowConsumer
from npc_runtime.persona import persona_key
from npc_runtime.protocol import PROTOCOL_VERSION, BadMessage, decode_request, encode, error_answer
from npc_runtime.protocol.messages import (
    AdapterScalesSet,
    AddPersona,
    Answer,
    CancelTurn,
    CloseSession,
    GetStatus,
    Hello,
    ListPersonas,
    OpenSession,
    PersonaAdded,
    PersonaInfo,
    PersonaRemoved,
    Personas,
    Ping,
    Pong,
    Problem,
    RemovePersona,
    Request,
    SessionClosed,
    SetAdapterScales,
    StartTurn,
    Status,
    Welcome,
)

log = logging.getLogger("npc_runtime.daemon")

POLL_MS = 500
ENGINE_STOP_S = 0.5


@dataclass(frozen=True)
class _Waiting:
    """A request that is answered when the catalog thread has done its job."""

    peer: Peer
    request: Request


class Daemon:
    """Everything of one running daemon. ``run`` returns after ``stop``."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.daemon_id = new_daemon_id()
        self._clock = clock
        self._started = clock()
        self._stop_at: float | None = None
        self._catalog_read = False
        self._inbox: queue.SimpleQueue[CatalogResult | tuple[EngineProcess, EngineMessage]] = queue.SimpleQueue()
        engine_settings = EngineSettings(
            base_model=str(find_base_model(settings.base_model)),
            lanes=settings.lanes,
            context_tokens=settings.context_tokens,
            chunk_tokens=settings.prefill_chunk_tokens,
            threads=settings.threads or default_threads(),
        )
        self.server = Server(
            host=settings.host,
            port=settings.port,
            ipc_path=settings.ipc_path,
            max_message_bytes=settings.max_message_bytes,
            max_outbox=settings.max_outbox_messages,
        )
        self.engine = EngineClient(
            engine_settings,
            lambda process, message: self._post((process, message)),
            clock,
            settings.engine_start_timeout_s,
        )
        self.catalog_thread = CatalogThread(
            CatalogBuilder(
                Path(settings.personas_dir),
                Path(settings.adapters_dir),
                max_persona_bytes=settings.max_persona_bytes,
                max_personas=settings.max_personas,
                max_adapter_bytes=settings.max_adapter_bytes,
                allow_base_mismatch=settings.allow_base_mismatch,
            ),
            self._post,
        )
        self.dialogue = Dialogue(settings, self.engine, self._send, self._look_again, clock)
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
                for peer, data in self.server.receive(POLL_MS if self._stop_at is None else 10):
                    self._on_message(peer, data)
                self._empty_inbox()
                self._look_after_clients()
                self.engine.check_start()
                self.dialogue.pump()
        finally:
            self._close()

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        self.dialogue.draining = True
        if not self.dialogue.turns.open_turns():
            return True
        if self._clock() < self._stop_at:
            return False
        self.dialogue.cancel_all()
        return self._clock() >= self._stop_at + ENGINE_STOP_S

    def _close(self) -> None:
        self.ready_file.remove()
        self.catalog_thread.stop()
        self.engine.stop(ENGINE_STOP_S)
        self.server.close(linger_ms=200)

    def _empty_inbox(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._inbox.get_nowait()
                if isinstance(item, CatalogResult):
                    self._on_catalog(item)
                else:
                    self._on_engine(*item)

    def _look_after_clients(self) -> None:
        while self.server.lost:
            self.dialogue.cancel_of(self.server.lost.pop())
        while self.server.slow:
            identity = self.server.slow.pop()
            peer = self.server.peers.get(identity)
            if peer is None:
                continue
            log.warning("a client does not read its messages; its turns are cancelled")
            peer.outbox.clear()
            self.dialogue.cancel_of(identity)
            error = SlowConsumer("messages were dropped because they were not read in time; read faster, then repeat")
            self._send(identity, error_answer(error, None))

    def _send(self, client: bytes, answer: Answer) -> None:
        self.server.send(client, encode(answer))

    # What clients say

    def _on_message(self, peer: Peer, data: bytes) -> None:
        try:
            request = decode_request(data, self.settings.max_message_bytes)
        except BadMessage as bad:
            self._send(peer.identity, error_answer(bad.error, bad.reply_to))
            return
        try:
            self._check_greeting(peer, request)
            answer = self._handle(peer, request)
        except NpcError as error:
            answer = error_answer(error, request.id)
        except Exception:
            log.exception("request failed")
            answer = error_answer(InternalError("the daemon failed on this request; see its log"), request.id)
        if answer is not None:
            self._send(peer.identity, answer)

    def _check_greeting(self, peer: Peer, request: Request) -> None:
        if isinstance(request, Hello):
            if request.protocol != PROTOCOL_VERSION:
                raise ProtocolMismatch(
                    f"the client speaks protocol {request.protocol}, this daemon {PROTOCOL_VERSION}; update one of them"
                )
            if not peer.greeted and sum(p.greeted for p in self.server.peers.values()) >= self.settings.max_clients:
                raise Busy(f"{self.settings.max_clients} clients are connected, as many as max_clients allows")
            peer.greeted = True
        elif not peer.greeted:
            raise HelloRequired("send hello with the protocol version first, once per connection")

    def _handle(self, peer: Peer, request: Request) -> Answer | None:
        match request:
            case Hello():
                return self._welcome(request)
            case Ping():
                return Pong(reply_to=request.id)
            case OpenSession() | ListPersonas() | RemovePersona() | SetAdapterScales() if not self._knows(request):
                self.catalog_thread.submit(Scan(), _Waiting(peer, request))
            case OpenSession() | ListPersonas() | RemovePersona() | SetAdapterScales():
                return self._handle_known(peer, request)
            case CloseSession():
                self.dialogue.close_session(request.session_id)
                return SessionClosed(reply_to=request.id, session_id=request.session_id)
            case StartTurn():
                self.dialogue.start_turn(peer.identity, request)
            case CancelTurn():
                return self.dialogue.cancel_turn(request)
            case AddPersona():
                self.catalog_thread.submit(AddText(request.yaml, request.replace), _Waiting(peer, request))
            case GetStatus():
                return self._status(request)
        return None

    def _handle_known(
        self, peer: Peer, request: OpenSession | ListPersonas | RemovePersona | SetAdapterScales
    ) -> Answer | None:
        """A request that is about the catalog, which is as new as it has to be."""
        match request:
            case OpenSession():
                return self.dialogue.open_session(request)
            case ListPersonas():
                return Personas(reply_to=request.id, personas=self._persona_infos())
            case RemovePersona():
                self.dialogue.catalog.entry(request.persona)
                self.catalog_thread.submit(RemoveId(request.persona), _Waiting(peer, request))
                return None
            case SetAdapterScales():
                persona, adapters = self.dialogue.set_scales(request)
                return AdapterScalesSet(
                    reply_to=request.id, persona=persona, session_id=request.session_id, adapters=adapters
                )

    def _knows(self, request: OpenSession | ListPersonas | RemovePersona | SetAdapterScales) -> bool:
        """Whether the catalog holds the newest version of all that the request is about."""
        if not self._catalog_read or isinstance(request, ListPersonas):
            return False
        if request.persona is None:
            return True
        entry = self.dialogue.catalog.entries.get(persona_key(request.persona))
        return entry is not None and entry.is_current()

    def _welcome(self, request: Hello) -> Welcome:
        return Welcome(
            reply_to=request.id,
            protocol=PROTOCOL_VERSION,
            version=__version__,
            daemon_id=self.daemon_id,
            state=self._state(),
        )

    def _state(self) -> str:
        if self.dialogue.draining:
            return "draining"
        return {"starting": "loading", "ready": "ready", "failed": "failed"}[self.engine.state]

    def _persona_infos(self) -> tuple[PersonaInfo, ...]:
        entries = self.dialogue.catalog.entries
        return tuple(_info(entries[key]) for key in sorted(entries))

    def _status(self, request: GetStatus) -> Status:
        dialogue = self.dialogue
        entries = dialogue.catalog.entries.values()
        running = dialogue.turns.running
        return Status(
            reply_to=request.id,
            state=self._state(),
            version=__version__,
            protocol=PROTOCOL_VERSION,
            daemon_id=self.daemon_id,
            pid=os.getpid(),
            uptime_s=self._clock() - self._started,
            clients=sum(peer.greeted for peer in self.server.peers.values()),
            sessions=len(dialogue.sessions),
            turns_queued=len(dialogue.turns.queue),
            turns_finished=dialogue.finished,
            turns_failed=dialogue.failed,
            running_turn=running.id if running is not None else None,
            personas=len(entries),
            personas_unavailable=sum(entry.error is not None for entry in entries),
            problems=tuple(Problem(p.file, p.line, p.message, p.since) for p in dialogue.catalog.problems),
            rss_bytes=_rss(os.getpid()) + _rss(self.engine.pid),
            engine=self.engine.status(),
        )

    # What the other threads say

    def _look_again(self, turn: Turn) -> None:
        self.catalog_thread.submit(Scan(), turn)

    def _on_catalog(self, result: CatalogResult) -> None:
        self._catalog_read = True
        if result.catalog is not self.dialogue.catalog:
            self._use_catalog(result.catalog)
        if isinstance(result.token, _Waiting):
            self._answer_waiting(result.token, result)
        elif isinstance(result.token, Turn):
            result.token.files = "current"
        elif isinstance(result.token, EngineReady):
            self.dialogue.base_known = True
        self.dialogue.pump()

    def _use_catalog(self, catalog: Catalog) -> None:
        before = {p.message for p in self.dialogue.catalog.problems}
        for problem in catalog.problems:
            if problem.message not in before:
                log.warning("%s", problem.message)
        self.dialogue.catalog = catalog
        in_use = {file.header.digest for entry in catalog.entries.values() for file in entry.adapters}
        known = {file.header.digest for file in catalog.adapters.values()}
        self.engine.send(KeepAdapters(tuple(sorted(in_use | known))))

    def _answer_waiting(self, waiting: _Waiting, result: CatalogResult) -> None:
        request, identity = waiting.request, waiting.peer.identity
        try:
            if result.error is not None:
                raise result.error
            answer = self._late_answer(waiting, result)
            if answer is not None:
                self._send(identity, answer)
        except NpcError as error:
            self._send(identity, error_answer(error, request.id))

    def _late_answer(self, waiting: _Waiting, result: CatalogResult) -> Answer | None:
        request = waiting.request
        if result.removed:
            assert isinstance(request, RemovePersona)
            return PersonaRemoved(reply_to=request.id, persona=request.persona)
        if result.added is not None:
            persona, replaced = result.added
            return PersonaAdded(reply_to=request.id, persona=_info(result.catalog.entry(persona.id)), replaced=replaced)
        assert isinstance(request, OpenSession | ListPersonas | RemovePersona | SetAdapterScales)
        return self._handle_known(waiting.peer, request)

    def _on_engine(self, process: EngineProcess, message: EngineMessage) -> None:
        if not self.engine.take(process, message):
            return
        match message:
            case EngineReady():
                self.catalog_thread.submit(UseBase(BaseIdentity(message.architecture, message.digest)), message)
            case TurnBegan():
                self.dialogue.on_began(message)
            case ReplyDelta():
                self.dialogue.on_delta(message)
            case TurnDone():
                self.dialogue.on_done(message)
            case TurnFailed():
                self.dialogue.on_failed(message)
            case EngineDied():
                self.dialogue.on_engine_lost()


def _info(entry: CatalogEntry) -> PersonaInfo:
    return PersonaInfo(
        id=entry.persona.id,
        name=entry.persona.name,
        summary=entry.persona.summary.strip(),
        source=entry.source,
        version=entry.version,
        available=entry.error is None,
        adapters=scaled_adapters(entry),
        problem=entry.error.message if entry.error is not None else entry.problem,
    )


def _rss(pid: int | None) -> int:
    if pid is None:
        return 0
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0
