"""What the engine needs of a model. ``llama/`` is the real one; tests have a scripted one held to the same contract."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Union

from npc_runtime.config import KvType
from npc_runtime.llama import ContextOptions
from npc_runtime.sampling import Sampling

Adapter = Any
"""A loaded adapter: a handle that only its backend looks into."""

ActiveSet = tuple[tuple[Adapter, float], ...]

KvBytes = Union[bytes, memoryview]
"""KV as it is kept outside a context: what ``Context.save`` gives and ``Context.restore`` takes."""


class Sampler(Protocol):
    """Draws tokens for one reply."""

    def sample(self, context: Any) -> int:
        """A token drawn from the context's last logits."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


class Context(Protocol):
    """One KV cache with one sequence and the adapters that decode into it."""

    context_tokens: int
    decode_calls: int
    decoded_tokens: int
    window: int
    """Tokens of the sliding window; 0: the model has none."""
    cuttable: bool
    """Whether a restored cache can be cut anywhere: not that of a sliding window or of a recurrent model."""

    @property
    def adapters(self) -> ActiveSet:
        """What the next decode runs under."""
        ...

    def set_adapters(self, adapters: Sequence[tuple[Adapter, float]]) -> None:
        """Change it; the KV cache stays as it is."""
        ...

    def decode(self, tokens: Sequence[int], position: int, *, want_logits: bool) -> None:
        """Compute tokens at a position."""
        ...

    def truncate(self, position: int) -> bool:
        """Drop the KV from a position on; False where that cannot be done."""
        ...

    def clear(self) -> None:
        """Drop all KV."""
        ...

    def save(self) -> KvBytes:
        """The KV as bytes."""
        ...

    def restore(self, data: KvBytes, tokens: int) -> bool:
        """Replace the KV by a saved one of that many tokens; False, and empty, where it does not fit."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


class Backend(Protocol):
    """A base model."""

    @property
    def architecture(self) -> str:
        """The architecture's name."""
        ...

    @property
    def source_digest(self) -> str:
        """The sha256 of the file that this one was prepared from; empty for an original."""
        ...

    @property
    def n_vocab(self) -> int:
        """How many tokens there are; their ids begin with 0."""
        ...

    @property
    def chat_template(self) -> str:
        """Jinja source; empty for base models."""
        ...

    @property
    def bos(self) -> int | None:
        """The beginning-of-sequence token."""
        ...

    @property
    def adds_bos(self) -> bool:
        """Whether position 0 must hold it."""
        ...

    @property
    def eos_text(self) -> str:
        """The end-of-sequence token's text."""
        ...

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Every token that ends a reply."""
        ...

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Token ids; without ``special`` none of them is a control token."""
        ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token."""
        ...

    def load_adapter(self, path: Path) -> Adapter:
        """Load an adapter file. Raises AdapterInvalid."""
        ...

    def free_adapter(self, adapter: Adapter) -> None:
        """Free it; no context may name it any more."""
        ...

    def kv_bytes_per_token(self, kv_type: KvType) -> int:
        """Bytes of KV that one token takes."""
        ...

    def new_context(self, options: ContextOptions) -> Context:
        """A context of its own."""
        ...

    def close(self) -> None:
        """Free the model; its contexts and adapters are gone."""
        ...

    def new_sampler(self, sampling: Sampling, seed: int, min_tokens: int, recent: Sequence[int]) -> Sampler:
        """A sampler for one reply."""
        ...
