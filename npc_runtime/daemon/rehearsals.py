"""Work that is done before the player speaks: ``warm``, ``prime``, and after every reply.

Each request ends with exactly one answer; what no engine is ready for waits until one is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from npc_runtime.catalog import CatalogEntry
from npc_runtime.daemon.engine_port import EnginePort
from npc_runtime.daemon.sessions import Session, Sessions
from npc_runtime.daemon.turns import Listener
from npc_runtime.daemon.voices import Voices, conversation
from npc_runtime.engine.commands import AdapterSource, Prepare, Prepared
from npc_runtime.errors import Busy, EngineCrashed, InvalidField, MessageTooLarge, NpcError, from_code
from npc_runtime.persona import persona_key
from npc_runtime.prompt import Conversation
from npc_runtime.protocol import error_answer
from npc_runtime.protocol.messages import Answer, Prime, Primed, Warm, Warmed

MAX_WAITING = 64
"""How many of one client may wait: what one asks for shall not keep others out."""


@dataclass(frozen=True)
class _Waiting:
    listener: Listener
    request: Warm | Prime


class Rehearsals:
    """``send(client, answer)`` delivers."""

    def __init__(
        self,
        engine: EnginePort,
        voices: Voices,
        sessions: Sessions,
        send: Callable[[bytes, Answer], bool],
        max_line_chars: int,
    ) -> None:
        self._engine = engine
        self._max_line_chars = max_line_chars
        self._voices = voices
        self._sessions = sessions
        self._send = send
        self._numbers = itertools.count(1)
        self._not_sent: list[_Waiting] = []
        self._waiting: dict[str, _Waiting] = {}

    def take(self, client: bytes, request: Warm | Prime) -> None:
        """Have it done. Raises what is wrong with the request."""
        if isinstance(request, Warm) and (request.persona is None) == (request.session_id is None):
            raise InvalidField("warm: give either persona or session_id, exactly one of them")
        if isinstance(request, Prime) and len(request.text) > self._max_line_chars:
            raise MessageTooLarge(
                f"prime: text has {len(request.text)} characters; allowed are {self._max_line_chars} (max_line_chars); "
                "leave out what is too long"
            )
        if error := self._engine.unavailable():
            raise error
        waiting_now = [*self._not_sent, *self._waiting.values()]
        if sum(item.listener.client == client for item in waiting_now) >= MAX_WAITING:
            raise Busy(f"{MAX_WAITING} of your warm and prime requests are waiting; wait for some answers first")
        waiting = _Waiting(Listener(client, request.id), request)
        if self._can_begin():
            self._begin(waiting)
        else:
            self._check(request)
            self._not_sent.append(waiting)

    def _check(self, request: Warm | Prime) -> None:
        if request.session_id is not None:
            self._sessions.get(request.session_id)

    def _begin(self, waiting: _Waiting) -> None:
        request, name = waiting.request, f"rehearsal {next(self._numbers)}"
        if request.session_id is not None:
            session = self._sessions.get(request.session_id)
            command = (
                self._for_session(name, session, request.text, complete=request.complete)
                if isinstance(request, Prime)
                else self._for_session(name, session)
            )
        else:
            assert isinstance(request, Warm)
            entry = self._voices.usable(str(request.persona))
            player = " ".join(request.player.split()) or "Player"
            bare = conversation(entry.persona, player, (), "")
            command = self._command(name, "", entry, bare, self._voices.adapters(entry))
        self._waiting[name] = waiting
        self._engine.send(command)

    def _for_session(self, name: str, session: Session, line: str = "", *, complete: bool = False) -> Prepare:
        entry = self._voices.usable(session.persona_id)
        primed = session.primed if line else ()
        known = conversation(entry.persona, session.player, session.remembered, line, primed)
        command = self._command(name, session.id, entry, known, self._voices.adapters(entry, session))
        return msgspec.structs.replace(command, complete=complete)

    def _command(
        self, name: str, session_id: str, entry: CatalogEntry, known: Conversation, adapters: tuple[AdapterSource, ...]
    ) -> Prepare:
        return Prepare(
            prepare_id=name,
            session_id=session_id,
            persona_id=persona_key(entry.persona.id),
            conversation=known,
            adapters=adapters,
            pinned=entry.persona.pinned,
        )

    def after_reply(self, session: Session) -> None:
        """Have computed what the session's next prompt begins with, whatever the player will say."""
        try:
            self._engine.send(self._for_session("", session))
        except NpcError:
            return  # nobody asked for it, and the next turn will say what is wrong

    def _can_begin(self) -> bool:
        return self._engine.state == "ready" and self._voices.base_known

    def pump(self) -> None:
        """Begin what waited for an engine, and for its adapters to be compared with the base model."""
        if not self._can_begin():
            return
        waiting, self._not_sent = self._not_sent, []
        for item in waiting:
            try:
                self._begin(item)
            except NpcError as error:
                self._answer(item, error_answer(error, item.listener.reply_to))

    def drop_client(self, client: bytes) -> None:
        """It is gone: what it waited for need not be begun."""
        self._not_sent = [item for item in self._not_sent if item.listener.client != client]

    def on_engine_lost(self) -> None:
        """What the lost engine was doing has failed."""
        lost, self._waiting = self._waiting, {}
        error = EngineCrashed("the engine process ended while it prepared this; ask again")
        for item in lost.values():
            self._answer(item, error_answer(error, item.listener.reply_to))

    def give_up(self, error: NpcError) -> None:
        """No engine will come."""
        waiting, self._not_sent = [*self._not_sent, *self._waiting.values()], []
        self._waiting = {}
        for item in waiting:
            self._answer(item, error_answer(error, item.listener.reply_to))

    def on_prepared(self, event: Prepared) -> None:
        """The engine has ended one."""
        item = self._waiting.pop(event.prepare_id, None)
        if item is None:
            return
        if isinstance(item.request, Prime) and not event.superseded and not event.error_code:
            self._remember(event)
        reply_to = item.listener.reply_to
        if event.error_code:
            answer: Answer = error_answer(from_code(event.error_code, event.error), reply_to)
        elif isinstance(item.request, Warm):
            answer = Warmed(
                reply_to=reply_to,
                ready_tokens=event.ready_tokens,
                computed_tokens=event.computed_tokens,
                superseded=event.superseded,
            )
        else:
            answer = Primed(
                reply_to=reply_to,
                session_id=event.session_id,
                ready_tokens=event.ready_tokens,
                computed_tokens=event.computed_tokens,
                superseded=event.superseded,
            )
        self._answer(item, answer)

    def _remember(self, event: Prepared) -> None:
        """In which calls the line was computed is part of the conversation from now on."""
        session = self._sessions.find(event.session_id)
        if session is not None:
            session.primed = event.primed

    def _answer(self, item: _Waiting, answer: Answer) -> None:
        self._send(item.listener.client, answer)
