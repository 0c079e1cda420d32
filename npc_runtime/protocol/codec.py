"""Bytes to typed messages and back.

Input is hostile: sizes and nesting are bounded before anything is built, every failure is one typed error, and the
request's ``id`` is recovered where it can be so that even a bad request gets an answer that names it. Strings sent as
msgpack ``bin`` are accepted where text is expected (C# and C++ libraries differ there).
Output can never fail: texts are cleaned of lone surrogates first.
"""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec

from npc_runtime.errors import (
    Busy,
    InvalidField,
    MalformedMessage,
    MessageTooLarge,
    NpcError,
    UnknownMessageType,
    from_code,
    suggest,
)
from npc_runtime.protocol.messages import ANSWERS, REQUESTS, Answer, AnyAnswer, Error, Request, RequestId

MAX_DEPTH = 8


class BadMessage(Exception):
    """A message that could not be understood: the error to answer with, and the request's id if it could be read."""

    def __init__(self, error: NpcError, reply_to: RequestId | None) -> None:
        super().__init__(error.message)
        self.error = error
        self.reply_to = reply_to


def decode_request(data: bytes, max_bytes: int) -> Request:
    """The typed request in ``data``. Raises :class:`BadMessage`."""
    if len(data) > max_bytes:
        error = MessageTooLarge(f"the message has {len(data)} bytes; allowed are {max_bytes}; send less at once")
        raise BadMessage(error, None)
    request: Request = _typed(_read_map(data), REQUESTS)
    return request


def decode_answer(data: bytes) -> AnyAnswer:
    """The typed answer in ``data`` (client side). Raises :class:`BadMessage`."""
    answer: AnyAnswer = _typed(_read_map(data), ANSWERS)
    return answer


def encode(message: Request | Answer) -> bytes:
    """The message as one msgpack map; fields at their default are written too."""
    fields = msgspec.to_builtins(message)
    try:
        return bytes(msgpack.packb(fields))
    except UnicodeEncodeError:
        return bytes(msgpack.packb(_clean(fields)))


def error_answer(error: NpcError, reply_to: RequestId | None, turn_id: str | None = None) -> Error:
    """The wire form of an error."""
    full = error if isinstance(error, Busy) else None
    return Error(
        reply_to=reply_to,
        code=error.code,
        message=error.message,
        fault=error.fault,
        retryable=error.retryable,
        turn_id=turn_id,
        position=full.position if full else None,
        retry_after_ms=full.retry_after_ms if full else None,
    )


def answered_error(answer: Error) -> NpcError:
    """The error that an answer is; unknown codes (a newer daemon) become a plain :class:`NpcError`."""
    error = from_code(answer.code, answer.message)
    if isinstance(error, Busy):
        error.position, error.retry_after_ms = answer.position, answer.retry_after_ms
    return error


def _read_map(data: bytes) -> dict[str, Any]:
    try:
        # Bytes that are not UTF-8 come through as lone surrogates: refused below, when the id is known.
        value = msgpack.unpackb(data, raw=False, unicode_errors="surrogateescape", strict_map_key=False, timestamp=0)
    # msgpack raises ValueError, its sub-classes, TypeError for a map as key, OverflowError and, for odd extension
    # types, others: on hostile bytes every one of them means the same.
    except Exception as error:
        text = f"the message is not valid msgpack ({type(error).__name__}); send exactly one msgpack map"
        raise BadMessage(MalformedMessage(text), None) from None
    if not isinstance(value, dict):
        text = f"the message is a {type(value).__name__}; it must be one msgpack map with string keys"
        raise BadMessage(MalformedMessage(text), None)
    try:
        plain: dict[str, Any] = _plain(value, 0)
    except NpcError as error:
        raise BadMessage(error, _request_id(value)) from None
    return plain


def _plain(value: Any, depth: int) -> Any:
    """``value`` with byte strings as text; only what JSON could hold plus 64-bit integers."""
    if depth > MAX_DEPTH:
        raise MalformedMessage(f"the message is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, (bytes, str)):
        return _text(value)
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_key(key): _plain(item, depth + 1) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise MalformedMessage(
        f"the message holds a msgpack {type(value).__name__}; allowed are maps, arrays, text, numbers"
    )


def _text(value: bytes | str) -> str:
    try:
        return (value.encode() if isinstance(value, str) else value).decode()
    except UnicodeError:
        raise MalformedMessage("a text in the message is not UTF-8; all texts must be") from None


def _key(key: Any) -> str:
    if not isinstance(key, (bytes, str)):
        raise MalformedMessage(f"a map key is {str(key)[:40]!r}; all keys must be strings")
    return _text(key)


def _request_id(fields: dict[Any, Any]) -> RequestId | None:
    value = fields.get("id", fields.get(b"id"))
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return value
    if not isinstance(value, (bytes, str)):
        return None
    try:
        text = _text(value)
    except MalformedMessage:
        return None
    return text if 0 < len(text) <= 128 else None


def _typed(fields: dict[str, Any], known: dict[str, Any]) -> Any:
    reply_to = _request_id(fields)
    tag = fields.get("type")
    if not isinstance(tag, str) or tag not in known:
        shown = repr(tag)[:60]
        hint = suggest(tag, known) if isinstance(tag, str) and len(tag) < 100 else ""
        error = UnknownMessageType(f"unknown message type {shown}; allowed are {', '.join(sorted(known))}.{hint}")
        raise BadMessage(error, reply_to)
    try:
        return msgspec.convert(fields, known[tag])
    except msgspec.ValidationError as error:
        raise BadMessage(InvalidField(f"{tag}: {error}; see the field table in docs/protocol.md"), reply_to) from None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value
