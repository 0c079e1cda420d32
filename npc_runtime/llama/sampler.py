"""Drawing the next token: llama.cpp's own sampler chain."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from npc_runtime.llama.library import lib
from npc_runtime.sampling import Sampling

if TYPE_CHECKING:
    from npc_runtime.llama.context import LlamaContext


class LlamaSampler:
    """The chain of one reply. For the first ``min_tokens`` draws the ``barred`` tokens cannot be drawn."""

    def __init__(
        self,
        n_vocab: int,
        sampling: Sampling,
        seed: int,
        barred: Sequence[int],
        min_tokens: int,
        recent: Sequence[int],
    ) -> None:
        self._n_vocab = n_vocab
        self._greedy = sampling.temperature == 0
        self._bar_draws = min_tokens if barred else 0
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        bar = [_bar(n_vocab, barred)] if self._bar_draws else []
        for stage in [*bar, *_stages(n_vocab, sampling, seed)]:
            lib.llama_sampler_chain_add(self._chain, stage)
        for token in recent[-sampling.repeat_last_n :] if sampling.repeat_last_n else ():
            lib.llama_sampler_accept(self._chain, token)

    def sample(self, context: LlamaContext) -> int:
        """Draw a token from the context's last logits and remember it for the repeat penalty."""
        token = int(lib.llama_sampler_sample(self._chain, context.pointer, -1))
        if self._bar_draws:
            self._bar_draws -= 1
            if not self._bar_draws:
                lib.llama_sampler_free(lib.llama_sampler_chain_remove(self._chain, 0))
        return token

    def probabilities(self, logits: npt.NDArray[np.float32]) -> dict[int, float]:
        """The distribution that a draw would be made from: token to probability, dropped tokens left out."""
        candidates = self._candidates(logits)
        if self._greedy:
            return {int(candidates.data[candidates.selected].id): 1.0}
        rows = candidates.table[: candidates.size]
        rows = rows[rows["p"] > 0]
        shares = rows["p"].astype(np.float64)
        return dict(zip(rows["id"].tolist(), (shares / shares.sum()).tolist(), strict=True))

    def _candidates(self, logits: npt.NDArray[np.float32]) -> lib.llama_token_data_array:
        table = np.zeros(self._n_vocab, dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        table["id"] = np.arange(self._n_vocab, dtype=np.int32)
        table["logit"] = logits
        data = table.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
        candidates = lib.llama_token_data_array(data=data, size=self._n_vocab, selected=-1, sorted=False)
        candidates.table = table  # llama.cpp works in it; it must live as long
        lib.llama_sampler_apply(self._chain, ctypes.byref(candidates))
        return candidates

    def close(self) -> None:
        """Free the chain."""
        lib.llama_sampler_free(self._chain)


def _stages(n_vocab: int, sampling: Sampling, seed: int) -> list[ctypes.c_void_p]:
    stages = []
    if sampling.repeat_penalty != 1.0 and sampling.repeat_last_n:
        stages.append(
            lib.llama_sampler_init_penalties(n_vocab, sampling.repeat_last_n, sampling.repeat_penalty, 0.0, 0.0)
        )
    if sampling.temperature == 0:
        return [*stages, lib.llama_sampler_init_greedy()]
    if sampling.top_k:
        stages.append(lib.llama_sampler_init_top_k(sampling.top_k))
    if sampling.top_p < 1:
        stages.append(lib.llama_sampler_init_top_p(sampling.top_p, 1))
    if sampling.min_p > 0:
        stages.append(lib.llama_sampler_init_min_p(sampling.min_p, 1))
    return [*stages, lib.llama_sampler_init_temp(sampling.temperature), lib.llama_sampler_init_dist(seed)]


def _bar(n_vocab: int, tokens: Sequence[int]) -> ctypes.c_void_p:
    biases = (lib.llama_logit_bias * len(tokens))(*[(token, float("-inf")) for token in tokens])
    return lib.llama_sampler_init_logit_bias(n_vocab, len(tokens), biases)  # type: ignore[no-any-return]
