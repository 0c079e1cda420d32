"""One llama.cpp context with one sequence: a KV cache and the adapters that decode into it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from npc_runtime.errors import EngineUnavailable
from npc_runtime.llama.library import captured_log, lib, reason

if TYPE_CHECKING:
    from npc_runtime.llama.model import LlamaAdapter


class DecodeFailed(Exception):
    """``llama_decode`` returned ``code`` (not 0): 1 no KV slot, 2 aborted, -1 bad batch, below -1 fatal.

    After 1 and -1 the KV cache is as before; after the others parts of the batch may have been computed.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"llama_decode returned {code}")
        self.code = code


class LlamaContext:
    """``n_seq_max`` is 1: a conversation cannot reach another one's KV, by construction.

    ``decode_calls`` and ``decoded_tokens`` count what was passed to ``llama_decode``.
    """

    def __init__(
        self,
        model: ctypes.c_void_p,
        n_vocab: int,
        *,
        context_tokens: int,
        chunk_tokens: int,
        threads: int,
        outputs: int,
    ) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = context_tokens
        params.n_batch = params.n_ubatch = chunk_tokens
        params.n_seq_max = 1
        # The default reserves logits for a whole batch: 590 instead of 99 MB for Gemma 3 270M (0.3.36).
        params.n_outputs_max = outputs
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        params.swa_full = True
        params.no_perf = True
        with captured_log() as lines:
            self._context = lib.llama_init_from_model(model, params)
        if not self._context:
            raise EngineUnavailable(f"a context of {context_tokens} tokens cannot be made: {reason(lines)}")
        self._memory = lib.llama_get_memory(self._context)
        self._batch = lib.llama_batch_init(chunk_tokens, 0, 1)
        self._n_vocab = n_vocab
        self._adapters: tuple[tuple[LlamaAdapter, float], ...] = ()
        self.context_tokens = int(lib.llama_n_ctx(self._context))
        self.chunk_tokens = chunk_tokens
        self.outputs = outputs
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

    def truncate(self, position: int) -> bool:
        """Drop the KV from ``position`` on. False where this cache cannot be cut there: then it must be cleared."""
        if position == 0:
            self.clear()
            return True
        return bool(lib.llama_memory_seq_rm(self._memory, 0, position, -1))

    def clear(self) -> None:
        """Drop the whole KV cache."""
        lib.llama_memory_clear(self._memory, True)

    def logits(self) -> npt.NDArray[np.float32]:
        """The logits after the last decoded token, shape ``(n_vocab,)``; a copy."""
        return self._logits_at(-1)

    def _logits_at(self, index: int) -> npt.NDArray[np.float32]:
        pointer = lib.llama_get_logits_ith(self._context, index)
        if not pointer:
            raise EngineUnavailable("no logits: the last decode did not ask for them")
        logits: npt.NDArray[np.float32] = np.ctypeslib.as_array(pointer, shape=(self._n_vocab,)).copy()
        return logits

    @property
    def pointer(self) -> ctypes.c_void_p:
        """llama.cpp's handle, for the sampler."""
        return self._context  # type: ignore[no-any-return]

    def close(self) -> None:
        """Free the context."""
        lib.llama_batch_free(self._batch)
        lib.llama_free(self._context)
