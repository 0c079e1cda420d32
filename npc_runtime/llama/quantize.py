"""Another file type of the same base model: llama.cpp's quantiser.

The numbers of an already quantised file are quantised a second time, so what comes out is never better than what goes
in; how much worse it is must be measured.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from npc_runtime.errors import ConfigError
from npc_runtime.llama.importance import Importance
from npc_runtime.llama.library import captured_log, lib, reason

_PREFIX = "LLAMA_FTYPE_MOSTLY_"
_MAX_TEXT = 127
"""Bytes of a metadata key or value that the quantiser can add (llama.cpp in llama-cpp-python 0.3.36)."""
_SIZES = re.compile(r"(model|quant) size\s*=\s*([\d.]+) MiB")


@dataclass(frozen=True)
class Quantisation:
    """What is to be made of ``source``: ``target``, of ``file_type`` (like ``q4_0``), with additional ``metadata``.

    ``importance`` tells where rounding hurts most (see ``importance.py``); it may be empty.
    """

    source: Path
    target: Path
    file_type: str
    threads: int
    metadata: Mapping[str, str]
    importance: Importance = field(default_factory=dict)


class _Weights(ctypes.Structure):
    """``struct llama_model_imatrix_data``."""

    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t))


def file_type_name(number: str) -> str:
    """The name (like ``q4_0``) of a model's ``general.file_type``; empty for one that is not known here."""
    if number == str(lib.LLAMA_FTYPE_ALL_F32):
        return "f32"
    for name in dir(lib):
        if name.startswith(_PREFIX) and str(getattr(lib, name)) == number:
            return name.removeprefix(_PREFIX).lower()
    return ""


def expected_bytes(wanted: Quantisation) -> int:
    """About how large the target will be. Raises ConfigError where the quantiser refuses the source."""
    lines = _run(wanted, dry_run=True)
    sizes = {match[1]: float(match[2]) * 2**20 for line in lines if (match := _SIZES.search(line))}
    size = wanted.source.stat().st_size
    return max(1, int(size + sizes.get("quant", 0.0) - sizes.get("model", 0.0)))


def quantise(wanted: Quantisation) -> None:
    """Write the target. Raises ConfigError with llama.cpp's reason; what was written until then is left behind."""
    _run(wanted, dry_run=False)


def _run(wanted: Quantisation, *, dry_run: bool) -> list[str]:
    params = lib.llama_model_quantize_default_params()
    params.ftype = getattr(lib, _PREFIX + wanted.file_type.upper())
    params.allow_requantize = True
    params.nthread = wanted.threads
    params.dry_run = dry_run
    added = _overrides(wanted.metadata)
    params.kv_overrides = ctypes.cast(added, type(params.kv_overrides))
    weights = _weights(wanted.importance)
    if wanted.importance:
        params.imatrix = ctypes.cast(weights, type(params.imatrix))
    with captured_log() as lines:
        code = lib.llama_model_quantize(str(wanted.source).encode(), str(wanted.target).encode(), ctypes.byref(params))
    if code != 0:
        raise ConfigError(f"'{wanted.source}' cannot be made into a {wanted.file_type} file: {reason(lines)}")
    return lines


def _weights(importance: Importance) -> ctypes.Array[_Weights]:
    """llama.cpp's form of the importance: an array that ends with an empty entry. It points into ``importance``."""
    array = (_Weights * (len(importance) + 1))()
    for index, (name, values) in enumerate(importance.items()):
        array[index] = _Weights(name.encode(), values.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), len(values))
    return array


def _overrides(metadata: Mapping[str, str]) -> ctypes.Array[ctypes.Structure]:
    """llama.cpp's form of the metadata: an array that ends with an empty key."""
    array = (lib.llama_model_kv_override * (len(metadata) + 1))()
    for slot, (key, value) in zip(array, metadata.items(), strict=False):
        slot.tag = lib.LLAMA_KV_OVERRIDE_TYPE_STR
        slot.key = key.encode()[:_MAX_TEXT]
        slot.value.val_str = value.encode()[:_MAX_TEXT].decode("utf-8", "ignore").encode()
    return array  # type: ignore[no-any-return]
