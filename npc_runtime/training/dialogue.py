"""The lines an adapter is trained on: one JSON object per text line, kept beside the persona files.

``{"player": "...", "reply": "...", "split": "train"}`` is one exchange; ``split`` is ``train`` or ``held_out``.
Two rules are checked on reading: every field is there and of its type, and no held-out player line or reply is (after
normalisation) one of the training lines, so that an evaluation measures the voice and not memory.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal, get_args

import msgspec

from npc_runtime.errors import ContentFault, suggest

Split = Literal["train", "held_out"]

MAX_SIMILARITY = 0.85
"""Two texts whose words agree to this share (difflib ratio, 0 to 1) count as the same text."""


class DialogueInvalid(ContentFault):
    """A dialogue file breaks a rule; the text names file, line and field."""


class Exchange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One player line, and what the character answers to it."""

    player: str
    reply: str
    split: Split


@dataclass(frozen=True)
class Dialogue:
    """A checked dialogue file. ``digest`` is the sha256 of its bytes."""

    path: Path
    digest: str
    train: tuple[Exchange, ...]
    held_out: tuple[Exchange, ...]


def dialogue_path(personas_dir: Path, adapter_name: str) -> Path:
    """Where the lines of an adapter are kept: ``PERSONAS/dialogue/ADAPTER.jsonl``."""
    return personas_dir / "dialogue" / f"{adapter_name}.jsonl"


def load_dialogue(path: Path) -> Dialogue:
    """Read and check ``path``. Raises DialogueInvalid."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DialogueInvalid(
            f"dialogue file '{path}' cannot be read ({error.strerror}); write one JSON object with player, reply and "
            "split per line"
        ) from None
    numbered = list(_exchanges(path, data))
    _check_splits(path, numbered)
    _check_disjoint(path, numbered)
    return Dialogue(
        path,
        hashlib.sha256(data).hexdigest(),
        tuple(exchange for _, exchange in numbered if exchange.split == "train"),
        tuple(exchange for _, exchange in numbered if exchange.split == "held_out"),
    )


def normalised(text: str) -> str:
    """``text`` without case, punctuation, spacing and Unicode form: what two equal lines have in common."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.sub(r"[^\w\s]", "", folded).split())


def _exchanges(path: Path, data: bytes) -> Iterator[tuple[int, Exchange]]:
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if raw.strip():
            yield number, _exchange(path, number, raw)


def _exchange(path: Path, number: int, raw: bytes) -> Exchange:
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise _invalid(path, number, "the line is not UTF-8; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise _invalid(path, number, f"the line is not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(value, dict):
        raise _invalid(path, number, f"found {type(value).__name__}; a line is one object with player, reply, split")
    _check_fields(path, number, value)
    return msgspec.convert(value, Exchange)


def _check_fields(path: Path, number: int, value: dict[str, object]) -> None:
    fields = Exchange.__struct_fields__
    for key in value:
        if key not in fields:
            raise _invalid(
                path, number, f"unknown field '{key}'.{suggest(key, fields)} Allowed are: {', '.join(fields)}"
            )
    for field in fields:
        found = value.get(field)
        if field not in value:
            raise _invalid(path, number, f"field '{field}' is missing; needed are {', '.join(fields)}")
        if not isinstance(found, str):
            raise _invalid(path, number, f"field '{field}' is {json.dumps(found)}; it must be a text")
        if not found.strip():
            raise _invalid(path, number, f"field '{field}' is empty; write what is said")
    if value["split"] not in get_args(Split):
        allowed = " or ".join(f"'{name}'" for name in get_args(Split))
        raise _invalid(path, number, f"field 'split' is '{value['split']}'; allowed is {allowed}")


def _check_splits(path: Path, numbered: list[tuple[int, Exchange]]) -> None:
    for split in get_args(Split):
        if not any(exchange.split == split for _, exchange in numbered):
            raise DialogueInvalid(f"{path}: no exchange has the split '{split}'; both splits are needed")


def _check_disjoint(path: Path, numbered: list[tuple[int, Exchange]]) -> None:
    for field in ("player", "reply"):
        seen = [(number, normalised(getattr(ex, field)).split()) for number, ex in numbered if ex.split == "train"]
        for number, exchange in numbered:
            if exchange.split == "held_out":
                _check_unseen(path, number, field, normalised(getattr(exchange, field)).split(), seen)


def _check_unseen(path: Path, number: int, field: str, words: list[str], seen: list[tuple[int, list[str]]]) -> None:
    for train_number, train_words in seen:
        if words == train_words or SequenceMatcher(None, words, train_words).ratio() >= MAX_SIMILARITY:
            raise _invalid(
                path,
                number,
                f"held-out field '{field}' says nearly the same as the training line {train_number}; "
                "write it anew, or move it to the split 'train'",
            )


def _invalid(path: Path, number: int, message: str) -> DialogueInvalid:
    return DialogueInvalid(f"{path}, line {number}: {message}")
