"""Markdown tables from msgspec's type information, the error tree and the settings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import NODEFAULT
from msgspec import inspect as types

from npc_runtime.config import ENV_PREFIX, Settings
from npc_runtime.daemon.adapter_set import MAX_ADAPTERS
from npc_runtime.errors import all_codes
from npc_runtime.protocol.codec import MAX_DEPTH
from npc_runtime.protocol.messages import ANSWERS, MAX_SCALE, REQUESTS
from npc_runtime.sampling import SamplingOverrides

FAULTS = ("request", "content", "runtime")
LIMIT_SETTINGS = (
    "max_message_bytes",
    "max_line_chars",
    "max_persona_bytes",
    "max_adapter_bytes",
    "max_personas",
    "max_clients",
    "max_sessions",
    "max_queued_turns",
    "max_turn_seconds",
    "max_outbox_messages",
    "finished_turns_kept",
)


def requests() -> str:
    """A section for each request."""
    return "\n\n".join(_section(tag, cls, skip=("id",), defaults=True) for tag, cls in REQUESTS.items())


def answers() -> str:
    """A section for each answer."""
    return "\n\n".join(_section(tag, cls, skip=("reply_to",), defaults=False) for tag, cls in ANSWERS.items())


def nested_types() -> str:
    """A section for each map inside a message."""
    found: dict[str, type[msgspec.Struct]] = {}
    for message in (*REQUESTS.values(), *ANSWERS.values()):
        info = types.type_info(message)
        assert isinstance(info, types.StructType)
        for nested in _structs(field.type for field in info.fields):
            found[nested.cls.__name__] = nested.cls
    return "\n\n".join(
        _section(name, found[name], skip=(), defaults=bool(found[name].__struct_defaults__)) for name in sorted(found)
    )


def errors() -> str:
    """One row for each wire code."""
    classes = {}
    for code, cls in all_codes().items():
        classes[code] = next((sub for sub in cls.__subclasses__() if sub.code == code), cls)
    rows = []
    for fault in FAULTS:
        for code, cls in classes.items():
            if cls.fault == fault:
                meaning = "Any other error of this kind." if cls.__subclasses__() else _doc(cls).replace("\n\n", " ")
                rows.append((f"`{code}`", fault, "yes" if cls.retryable else "no", meaning))
    return _table(("code", "fault", "retryable", "meaning"), rows)


def limits() -> str:
    """What bounds a client: the settings it can run into, and the fixed limits."""
    described = {field.name: field for field in types.type_info(Settings).fields}  # type: ignore[attr-defined]
    rows = []
    for name in LIMIT_SETTINGS:
        field = described[name]
        rows.append((_description(field.type), f"{int(field.default):,}".replace(",", " "), f"setting `{name}`"))
    rows += [
        ("levels of nesting in one message", str(MAX_DEPTH), "fixed"),
        ("adapters of one turn", str(MAX_ADAPTERS), "fixed"),
        ("a scale, up or down", f"{MAX_SCALE:g}", "fixed"),
    ]
    return _table(("limit", "default", "where"), rows)


def settings() -> str:
    """One row for each setting."""
    rows = []
    info = types.type_info(Settings)
    assert isinstance(info, types.StructType)
    for field in info.fields:
        rows.append(
            (
                f"`{field.name}`",
                f"`{ENV_PREFIX}{field.name.upper()}`",
                _words(field.type),
                _allowed(field.type),
                _value(field.default),
                _description(field.type),
            )
        )
    return _table(("setting", "environment variable", "type", "allowed", "default", "meaning and unit"), rows)


def _section(title: str, cls: type, *, skip: tuple[str, ...], defaults: bool) -> str:
    info = types.type_info(cls)
    assert isinstance(info, types.StructType)
    fields = [field for field in info.fields if field.name not in skip]
    heading = f"#### `{title}`\n\n{_doc(cls)}"
    if not fields:
        return f"{heading}\n\nNo further fields."
    rows = []
    for field in fields:
        row = [f"`{field.encode_name}`", _words(field.type), _allowed(field.type)]
        if defaults:
            row.append(_default(field, cls))
        rows.append((*row, _description(field.type)))
    header = ("field", "type", "allowed", *(("default",) if defaults else ()), "meaning")
    return f"{heading}\n\n{_table(header, rows)}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without the columns that say nothing in any row."""
    columns = [index for index in range(len(header)) if any(row[index] for row in rows)]
    lines = [header, ["---"] * len(header), *rows]
    cells = [[line[index].replace("|", "\\|").replace("\n", " ") for index in columns] for line in lines]
    return "\n".join(f"| {' | '.join(row)} |".replace("  ", " ") for row in cells)


def _doc(cls: type) -> str:
    text = (inspect.getdoc(cls) or "").replace("``", "`")
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return "\n\n".join(paragraphs)


def _default(field: types.Field, cls: type) -> str:
    if field.required:
        return "required"
    if cls is SamplingOverrides:
        return "the persona's"
    return _value(field.default)


def _value(value: Any) -> str:
    if value is NODEFAULT:
        return "required"
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{msgspec.json.encode(value).decode()}`"


def _parts(kind: types.Type) -> list[types.Type]:
    """The alternatives of a type, without what only describes them."""
    if isinstance(kind, types.Metadata):
        return _parts(kind.type)
    if isinstance(kind, types.UnionType):
        return [part for alternative in kind.types for part in _parts(alternative)]
    return [kind]


def _words(kind: types.Type) -> str:
    return " or ".join(_word(part) for part in _parts(kind))


def _word(kind: types.Type) -> str:
    if isinstance(kind, types.VarTupleType):
        return f"array of {_words(kind.item_type)}"
    if isinstance(kind, types.DictType):
        return f"map of {_words(kind.key_type)} to {_words(kind.value_type)}"
    if isinstance(kind, types.StructType):
        return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
    if isinstance(kind, types.LiteralType):
        return "text"
    simple: dict[type, str] = {
        types.IntType: "integer",
        types.FloatType: "number",
        types.StrType: "text",
        types.BoolType: "boolean",
        types.NoneType: "null",
    }
    return simple[type(kind)]


def _allowed(kind: types.Type) -> str:
    return "; ".join(filter(None, (_range(part) for part in _parts(kind))))


def _range(kind: types.Type) -> str:
    if isinstance(kind, types.LiteralType):
        return ", ".join(f"`{value}`" for value in kind.values)
    if isinstance(kind, types.StrType):
        return _between(kind.min_length, kind.max_length, " characters")
    if isinstance(kind, types.DictType):
        return _allowed(kind.value_type)
    if isinstance(kind, types.VarTupleType):
        return _allowed(kind.item_type)
    if isinstance(kind, (types.IntType, types.FloatType)):
        if kind.gt is not None or kind.lt is not None:
            signs = (("> ", kind.gt), ("≥ ", kind.ge), ("< ", kind.lt), ("≤ ", kind.le))
            return ", ".join(f"{sign}{_number(bound)}" for sign, bound in signs if bound is not None)
        return _between(kind.ge, kind.le, "")
    return ""


def _between(low: float | None, high: float | None, unit: str) -> str:
    if low is not None and high is not None:
        return f"{_number(low)} to {_number(high)}{unit}"
    if low is not None:
        return f"≥ {_number(low)}{unit}"
    return f"at most {_number(high)}{unit}" if high is not None else ""


def _number(value: float) -> str:
    powers = {-(2**63): "-2^63", 2**63 - 1: "2^63 - 1", 2**32 - 1: "2^32 - 1"}
    return powers.get(int(value), "") or (f"{value:g}" if isinstance(value, float) else str(value))


def _description(kind: types.Type) -> str:
    text = next(_descriptions(kind), "")
    return "" if text in (_allowed(kind), "UTF-8 text") else text


def _descriptions(kind: types.Type) -> Iterator[str]:
    if isinstance(kind, types.Metadata):
        if text := (kind.extra_json_schema or {}).get("description"):
            yield text
        yield from _descriptions(kind.type)
    elif isinstance(kind, types.UnionType):
        for alternative in kind.types:
            yield from _descriptions(alternative)


def _structs(kinds: Iterable[types.Type]) -> Iterator[types.StructType]:
    for kind in kinds:
        for part in _parts(kind):
            if isinstance(part, types.StructType):
                yield part
                yield from _structs(field.type for field in part.fields)
            elif isinstance(part, types.VarTupleType):
                yield from _structs([part.item_type])
            elif isinstance(part, types.DictType):
                yield from _structs([part.key_type, part.value_type])
