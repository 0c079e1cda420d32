"""What clients ask of the daemon, and what they are answered.

A request is decoded, checked and answered here, or handed to the part that will answer it: a turn to the dialogue, a
question about the catalog (where it must be looked at first) to the catalog thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from npc_runtime import __version__
from npc_runtime.catalog import CatalogEntry
from npc_runtime.config import Settings
from npc_runtime.daemon.adapter_set import scaled_adapters
from npc_runtime.daemon.catalog_thread import AddText, CatalogResult, CatalogThread, RemoveId, Scan
from npc_runtime.daemon.conversations import Conversations, is_about_conversations
from npc_runtime.daemon.dialogue import Dialogue
from npc_runtime.daemon.engine_client import EngineClient
from npc_runtime.daemon.server import Peer, Server
from npc_runtime.errors import Busy, HelloRequired, InternalError, NpcError, ProtocolMismatch
from npc_runtime.persona import persona_key
from npc_runtime.protocol import PROTOCOL_VERSION, BadMessage, decode_request, encode, error_answer
from npc_runtime.protocol.messages import (
    AdapterScalesSet,
    AddPersona,
    Answer,
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
    SetAdapterScales,
    Status,
    Warm,
    Welcome,
)

log = logging.getLogger("npc_runtime.daemon")

CatalogRequest = OpenSession | Warm | ListPersonas | RemovePersona | SetAdapterScales


@dataclass(frozen=True)
class _Waiting:
    """A request that is answered when the catalog thread has done its job."""

    peer: Peer
    request: Request


class Requests:
    """The daemon's front. One thread."""

    def __init__(
        self,
        settings: Settings,
        server: Server,
        dialogue: Dialogue,
        conversations: Conversations,
        engine: EngineClient,
        catalog_thread: CatalogThread,
        daemon_id: str,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._server = server
        self._dialogue = dialogue
        self._conversations = conversations
        self._engine = engine
        self._catalog_thread = catalog_thread
        self._catalog_read = False
        self._daemon_id = daemon_id
        self._clock = clock
        self._started = clock()

    def take(self, peer: Peer, data: bytes) -> None:
        """Answer one message, now or later."""
        try:
            request = decode_request(data, self._settings.max_message_bytes)
        except BadMessage as bad:
            self._send(peer, error_answer(bad.error, bad.reply_to))
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
            self._send(peer, answer)

    def _check_greeting(self, peer: Peer, request: Request) -> None:
        if isinstance(request, Hello):
            if request.protocol != PROTOCOL_VERSION:
                raise ProtocolMismatch(
                    f"the client speaks protocol {request.protocol}, this daemon {PROTOCOL_VERSION}; update one of them"
                )
            if not peer.greeted and sum(p.greeted for p in self._server.peers.values()) >= self._settings.max_clients:
                raise Busy(f"{self._settings.max_clients} clients are connected, as many as max_clients allows")
            peer.greeted = True
        elif not peer.greeted:
            raise HelloRequired("send hello with the protocol version first, once per connection")

    def _handle(self, peer: Peer, request: Request) -> Answer | None:
        match request:
            case Hello():
                return self._welcome(request)
            case Ping():
                return Pong(reply_to=request.id)
            case OpenSession() | Warm() | ListPersonas() | RemovePersona() | SetAdapterScales() if not self._knows(
                request
            ):
                self._catalog_thread.submit(Scan(), _Waiting(peer, request))
            case OpenSession() | Warm() | ListPersonas() | RemovePersona() | SetAdapterScales():
                return self._handle_known(peer, request)
            case AddPersona():
                self._catalog_thread.submit(AddText(request.yaml, request.replace), _Waiting(peer, request))
            case GetStatus():
                return self._status(request)
            case _ if is_about_conversations(request):
                return self._conversations.take(peer.identity, request)
        return None

    def _handle_known(self, peer: Peer, request: CatalogRequest) -> Answer | None:
        """A request that is about the catalog, which is as new as it has to be."""
        match request:
            case OpenSession() | Warm():
                return self._conversations.take(peer.identity, request)
            case ListPersonas():
                return Personas(reply_to=request.id, personas=self._persona_infos())
            case RemovePersona():
                self._dialogue.voices.catalog.entry(request.persona)
                self._catalog_thread.submit(RemoveId(request.persona), _Waiting(peer, request))
                return None
            case SetAdapterScales():
                persona, adapters = self._dialogue.voices.set_scales(request)
                return AdapterScalesSet(
                    reply_to=request.id, persona=persona, session_id=request.session_id, adapters=adapters
                )

    def _knows(self, request: CatalogRequest) -> bool:
        """Whether the catalog holds the newest version of all that the request is about."""
        if not self._catalog_read or isinstance(request, ListPersonas):
            return False
        if request.persona is None:
            return True
        entry = self._dialogue.voices.catalog.entries.get(persona_key(request.persona))
        return entry is not None and entry.is_current()

    def _welcome(self, request: Hello) -> Welcome:
        return Welcome(
            reply_to=request.id,
            protocol=PROTOCOL_VERSION,
            version=__version__,
            daemon_id=self._daemon_id,
            state=self._state(),
        )

    def _state(self) -> str:
        if self._dialogue.draining:
            return "draining"
        return {"starting": "loading", "ready": "ready", "failed": "failed"}[self._engine.state]

    def _persona_infos(self) -> tuple[PersonaInfo, ...]:
        entries = self._dialogue.voices.catalog.entries
        return tuple(self._info(entries[key]) for key in sorted(entries))

    def _info(self, entry: CatalogEntry) -> PersonaInfo:
        error = entry.error or self._dialogue.voices.too_long(entry)
        return PersonaInfo(
            id=entry.persona.id,
            name=entry.persona.name,
            summary=entry.persona.summary.strip(),
            source=entry.source,
            version=entry.version,
            available=error is None,
            adapters=scaled_adapters(entry),
            problem=error.message if error is not None else entry.problem,
            pinned=entry.persona.pinned,
            prompt_tokens=self._dialogue.voices.tokens(entry),
        )

    def _status(self, request: GetStatus) -> Status:
        dialogue = self._dialogue
        entries = dialogue.voices.catalog.entries.values()
        active = dialogue.turns.active
        return Status(
            reply_to=request.id,
            state=self._state(),
            version=__version__,
            protocol=PROTOCOL_VERSION,
            daemon_id=self._daemon_id,
            pid=os.getpid(),
            uptime_s=self._clock() - self._started,
            clients=sum(peer.greeted for peer in self._server.peers.values()),
            sessions=len(dialogue.sessions),
            turns_queued=len(dialogue.turns.queue),
            turns_finished=dialogue.finished,
            turns_failed=dialogue.failed,
            running_turn=dialogue.first_running,
            turns_active=len(active),
            personas=len(entries),
            personas_unavailable=sum(
                entry.error is not None or dialogue.voices.too_long(entry) is not None for entry in entries
            ),
            problems=tuple(Problem(p.file, p.line, p.message, p.since) for p in dialogue.voices.catalog.problems),
            rss_bytes=_rss(os.getpid()) + _rss(self._engine.pid),
            engine=self._engine.status(),
        )

    def on_catalog(self, result: CatalogResult) -> None:
        """The catalog thread has done a job: answer the request that waited for it, if one did."""
        self._catalog_read = True
        if not isinstance(result.token, _Waiting):
            return
        peer, request = result.token.peer, result.token.request
        try:
            if result.error is not None:
                raise result.error
            answer = self._late_answer(result.token, result)
        except NpcError as error:
            answer = error_answer(error, request.id)
        if answer is not None:
            self._send(peer, answer)

    def _late_answer(self, waiting: _Waiting, result: CatalogResult) -> Answer | None:
        request = waiting.request
        if result.removed:
            assert isinstance(request, RemovePersona)
            return PersonaRemoved(reply_to=request.id, persona=request.persona)
        if result.added is not None:
            persona, replaced = result.added
            return PersonaAdded(
                reply_to=request.id, persona=self._info(result.catalog.entry(persona.id)), replaced=replaced
            )
        assert isinstance(request, CatalogRequest)
        return self._handle_known(waiting.peer, request)

    def _send(self, peer: Peer, answer: Answer) -> None:
        self._server.send(peer.identity, encode(answer))


def _rss(pid: int | None) -> int:
    if pid is None:
        return 0
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0
