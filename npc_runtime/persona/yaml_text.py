"""YAML as writers type it: every scalar stays the text that was typed, and every value knows its line.

PyYAML composes the node tree (YAML 1.1 syntax, safe tags only); its type guessing is not used, so ``name: No`` is the
text ``No`` and ``007`` stays ``007``. Numbers and booleans are read later, by the type of their field.
Refused, with the line: duplicate keys, tags, aliases beyond a bound, self-reference, nesting beyond a bound, and a
value that YAML would silently cut at `` #``. Merge keys (``<<: *other``) work: a map's own keys win.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from npc_runtime.errors import PersonaInvalid

MAX_NODES = 20_000
MAX_DEPTH = 24

_YAML = "tag:yaml.org,2002:"
_MERGE = _YAML + "merge"
# What YAML's type guessing gives to untagged values; each of them is read as text here.
_UNTAGGED = frozenset(
    _YAML + kind for kind in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge", "seq", "map")
)

Path = tuple[str | int, ...]


@dataclass
class YamlText:
    """The plain value (dicts, lists, strings) and the 1-based line of every value, by its path."""

    source: str
    value: Any = None
    rows: list[str] = field(default_factory=list)
    lines: dict[Path, int] = field(default_factory=dict)
    key_lines: dict[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int:
        """The line of the value at ``path``, or of the nearest value around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def row(self, line: int) -> str:
        """What stands in a line, as it is shown in an error."""
        return self.rows[line - 1].strip()[:120] if 0 < line <= len(self.rows) else ""


def read_yaml(text: str, source: str) -> YamlText:
    """Parse ``text``. Raises PersonaInvalid that names ``source`` and the line."""
    text = text.removeprefix("\ufeff")
    result = YamlText(source, rows=text.splitlines())
    try:
        nodes = _compose(text)
    except yaml.MarkedYAMLError as error:
        line = _mark_line(error, result.rows)
        raise invalid(source, line, _explain(error, result.row(line))) from None
    except (yaml.YAMLError, UnicodeEncodeError, RecursionError) as error:
        line = _reader_line(error, text)
        raise invalid(source, line, f"the file is not readable as YAML: {_first_line(error)}") from None
    if len(nodes) != 1 or nodes[0] is None:
        found = "no document" if not nodes or nodes[0] is None else f"{len(nodes)} documents separated by '---'"
        raise invalid(source, 1, f"the file holds {found}; a persona file holds exactly one map of 'key: value' lines")
    _Plain(result).read(nodes[0])
    return result


def _compose(text: str) -> list[yaml.Node | None]:
    try:
        return list(yaml.compose_all(text, Loader=yaml.CSafeLoader))
    except yaml.MarkedYAMLError as error:
        if "nesting depth" in str(error.problem):
            raise  # the Python parser would take seconds to come to the same end
        # libyaml is fast, but often names the wrong line or none; the Python parser tells where it really is. What it
        # accepts beyond libyaml (escapes of half characters, "\\ud800") stays refused.
        list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        raise


def invalid(source: str, line: int, message: str) -> PersonaInvalid:
    """The error of one place in one file."""
    return PersonaInvalid(f"{source}, line {line}: {message}", source=source, line=line)


class _Plain:
    """The walk over the node tree."""

    def __init__(self, result: YamlText) -> None:
        self.result = result
        self.count = 0

    def read(self, root: yaml.Node) -> None:
        self.result.value = self._value(root, (), (), 0)

    def _fail(self, node: yaml.Node, message: str) -> PersonaInvalid:
        return invalid(self.result.source, node.start_mark.line + 1, message)

    def _value(self, node: yaml.Node, path: Path, parents: tuple[int, ...], indent: int) -> Any:
        """The plain value of ``node``; ``indent`` is the column of the key or dash that it belongs to."""
        self.count += 1
        if self.count > MAX_NODES:
            raise self._fail(node, f"the file has more than {MAX_NODES} values (aliases counted); split it")
        if len(parents) > MAX_DEPTH:
            raise self._fail(node, f"values are nested deeper than {MAX_DEPTH} levels")
        if id(node) in parents:
            raise self._fail(node, "an alias refers to the value that it is a part of")
        self.result.lines.setdefault(path, node.start_mark.line + 1)
        if node.tag not in _UNTAGGED:
            raise self._fail(node, f"'{node.tag}' starts a YAML tag, which is not allowed; put quotes around the text")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, indent)
        parents = (*parents, id(node))
        if isinstance(node, yaml.SequenceNode):
            column = node.start_mark.column
            return [self._value(item, (*path, index), parents, column) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        return self._map(node, path, parents)

    def _map(self, node: yaml.MappingNode, path: Path, parents: tuple[int, ...]) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._fail(key_node, "a key must be one word, like 'greeting:'; put quotes around {{macros}}")
            key, here = key_node.value, (*path, key_node.value)
            if here in self.result.key_lines:
                first = self.result.key_lines[here]
                raise self._fail(key_node, f"key '{key}' stands twice (first in line {first}); keep one of them")
            value = self._value(value_node, here, parents, key_node.start_mark.column)
            if value is None:
                text = f"key '{key}' has no value; write one behind the colon (in quotes), or take the line out"
                raise self._fail(key_node, text)
            if key_node.tag == _MERGE:
                merged = {**self._merged(value_node, value), **merged}
                continue
            self.result.key_lines[here] = key_node.start_mark.line + 1
            plain[key] = value
        return {**merged, **plain}

    def _merged(self, node: yaml.Node, value: Any) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                raise self._fail(node, "'<<' takes over the keys of a map, like '<<: *other', or of a list of maps")
            merged = {**part, **merged}
        return merged

    def _scalar(self, node: yaml.ScalarNode, indent: int) -> str | None:
        if not node.style:
            self._check_not_cut(node, indent)
            if node.value == "":
                return None
        return str(node.value)

    def _check_not_cut(self, node: yaml.ScalarNode, indent: int) -> None:
        following = self.result.rows[node.end_mark.line :]
        rest = following[0][node.end_mark.column :].strip() if following else ""
        if not rest:  # a further line of the same text would stand deeper than its key
            row = next((row for row in following[1:] if row.strip()), "")
            rest = row.strip() if len(row) - len(row.lstrip(" ")) > indent else ""
        if rest.startswith("#") and not rest.startswith("# ") and rest != "#":
            raise self._fail(
                node,
                f"YAML cuts this text at '{rest[:20]}' ('#' after a space starts a comment); "
                "put quotes around the text, or a space after '#' if a comment is meant",
            )


def _mark_line(error: yaml.MarkedYAMLError, rows: list[str]) -> int:
    """The 1-based line to blame: where the parser stopped, or where it began when it stopped on nothing."""
    marks = [mark for mark in (error.problem_mark, error.context_mark) if mark is not None]
    blamed = next((mark for mark in marks if mark.line < len(rows) and rows[mark.line].strip()), None)
    if blamed:
        return blamed.line + 1
    last = min(marks[0].line, len(rows)) if marks else 0
    return next((number for number in range(last, 0, -1) if rows[number - 1].strip()), 1)


def _reader_line(error: BaseException, text: str) -> int:
    """The line of a character that no YAML file may hold. libyaml counts bytes."""
    if isinstance(error, yaml.reader.ReaderError):
        return text.encode("utf-8", "replace")[: error.position].count(b"\n") + 1
    if isinstance(error, UnicodeEncodeError):
        return text[: error.start].count("\n") + 1
    return 1


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _explain(error: yaml.MarkedYAMLError, shown: str) -> str:
    return (
        f"{error.problem or 'not readable as YAML'}; the line is: {shown!r}; "
        "put quotes around a text that holds : # * & ! % @ ` [ ] { } or use a '|' block"
    )
