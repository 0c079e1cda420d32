"""LoRA pairs as a llama.cpp adapter file (GGUF), and back.

In memory a pair is named after the GGUF weight it adapts (``blk.0.attn_q.weight``) and has the row order of
transformers; in the file the rows of the query and key ``lora_b`` have llama.cpp's order. The two differ because
llama.cpp rotates neighbouring dimensions of a head (RoPE) where transformers rotates the two halves, and its converter
permutes the Q and K rows accordingly; transformers undoes that when it loads a GGUF, so an adapter must redo it.

Shapes: ``a`` is ``(rank, n_in)``, ``b`` is ``(n_out, rank)``; the weight's update is ``scale * alpha / rank * b @ a``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from npc_runtime.errors import AdapterInvalid

Matrix = npt.NDArray[np.float32]

GGUF_LAYERS = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
"""Names of a llama block's linear layers: transformers' to GGUF's."""


@dataclass(frozen=True)
class Heads:
    """How many attention heads the base has: for queries, and for keys and values."""

    query: int
    key: int


@dataclass(frozen=True)
class LoraPair:
    """One weight's update."""

    a: Matrix
    b: Matrix


@dataclass(frozen=True)
class Lora:
    """A whole adapter: its pairs by GGUF weight name, and alpha."""

    alpha: float
    pairs: Mapping[str, LoraPair]


@dataclass(frozen=True)
class AdapterCard:
    """What the file says of itself. ``training`` is any JSON-able record of how it was made."""

    name: str
    persona: str
    license: str
    base_name: str
    base_sha256: str
    base_architecture: str
    created_with: str
    training: Mapping[str, Any]


def gguf_weight_name(layer: int, target: str) -> str:
    """The GGUF name of a block's weight, from transformers' (``q_proj`` of layer 3: ``blk.3.attn_q.weight``)."""
    return f"blk.{layer}.{GGUF_LAYERS[target]}.weight"


def write_adapter(path: Path, lora: Lora, card: AdapterCard, heads: Heads) -> None:
    """Write ``path`` (f16 tensors). It appears whole or not at all: a running daemon may be watching the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    writer = gguf.GGUFWriter(partial, card.base_architecture)
    try:
        _add_metadata(writer, lora, card)
        for name, pair in sorted(lora.pairs.items()):
            writer.add_tensor(f"{name}.lora_a", _half(pair.a, name, path))
            writer.add_tensor(f"{name}.lora_b", _half(_to_llama_rows(name, pair.b, heads), name, path))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_lora(path: Path, heads: Heads) -> Lora:
    """The pairs of an adapter file in transformers' row order, as float32. Raises AdapterInvalid."""
    try:
        reader = gguf.GGUFReader(path)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise AdapterInvalid(f"adapter '{path}' cannot be read: {error}") from None
    alpha = reader.get_field("adapter.lora.alpha")
    if alpha is None:
        raise AdapterInvalid(f"adapter '{path}' has no 'adapter.lora.alpha'; it is no LoRA adapter")
    tensors = {tensor.name: np.array(tensor.data, dtype=np.float32) for tensor in reader.tensors}
    names = [name.removesuffix(".lora_a") for name in tensors if name.endswith(".lora_a")]
    pairs = {
        name: LoraPair(
            tensors[f"{name}.lora_a"],
            _from_llama_rows(name, tensors[f"{name}.lora_b"], heads),
        )
        for name in names
    }
    return Lora(float(alpha.contents()), pairs)


def update_of(lora: Lora, name: str, scale: float) -> Matrix:
    """What the adapter adds to weight ``name`` at ``scale``: shape ``(n_out, n_in)``."""
    pair = lora.pairs[name]
    factor = np.float32(scale * lora.alpha / pair.a.shape[0])
    update: Matrix = factor * (pair.b @ pair.a)
    return update


def _add_metadata(writer: gguf.GGUFWriter, lora: Lora, card: AdapterCard) -> None:
    writer.add_type("adapter")
    writer.add_name(card.name)
    writer.add_license(card.license)
    writer.add_string("adapter.type", "lora")
    # llama.cpp (the tree in llama-cpp-python 0.3.36) ends the process if alpha is anything but a 32-bit float.
    writer.add_float32("adapter.lora.alpha", float(lora.alpha))
    writer.add_string("npc_runtime.base.name", card.base_name)
    writer.add_string("npc_runtime.base.sha256", card.base_sha256)
    writer.add_string("npc_runtime.base.architecture", card.base_architecture)
    writer.add_string("npc_runtime.persona", card.persona)
    writer.add_string("npc_runtime.created_with", card.created_with)
    writer.add_string("npc_runtime.training", json.dumps(card.training, sort_keys=True))


def _half(matrix: Matrix, name: str, path: Path) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore"):
        half = np.ascontiguousarray(matrix, dtype=np.float16)
    if not np.isfinite(half).all():
        raise AdapterInvalid(
            f"adapter '{path.name}' is not written: '{name}' does not fit 16-bit floats; lower the learning rate"
        )
    return half


def _row_heads(name: str, heads: Heads) -> int:
    """Over how many heads the rows of this weight are permuted; 0: they are not."""
    layer = name.split(".")[2] if name.count(".") >= 2 else ""
    return {"attn_q": heads.query, "attn_k": heads.key}.get(layer, 0)


def _to_llama_rows(name: str, b: Matrix, heads: Heads) -> Matrix:
    count = _row_heads(name, heads)
    if not count:
        return b
    rows, rank = b.shape
    permuted: Matrix = b.reshape(count, 2, rows // count // 2, rank).swapaxes(1, 2).reshape(rows, rank)
    return permuted


def _from_llama_rows(name: str, b: Matrix, heads: Heads) -> Matrix:
    count = _row_heads(name, heads)
    if not count:
        return b
    rows, rank = b.shape
    restored: Matrix = b.reshape(count, rows // count // 2, 2, rank).swapaxes(1, 2).reshape(rows, rank)
    return restored
