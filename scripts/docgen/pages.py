"""The generated files: which there are, what they must hold, writing and checking them.

A page in ``docs/`` is written by hand around blocks that are generated; a block stands between the comments
``<!-- generated:begin NAME -->`` and ``<!-- generated:end NAME -->``. Files in ``tests/vectors/`` are generated whole.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from docgen import tables, vectors

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = "scripts/generate-docs"

BLOCKS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "docs/protocol.md": {
        "requests": tables.requests,
        "answers": tables.answers,
        "types": tables.nested_types,
        "errors": tables.errors,
        "limits": tables.limits,
        "example": vectors.example_in_words,
    },
    "docs/configuration.md": {"settings": tables.settings},
}

_BLOCK = re.compile(
    r"(?P<begin><!-- generated:begin (?P<name>[\w-]+) -->\n).*?(?P<end><!-- generated:end (?P=name) -->)", re.S
)


class BadPage(Exception):
    """A page whose markers do not fit."""


def with_blocks(page: str, text: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """``text`` with every generated block as it must be. Raises BadPage where a block is missing or unknown."""
    found = [match["name"] for match in _BLOCK.finditer(text)]
    if sorted(found) != sorted(blocks):
        raise BadPage(f"{page}: the page has the blocks {sorted(found)}; it must have each of {sorted(blocks)} once")
    return _BLOCK.sub(lambda match: f"{match['begin']}\n{blocks[match['name']]()}\n\n{match['end']}", text)


def wanted(root: Path) -> dict[str, str]:
    """Every generated file below ``root`` with the text that it must have."""
    found = {}
    for page, blocks in BLOCKS.items():
        found[page] = with_blocks(page, (root / page).read_text(encoding="utf-8"), blocks)
    for name, entries in vectors.all_files().items():
        found[f"tests/vectors/{name}.json"] = json.dumps(entries, indent=2, ensure_ascii=False) + "\n"
    return found


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. 0: all is well; 1: a file is stale (``--check``), or a page's markers do not fit."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; name the files that are stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (default: this one)")
    options = parser.parse_args(arguments)
    try:
        pages = wanted(options.root)
    except (BadPage, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    stale = {page: text for page, text in pages.items() if not _is(options.root / page, text)}
    for page, text in stale.items():
        if options.check:
            print(f"{page} is stale; run: {COMMAND}", file=sys.stderr)
        else:
            path = options.root / page
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {page}")
    return 1 if options.check and stale else 0
