"""The identity of KV: what must be equal for a KV cache to be used again. One function, used wherever KV is kept.

KV rows depend on the weights that computed them, adapters included. So the key holds the base model's content, every
adapter's content and exact scale in order, and how the cache is laid out and filled; never a name, path or time.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from npc_runtime.engine.commands import AdapterSource


def kv_key(base: str, adapters: Sequence[AdapterSource], layout: str) -> str:
    """64 hex digits. ``base``: digest of the model file; ``layout``: context size, chunking, build, template."""
    digest = hashlib.sha256()
    for part in (base, layout):
        digest.update(part.encode() + b"\0")
    for adapter in adapters:
        digest.update(bytes.fromhex(adapter.digest) + exact_scale(adapter.scale))
    return digest.hexdigest()


def exact_scale(scale: float) -> bytes:
    """The scale as llama.cpp gets it: 4 bytes of a 32-bit float."""
    return struct.pack("<f", scale)
