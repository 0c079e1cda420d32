"""What a prepared file costs in quality; runs in a child process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from npc_runtime.llama import ContextOptions, LlamaContext, LlamaModel
from npc_runtime.training.evaluate import evaluate, load_voices
from npc_runtime.training.train import Paths
from npc_runtime.tuning.jobs import Agreement, MeasureVoices, Perplexity, VoiceFigures, VoiceRow

WINDOW_TOKENS = 256
CHUNK_TOKENS = 64
UNSCORED_TOKENS = 32
"""What a window begins with is not scored: with next to nothing before it, it says little."""

Report = Callable[[int, int], None]


def compare(job: Perplexity, report: Report) -> Agreement:
    """Both models on the same windows of text, token by token."""
    readers = [_Reader(Path(path), job.threads) for path in (job.source, job.prepared)]
    try:
        windows = [
            tokens[start : start + WINDOW_TOKENS]
            for tokens in map(readers[0].tokens, job.texts)
            for start in range(0, len(tokens), WINDOW_TOKENS)
        ]
        windows = [window for window in windows if len(window) > 2 * UNSCORED_TOKENS]
        scores: list[list[npt.NDArray[np.float64]]] = [[], []]
        same: list[npt.NDArray[np.bool_]] = []
        for done, window in enumerate(windows):
            chosen = []
            for reader, found in zip(readers, scores, strict=True):
                likelihoods, choices = reader.read(window)
                found.append(likelihoods)
                chosen.append(choices)
            same.append(chosen[0] == chosen[1])
            report(done + 1, len(windows))
    finally:
        for reader in readers:
            reader.close()
    return agreement(np.concatenate(scores[0]), np.concatenate(scores[1]), float(np.concatenate(same).mean()))


def agreement(source: npt.NDArray[np.float64], prepared: npt.NDArray[np.float64], same_choice: float) -> Agreement:
    """The figures of two models from their log-likelihoods of the same tokens."""
    worse = source - prepared
    return Agreement(
        tokens=len(worse),
        source=math.exp(-source.mean()),
        prepared=math.exp(-prepared.mean()),
        difference=float(worse.mean()),
        error=float(worse.std(ddof=1) / math.sqrt(len(worse))),
        same_choice=same_choice,
    )


class _Reader:
    """One model that reads windows of text."""

    def __init__(self, path: Path, threads: int) -> None:
        self._model = LlamaModel(path)
        options = ContextOptions(WINDOW_TOKENS + CHUNK_TOKENS, CHUNK_TOKENS, threads)
        self._context: LlamaContext = self._model.new_context(options, outputs=CHUNK_TOKENS)

    def tokens(self, text: str) -> list[int]:
        return self._model.tokenize(text, special=False)

    def read(self, window: Sequence[int]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """The log-likelihood of each scored token, and what the model would have chosen there."""
        self._context.clear()
        bos = [self._model.bos] if self._model.adds_bos and self._model.bos is not None else []
        tokens = [*bos, *window]
        likelihoods, choices = [], []
        for start in range(0, len(tokens) - 1, CHUNK_TOKENS):
            chunk = tokens[start : min(start + CHUNK_TOKENS, len(tokens) - 1)]
            logits = self._context.logits_after_each(chunk, start).astype(np.float64)
            following = tokens[start + 1 : start + 1 + len(chunk)]
            top = logits.max(axis=1)
            total = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
            likelihoods.append(logits[np.arange(len(chunk)), following] - total)
            choices.append(logits.argmax(axis=1))
        return np.concatenate(likelihoods)[UNSCORED_TOKENS:], np.concatenate(choices)[UNSCORED_TOKENS:]

    def close(self) -> None:
        self._context.close()
        self._model.close()


def measure_voices(job: MeasureVoices, report: Report) -> VoiceFigures:
    """The margins of every persona's own adapter set. Raises ContentFault where there is nothing to measure."""
    personas, adapters = Path(job.personas_dir), Path(job.adapters_dir)
    evaluation = evaluate(load_voices(personas), Paths(Path(job.model), personas, adapters), job.threads, report)
    return VoiceFigures(
        rows=tuple(
            VoiceRow(
                persona_id=row.persona_id,
                own=row.means[row.persona_id],
                over_base=row.over_base,
                over_others=row.over_best_other if math.isfinite(row.over_best_other) else None,
                holds=row.holds,
            )
            for row in evaluation.rows
        )
    )
