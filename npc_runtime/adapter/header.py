"""What an adapter file says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from npc_runtime.errors import AdapterInvalid


@dataclass(frozen=True)
class AdapterHeader:
    """The checked header of one adapter file.

    ``digest`` is the sha256 of the whole file, ``size`` its bytes; ``base_digest``/``base_name`` name the base model
    that it was trained for where the file records it, else they are empty. ``tensors`` maps each adapted weight to
    its rank.
    """

    digest: str
    size: int
    architecture: str
    alpha: float
    tensors: dict[str, int]
    base_digest: str
    base_name: str
    persona: str
    license: str


def unusable(path: Path, reason: str) -> AdapterInvalid:
    """The error of a file that has no sound header, or cannot be read."""
    return AdapterInvalid(f"adapter '{path.name}' cannot be used: {reason}")
