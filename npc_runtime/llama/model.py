"""The base model: weights, vocabulary, loaded adapters."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from npc_runtime.base_model import SOURCE_DIGEST_KEY
from npc_runtime.config import GpuSplit, KvType
from npc_runtime.errors import AdapterInvalid, ConfigError
from npc_runtime.llama.context import KV_BITS, ContextOptions, LlamaContext
from npc_runtime.llama.library import captured_log, lib, reason
from npc_runtime.llama.sampler import LlamaSampler
from npc_runtime.sampling import Sampling

_RESERVED = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_USER_DEFINED | lib.LLAMA_TOKEN_ATTR_UNKNOWN


_SPLITS = {
    "none": lib.LLAMA_SPLIT_MODE_NONE,
    "layer": lib.LLAMA_SPLIT_MODE_LAYER,
    "row": lib.LLAMA_SPLIT_MODE_ROW,
}


class LlamaAdapter:
    """A LoRA adapter that is loaded into a model. ``pointer`` is llama.cpp's handle."""

    def __init__(self, pointer: ctypes.c_void_p, name: str) -> None:
        self.pointer = pointer
        self.name = name


@dataclass(frozen=True)
class GpuOptions:
    """What of the model goes to a GPU: ``layers`` (-1: all), on which ``device``, ``split`` over several or not."""

    layers: int = 0
    device: int = 0
    split: GpuSplit = "layer"


NO_GPU = GpuOptions()


class LlamaModel:
    """One GGUF, loaded. Raises ConfigError where llama.cpp cannot load it, or has no GPU where one is asked for."""

    def __init__(self, path: Path, gpu: GpuOptions = NO_GPU, *, vocab_only: bool = False) -> None:
        if gpu.layers and not lib.llama_supports_gpu_offload():
            raise ConfigError(
                f"gpu_layers {gpu.layers}: this build of llama.cpp has no GPU backend; set gpu_layers to 0, or build "
                "one with CUDA, Vulkan or Metal (docs/configuration.md says how)"
            )
        params = lib.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = gpu.layers
        params.main_gpu = gpu.device
        params.split_mode = _SPLITS[gpu.split]
        with captured_log() as lines:
            self._model = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ConfigError(f"base model '{path}' cannot be loaded: {reason(lines)}; give a sound GGUF file")
        self._vocab = lib.llama_model_get_vocab(self._model)
        self.n_vocab = int(lib.llama_vocab_n_tokens(self._vocab))
        self.end_tokens = tuple(t for t in range(self.n_vocab) if lib.llama_vocab_is_eog(self._vocab, t))
        self._piece = lru_cache(maxsize=65_536)(self._read_piece)
        # A prompt is tokenised anew every turn, and most of it is what it was the turn before.
        self._token_ids = lru_cache(maxsize=4096)(self._read_token_ids)

    def metadata(self, key: str) -> str:
        """The metadata value of ``key`` as text; empty where there is none."""
        buffer = ctypes.create_string_buffer(1 << 17)
        length = lib.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else ""

    @property
    def architecture(self) -> str:
        """For example ``llama`` or ``gemma3``."""
        return self.metadata("general.architecture")

    @property
    def source_digest(self) -> str:
        """The sha256 of the file that this one was prepared from; empty for an original."""
        value = self.metadata(SOURCE_DIGEST_KEY)
        return value if re.fullmatch(r"[0-9a-f]{64}", value) else ""

    @property
    def chat_template(self) -> str:
        """The Jinja source in the model file; empty for base models."""
        return self.metadata("tokenizer.chat_template")

    @property
    def bos(self) -> int | None:
        """The id of the beginning-of-sequence token, if the vocabulary has one."""
        token = lib.llama_vocab_bos(self._vocab)
        return None if token < 0 else int(token)

    @property
    def adds_bos(self) -> bool:
        """Whether the vocabulary wants a beginning-of-sequence token at position 0."""
        return bool(lib.llama_vocab_get_add_bos(self._vocab))

    @property
    def eos_text(self) -> str:
        """The text of the end-of-sequence token (chat templates print it)."""
        token = lib.llama_vocab_eos(self._vocab)
        return "" if token < 0 else lib.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace")

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Token ids of ``text``. With ``special`` False no id is a control or user-defined token.

        llama.cpp matches user-defined tokens even where special tokens are not to be parsed (0.3.36), so where one
        turns up in plain text, the text is cut inside it and both parts are tokenised on their own. Runs of white
        space are user-defined in some vocabularies (Gemma 3); they are ordinary text.
        """
        return list(self._token_ids(text, special))

    def _read_token_ids(self, text: str, special: bool) -> tuple[int, ...]:
        tokens = self._tokenize(text, special)
        if special or not any(self._is_reserved(token) for token in tokens):
            return tuple(tokens)
        return tuple(self._tokenize_plain(tokens))

    def _tokenize(self, text: str, special: bool) -> list[int]:
        raw = text.encode("utf-8", "replace")
        buffer = (lib.llama_token * (len(raw) + 8))()
        count = lib.llama_tokenize(self._vocab, raw, len(raw), buffer, len(buffer), False, special)
        if count < 0:
            raise ValueError(f"a text of {len(raw)} bytes needs {-count} tokens, more than its bytes")
        return list(buffer[:count])

    def _tokenize_plain(self, tokens: list[int]) -> list[int]:
        plain: list[int] = []
        for token in tokens:
            if not self._is_reserved(token):
                plain.append(token)
                continue
            text = self.piece(token, special=True).decode("utf-8", "replace")
            if len(text) > 1:
                for part in (text[:1], text[1:]):
                    plain.extend(self.tokenize(part, special=False))
        return plain

    def _is_reserved(self, token: int) -> bool:
        if token in self.end_tokens:
            return True
        reserved = bool(lib.llama_vocab_get_attr(self._vocab, token) & _RESERVED)
        return reserved and not self.piece(token, special=True).isspace()

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that ``token`` stands for; a control token's text only with ``special``."""
        return self._piece(token, special)

    def _read_piece(self, token: int, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(256)
        length = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        if length < 0:
            buffer = ctypes.create_string_buffer(-length)
            length = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw[:length]

    def load_adapter(self, path: Path) -> LlamaAdapter:
        """Load a LoRA file (its tensors are copied). Raises AdapterInvalid with llama.cpp's reason."""
        with captured_log() as lines:
            pointer = lib.llama_adapter_lora_init(self._model, str(path).encode())
        if not pointer:
            raise AdapterInvalid(f"adapter '{path.name}' does not fit this base model: {reason(lines)}")
        return LlamaAdapter(pointer, path.name)

    def free_adapter(self, adapter: LlamaAdapter) -> None:
        """Free an adapter. No context may name it any more (llama.cpp does not detach it)."""
        lib.llama_adapter_lora_free(adapter.pointer)

    def kv_bytes_per_token(self, kv_type: KvType) -> int:
        """Bytes of KV that one token takes in a context, all layers together (a sliding window saves nothing of it:
        contexts are made with the full cache)."""
        heads, layers = lib.llama_model_n_head_kv(self._model), lib.llama_model_n_layer(self._model)
        per_head = lib.llama_model_n_embd(self._model) // max(1, lib.llama_model_n_head(self._model))
        key = int(self.metadata(f"{self.architecture}.attention.key_length") or per_head)
        value = int(self.metadata(f"{self.architecture}.attention.value_length") or per_head)
        return int(layers * heads * (key + value) * KV_BITS[kv_type] / 8)

    def new_context(self, options: ContextOptions, *, outputs: int = 1) -> LlamaContext:
        """A context of its own KV cache for one sequence. ``outputs``: tokens of one decode that may have logits."""
        window = int(lib.llama_model_n_swa(self._model))
        recurrent = bool(lib.llama_model_is_recurrent(self._model) or lib.llama_model_is_hybrid(self._model))
        return LlamaContext(self._model, self.n_vocab, options, outputs=outputs, window=window, recurrent=recurrent)

    def new_sampler(self, sampling: Sampling, seed: int, min_tokens: int, recent: Sequence[int]) -> LlamaSampler:
        """A sampler for one reply; ``recent`` are the reply tokens of the conversation so far."""
        return LlamaSampler(self.n_vocab, sampling, seed, self.end_tokens if min_tokens else (), min_tokens, recent)

    @property
    def pointer(self) -> ctypes.c_void_p:
        """llama.cpp's handle, for this package."""
        return self._model  # type: ignore[no-any-return]

    def close(self) -> None:
        """Free the model; contexts and adapters of it must be gone."""
        lib.llama_model_free(self._model)
