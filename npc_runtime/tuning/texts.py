"""What quality is measured on: a page of prose, and held-out dialogue lines where there are any."""

from __future__ import annotations

import json
from pathlib import Path

from npc_runtime.tuning.prose import PROSE

MAX_CHARS = 6000
"""Of the dialogue files together, in equal parts: about 1,500 tokens."""


def quality_texts(personas_dir: Path) -> tuple[str, ...]:
    """The texts: prose, then one for each dialogue file. A file that cannot be read is left out."""
    texts = [text for path in sorted((personas_dir / "dialogue").glob("*.jsonl")) if (text := _dialogue(path))]
    return (PROSE, *(text[: MAX_CHARS // len(texts)] for text in texts))


def _dialogue(path: Path) -> str:
    said = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            exchange = json.loads(line) if line.strip() else {}
            if exchange.get("split") == "held_out":
                said += [str(exchange[who]) for who in ("player", "reply")]
    except (OSError, ValueError, AttributeError, KeyError):
        return ""
    return "\n".join(said)
