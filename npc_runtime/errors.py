"""The one error tree. Each class is one wire code, and says whose fault it is and whether a retry can help.

Drawn as a tree::

    NpcError
    ├── RequestFault   the sender of the message must change something
    ├── ContentFault   a writer must change a persona or adapter file; the other characters still work
    └── RuntimeFault   nobody's input is wrong: the engine failed, is not there yet, or is full

A message text says what happened, the value in quotes, what is allowed and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar


class NpcError(Exception):
    """Base of every error that may reach a client.

    ``code`` is the wire code (stable), ``fault`` names who can mend it, ``retryable`` says that the same request may
    succeed later without a change.
    """

    code: ClassVar[str] = "internal"
    fault: ClassVar[str] = "runtime"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RequestFault(NpcError):
    """The sender must change its message."""

    code = "bad_request"
    fault = "request"


class MalformedMessage(RequestFault):
    """The bytes are not one msgpack map of the documented form."""

    code = "malformed_message"


class UnknownMessageType(RequestFault):
    """``type`` names no request of this protocol version."""

    code = "unknown_type"


class InvalidField(RequestFault):
    """A field is missing, has the wrong type, or is out of range."""

    code = "invalid_field"


class MessageTooLarge(RequestFault):
    """A message or a text in it is over its limit."""

    code = "too_large"


class HelloRequired(RequestFault):
    """The first message of a connection must be ``hello``."""

    code = "hello_required"


class ProtocolMismatch(RequestFault):
    """The client speaks another protocol version."""

    code = "protocol_mismatch"


class UnknownSession(RequestFault):
    """No session with that id (it was closed, or the daemon restarted)."""

    code = "unknown_session"


class SessionConflict(RequestFault):
    """The session id is in use for another persona."""

    code = "session_conflict"


class UnknownPersona(RequestFault):
    """No persona with that id in the catalog."""

    code = "unknown_persona"


class PersonaConflict(RequestFault):
    """A persona with that id exists already."""

    code = "persona_conflict"


class TurnConflict(RequestFault):
    """The turn id was used before with another body."""

    code = "turn_conflict"


class UnknownAdapter(RequestFault):
    """The request names an adapter that is not in the adapters folder, or not in the persona."""

    code = "unknown_adapter"


class LineTooLong(RequestFault):
    """The player's line alone does not fit the context; the session stays usable."""

    code = "line_too_long"


class Busy(RequestFault):
    """A bound (queue, sessions, clients) is reached; try again later.

    ``position`` is how many turns wait already, ``retry_after_ms`` when there may be room (an estimate); None where it
    is not the queue that is full.
    """

    code = "busy"
    retryable = True

    def __init__(self, message: str, position: int | None = None, retry_after_ms: float | None = None) -> None:
        super().__init__(message)
        self.position = position
        self.retry_after_ms = retry_after_ms


class DeadlineExceeded(RequestFault):
    """The turn's ``deadline_ms`` passed before anything was said."""

    code = "deadline_exceeded"
    retryable = True


class ContentFault(NpcError):
    """A persona or adapter file must be changed; every other character still works."""

    code = "content"
    fault = "content"


class PersonaInvalid(ContentFault):
    """A persona file or text does not follow the schema. ``line`` counts from 1; 0 where no line is to blame."""

    code = "persona_invalid"

    def __init__(self, message: str, source: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.source = source
        self.line = line


class PersonaTooLong(ContentFault):
    """The persona's own prompt leaves no room for a conversation."""

    code = "persona_too_long"


class AdapterMissing(ContentFault):
    """The persona names an adapter file that is not there. It is never answered by the base model instead."""

    code = "adapter_missing"


class AdapterInvalid(ContentFault):
    """The adapter file is damaged, of another architecture or shape, or made for another base model."""

    code = "adapter_invalid"


class AdapterChanged(ContentFault):
    """The adapter file changed while it was being loaded."""

    code = "adapter_changed"
    retryable = True


class RuntimeFault(NpcError):
    """Nobody's input is wrong."""

    code = "runtime"


class EngineCrashed(RuntimeFault):
    """The engine process died during the turn; it is being restarted. Nothing of the turn was kept."""

    code = "engine_crashed"
    retryable = True


class DecodeError(RuntimeFault):
    """llama.cpp could not compute a step. The conversation's KV was dropped; the next turn computes it again."""

    code = "decode_failed"
    retryable = True


class EngineUnavailable(RuntimeFault):
    """The engine cannot be started (no sound model, not enough memory)."""

    code = "engine_unavailable"


class ConnectionLost(RuntimeFault):
    """The client cannot reach the daemon, or lost it while it waited for an answer."""

    code = "connection_lost"
    retryable = True


class ShuttingDown(RuntimeFault):
    """The daemon is draining and takes no new turns."""

    code = "shutting_down"
    retryable = True


class SlowConsumer(RuntimeFault):
    """The client did not read its messages and its outbox is full; the turn was ended."""

    code = "slow_consumer"


class ConfigError(NpcError):
    """A configuration value is wrong; the daemon does not start."""

    code = "config"
    fault = "request"


class InternalError(NpcError):
    """A defect of the runtime. The log holds the details."""

    code = "internal"


def all_codes() -> dict[str, type[NpcError]]:
    """Every wire code with its class. The root has no code of its own: it stands for codes that are not known here."""
    found: dict[str, type[NpcError]] = {}
    pending: list[type[NpcError]] = list(NpcError.__subclasses__())
    while pending:
        cls = pending.pop(0)
        pending.extend(cls.__subclasses__())
        found.setdefault(cls.code, cls)
    return found


def from_code(code: str, message: str) -> NpcError:
    """The error of a wire code; unknown codes (a newer daemon) become a plain :class:`NpcError`."""
    return all_codes().get(code, NpcError)(message)


def suggest(name: str, allowed: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the nearest allowed name, or an empty string."""
    near = get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""
