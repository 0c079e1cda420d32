"""Conversations, as text: what was said, by whom, to whom. KV is only a cache of this."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from npc_runtime.errors import Busy, SessionConflict, UnknownSession
from npc_runtime.persona import persona_key
from npc_runtime.prompt import Call, Exchange


@dataclass
class Session:
    """One conversation of one player with one persona.

    ``dropped`` counts the oldest exchanges that no longer go into the prompt; ``scales`` are this session's own;
    ``primed`` are the calls in which the line that is being typed was computed so far.
    """

    id: str
    persona_id: str
    player: str
    exchanges: list[Exchange] = field(default_factory=list)
    dropped: int = 0
    scales: dict[str, float] | None = None
    primed: tuple[Call, ...] = ()

    @property
    def remembered(self) -> tuple[Exchange, ...]:
        """The exchanges that go into the next prompt."""
        return tuple(self.exchanges[self.dropped :])


class Sessions:
    """All open sessions, at most ``limit``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session: Session) -> bool:
        return self._sessions.get(session.id) is session

    def open(
        self, persona_id: str, session_id: str | None, player: str, past: Sequence[Exchange] = ()
    ) -> tuple[Session, bool]:
        """The session, and whether it was there before; a new one begins with ``past``. Raises SessionConflict or
        Busy."""
        if session_id is not None and session_id in self._sessions:
            session = self._sessions[session_id]
            if persona_key(session.persona_id) != persona_key(persona_id):
                raise SessionConflict(
                    f"session '{session_id}' is a conversation with '{session.persona_id}'; "
                    f"close it first or choose another session_id for '{persona_id}'"
                )
            return session, True
        if len(self._sessions) >= self._limit:
            raise Busy(f"{self._limit} sessions are open, as many as max_sessions allows; close some")
        session = Session(session_id or secrets.token_hex(8), persona_id, " ".join(player.split()) or "Player", [*past])
        self._sessions[session.id] = session
        return session, False

    def find(self, session_id: str) -> Session | None:
        """The session, or None."""
        return self._sessions.get(session_id)

    def get(self, session_id: str) -> Session:
        """Raises UnknownSession."""
        session = self._sessions.get(session_id)
        if session is None:
            raise UnknownSession(
                f"no session '{session_id}' (it was closed, or the daemon restarted); open it with open_session"
            )
        return session

    def close(self, session_id: str) -> None:
        """Forget it; unknown ids are fine."""
        self._sessions.pop(session_id, None)
