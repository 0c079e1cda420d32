"""Persona text to :class:`Persona`, with errors that a writer can act on: file, line, key, what is allowed."""

from __future__ import annotations

import hashlib
import posixpath
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from npc_runtime.errors import PersonaInvalid, suggest
from npc_runtime.persona.model import AdapterRef, Example, Persona
from npc_runtime.persona.yaml_text import Path, YamlText, invalid, read_yaml
from npc_runtime.sampling import Sampling

_ALLOWED: dict[type[msgspec.Struct], tuple[str, ...]] = {
    cls: cls.__struct_fields__ for cls in (Persona, AdapterRef, Example, Sampling)
}
_SECTIONS: dict[str, type[msgspec.Struct]] = {"adapters": AdapterRef, "examples": Example, "sampling": Sampling}
_ERROR_PATH = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$.*)`)?$", re.DOTALL)
_PATH_PART = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


@dataclass(frozen=True)
class PersonaText:
    """A persona as it was read. ``adapter_lines``: the line of each of its adapters, for errors that are found later.

    ``digest`` is the sha256 of the text.
    """

    persona: Persona
    source: str
    digest: str
    adapter_lines: tuple[int, ...]


def load_persona(text: str, source: str) -> Persona:
    """The persona in ``text``; ``source`` is the file name used in errors. Raises PersonaInvalid."""
    return read_persona(text, source).persona


def read_persona(text: str, source: str) -> PersonaText:
    """Like :func:`load_persona`, with where it came from."""
    document = read_yaml(text, source)
    if not isinstance(document.value, dict):
        raise invalid(source, 1, "a persona file is a map of 'key: value' lines, starting with 'schema: npc/1'")
    _check_keys(document)
    try:
        persona = msgspec.convert(document.value, Persona, strict=False)
    except msgspec.ValidationError as error:
        raise _explained(document, error) from None
    _check_adapters(document, persona)
    lines = tuple(document.line_of(("adapters", index)) for index in range(len(persona.adapters)))
    return PersonaText(persona, source, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(), lines)


def decode_text(data: bytes, source: str) -> str:
    """The file's bytes as text: UTF-8, with or without a byte order mark. Raises PersonaInvalid."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise invalid(source, 1, "the file is UTF-16; save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise invalid(source, line, f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8") from None
    if not text.strip():
        raise invalid(source, 1, "the file is empty")
    return text


def _check_keys(document: YamlText) -> None:
    for path, line in document.key_lines.items():
        struct = Persona if len(path) == 1 else _SECTIONS.get(str(path[0]))
        key = str(path[-1])
        if struct is not None and key not in _ALLOWED[struct]:
            where = "" if len(path) == 1 else f" in '{path[0]}'"
            allowed = ", ".join(_ALLOWED[struct])
            raise invalid(
                document.source,
                line,
                f"unknown key '{key}'{where}.{suggest(key, _ALLOWED[struct])} Allowed are: {allowed}",
            )


def _explained(document: YamlText, error: msgspec.ValidationError) -> PersonaInvalid:
    match = _ERROR_PATH.match(str(error))
    assert match is not None
    path = _path(match["path"] or "$")
    what = match["what"]
    value = _value_at(document.value, path)
    line, where = document.line_of(path), _dotted(path)
    shown = f", found {value!r}" if isinstance(value, (str, type(None))) and path else ""
    if "Expected `str`" in what and isinstance(value, (dict, list)):
        shown = f"; the line is: {document.row(line)!r}; put quotes around the text, or use a '|' block"
    return invalid(document.source, line, f"{where + ': ' if where else ''}{what}{shown}{_hint(path)}")


def _hint(path: Path) -> str:
    if path and path[0] == "schema":
        return "; write 'schema: npc/1'"
    field = _field_type(path)
    return f"; allowed is {field}" if field else ""


def _field_type(path: Path) -> str:
    """What the field's own definition allows, in words; empty where the message says it all."""
    struct = _SECTIONS.get(str(path[0])) if path and len(path) > 1 else Persona
    names = [part for part in path if isinstance(part, str)]
    if struct is None or not names or names[-1] not in struct.__struct_fields__:
        return ""
    hint = msgspec.inspect.type_info(struct)
    assert isinstance(hint, msgspec.inspect.StructType)
    found = next(f for f in hint.fields if f.name == names[-1])
    return _describe(found.type)


def _describe(kind: msgspec.inspect.Type) -> str:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _describe(kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        return " or ".join(_describe(part) for part in kind.types)
    if isinstance(kind, (msgspec.inspect.IntType, msgspec.inspect.FloatType)):
        number = "a whole number" if isinstance(kind, msgspec.inspect.IntType) else "a number"
        low = f" from {kind.ge:g}" if kind.ge is not None else f" above {kind.gt:g}" if kind.gt is not None else ""
        high = f" to {kind.le:g}" if kind.le is not None else f" below {kind.lt:g}" if kind.lt is not None else ""
        return number + low + high
    if isinstance(kind, msgspec.inspect.NoneType):
        return "null"
    if isinstance(kind, (msgspec.inspect.VarTupleType, msgspec.inspect.ListType)):
        return "a list ('- ' in front of each item)"
    if isinstance(kind, msgspec.inspect.StructType):
        return f"a map with the keys {', '.join(f.name for f in kind.fields)}"
    return "a text" if isinstance(kind, msgspec.inspect.StrType) else ""


def _check_adapters(document: YamlText, persona: Persona) -> None:
    seen: dict[str, int] = {}
    for index, ref in enumerate(persona.adapters):
        line = document.line_of(("adapters", index))
        if (ref.name is None) == (ref.file is None):
            raise invalid(document.source, line, "an adapter needs either 'name' or 'file', exactly one of them")
        if ref.scale != ref.scale:
            raise invalid(document.source, line, "adapters: scale is not a number; allowed is a number like 0.8")
        if not _is_inside(ref.path):
            raise invalid(document.source, line, f"adapter '{ref.path}' must be a file inside the adapters folder")
        same_file = posixpath.normpath(ref.path.replace("\\", "/"))
        if same_file in seen:
            raise invalid(
                document.source,
                line,
                f"adapter '{ref.alias}' is listed twice (first in line {seen[same_file]}); keep one",
            )
        seen[same_file] = line


def _is_inside(path: str) -> bool:
    parts = path.replace("\\", "/").split("/")
    return not path.startswith(("/", "\\")) and ":" not in path and ".." not in parts and "\x00" not in path


def _path(text: str) -> Path:
    return tuple(name or int(index) for name, index in _PATH_PART.findall(text))


def _dotted(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _value_at(value: Any, path: Path) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return ...
    return value
