"""What is asked about conversations: opening, speaking, computing ahead, forgetting. The same for every way in."""

from __future__ import annotations

from typing import TypeGuard

from npc_runtime.daemon.dialogue import Dialogue
from npc_runtime.daemon.engine_port import EnginePort
from npc_runtime.engine.commands import DropKv
from npc_runtime.persona import persona_key
from npc_runtime.prompt import Exchange, greeting_text
from npc_runtime.protocol.messages import (
    Answer,
    CancelTurn,
    CloseSession,
    Flush,
    Flushed,
    GetHistory,
    History,
    OpenSession,
    PastExchange,
    Prime,
    Request,
    SessionClosed,
    SessionOpened,
    StartTurn,
    TurnCancelled,
    Warm,
)

ConversationRequest = OpenSession | CloseSession | GetHistory | Flush | Warm | Prime | StartTurn | CancelTurn


def is_about_conversations(request: Request) -> TypeGuard[ConversationRequest]:
    """Whether :class:`Conversations` takes this request."""
    return isinstance(request, ConversationRequest)


class Conversations:
    """Takes one request at a time; turns and what is computed ahead are answered through the dialogue's ``send``."""

    def __init__(self, dialogue: Dialogue, engine: EnginePort) -> None:
        self._dialogue = dialogue
        self._engine = engine

    def take(self, client: bytes, request: ConversationRequest) -> Answer | None:
        """The answer, where there is one at once. Raises what is wrong with the request."""
        match request:
            case OpenSession():
                return self._open(request)
            case CloseSession():
                return self._close(request)
            case GetHistory():
                return self._history(request)
            case Flush():
                return self._flush(request)
            case CancelTurn():
                was = self._dialogue.cancel(request.turn_id, keep=request.keep)
                return TurnCancelled(reply_to=request.id, turn_id=request.turn_id, was=was)
            case StartTurn():
                self._dialogue.start_turn(client, request)
            case Warm() | Prime():
                self._dialogue.rehearsals.take(client, request)
        return None

    def _open(self, request: OpenSession) -> SessionOpened:
        persona = self._dialogue.voices.usable(request.persona).persona
        past = [Exchange(e.player, e.reply, e.tokens, e.rest, e.cuts) for e in request.history]
        session, resumed = self._dialogue.sessions.open(persona.id, request.session_id, request.player, past)
        if not resumed and (most := self._engine.context_tokens):
            session.dropped = max(0, len(past) - most)  # each takes a token at least
        return SessionOpened(
            reply_to=request.id,
            session_id=session.id,
            persona=persona.id,
            name=persona.name,
            greeting=greeting_text(persona, session.player),
            resumed=resumed,
            turns=len(session.exchanges),
        )

    def _history(self, request: GetHistory) -> History:
        session = self._dialogue.sessions.get(request.session_id)
        return History(
            reply_to=request.id,
            session_id=session.id,
            persona=session.persona_id,
            player=session.player,
            exchanges=tuple(PastExchange(e.player, e.reply, e.tokens, e.rest, e.cuts) for e in session.remembered),
            dropped_exchanges=session.dropped,
        )

    def _close(self, request: CloseSession) -> SessionClosed:
        self._dialogue.cancel_in(request.session_id)
        self._dialogue.sessions.close(request.session_id)
        self._engine.send(DropKv(session_id=request.session_id))
        return SessionClosed(reply_to=request.id, session_id=request.session_id)

    def _flush(self, request: Flush) -> Flushed:
        if request.session_id is not None:
            self._dialogue.sessions.get(request.session_id)
        persona = ""
        if request.persona is not None:
            persona = persona_key(self._dialogue.voices.catalog.entry(request.persona).persona.id)
        self._engine.send(DropKv(session_id=request.session_id or "", persona_id=persona))
        return Flushed(reply_to=request.id)
