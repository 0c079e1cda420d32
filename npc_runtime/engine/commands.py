"""What goes between the daemon and the engine process: commands down, events up.

Both are msgpack maps on the child's standard input and output, typed here. The engine never sees a persona or a file
name of the catalog: a turn comes with all that it needs.
"""

from __future__ import annotations

from typing import Annotated, Literal, Union

import msgspec
from msgspec import Meta

from npc_runtime.base_model import find_base_model
from npc_runtime.config import FlashAttention, GpuSplit, KvType, Settings, default_threads
from npc_runtime.prompt import Conversation
from npc_runtime.protocol.messages import FinishReason
from npc_runtime.sampling import Sampling


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine is started with: the part of the daemon's settings that concerns it, under the same names.

    ``base_model`` is a path. ``kv_bytes``, ``ram_bytes`` and ``disk_bytes`` bound the KV in lanes, in memory beside
    them, and in ``kv_dir`` (empty: nowhere).
    """

    base_model: str
    lanes: int
    context_tokens: int
    chunk_tokens: int
    threads: int
    prefill_threads: int = 0
    kv_type: KvType = "f16"
    flash_attention: FlashAttention = "auto"
    kv_bytes: int = 1 << 40
    ram_bytes: int = 1 << 28
    kv_dir: str = ""
    disk_bytes: int = 1 << 30
    gpu_layers: int = 0
    gpu_device: int = 0
    gpu_split: GpuSplit = "layer"
    spin_count: int = 1_000_000
    low_priority: bool = False
    max_tokens_per_second: float = 0.0
    max_loaded_adapters: int = 64


def engine_settings(settings: Settings) -> EngineSettings:
    """The engine's part of a daemon's settings. Raises ConfigError where there is no such base model."""
    return EngineSettings(
        base_model=str(find_base_model(settings.base_model)),
        lanes=settings.lanes,
        context_tokens=settings.context_tokens,
        chunk_tokens=settings.prefill_chunk_tokens,
        threads=settings.threads or default_threads(),
        prefill_threads=settings.prefill_threads,
        kv_type=settings.kv_type,
        flash_attention=settings.flash_attention,
        kv_bytes=settings.kv_memory_mb << 20,
        ram_bytes=settings.ram_cache_mb << 20,
        kv_dir=settings.kv_dir,
        disk_bytes=settings.disk_cache_mb << 20,
        gpu_layers=settings.gpu_layers,
        gpu_device=settings.gpu_device,
        gpu_split=settings.gpu_split,
        spin_count=settings.spin_count,
        low_priority=settings.low_priority,
        max_tokens_per_second=settings.max_tokens_per_second,
        max_loaded_adapters=settings.max_loaded_adapters,
    )


class AdapterSource(msgspec.Struct, frozen=True):
    """One adapter of a turn: where its file is, what its content must be, how strong it is (never 0)."""

    name: str
    digest: Annotated[str, Meta(description="sha256 of the file's content")]
    path: str
    scale: float


class Command(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of the commands."""


class Spoken(Command, frozen=True, kw_only=True):
    """Base of what computes a conversation: who speaks with whom, and under which adapters.

    ``pinned``: the KV is not evicted as long as anything else can be.
    """

    session_id: str
    persona_id: str = ""
    conversation: Conversation
    adapters: tuple[AdapterSource, ...]
    pinned: bool = False


class RunTurn(Spoken, frozen=True, kw_only=True, tag="run_turn"):
    """Compute one reply. Ends with ``TurnDone`` or ``TurnFailed``, exactly once.

    ``max_seconds`` bounds the computing, ``deadline_seconds`` (from now) the waiting as well.
    """

    turn_id: str
    sampling: Sampling
    seed: int
    stops: tuple[str, ...]
    max_tokens: int
    min_tokens: int
    max_seconds: float
    deadline_seconds: float | None = None


class StopTurn(Command, frozen=True, tag="stop_turn"):
    """End a turn at the next step. No effect on a turn that is not there."""

    turn_id: str


class SetRunning(Command, frozen=True, tag="set_running"):
    """These turns are computed, side by side; all others wait where they are."""

    turn_ids: tuple[str, ...]


class Prepare(Spoken, frozen=True, kw_only=True, tag="prepare"):
    """Compute in advance what the session's next turn begins with, while no turn runs. Ends with ``Prepared``.

    The conversation's ``line`` is what of the player's line is known so far (empty: nothing); ``complete``: it may be
    all of it, so what follows it in the prompt is computed as well. A newer one for the same session, or its turn,
    takes the place of an older one. Without a session: the persona's fixed part only.
    """

    prepare_id: str
    complete: bool = False


class MeasurePersona(Command, frozen=True, kw_only=True, tag="measure_persona"):
    """Count the tokens of a persona's fixed part. Ends with ``PersonaMeasured``."""

    version: str
    conversation: Conversation


class DropKv(Command, frozen=True, kw_only=True, tag="drop_kv"):
    """Drop the KV of a session, of a persona, or (both empty) all of it. What a turn uses goes when it has ended."""

    session_id: str = ""
    persona_id: str = ""


class KeepAdapters(Command, frozen=True, tag="keep_adapters"):
    """Free every loaded adapter whose digest is not listed (at the next moment when no turn uses it)."""

    digests: tuple[str, ...]


class Probe(Command, frozen=True, tag="probe"):
    """Ask for a sign of life: ``Alive`` with the same number."""

    number: int


class Leave(Command, frozen=True, tag="leave"):
    """Keep on disk what is to be kept, then end the process."""


AnyCommand = Union[RunTurn, StopTurn, SetRunning, Prepare, MeasurePersona, DropKv, KeepAdapters, Probe, Leave]


class Event(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of the events."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the engine's start. ``decode_*`` are counted where ``llama_decode`` is called.

    ``kv_bytes`` are allocated for all lanes; ``ram_*`` and ``disk_*`` are the tiers behind them; ``restored_*`` count
    copies into a lane, by where they came from; ``kv_files_dropped`` those that were damaged.
    """

    lanes: int
    lanes_bound: int
    context_tokens: int
    kv_bytes: int
    kv_bytes_per_token: int
    ram_bytes: int
    ram_snapshots: int
    disk_bytes: int
    disk_snapshots: int
    kv_files_dropped: int
    evictions: int
    restored_resident: int
    restored_ram: int
    restored_disk: int
    adapters_loaded: int
    adapter_loads: int
    adapter_switches: int
    decode_calls: int
    decoded_tokens: int


class EngineReady(Event, frozen=True, kw_only=True, tag="engine_ready"):
    """The model is loaded and the lanes are built.

    ``digest`` is the sha256 of the file that is loaded; ``source_digest`` of the one it was prepared from (empty: it is
    an original), for which adapters were made.
    """

    architecture: str
    digest: str
    source_digest: str = ""
    name: str
    template: str
    stats: EngineStats


class EngineFailed(Event, frozen=True, tag="engine_failed"):
    """The engine cannot start; the process ends."""

    code: str
    message: str


class Alive(Event, frozen=True, tag="alive"):
    """Answer to ``Probe``."""

    number: int
    stats: EngineStats


class PersonaMeasured(Event, frozen=True, tag="persona_measured"):
    """Tokens of a persona's fixed part."""

    version: str
    tokens: int


class Prepared(Event, frozen=True, kw_only=True, tag="prepared"):
    """A ``Prepare`` has ended. ``ready_tokens`` of the next prompt are in the lane, ``computed_tokens`` were computed
    for it; ``primed`` are the calls in which the player's line was computed so far; ``superseded``: it was given
    up."""

    prepare_id: str
    session_id: str
    ready_tokens: int
    computed_tokens: int
    primed: tuple[tuple[int, ...], ...]
    superseded: bool
    error_code: str
    error: str
    stats: EngineStats


class AdapterLoading(Event, frozen=True, tag="adapter_loading"):
    """Sent before a file is given to llama.cpp: if the process dies now, this file did it."""

    digest: str


class AdapterLoaded(Event, frozen=True, tag="adapter_loaded"):
    """The file was taken or refused without harm."""

    digest: str


class TurnBegan(Event, frozen=True, tag="turn_began"):
    """The adapters are loaded and active; prefill begins."""

    turn_id: str


class ReplyDelta(Event, frozen=True, tag="reply_delta"):
    """A piece of the reply's text."""

    turn_id: str
    text: str


class TurnDone(Event, frozen=True, kw_only=True, tag="turn_done"):
    """The reply is complete (or was stopped). ``tokens``, ``rest`` and ``cuts`` are what the next prompt repeats.

    ``dropped_exchanges`` were left out of this prompt; ``drop_next`` more (the newest exchange counted) have to be left
    out of the next one. Where the turn never began, only ``finish_reason`` is set. Times: ``switch`` is the plan, the
    lane, its adapters and an eviction, ``restore`` a copy from a tier, ``waited`` what other turns took in between.
    """

    turn_id: str
    text: str = ""
    finish_reason: FinishReason
    tokens: tuple[int, ...] = ()
    rest: str = ""
    cuts: tuple[int, ...] = ()
    prompt_tokens: int = 0
    reused_tokens: int = 0
    reused_from: Literal["", "resident", "ram", "disk"] = ""
    generated_tokens: int = 0
    dropped_exchanges: int = 0
    drop_next: int = 0
    rebuilt: bool = False
    switch_ms: float = 0.0
    restore_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    waited_ms: float = 0.0
    stats: EngineStats | None = None


class TurnFailed(Event, frozen=True, kw_only=True, tag="turn_failed"):
    """The turn ended with an error; nothing of it is kept."""

    turn_id: str
    code: str
    message: str
    stats: EngineStats


AnyEvent = Union[
    EngineReady,
    EngineFailed,
    Alive,
    PersonaMeasured,
    Prepared,
    AdapterLoading,
    AdapterLoaded,
    TurnBegan,
    ReplyDelta,
    TurnDone,
    TurnFailed,
]
