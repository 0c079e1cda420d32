"""The golden byte vectors of ``tests/vectors``."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "vectors"


def load(name: str) -> list[dict[str, Any]]:
    """The vectors of one file (``requests``, ``answers``, ``accepted``, ``malformed``)."""
    vectors: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return vectors


def names(vector: dict[str, Any]) -> str:
    """A parameter's id in a test report."""
    return str(vector["name"])
