"""What this machine and this model let one choose from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from npc_runtime.config import Settings, default_threads
from npc_runtime.tuning.jobs import ModelFacts
from npc_runtime.tuning.search import Factor, Setup

BUSY = 0.35
"""Load for each core, or share of all cores in use, above which figures are not to be trusted."""
IDLE = 0.1
"""Share of all cores in use at most where a high load is a thing of the past."""
LOOK_SECONDS = 0.4
CHUNKS = (32, 64, 128, 256)
SPINS = (1_000, 100_000, 1_000_000, 10_000_000)
"""A million is a millisecond or two on today's processors. More than that would take the game's cores from it."""
FILE_TYPES = ("q4_0", "q8_0", "iq4_nl", "q4_k_m")
MAX_SOURCE_BYTES = 2 << 30
"""A larger base is not made into other types merely to try them; ``--prepare-model`` does it when asked to."""


@dataclass(frozen=True)
class Load:
    """How busy the machine is: programs that wanted a core (average of a minute), its cores, their share in use now."""

    average: float
    cores: int
    in_use: float

    @property
    def busy(self) -> bool:
        """Whether something else is running that would spoil the figures."""
        return self.in_use > BUSY or (self.average / self.cores > BUSY and self.in_use > IDLE)


def load_now() -> Load:
    """Looks for a moment. A system that knows no load average has 0."""
    average = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return Load(average, os.cpu_count() or 1, psutil.cpu_percent(LOOK_SECONDS) / 100)


def start_setup(settings: Settings, file_type: str) -> Setup:
    """What the settings come to on this machine."""
    threads = settings.threads or default_threads()
    return Setup(
        file_type=file_type,
        threads=threads,
        prefill_threads=settings.prefill_threads or threads,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        flash_attention=settings.flash_attention,
        kv_type=settings.kv_type,
        spin_count=settings.spin_count,
    )


def factors(
    start: Setup, types: tuple[str, ...], *, prefill_tokens: int, context_tokens: int, on_gpu: bool
) -> list[Factor]:
    """What is tried, in this order: what changes most comes first."""
    threads = thread_counts(max(default_threads(), start.threads, start.prefill_threads))
    chunks = tuple(size for size in CHUNKS if size <= min(prefill_tokens, context_tokens))
    found = [
        Factor("base_model file type", _values("file_type", types), weight=3, adopt=False),
        Factor("prefill_threads", _values("prefill_threads", threads), ("prefill", "line_ms"), weight=2),
        Factor("threads", _values("threads", threads), ("decode",)),
        Factor("flash_attention, kv_type", attention(start, on_gpu=on_gpu), weight=2),
        Factor("prefill_chunk_tokens", _values("prefill_chunk_tokens", chunks), ("prefill",), weight=1.5),
    ]
    # A single thread waits for nobody.
    spin = [Factor("spin_count", _values("spin_count", SPINS), weight=1.5)] if threads[-1] > 1 else []
    return [*found, *spin]


def thread_counts(most: int) -> tuple[int, ...]:
    """From one to ``most`` (the default leaves one core to the game): few counts, spread out."""
    return tuple(sorted({count for count in (1, 2, most // 4, most // 2, most * 3 // 4, most) if 0 < count <= most}))


def file_types(source: ModelFacts, source_bytes: int) -> tuple[str, ...]:
    """The types of an original that are worth a try: those with fast kernels on CPUs. K types need rows of 256."""
    if source_bytes > MAX_SOURCE_BYTES:
        return ()
    made = (name for name in FILE_TYPES if source.width % 256 == 0 or "_k" not in name)
    return tuple(dict.fromkeys((source.file_type, *made)))


def attention(start: Setup, *, on_gpu: bool) -> tuple[Mapping[str, object], ...]:
    """Flash attention and the KV type belong together: q8_0 needs it. ``auto`` is written where it comes to the same;
    what is set now stays as it is written."""

    def flash(setting: object, kv_type: str) -> bool:
        return (on_gpu or kv_type == "q8_0") if setting == "auto" else setting == "on"

    now = flash(start.flash_attention, start.kv_type), start.kv_type
    kinds = []
    for wanted, kv_type in ((False, "f16"), (True, "f16"), (True, "q8_0")):
        if (wanted, kv_type) != now:
            setting = "auto" if flash("auto", kv_type) == wanted else ("on" if wanted else "off")
            kinds.append({"flash_attention": setting, "kv_type": kv_type})
    return tuple(kinds)


def _values(name: str, values: tuple[object, ...]) -> tuple[Mapping[str, object], ...]:
    return tuple({name: value} for value in values)
