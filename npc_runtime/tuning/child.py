"""The process that touches models: ``python -m npc_runtime.tuning.child``.

Jobs come on standard input, one at a time; when that ends, so does this process, whatever it was doing. What it tells
goes to what was standard output; file descriptor 1 itself is pointed at standard error, so that nothing printed by a
library can break the stream.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from npc_runtime.base_model import SOURCE_NAME_KEY
from npc_runtime.errors import InternalError, NpcError
from npc_runtime.llama import LlamaModel
from npc_runtime.llama.importance import read_importance
from npc_runtime.llama.quantize import Quantisation, expected_bytes, file_type_name, quantise
from npc_runtime.tuning.jobs import (
    AnyJob,
    AnyTold,
    Done,
    Failed,
    Inspect,
    Measure,
    MeasureVoices,
    ModelFacts,
    Perplexity,
    Progress,
    Quantise,
)
from npc_runtime.tuning.speed import SpeedMeter


def main() -> None:
    """Do jobs until standard input ends."""
    logging.basicConfig(level="ERROR", format="%(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's to handle
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()

    def tell(told: AnyTold) -> None:
        try:
            out.write(msgspec.json.encode(told) + b"\n")
        except BrokenPipeError:
            os._exit(0)

    meter = SpeedMeter()
    while True:
        job = msgspec.json.decode(lines.get(), type=AnyJob)
        try:
            result = _do(job, meter, lambda done, total: tell(Progress(done=done, total=total)))
            tell(Done(result=msgspec.Raw(msgspec.json.encode(result))))
        except NpcError as error:
            tell(Failed(code=error.code, message=error.message))
        except Exception as error:
            logging.exception("job failed")
            tell(Failed(code=InternalError.code, message=f"{type(error).__name__}: {error}"))


def _do(job: AnyJob, meter: SpeedMeter, report: Callable[[int, int], None]) -> Any:
    match job:
        case Inspect():
            return _inspect(Path(job.model))
        case Quantise():
            return _quantise(job, report)
        case Measure():
            return meter.measure(job)
        case Perplexity() | MeasureVoices():
            # Imported where it is needed: what it takes with it (templates, training) takes a third of the start.
            from npc_runtime.tuning.quality import compare, measure_voices

            return compare(job, report) if isinstance(job, Perplexity) else measure_voices(job, report)


def _quantise(job: Quantise, report: Callable[[int, int], None]) -> int:
    source = Path(job.source)
    wanted = Quantisation(source, Path(job.target), job.file_type, job.threads, job.metadata)
    if not job.only_size:
        importance = read_importance(source, job.texts, job.threads, report) if job.texts else {}
        quantise(replace(wanted, importance=importance))
    return expected_bytes(wanted)


def _inspect(path: Path) -> ModelFacts:
    model = LlamaModel(path, vocab_only=True)
    try:
        width = model.metadata(f"{model.architecture}.embedding_length")
        return ModelFacts(
            architecture=model.architecture,
            file_type=file_type_name(model.metadata("general.file_type")),
            source_digest=model.source_digest,
            source_name=model.metadata(SOURCE_NAME_KEY),
            width=int(width) if width.isdigit() else 0,
        )
    finally:
        model.close()


def _read_lines(lines: queue.SimpleQueue[bytes]) -> None:
    with os.fdopen(os.dup(0), "rb") as source:
        for line in source:
            lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
