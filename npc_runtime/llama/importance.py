"""How much each input of each weight matters, found by reading text: so the quantiser rounds where it hurts least.

For every matrix product with a weight, the squares of what is multiplied are summed up column by column. llama.cpp
shows each product through a callback; its tensors are read as ggml lays them out (``ggml.h`` in llama-cpp-python
0.3.36). Where they turn out to be laid out otherwise, nothing is found, and the quantiser does without.
"""

from __future__ import annotations

import ctypes
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from npc_runtime.errors import EngineUnavailable
from npc_runtime.llama.library import lib
from npc_runtime.llama.model import LlamaModel

log = logging.getLogger("npc_runtime.llama")

Importance = Mapping[str, npt.NDArray[np.float32]]
"""Weight name to the mean square of each of its inputs."""

WINDOW_TOKENS = 256
_F32 = 0


class _Tensor(ctypes.Structure):
    """The beginning of ``struct ggml_tensor``."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    )


def read_importance(
    path: Path, texts: Sequence[str], threads: int, report: Callable[[int, int], None] = lambda _done, _all: None
) -> Importance:
    """What the model at ``path`` uses while it reads ``texts``; ``report`` gets the windows read, and their number."""
    model = LlamaModel(path)
    try:
        tokens = [token for text in texts for token in model.tokenize(text, special=False)]
        windows = [tokens[start : start + WINDOW_TOKENS] for start in range(0, len(tokens), WINDOW_TOKENS)]
        sums = _Sums()
        reader = _Reader(model, threads, sums)
        try:
            for done, window in enumerate(windows, start=1):
                reader.read(window)
                report(done, len(windows))
        finally:
            reader.close()
    finally:
        model.close()
    return sums.means()


class _Sums:
    """Adds up; ``see`` is llama.cpp's callback."""

    def __init__(self) -> None:
        self._ggml = _ggml()
        self._sums: dict[str, npt.NDArray[np.float64]] = {}
        self._rows: dict[str, int] = {}
        self._usable = self._ggml is not None

    def see(self, address: int, ask: bool, _data: Any) -> bool:
        """Before a node is computed: is it to be seen? After it: look at its inputs. Exceptions must not leave it."""
        try:
            if not self._usable:
                return not ask
            node = _Tensor.from_address(address)
            if ask:
                return self._is_product(address, node)
            self._add(_Tensor.from_address(node.src[0]), _Tensor.from_address(node.src[1]))
        except Exception:
            log.exception("the weights' importance cannot be read")
            self._usable = False
        return True

    def _is_product(self, address: int, node: _Tensor) -> bool:
        assert self._ggml is not None
        if self._ggml.ggml_get_name(address) != address + _Tensor.name.offset:
            raise ValueError("tensors are laid out in another way than is known here")
        if self._ggml.ggml_nelements(address) != math.prod(node.ne):
            raise ValueError("tensors' sizes are laid out in another way than is known here")
        if self._ggml.ggml_op_name(node.op) != b"MUL_MAT":
            return False
        weight, inputs = _Tensor.from_address(node.src[0]), _Tensor.from_address(node.src[1])
        # A weight of an adapter is none of the base's; experts' weights (three dimensions) are not handled here.
        return bool(
            weight.name.endswith(b".weight") and weight.ne[2] == 1 and inputs.type == _F32 and inputs.ne[2] == 1
        )

    def _add(self, weight: _Tensor, inputs: _Tensor) -> None:
        columns, rows = inputs.ne[0], inputs.ne[1]
        if not rows or not columns or inputs.nb[0] != 4 or not inputs.data:
            return
        floats = ctypes.cast(inputs.data, ctypes.POINTER(ctypes.c_float))
        table = np.ctypeslib.as_array(floats, shape=(rows, inputs.nb[1] // 4))[:, :columns]
        squares = np.square(table, dtype=np.float64).sum(axis=0)
        if np.isfinite(squares).all():
            name = weight.name.decode()
            self._sums[name] = self._sums.get(name, 0.0) + squares
            self._rows[name] = self._rows.get(name, 0) + rows

    def means(self) -> Importance:
        return {name: (total / self._rows[name]).astype(np.float32) for name, total in self._sums.items()}


class _Reader:
    """A context that shows what it computes."""

    def __init__(self, model: LlamaModel, threads: int, sums: _Sums) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = WINDOW_TOKENS
        params.n_seq_max = params.n_outputs_max = 1
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.no_perf = True
        # Kept as long as the context: ctypes does not hold on to it.
        self._callback = lib.ggml_backend_sched_eval_callback(sums.see)
        params.cb_eval = ctypes.cast(self._callback, type(params.cb_eval))
        self._context = lib.llama_init_from_model(model.pointer, params)
        if not self._context:
            raise EngineUnavailable("a context to read text with cannot be made")
        self._batch = lib.llama_batch_init(WINDOW_TOKENS, 0, 1)

    def read(self, tokens: Sequence[int]) -> None:
        lib.llama_memory_clear(lib.llama_get_memory(self._context), False)
        self._batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            self._batch.token[index] = token
            self._batch.pos[index] = index
            self._batch.n_seq_id[index] = 1
            self._batch.seq_id[index][0] = 0
            self._batch.logits[index] = index == len(tokens) - 1
        if (code := lib.llama_decode(self._context, self._batch)) != 0:
            raise EngineUnavailable(f"llama_decode returned {code} while text was read")

    def close(self) -> None:
        lib.llama_batch_free(self._batch)
        lib.llama_free(self._context)


def _ggml() -> Any:
    """The library that knows tensors, with the three functions that are used; None where it is not to be had."""
    try:
        from llama_cpp._ggml import libggml

        libggml.ggml_get_name.restype = ctypes.c_void_p
        libggml.ggml_get_name.argtypes = [ctypes.c_void_p]
        libggml.ggml_nelements.restype = ctypes.c_int64
        libggml.ggml_nelements.argtypes = [ctypes.c_void_p]
        libggml.ggml_op_name.restype = ctypes.c_char_p
        libggml.ggml_op_name.argtypes = [ctypes.c_int]
    except (ImportError, AttributeError):
        return None
    return libggml
