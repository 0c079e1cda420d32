"""One llama.cpp context with one sequence: a KV cache and the adapters that decode into it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from npc_runtime.config import FlashAttention, KvType
from npc_runtime.errors import EngineUnavailable
from npc_runtime.llama.library import captured_log, lib, log, reason

if TYPE_CHECKING:
    from npc_runtime.llama.model import LlamaAdapter


_GGML_TYPES = {"f16": 1, "q8_0": 8}
"""Numbers of ``enum ggml_type`` (ggml.h, llama.cpp in llama-cpp-python 0.3.36)."""
KV_BITS = {"f16": 16.0, "q8_0": 8.5}
"""Bits that one number of the KV cache takes: q8_0 keeps 32 numbers of 8 bits and one 16-bit scale."""


@dataclass(frozen=True)
class ContextOptions:
    """How contexts are made. ``chunk_tokens`` is the most that one decode may have, llama.cpp's n_batch and n_ubatch.

    ``threads`` decode single tokens, ``prefill_threads`` whole chunks. ``kv_type`` q8_0 needs flash attention.
    """

    context_tokens: int
    chunk_tokens: int
    threads: int
    prefill_threads: int = 0
    kv_type: KvType = "f16"
    flash_attention: FlashAttention = "auto"
    on_gpu: bool = False

    @property
    def flash(self) -> bool:
        """Whether flash attention is used. ``auto``: on a GPU, and where the KV type needs it. On a CPU it is slower:
        25 tokens behind 1,800 took 290 ms with it and 149 without, one token 19 and 14 (2 cores, SmolLM2-135M Q4_1,
        llama.cpp in llama-cpp-python 0.3.36)."""
        if self.flash_attention == "auto":
            return self.on_gpu or self.kv_type != "f16"
        return self.flash_attention == "on"


class DecodeFailed(Exception):
    """``llama_decode`` returned ``code`` (not 0): 1 no KV slot, 2 aborted, -1 bad batch, below -1 fatal.

    After 1 and -1 the KV cache is as before; after the others parts of the batch may have been computed.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"llama_decode returned {code}")
        self.code = code


class NotFinite(DecodeFailed):
    """The decode gave logits that are no numbers (an adapter with damaged or huge weights); the KV cache is zeroed."""

    def __init__(self) -> None:
        Exception.__init__(self, "model gives no finite numbers: weights are damaged, or a scale is too large")
        self.code = 0


class LlamaContext:
    """``n_seq_max`` is 1: a conversation cannot reach another one's KV, by construction.

    ``decode_calls`` and ``decoded_tokens`` count what was passed to ``llama_decode``.
    """

    def __init__(
        self,
        model: ctypes.c_void_p,
        n_vocab: int,
        options: ContextOptions,
        *,
        outputs: int,
        window: int,
        recurrent: bool,
    ) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = options.context_tokens
        params.n_batch = params.n_ubatch = options.chunk_tokens
        params.n_seq_max = 1
        # The default reserves logits for a whole batch: 590 instead of 99 MB for Gemma 3 270M (0.3.36).
        params.n_outputs_max = outputs
        params.n_threads = options.threads
        params.n_threads_batch = options.prefill_threads or options.threads
        params.type_k = params.type_v = _GGML_TYPES[options.kv_type]
        params.flash_attn_type = (
            lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if options.flash else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.kv_unified = False
        params.swa_full = True
        params.no_perf = True
        with captured_log() as lines:
            self._context = lib.llama_init_from_model(model, params)
        if not self._context:
            raise EngineUnavailable(f"a context of {options.context_tokens} tokens cannot be made: {reason(lines)}")
        self._memory = lib.llama_get_memory(self._context)
        self._batch = lib.llama_batch_init(options.chunk_tokens, 0, 1)
        self._n_vocab = n_vocab
        self.window = window
        self.cuttable = not window and not recurrent
        self._adapters: tuple[tuple[LlamaAdapter, float], ...] = ()
        self.context_tokens = int(lib.llama_n_ctx(self._context))
        self.chunk_tokens = options.chunk_tokens
        self.outputs = outputs
        self._unchecked = False  # whether cells may hold infinities: an adapter's, of which no logits were looked at
        self.decode_calls = 0
        self.decoded_tokens = 0

    @property
    def adapters(self) -> tuple[tuple[LlamaAdapter, float], ...]:
        """What the next decode runs under."""
        return self._adapters

    def set_adapters(self, adapters: Sequence[tuple[LlamaAdapter, float]]) -> None:
        """Make ``adapters`` (no duplicates, no zero scales) the active set; the KV cache is not touched."""
        count = len(adapters)
        pointers = (lib.llama_adapter_lora_p_ctypes * count)(*[adapter.pointer for adapter, _ in adapters])
        scales = (ctypes.c_float * count)(*[scale for _, scale in adapters])
        if lib.llama_set_adapters_lora(self._context, pointers, count, scales) != 0:
            raise EngineUnavailable("llama.cpp did not take the adapter set")
        self._adapters = tuple(adapters)

    def decode(self, tokens: Sequence[int], position: int, *, want_logits: bool) -> None:
        """Compute ``tokens`` at ``position`` and following. At most ``chunk_tokens`` of them. Raises DecodeFailed."""
        self._decode(tokens, position, outputs=1 if want_logits else 0)

    def logits_after_each(self, tokens: Sequence[int], position: int) -> npt.NDArray[np.float32]:
        """Decode ``tokens`` (at most ``outputs``) at once; the logits after each, shape ``(len(tokens), n_vocab)``."""
        if len(tokens) > self.outputs:
            raise ValueError(f"logits after {len(tokens)} tokens; this context was made for {self.outputs} at once")
        self._decode(tokens, position, outputs=len(tokens))
        return np.stack([self._logits_at(index) for index in range(len(tokens))])

    def _decode(self, tokens: Sequence[int], position: int, *, outputs: int) -> None:
        count = len(tokens)
        if not 0 < count <= self.chunk_tokens or position + count > self.context_tokens:
            raise ValueError(
                f"decode of {count} tokens at {position}: allowed are 1 to {self.chunk_tokens} tokens "
                f"in a context of {self.context_tokens}"
            )
        batch = self._batch
        batch.n_tokens = count
        for index, token in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = position + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = index >= count - outputs
        code = lib.llama_decode(self._context, batch)
        if code != 0:
            raise DecodeFailed(code)
        self.decode_calls += 1
        self.decoded_tokens += count
        self._unchecked = bool(self._adapters) if not outputs else not np.isfinite(self._logits_view(-1)).all()
        if outputs and self._unchecked:
            self.clear()
            raise NotFinite

    def truncate(self, position: int) -> bool:
        """Drop the KV from ``position`` on. False where this cache cannot be cut there: then it must be cleared.

        A sliding window of ``w`` tokens needs the ``w`` cells before the cut. A restored snapshot may lack them, and
        llama.cpp says True to the cut all the same (0.3.36), so what is there is looked at first.
        """
        if position == 0:
            self.clear()
            return True
        first = lib.llama_memory_seq_pos_min(self._memory, 0)
        if self.window and first > max(0, position - self.window):
            return False
        return bool(lib.llama_memory_seq_rm(self._memory, 0, position, -1))

    def save(self) -> memoryview:
        """The KV of all that was decoded, as bytes that ``restore`` takes in a context of the same options."""
        size = lib.llama_state_seq_get_size(self._context, 0)
        data = np.empty(size, dtype=np.uint8)
        written = lib.llama_state_seq_get_data(self._context, _pointer(data), size, 0)
        if written != size:
            raise EngineUnavailable(f"llama.cpp wrote {written} of {size} bytes of KV")
        return data.data

    def restore(self, data: bytes | memoryview, tokens: int) -> bool:
        """Replace the KV by a saved one of ``tokens`` tokens. False (and no KV at all) where the bytes do not fit."""
        self.clear()
        with captured_log() as lines:
            read = lib.llama_state_seq_set_data(
                self._context, _pointer(np.frombuffer(data, dtype=np.uint8)), len(data), 0
            )
        last = lib.llama_memory_seq_pos_max(self._memory, 0)
        if read == len(data) and last == tokens - 1:
            self._unchecked = bool(self._adapters)
            return True
        log.warning("a saved KV cache was not taken: %s", reason(lines))
        self.clear()
        return False

    def clear(self) -> None:
        """Drop the whole KV cache."""
        # Cells are marked free. What is in them has no weight afterwards, so it need not be zeroed (10 to 20 ms for
        # 47 MB), unless it may be infinite: nought times infinity is not nought.
        lib.llama_memory_clear(self._memory, self._unchecked)
        self._unchecked = False

    def logits(self) -> npt.NDArray[np.float32]:
        """The logits after the last decoded token, shape ``(n_vocab,)``; a copy."""
        return self._logits_at(-1)

    def _logits_at(self, index: int) -> npt.NDArray[np.float32]:
        logits: npt.NDArray[np.float32] = self._logits_view(index).copy()
        return logits

    def _logits_view(self, index: int) -> npt.NDArray[np.float32]:
        pointer = lib.llama_get_logits_ith(self._context, index)
        if not pointer:
            raise EngineUnavailable("no logits: the last decode did not ask for them")
        logits: npt.NDArray[np.float32] = np.ctypeslib.as_array(pointer, shape=(self._n_vocab,))
        return logits

    @property
    def pointer(self) -> ctypes.c_void_p:
        """llama.cpp's handle, for the sampler."""
        return self._context  # type: ignore[no-any-return]

    def close(self) -> None:
        """Free the context."""
        lib.llama_batch_free(self._batch)
        lib.llama_free(self._context)


def _pointer(data: npt.NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
