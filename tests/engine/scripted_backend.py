"""A model without weights that keeps the contract of ``engine/backend.py`` (see ``test_backend_contract.py``).

Tokens are bytes plus four control tokens. A KV cell is a hash of all that the real one depends on: the cells before it,
the token, the weights, the adapters and scales it was computed under, and the size of its decode call (on a real model
another call size gives other low bits). So any KV that is used where it does not belong changes the reply.

``say`` and its like script the next replies instead; ``fail_at`` makes decodes fail; ``can_truncate`` False behaves
like a recurrent model, ``window`` like one with a sliding window of that many tokens.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgpack
import numpy as np
import numpy.typing as npt

from npc_runtime.engine.backend import ActiveSet
from npc_runtime.errors import AdapterInvalid, EngineUnavailable
from npc_runtime.llama import ContextOptions, DecodeFailed
from npc_runtime.llama.context import NotFinite
from npc_runtime.sampling import Sampling
from tests.prompt.templates import CHATML

BOS, IM_START, IM_END, EOS = 256, 257, 258, 259
CONTROL = {BOS: "<bos>", IM_START: "<|im_start|>", IM_END: "<|im_end|>", EOS: "<|endoftext|>"}
VOCABULARY = 260


class ScriptedAdapter:
    """A loaded adapter; its content is its effect."""

    def __init__(self, name: str, digest: bytes) -> None:
        self.name = name
        self.digest = digest
        self.freed = False
        self.infinite = False


class ScriptedContext:
    """Cells instead of a KV cache."""

    def __init__(self, backend: ScriptedBackend, context_tokens: int, chunk_tokens: int) -> None:
        self._backend = backend
        self._first = 0  # with a sliding window: the first cell that a restored cache really has
        self._adapters: ActiveSet = ()
        self._layout = b""
        self._last: bytes | None = None
        self.cells: list[bytes] = []
        self.tokens: list[int] = []
        self.context_tokens = context_tokens
        self.chunk_tokens = chunk_tokens
        self.decode_calls = 0
        self.decoded_tokens = 0
        self.closed = False

    @property
    def adapters(self) -> ActiveSet:
        return self._adapters

    def set_adapters(self, adapters: Sequence[tuple[ScriptedAdapter, float]]) -> None:
        assert all(scale != 0 for _, scale in adapters), "an adapter at scale 0 is left out, not set"
        self._adapters = tuple(adapters)

    def decode(self, tokens: Sequence[int], position: int, *, want_logits: bool) -> None:
        if not 0 < len(tokens) <= self.chunk_tokens or position + len(tokens) > self.context_tokens:
            raise ValueError(f"decode of {len(tokens)} tokens at {position}")
        assert not any(adapter.freed for adapter, _ in self._adapters), "an adapter is used after it was freed"
        computed = self._computed(tokens)
        code = self._backend.next_failure() or (0 if position == len(self.cells) else -1)
        if code != 0:
            if code not in (1, -1):  # parts of the batch stay in the cache
                self.cells.extend(computed[: len(tokens) // 2 + 1])
                self.tokens.extend(tokens[: len(tokens) // 2 + 1])
            raise DecodeFailed(code)
        self.cells.extend(computed)
        self.tokens.extend(tokens)
        self._last = computed[-1] if want_logits else None
        self.decode_calls += 1
        self.decoded_tokens += len(tokens)
        if want_logits and any(adapter.infinite for adapter, _ in self._adapters):
            self.clear()
            raise NotFinite

    def _computed(self, tokens: Sequence[int]) -> list[bytes]:
        under = self._backend.weights.encode() + self._layout
        for adapter, scale in self._adapters:
            under += adapter.digest + struct.pack("<f", scale)
        cell = self.cells[-1] if self.cells else b""
        computed = []
        for index, token in enumerate(tokens):
            cell = hashlib.sha256(cell + struct.pack("<iii", token, len(tokens), index) + under).digest()
            computed.append(cell)
        return computed

    def truncate(self, position: int) -> bool:
        if position == 0:
            self.clear()
            return True
        if not self._backend.can_truncate and position < len(self.cells):
            return False
        if self._backend.window and self._first > max(0, position - self._backend.window):
            return False
        del self.cells[position:], self.tokens[position:]
        return True

    def clear(self) -> None:
        self.cells.clear()
        self.tokens.clear()
        self._first = 0
        self._layout = b""

    @property
    def window(self) -> int:
        return self._backend.window

    @property
    def cuttable(self) -> bool:
        return self._backend.can_truncate and not self._backend.window

    def save(self) -> bytes:
        return msgpack.packb((self.cells, self.tokens))

    def restore(self, data: bytes, tokens: int) -> bool:
        self.clear()
        try:
            cells, ids = msgpack.unpackb(data)
        except ValueError:
            return False
        if len(cells) != tokens:
            return False
        self.cells, self.tokens = cells, ids
        self._first = max(0, tokens - self._backend.window) if self._backend.window else 0
        if self._first:
            # The cells lie elsewhere now: what is computed from here on has other low bits.
            self._layout = hashlib.sha256(b"".join(cells)).digest()
        return True

    def logits(self) -> npt.NDArray[np.float32]:
        if self._last is None:
            raise EngineUnavailable("no logits: the last decode did not ask for them")
        noise = np.random.default_rng(int.from_bytes(self._last[:8], "little")).standard_normal(VOCABULARY)
        return (noise * 2 + _LIKELY).astype(np.float32)

    def close(self) -> None:
        self.closed = True


class ScriptedSampler:
    """Draws as llama.cpp's chain does, or follows a script."""

    def __init__(
        self, sampling: Sampling, seed: int, min_tokens: int, recent: Sequence[int], script: Iterator[int] | None
    ) -> None:
        self._sampling = sampling
        self._random = random.Random(seed)
        self._min_tokens = min_tokens
        self._recent = list(recent)
        self._script = script
        self.closed = False

    def sample(self, context: ScriptedContext) -> int:
        token = self._drawn(context) if self._script is None else self._scripted(self._script)
        self._min_tokens -= 1
        self._recent.append(token)
        return token

    def _scripted(self, script: Iterator[int]) -> int:
        token = next(script, IM_END)
        return ord("x") if token in (IM_END, EOS) and self._min_tokens > 0 else token

    def _drawn(self, context: ScriptedContext) -> int:
        probabilities = self.probabilities(context.logits())
        point = self._random.random()
        for token, share in probabilities.items():
            point -= share
            if point <= 0:
                return token
        return token

    def probabilities(self, logits: npt.NDArray[np.float32]) -> dict[int, float]:
        s = self._sampling
        scores = {token: float(logit) for token, logit in enumerate(logits)}
        if self._min_tokens > 0:
            for token in (IM_END, EOS):
                scores.pop(token)
        for token in set(self._recent[-s.repeat_last_n :] if s.repeat_last_n else ()) & set(scores):
            scores[token] *= s.repeat_penalty if scores[token] <= 0 else 1 / s.repeat_penalty
        ranked = sorted(scores.items(), key=lambda item: -item[1])
        if s.temperature == 0:
            return {ranked[0][0]: 1.0}
        ranked = ranked[: s.top_k or None]
        if s.top_p < 1:
            total = itertools.accumulate(_softmax(ranked).values())
            ranked = ranked[: 1 + sum(1 for mass in total if mass < s.top_p)]
        if s.min_p > 0:
            ranked = [item for item in ranked if item[1] >= ranked[0][1] + float(np.log(s.min_p))]
        return _softmax([(token, score / s.temperature) for token, score in ranked])

    def close(self) -> None:
        assert not self.closed, "a sampler is freed twice"
        self.closed = True


class ScriptedBackend:
    """The model. ``weights`` stands for the content of the base model's file."""

    architecture = "scripted"
    source_digest = ""
    n_vocab = VOCABULARY
    bos: int | None = BOS
    eos_text = CONTROL[IM_END]
    end_tokens = (IM_END, EOS)

    def __init__(self, *, weights: str = "base", chat_template: str = CHATML, adds_bos: bool = True) -> None:
        self.weights = weights
        self.chat_template = chat_template
        self.adds_bos = adds_bos
        self.can_truncate = True
        self.window = 0
        self.fail_at: dict[int, int] = {}
        self.decodes = 0
        self.contexts: list[ScriptedContext] = []
        self.samplers: list[ScriptedSampler] = []
        self.adapters: list[ScriptedAdapter] = []
        self._scripts: deque[Iterator[int]] = deque()

    def say(self, *replies: bytes | Iterable[int]) -> None:
        """Script the next replies; each ends after its last token."""
        self._scripts.extend(iter(reply) for reply in replies)

    def say_for_ever(self, cycle: Iterable[int]) -> None:
        """Script a reply that goes round and round and never ends by itself."""
        self._scripts.append(itertools.cycle(cycle))

    def say_freely(self) -> None:
        """Forget the replies that are scripted and were not said."""
        self._scripts.clear()

    def fail_next(self, code: int, *, after: int = 0) -> None:
        """Let a decode fail with ``code``, ``after`` that many good ones from now."""
        self.fail_at = {self.decodes + after: code}

    def next_failure(self) -> int:
        self.decodes += 1
        return self.fail_at.get(self.decodes - 1, 0)

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        if special:
            for token, name in CONTROL.items():
                if name in text:
                    before, after = text.split(name, 1)
                    return [*self.tokenize(before, special=True), token, *self.tokenize(after, special=True)]
        return list(text.encode("utf-8", "replace"))

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token < 256:
            return bytes([token])
        return CONTROL[token].encode() if special else b""

    def load_adapter(self, path: Path) -> ScriptedAdapter:
        content = path.read_bytes()
        if content[:4] != b"GGUF":
            raise AdapterInvalid(f"adapter '{path.name}' does not fit this base model: invalid magic")
        adapter = ScriptedAdapter(path.name, hashlib.sha256(content).digest())
        adapter.infinite = b"inf" in content
        self.adapters.append(adapter)
        return adapter

    def free_adapter(self, adapter: ScriptedAdapter) -> None:
        assert not adapter.freed, "an adapter is freed twice"
        for context in self.contexts:
            assert all(used is not adapter for used, _ in context.adapters), "a context still names a freed adapter"
        adapter.freed = True

    def kv_bytes_per_token(self, kv_type: str) -> int:
        return 40 if kv_type == "f16" else 20

    def new_context(self, options: ContextOptions) -> ScriptedContext:
        self.contexts.append(ScriptedContext(self, options.context_tokens, options.chunk_tokens))
        return self.contexts[-1]

    def new_sampler(self, sampling: Sampling, seed: int, min_tokens: int, recent: Sequence[int]) -> ScriptedSampler:
        script = self._scripts.popleft() if self._scripts else None
        self.samplers.append(ScriptedSampler(sampling, seed, min_tokens, recent, script))
        return self.samplers[-1]


def _softmax(ranked: Sequence[tuple[int, float]]) -> dict[int, float]:
    best = ranked[0][1]
    weights = {token: float(np.exp(score - best)) for token, score in ranked}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def _likely() -> npt.NDArray[np.float64]:
    """Mostly words, now and then a line break, a character of two bytes, or the end."""
    likely = np.full(VOCABULARY, -12.0)
    likely[[ord(letter) for letter in "abcdefghijklmnopqrstuvwxyz ,."]] = 3.0
    likely[[ord("\n"), ord(":"), 0xC3, 0xA9, IM_END]] = 1.5
    return likely


_LIKELY = _likely()
