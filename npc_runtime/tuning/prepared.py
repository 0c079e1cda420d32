"""Faster files of the same base model, made once and kept by the content that they were made from.

A prepared file says what it was made from (``SOURCE_DIGEST_KEY``), so adapters made for the source fit it. Its own
content is another one: the engine keeps KV apart by the digest of the file that is loaded.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs
import psutil

from npc_runtime.base_model import EMBEDDED, SOURCE_DIGEST_KEY, SOURCE_NAME_KEY, file_digest, find_base_model
from npc_runtime.errors import ConfigError, suggest
from npc_runtime.tuning.jobs import Inspect, ModelFacts, Quantise
from npc_runtime.tuning.prose import PLAIN_TALK
from npc_runtime.tuning.worker import Worker

FILE_TYPES = {
    "q4_0": "4 bits, the fastest to compute on most CPUs",
    "iq4_nl": "4 bits on an uneven grid: closer to the original than q4_0",
    "q4_k_m": "4 to 6 bits, for models whose rows are multiples of 256",
    "q5_0": "5 bits",
    "q6_k": "6 bits, for models whose rows are multiples of 256",
    "q8_0": "8 bits: as good as the original, prefills fast, decodes slower",
    "f16": "16 bits: prefills fast, decodes slowest",
}
"""The types that a file can be prepared in, and what they are good for."""
SPARE_BYTES = 64 << 20

ROUNDED_WITH_CARE = ("q4_0", "iq4_nl", "q4_k_m", "q5_0", "q6_k")
"""Types whose quantiser can make use of what matters to the model when it reads."""

Report = Callable[[str, int, int], None]
"""Told how far a file is: ``reading`` text first (in pieces of it), then ``writing`` (in bytes)."""


@dataclass(frozen=True)
class Original:
    """A base model's file as somebody published it."""

    path: Path
    digest: str
    facts: ModelFacts


def models_folder() -> Path:
    """Where prepared files are kept."""
    return platformdirs.user_cache_path("npc-runtime") / "models"


def prepared_path(digest: str, file_type: str) -> Path:
    """Where the file of that type is kept that is made from the content ``digest``."""
    return models_folder() / f"{digest[:16]}-{file_type}.gguf"


def check_file_type(name: str) -> str:
    """``name`` in lower case. Raises ConfigError for a type that is not offered."""
    wanted = name.lower().replace("-", "_")
    if wanted not in FILE_TYPES:
        raise ConfigError(
            f"file type '{name}' cannot be prepared.{suggest(wanted, FILE_TYPES)} Allowed are: {', '.join(FILE_TYPES)}"
        )
    return wanted


def inspect(path: Path, worker: Worker) -> ModelFacts:
    """What a model file says of itself. Raises ConfigError."""
    return worker.ask(Inspect(model=str(path)), ModelFacts)


def find_original(path: Path, facts: ModelFacts, worker: Worker) -> Original | None:
    """The original of a base model: the file itself, or for a prepared one what it was made from, where that is
    installed or lies beside it; None where it does not."""
    if not facts.source_digest:
        return Original(path, file_digest(path), facts)
    for candidate in _places(path, facts):
        if candidate.name == facts.source_name and file_digest(candidate) == facts.source_digest:
            return Original(candidate, facts.source_digest, inspect(candidate, worker))
    return None


def _places(path: Path, facts: ModelFacts) -> Iterator[Path]:
    beside = path.with_name(facts.source_name)
    if facts.source_name and beside.is_file():
        yield beside
    for name in EMBEDDED:
        with contextlib.suppress(ConfigError):
            yield find_base_model(name)


def is_prepared(path: Path, original: Original, file_type: str, worker: Worker) -> bool:
    """Whether ``path`` is there and is what it should be."""
    if not path.is_file():
        return False
    try:
        facts = inspect(path, worker)
    except ConfigError:
        return False
    return facts.source_digest == original.digest and facts.file_type == file_type


def prepare(
    original: Original,
    file_type: str,
    target: Path,
    threads: int,
    worker: Worker,
    report: Report,
    *,
    careful: bool = True,
    seconds: float | None = None,
) -> None:
    """Make ``target``: written to a draft, looked at, then renamed. Raises ConfigError, or OutOfTime after ``seconds``;
    then there is no target. ``careful`` False: for speed alone, which it does not change.
    """
    draft = target.with_name(f".{target.name}.{os.getpid()}.draft")
    job = Quantise(
        source=str(original.path),
        target=str(draft),
        file_type=file_type,
        threads=threads,
        metadata={SOURCE_DIGEST_KEY: original.digest, SOURCE_NAME_KEY: original.path.name},
        texts=(PLAIN_TALK,) if careful and file_type in ROUNDED_WITH_CARE else (),
    )

    def tick() -> None:
        with contextlib.suppress(OSError):
            report("writing", min(draft.stat().st_size, expected), expected)

    try:
        _make_folder(target.parent)
        expected = worker.ask(msgspec.structs.replace(job, only_size=True), int, seconds=seconds)
        _check_room(target, expected)
        worker.ask(job, int, seconds=seconds, report=lambda done, total: report("reading", done, total), tick=tick)
        if not is_prepared(draft, original, file_type, worker):
            raise ConfigError(
                f"the {file_type} file of '{original.path.name}' did not come out right and is not kept; "
                f"is the disk of '{target.parent}' full?"
            )
        _replace(draft, target)
        report("writing", expected, expected)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for draft in folder.glob(".*.draft"):
            if _is_left_behind(draft):
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"'{folder}' cannot be written ({error.strerror}); set XDG_CACHE_HOME to another") from None


def _is_left_behind(draft: Path) -> bool:
    pid = draft.name.split(".")[-2]
    return pid.isdigit() and not psutil.pid_exists(int(pid))


def _check_room(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < needed + SPARE_BYTES:
        raise ConfigError(
            f"'{target.name}' needs {needed / 2**20:.0f} MiB, and '{target.parent}' has {free / 2**20:.0f} MiB left; "
            "make room, or set XDG_CACHE_HOME to a folder on another disk"
        )


def _replace(draft: Path, target: Path) -> None:
    try:
        draft.replace(target)
    except OSError as error:
        raise ConfigError(f"'{target}' cannot be written: {error.strerror}") from None
