"""Reading an adapter file: its content is checked where it is not known already."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from npc_runtime.adapter.header import AdapterHeader, unusable
from npc_runtime.ordinary_file import FileTooLarge, read_ordinary


def read_adapter(
    path: Path, max_bytes: int, known: Callable[[str], AdapterHeader | None] = lambda digest: None
) -> AdapterHeader:
    """Read the adapter at ``path`` and check it; ``known`` finds the header of a content that was checked before.

    Raises AdapterInvalid (with a one-line reason) or OSError.
    """
    if path.is_dir():
        raise unusable(path, "it is a folder; convert a PEFT folder to GGUF first")
    try:
        data = read_ordinary(path, max_bytes)
    except FileTooLarge as error:
        raise unusable(path, f"it has {error.size} bytes; allowed are {max_bytes} (max_adapter_bytes)") from None
    return known(hashlib.sha256(data).hexdigest()) or _check(data, path)


def _check(data: bytes, path: Path) -> AdapterHeader:
    # It brings gguf and numpy along, 0.1 s and 25 MB: a daemon that knows all its adapters does without.
    from npc_runtime.adapter.check import check_adapter

    return check_adapter(data, path)
