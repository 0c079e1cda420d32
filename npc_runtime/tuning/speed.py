"""How fast a model is under given settings; runs in a child process.

Three things are measured, each with an adapter active: a prompt from its beginning (a character met for the first
time), a short line behind a history (a character one comes back to), and tokens of a reply, one by one, behind that.
"""

from __future__ import annotations

import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from npc_runtime.llama import ContextOptions, GpuOptions, LlamaAdapter, LlamaContext, LlamaModel
from npc_runtime.tuning.jobs import Measure, Speed
from npc_runtime.tuning.prose import PROSE

LINE_REPEATS = 3
MAX_CONTEXTS = 4


class SpeedMeter:
    """One model with an adapter, and the contexts that were measured last (a new one costs time and memory)."""

    def __init__(self) -> None:
        self._loaded = ("", "")
        self._model: LlamaModel | None = None
        self._adapter: LlamaAdapter | None = None
        self._contexts: OrderedDict[ContextOptions, LlamaContext] = OrderedDict()

    def measure(self, job: Measure) -> Speed:
        """The figures that are asked for. Raises ConfigError, AdapterInvalid, EngineUnavailable, DecodeFailed."""
        model = self._use(job)
        tokens = _repeated(model.tokenize(PROSE, special=False), max(job.work.prefill, job.work.history))
        behind = max(0, job.work.history)
        context = self._context(model, job)
        prefill = line = decode = None
        if "prefill" in job.figures:
            context.clear()
            took = _seconds(lambda: _prefill(context, tokens[: job.work.prefill]))
            prefill = job.work.prefill / took
        if "line_ms" in job.figures or "decode" in job.figures:
            times = [
                self._line(context, job, tokens, behind) for _ in range(LINE_REPEATS if "line_ms" in job.figures else 1)
            ]
            line = statistics.median(times) * 1e3 if "line_ms" in job.figures else None
        if "decode" in job.figures:
            decode = 1 / _seconds_per_token(context, tokens[: job.work.reply], behind + job.work.line)
        return Speed(prefill=prefill, line_ms=line, decode=decode)

    def _use(self, job: Measure) -> LlamaModel:
        if self._model is None or self._loaded != (job.model, job.adapter):
            self._close()
            gpu = GpuOptions(job.gpu_layers, job.gpu_device, job.gpu_split)
            self._model = LlamaModel(Path(job.model), gpu)
            self._adapter = self._model.load_adapter(Path(job.adapter)) if job.adapter else None
            self._loaded = job.model, job.adapter
        return self._model

    def _close(self) -> None:
        for context in self._contexts.values():
            context.close()
        self._contexts.clear()
        if self._model is not None:
            if self._adapter is not None:
                self._model.free_adapter(self._adapter)
            self._model.close()
        self._model = self._adapter = None

    def _context(self, model: LlamaModel, job: Measure) -> LlamaContext:
        options = ContextOptions(
            context_tokens=job.context_tokens,
            chunk_tokens=job.chunk_tokens,
            threads=job.threads,
            prefill_threads=job.prefill_threads,
            kv_type=job.kv_type,
            flash_attention=job.flash_attention,
            on_gpu=job.gpu_layers != 0,
        )
        if options in self._contexts:
            self._contexts.move_to_end(options)
            return self._contexts[options]
        while len(self._contexts) >= MAX_CONTEXTS:
            self._contexts.popitem(last=False)[1].close()
        context = self._contexts[options] = model.new_context(options)
        if self._adapter is not None:
            context.set_adapters([(self._adapter, 1.0)])
        # The first decode of a size plans memory and starts threads; that is not what a turn pays.
        tokens = _repeated(model.tokenize(PROSE, special=False), job.work.line)
        _prefill(context, tokens)
        context.decode(tokens[:1], len(tokens), want_logits=True)
        return context

    def _line(self, context: LlamaContext, job: Measure, tokens: Sequence[int], behind: int) -> float:
        self._have_history(context, job, tokens[:behind])
        line = tokens[: job.work.line]
        return _seconds(lambda: _prefill(context, line, behind))

    @staticmethod
    def _have_history(context: LlamaContext, job: Measure, tokens: Sequence[int]) -> None:
        # Flash attention keeps values in another order, and another context size or type is another form.
        form = f"{job.context_tokens}-{job.kv_type}-{job.flash_attention}-{len(tokens)}.kv"
        path = Path(job.folder) / form
        if path.is_file() and context.restore(path.read_bytes(), len(tokens)):
            return
        context.clear()
        _prefill(context, tokens)
        path.write_bytes(context.save())


def _prefill(context: LlamaContext, tokens: Sequence[int], position: int = 0) -> None:
    size = context.chunk_tokens
    for start in range(0, len(tokens), size):
        chunk = tokens[start : start + size]
        context.decode(chunk, position + start, want_logits=start + size >= len(tokens))


def _seconds_per_token(context: LlamaContext, tokens: Sequence[int], position: int) -> float:
    times = []
    for offset, token in enumerate(tokens):

        def step(token: int = token, at: int = position + offset) -> None:
            context.decode([token], at, want_logits=True)

        times.append(_seconds(step))
    return statistics.median(times)


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return max(time.perf_counter() - began, 1e-9)


def _repeated(tokens: Sequence[int], count: int) -> list[int]:
    return [tokens[index % len(tokens)] for index in range(count)]
