"""YAML as writers type it: every scalar stays the text that was typed, and every value knows its line.

PyYAML composes the node tree (YAML 1.1 syntax, safe tags only); its type guessing is not used, so ``name: No`` is the
text ``No`` and ``007`` stays ``007``. Numbers and booleans are read later, by the type of their field.
Refused, with line and column: duplicate keys, tags, aliases beyond a bound, self-reference, nesting beyond a bound,
and a value that YAML would silently cut at `` #``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from npc_runtime.errors import PersonaInvalid

MAX_NODES = 20_000
MAX_DEPTH = 24

Path = tuple[str | int, ...]


@dataclass
class YamlText:
    """The plain value (dicts, lists, strings) and the 1-based line of every value, by its path."""

    source: str
    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    key_lines: dict[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int:
        """The line of the value at ``path``, or of the nearest value around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_yaml(text: str, source: str) -> YamlText:
    """Parse ``text``. Raises PersonaInvalid that names ``source`` and the line."""
    result = YamlText(source)
    try:
        nodes = list(yaml.compose_all(text.removeprefix("\ufeff"), Loader=yaml.CSafeLoader))
    except yaml.MarkedYAMLError as error:
        raise invalid(source, _mark_line(error), _explain(error, text)) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise invalid(source, 1, f"the file is not readable as YAML: {_first_line(error)}") from None
    if len(nodes) != 1 or nodes[0] is None:
        found = "no document" if not nodes or nodes[0] is None else f"{len(nodes)} documents separated by '---'"
        raise invalid(source, 1, f"the file holds {found}; a persona file holds exactly one map of 'key: value' lines")
    _Plain(result, text.removeprefix("\ufeff").splitlines()).read(nodes[0])
    return result


def invalid(source: str, line: int, message: str) -> PersonaInvalid:
    """The error of one place in one file."""
    return PersonaInvalid(f"{source}, line {line}: {message}", source=source, line=line)


class _Plain:
    """The walk over the node tree."""

    def __init__(self, result: YamlText, rows: list[str]) -> None:
        self.result = result
        self.rows = rows
        self.count = 0

    def read(self, root: yaml.Node) -> None:
        self.result.value = self._value(root, (), ())

    def _fail(self, node: yaml.Node, message: str) -> PersonaInvalid:
        return invalid(self.result.source, node.start_mark.line + 1, message)

    def _value(self, node: yaml.Node, path: Path, parents: tuple[int, ...]) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            raise self._fail(node, f"the file has more than {MAX_NODES} values (aliases counted); split it")
        if len(parents) > MAX_DEPTH:
            raise self._fail(node, f"values are nested deeper than {MAX_DEPTH} levels")
        if id(node) in parents:
            raise self._fail(node, "an alias refers to the value that it is a part of")
        self.result.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        parents = (*parents, id(node))
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, index), parents) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        return self._map(node, path, parents)

    def _map(self, node: yaml.MappingNode, path: Path, parents: tuple[int, ...]) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._fail(key_node, "a key must be one word, like 'greeting:'; put quotes around {{macros}}")
            key, here = key_node.value, (*path, key_node.value)
            if here in self.result.key_lines:
                first = self.result.key_lines[here]
                raise self._fail(key_node, f"key '{key}' stands twice (first in line {first}); keep one of them")
            self.result.key_lines[here] = key_node.start_mark.line + 1
            value = self._value(value_node, here, parents)
            if value is not None:
                plain[key] = value
        return plain

    def _scalar(self, node: yaml.ScalarNode) -> str | None:
        if node.tag.startswith("!") or "python" in node.tag:
            raise self._fail(node, f"'{node.tag}' starts a YAML tag, which is not allowed; put quotes around the text")
        if not node.style:
            self._check_not_cut(node)
            if node.value == "":
                return None
        return str(node.value)

    def _check_not_cut(self, node: yaml.ScalarNode) -> None:
        row = self.rows[node.end_mark.line] if node.end_mark.line < len(self.rows) else ""
        rest = row[node.end_mark.column :]
        if rest.lstrip().startswith("#") and not rest.lstrip().startswith("# "):
            raise self._fail(
                node,
                f"YAML cuts this text at '{rest.strip()[:20]}' ('#' after a space starts a comment); "
                "put quotes around the text, or a space after '#' if a comment is meant",
            )


def _mark_line(error: yaml.MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark else 1


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _explain(error: yaml.MarkedYAMLError, text: str) -> str:
    line = _mark_line(error)
    rows = text.splitlines()
    shown = rows[line - 1].strip()[:120] if 0 < line <= len(rows) else ""
    return (
        f"{error.problem or 'not readable as YAML'}; the line is: {shown!r}; "
        "put quotes around a text that holds : # * & ! % @ ` [ ] { } or use a '|' block"
    )
