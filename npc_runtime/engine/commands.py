"""What goes between the daemon and the engine process: commands down, events up.

Both are msgpack maps on the child's standard input and output, typed here. The engine never sees a persona or a file
name of the catalog: a turn comes with all that it needs.
"""

from __future__ import annotations

from typing import Annotated, Union

import msgspec
from msgspec import Meta

from npc_runtime.prompt import Conversation
from npc_runtime.protocol.messages import FinishReason
from npc_runtime.sampling import Sampling


class EngineSettings(msgspec.Struct, frozen=True):
    """What the engine is started with. ``base_model`` is a path; sizes are tokens."""

    base_model: str
    lanes: int
    context_tokens: int
    chunk_tokens: int
    threads: int


class AdapterSource(msgspec.Struct, frozen=True):
    """One adapter of a turn: where its file is, what its content must be, how strong it is (never 0)."""

    name: str
    digest: Annotated[str, Meta(description="sha256 of the file's content")]
    path: str
    scale: float


class Command(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of the commands."""


class RunTurn(Command, frozen=True, kw_only=True, tag="run_turn"):
    """Compute one reply. Ends with ``TurnDone`` or ``TurnFailed``, exactly once."""

    turn_id: str
    session_id: str
    conversation: Conversation
    adapters: tuple[AdapterSource, ...]
    sampling: Sampling
    seed: int
    stops: tuple[str, ...]
    max_tokens: int
    min_tokens: int
    max_seconds: float


class StopTurn(Command, frozen=True, tag="stop_turn"):
    """End a turn at the next step. No effect on a turn that is not running."""

    turn_id: str


class ForgetSession(Command, frozen=True, tag="forget_session"):
    """Free what is kept for a session."""

    session_id: str


class KeepAdapters(Command, frozen=True, tag="keep_adapters"):
    """Free every loaded adapter whose digest is not listed (at the next moment when no turn uses it)."""

    digests: tuple[str, ...]


AnyCommand = Union[RunTurn, StopTurn, ForgetSession, KeepAdapters]


class Event(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of the events."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the engine's start. ``decode_*`` are counted where ``llama_decode`` is called."""

    lanes: int
    lanes_bound: int
    adapters_loaded: int
    decode_calls: int
    decoded_tokens: int
    adapter_switches: int
    context_tokens: int


class EngineReady(Event, frozen=True, kw_only=True, tag="engine_ready"):
    """The model is loaded and the lanes are built."""

    architecture: str
    digest: str
    name: str
    template: str
    stats: EngineStats


class EngineFailed(Event, frozen=True, tag="engine_failed"):
    """The engine cannot start; the process ends."""

    code: str
    message: str


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
    """The reply is complete (or was stopped). ``tokens`` and ``rest`` are what the next prompt repeats."""

    turn_id: str
    text: str
    finish_reason: FinishReason
    tokens: tuple[int, ...]
    rest: str
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    dropped_exchanges: int
    rebuilt: bool
    switch_ms: float
    prefill_ms: float
    decode_ms: float
    stats: EngineStats


class TurnFailed(Event, frozen=True, kw_only=True, tag="turn_failed"):
    """The turn ended with an error; nothing of it is kept."""

    turn_id: str
    code: str
    message: str
    stats: EngineStats


AnyEvent = Union[EngineReady, EngineFailed, AdapterLoading, AdapterLoaded, TurnBegan, ReplyDelta, TurnDone, TurnFailed]
