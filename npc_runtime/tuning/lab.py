"""Measures setups of one base model, in child processes, until time is up."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import psutil

from npc_runtime.adapter import read_adapter
from npc_runtime.config import Settings
from npc_runtime.errors import ConfigError, NpcError
from npc_runtime.tuning.jobs import Measure, ModelFacts, Speed, Work
from npc_runtime.tuning.prepared import Original, is_prepared, prepare, prepared_path
from npc_runtime.tuning.search import ALL_FIGURES, Setup
from npc_runtime.tuning.worker import OutOfTime, Worker

MAX_WORKERS = 4
PILOT = Work(prefill=64, history=64, reply=4)
SAMPLES = 40
"""About how many measurements a run is to have time for: so much of a prompt is computed in each."""
MAKING_SHARE = 6
"""A file of another type is made for a try where that takes at most this part of the time (a sixth)."""


class Lab:
    """``base`` is the model that the settings name. Closed, it leaves no process and no file behind."""

    def __init__(
        self,
        settings: Settings,
        base: Path,
        facts: ModelFacts,
        original: Original | None,
        seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._base = base
        self._facts = facts
        self._original = original
        self._seconds = seconds
        self._clock = clock
        self._until = clock() + seconds
        self._workers: OrderedDict[tuple[str, int], Worker] = OrderedDict()
        self._folder = tempfile.TemporaryDirectory(prefix="npc-runtime-tune-")
        self._work = PILOT
        self.adapter = Path()
        """The adapter that is active in every measurement; no name where there is none."""

    @property
    def work(self) -> Work:
        """How much each measurement computes."""
        return self._work

    def begin(self, start: Setup) -> None:
        """Find an adapter that can be used, and how much this machine can compute in a measurement.

        Raises what hinders the present settings from being measured, or OutOfTime.
        """
        for adapter in [*self._adapters(), Path()]:
            self.adapter = adapter
            try:
                speed = self.measure(start, ALL_FIGURES)
            except NpcError:
                if not adapter.name:  # not even without one
                    raise
                continue
            self._work = sized_work(speed, self._seconds, self._settings.context_tokens)
            return

    def _adapters(self) -> list[Path]:
        made_for = {"", self._original.digest if self._original else self._facts.source_digest}
        found = []
        for path in sorted(Path(self._settings.adapters_dir).glob("*.gguf")):
            try:
                header = read_adapter(path, self._settings.max_adapter_bytes)
            except (NpcError, OSError):
                continue
            fits = header.base_digest in made_for or self._settings.allow_base_mismatch
            if fits and header.architecture == self._facts.architecture:
                found.append(path)
        return found

    def measure(self, setup: Setup, figures: tuple[str, ...]) -> Speed:
        """Measure some figures. Raises NpcError where that cannot be done with this setup, OutOfTime."""
        settings = self._settings
        model = str(self._model(setup))
        job = Measure(
            model=model,
            adapter=str(self.adapter) if self.adapter.name else "",
            folder=self._folder.name,
            context_tokens=settings.context_tokens,
            chunk_tokens=setup.prefill_chunk_tokens,
            threads=setup.threads,
            prefill_threads=setup.prefill_threads,
            kv_type=setup.kv_type,
            flash_attention=setup.flash_attention,
            gpu_layers=settings.gpu_layers,
            gpu_device=settings.gpu_device,
            gpu_split=settings.gpu_split,
            work=self._work,
            figures=figures,
        )
        return self._worker(model, setup.spin_count).ask(job, Speed, seconds=self._left())

    def _left(self) -> float:
        left = self._until - self._clock()
        if left <= 0:
            raise OutOfTime
        return left

    def _model(self, setup: Setup) -> Path:
        """The base in the setup's file type: as it is, as it was made before, or made now and for this run only."""
        if setup.file_type == self._facts.file_type:
            return self._base
        assert self._original is not None
        if setup.file_type == self._original.facts.file_type:
            return self._original.path
        target = Path(self._folder.name) / f"{setup.file_type}.gguf"
        if target.is_file():
            return target
        kept = prepared_path(self._original.digest, setup.file_type)
        with Worker(setup.spin_count) as worker:
            if is_prepared(kept, self._original, setup.file_type, worker):
                return kept
            self._make(setup, target, worker)
        return target

    def _make(self, setup: Setup, target: Path, worker: Worker) -> None:
        assert self._original is not None
        most = min(self._left(), self._seconds / MAKING_SHARE)
        threads = max(setup.threads, setup.prefill_threads)
        try:
            prepare(self._original, setup.file_type, target, threads, worker, _quiet, careful=False, seconds=most)
        except OutOfTime:
            self._left()
            raise ConfigError(f"not made within {most:.0f} s") from None

    def _worker(self, model: str, spin_count: int) -> Worker:
        """A process of its own for each file and spin count: kept, as far as memory goes, for the next round."""
        key = model, spin_count
        worker = self._workers.pop(key, None)
        if worker is None or not worker.alive:
            while len(self._workers) >= self._affordable(model):
                self._workers.popitem(last=False)[1].close()
            worker = Worker(spin_count)
        self._workers[key] = worker
        return worker

    @staticmethod
    def _affordable(model: str) -> int:
        size = max(1, Path(model).stat().st_size)
        return max(1, min(MAX_WORKERS, psutil.virtual_memory().available // (3 * size)))

    def close(self) -> None:
        """End all processes and remove what was made."""
        for worker in self._workers.values():
            worker.close(kill=True)
        self._workers.clear()
        self._folder.cleanup()

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sized_work(pilot: Speed, seconds: float, context_tokens: int) -> Work:
    """So much in each measurement that a run of ``seconds`` has time for enough of them: about 2.25 s each of a run of
    90, a third of it for the prompt (at most 256 tokens). The history (at most 768) is computed only once or twice."""
    assert pilot.prefill is not None
    each = pilot.prefill * seconds / SAMPLES
    room = context_tokens - 64
    return Work(prefill=_within(each / 3, 64, min(256, room)), history=_within(each, 64, min(768, room)))


def _within(tokens: float, least: int, most: int) -> int:
    """A multiple of 64 between the two."""
    return max(least, min(most, int(tokens)) // 64 * 64)


def _quiet(_phase: str, _done: int, _total: int) -> None:
    pass
