"""The content of an adapter file, checked in Python before llama.cpp sees it.

llama.cpp (the tree in llama-cpp-python 0.3.36) ends the whole process on metadata of the wrong type
(``general.type``, ``adapter.lora.alpha`` and others go through asserting getters) and on an empty key; other damage
makes it return NULL. So a file is copied into memory, parsed with the ``gguf`` package, and refused with a reason here.
The file itself is never mapped: one that is truncated while it is read cannot hurt the process.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from npc_runtime.adapter.header import AdapterHeader, unusable

MAX_ARRAY = 65_536
_STRINGS = ("general.type", "general.architecture", "adapter.type")
_TENSOR_TYPES = {
    gguf.GGMLQuantizationType.F32,
    gguf.GGMLQuantizationType.F16,
    gguf.GGMLQuantizationType.BF16,
    gguf.GGMLQuantizationType.Q8_0,
}
_LFS = b"version https://git-lfs"


def check_adapter(data: bytes, path: Path) -> AdapterHeader:
    """The header of the adapter file whose content is ``data``; ``path`` is for messages only.

    Raises AdapterInvalid.
    """
    if data[:4] != b"GGUF":
        raise unusable(path, _what_it_is(data))
    reader = _parse(data, path)
    fields = reader.fields
    for key in _STRINGS:
        if not isinstance(_value(reader, key), str):
            raise unusable(path, f"metadata '{key}' is missing or not a string")
    if _value(reader, "general.type") != "adapter":
        raise unusable(path, f"general.type is '{_value(reader, 'general.type')}'; it must be 'adapter'")
    if _value(reader, "adapter.type") != "lora":
        raise unusable(path, f"adapter.type is '{_value(reader, 'adapter.type')}'; only 'lora' is supported")
    alpha = fields.get("adapter.lora.alpha")
    if alpha is None or alpha.types != [gguf.GGUFValueType.FLOAT32] or not np.isfinite(alpha.contents()):
        raise unusable(path, "metadata 'adapter.lora.alpha' must be a finite 32-bit float")
    if "adapter.alora.invocation_tokens" in fields:
        raise unusable(path, "it is an activated LoRA (alora), which is not supported")
    return AdapterHeader(
        digest=hashlib.sha256(data).hexdigest(),
        size=len(data),
        architecture=str(_value(reader, "general.architecture")),
        alpha=float(alpha.contents()),
        tensors=_tensors(reader, path),
        base_digest=_text(reader, "npc_runtime.base.sha256"),
        base_name=_text(reader, "npc_runtime.base.name"),
        persona=_text(reader, "npc_runtime.persona"),
        license=_text(reader, "general.license"),
    )


class _Reader(gguf.GGUFReader):  # type: ignore[misc]
    """The package's reader, stopped at the first thing that no adapter has: a base model parses for seconds."""

    @property
    def data(self) -> Any:
        """The file's bytes. As a plain array: every slice of the package's memory map costs three times as much."""
        return self._data

    @data.setter
    def data(self, mapped: Any) -> None:
        self._data = np.asarray(mapped)

    def _push_field(self, field: Any, skip_sum: bool = False) -> int:
        if not field.name:
            raise ValueError("a metadata key is empty")
        if field.name == "general.type" and field.contents() != "adapter":
            raise ValueError(f"general.type is {field.contents()!r}; it must be 'adapter'")
        return int(super()._push_field(field, skip_sum))

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == gguf.GGUFValueType.ARRAY and int(self._get(orig_offs + 4, np.uint64)[0]) > MAX_ARRAY:
            raise ValueError(f"a metadata array has more than {MAX_ARRAY} items; this is no adapter")
        return super()._get_field_parts(orig_offs, raw_type)


def _parse(data: bytes, path: Path) -> _Reader:
    with tempfile.TemporaryFile() as copy:
        copy.write(data)
        copy.flush()
        try:
            return _Reader(copy)
        # On damaged bytes the package raises whatever the damage leads to (IndexError, KeyError, UnicodeDecodeError,
        # OverflowError, MemoryError, ...): each of them means that the file is not a sound GGUF.
        except Exception as error:
            raise unusable(path, f"it is damaged or incomplete ({type(error).__name__}: {str(error)[:160]})") from None


def _tensors(reader: _Reader, path: Path) -> dict[str, int]:
    sides: dict[str, dict[str, Any]] = {}
    for tensor in reader.tensors:
        stem, _, side = tensor.name.rpartition(".")
        if side not in ("lora_a", "lora_b"):
            raise unusable(path, f"tensor '{tensor.name}' is not a LoRA pair; llama.cpp would ignore or refuse it")
        if tensor.tensor_type not in _TENSOR_TYPES:
            raise unusable(
                path, f"tensor '{tensor.name}' is {tensor.tensor_type.name}; allowed are F32, F16, BF16, Q8_0"
            )
        if len(tensor.shape) != 2 or 0 in tensor.shape:
            raise unusable(path, f"tensor '{tensor.name}' has shape {list(tensor.shape)}; it must have two dimensions")
        if tensor.tensor_type.name in ("F16", "F32") and not np.isfinite(tensor.data).all():
            raise unusable(path, f"tensor '{tensor.name}' holds NaN or infinite values")
        sides.setdefault(stem, {})[side] = tensor
    if not sides:
        raise unusable(path, "it holds no tensors")
    ranks = {stem: _rank(stem, pair, path) for stem, pair in sides.items()}
    _check_effect(sides, path)
    return ranks


def _check_effect(sides: dict[str, dict[str, Any]], path: Path) -> None:
    """A pair with a side of zeros does nothing. B may be untrained here and there, never everywhere; A never is."""
    for stem, pair in sides.items():
        if not pair["lora_a"].data.any():
            raise unusable(path, f"tensor '{stem}.lora_a' holds only zeros; is the file copied completely?")
    if not any(pair["lora_b"].data.any() for pair in sides.values()):
        raise unusable(path, "every lora_b holds only zeros: it would do nothing, and the base model would speak")


def _rank(stem: str, pair: dict[str, Any], path: Path) -> int:
    if len(pair) != 2:
        raise unusable(path, f"tensor '{stem}' has only one of lora_a and lora_b")
    # GGUF lists the fastest dimension first: a is [n_in, rank], b is [rank, n_out]; for token_embd both are flipped.
    a, b = pair["lora_a"].shape, pair["lora_b"].shape
    inner = (int(a[0]), int(b[0])) if stem.endswith("token_embd.weight") else (int(a[1]), int(b[0]))
    if inner[0] != inner[1]:
        raise unusable(path, f"tensor '{stem}' has rank {inner[0]} in lora_a and {inner[1]} in lora_b")
    return inner[0]


def _value(reader: _Reader, key: str) -> Any:
    found = reader.fields.get(key)
    try:
        return None if found is None else found.contents()
    except UnicodeDecodeError:
        return None


def _text(reader: _Reader, key: str) -> str:
    value = _value(reader, key)
    return value if isinstance(value, str) else ""


def _what_it_is(data: bytes) -> str:
    if not data:
        return "it is empty"
    if data.startswith(_LFS):
        return "it is a Git LFS pointer, not the file itself; fetch it with 'git lfs pull'"
    if data[:2] == b"PK" or data[:1] == b"\x80":
        return "it is a PyTorch file; convert the PEFT folder to GGUF first"
    if data[8:9] == b"{":
        return "it is a safetensors file; convert the PEFT folder to GGUF first"
    return f"it does not start with 'GGUF' but with {data[:4]!r}"
