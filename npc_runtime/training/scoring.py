"""How likely a reply is, token by token, to the base model under an adapter set: by llama.cpp, as served."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from npc_runtime.llama import ContextOptions, LlamaAdapter, LlamaContext, LlamaModel

CHUNK_TOKENS = 256
CONTEXT_TOKENS = 1024
MAX_REPLY_TOKENS = 128


class ReplyScorer:
    """A context under one adapter set after another; what two prompts have in common is computed once per set."""

    def __init__(self, model: LlamaModel, threads: int) -> None:
        self._context: LlamaContext = model.new_context(
            ContextOptions(CONTEXT_TOKENS, CHUNK_TOKENS, threads), outputs=MAX_REPLY_TOKENS
        )
        self._held: list[int] = []

    def use(self, adapters: Sequence[tuple[LlamaAdapter, float]]) -> None:
        """Score under ``adapters`` from now on. KV of another set is of no use, so all of it is dropped."""
        self._context.clear()
        self._held = []
        self._context.set_adapters(adapters)

    def log_likelihoods(self, prompt: Sequence[int], reply: Sequence[int]) -> npt.NDArray[np.float64]:
        """The natural log of each reply token's probability after all before it; shape ``(len(reply),)``.

        A reply has at most ``MAX_REPLY_TOKENS``; its tokens are decoded at once.
        """
        self._prefill(prompt)
        logits = [self._context.logits()]
        if len(reply) > 1:
            logits.extend(self._context.logits_after_each(reply[:-1], len(prompt)))
            self._held += reply[:-1]
        return np.array([_log_probability(row, token) for row, token in zip(logits, reply, strict=True)])

    def logits_after(self, prompt: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits of the token after ``prompt``; shape ``(n_vocab,)``."""
        self._prefill(prompt)
        return self._context.logits()

    def close(self) -> None:
        """Free the context."""
        self._context.close()

    def _prefill(self, prompt: Sequence[int]) -> None:
        # The last prompt token is always computed anew: the logits come from it.
        keep = _shared_length(self._held, prompt[:-1])
        if not self._context.truncate(keep):
            self._context.clear()
            keep = 0
        for start in range(keep, len(prompt), CHUNK_TOKENS):
            chunk = prompt[start : start + CHUNK_TOKENS]
            self._context.decode(chunk, start, want_logits=start + len(chunk) == len(prompt))
        self._held = list(prompt)


def _shared_length(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _log_probability(logits: npt.NDArray[np.float32], token: int) -> float:
    wide = logits.astype(np.float64)
    top = wide.max()
    return float(wide[token] - top - np.log(np.exp(wide - top).sum()))
