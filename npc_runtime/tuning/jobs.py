"""What goes between the command and its child processes: jobs down, progress and results up, one JSON map a line."""

from __future__ import annotations

from typing import Union

import msgspec

from npc_runtime.config import FlashAttention, GpuSplit, KvType


class Job(msgspec.Struct, frozen=True, kw_only=True, tag_field="job"):
    """Base of the jobs. Each ends with one ``Done`` or ``Failed``."""


class Inspect(Job, frozen=True, kw_only=True, tag="inspect"):
    """What does a model file say of itself? Result: ``ModelFacts``."""

    model: str


class Quantise(Job, frozen=True, kw_only=True, tag="quantise"):
    """Make ``target`` from ``source``; with ``only_size`` only find out how large it would be. Result: about its bytes.

    What matters when ``texts`` are read is rounded with more care; how far the reading is, is told as progress.
    """

    source: str
    target: str
    file_type: str
    threads: int
    metadata: dict[str, str]
    texts: tuple[str, ...] = ()
    only_size: bool = False


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """How much is computed for one measurement, in tokens: a prompt from its beginning; a short line and a reply behind
    ``history``."""

    prefill: int
    history: int
    line: int = 22
    reply: int = 16


class Measure(Job, frozen=True, kw_only=True, tag="measure"):
    """How fast is a model under these settings? Result: ``Speed`` with the figures that were asked for.

    ``adapter`` is active where it is not empty. KV of the history is kept in ``folder``: for speed it does not matter
    which file of the base computed it.
    """

    model: str
    adapter: str
    folder: str
    context_tokens: int
    chunk_tokens: int
    threads: int
    prefill_threads: int
    kv_type: KvType
    flash_attention: FlashAttention
    gpu_layers: int = 0
    gpu_device: int = 0
    gpu_split: GpuSplit = "layer"
    work: Work
    figures: tuple[str, ...]


class Perplexity(Job, frozen=True, kw_only=True, tag="perplexity"):
    """How likely is each of the texts to both models? Result: ``Agreement``."""

    source: str
    prepared: str
    texts: tuple[str, ...]
    threads: int


class MeasureVoices(Job, frozen=True, kw_only=True, tag="voices"):
    """The matrix of all voices on a model. Result: ``VoiceFigures``."""

    model: str
    personas_dir: str
    adapters_dir: str
    threads: int


AnyJob = Union[Inspect, Quantise, Measure, Perplexity, MeasureVoices]


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """``source_digest`` and ``source_name``: of what it was prepared; empty for an original."""

    architecture: str
    file_type: str
    source_digest: str
    source_name: str
    width: int


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one measurement; None: not asked for.

    ``prefill`` and ``decode`` are tokens a second, ``line_ms`` what a short line takes.
    """

    prefill: float | None = None
    line_ms: float | None = None
    decode: float | None = None


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Two files of a base on the same ``tokens``.

    ``difference`` is nat a token that the prepared file is worse, ``error`` its standard error (in pairs, token by
    token); ``same_choice`` the share of places where the likeliest token is the same.
    """

    tokens: int
    source: float
    prepared: float
    difference: float
    error: float
    same_choice: float


class VoiceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One persona's held-out lines in nat a token: how likely they are under its own set (nearer to 0 is likelier), and
    by how much that is above the base model and the best other set (None: there is no other)."""

    persona_id: str
    own: float
    over_base: float
    over_others: float | None
    holds: bool


class VoiceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """All personas that list adapters."""

    rows: tuple[VoiceRow, ...]


class Told(msgspec.Struct, frozen=True, kw_only=True, tag_field="told"):
    """Base of what a child tells."""


class Progress(Told, frozen=True, kw_only=True, tag="progress"):
    """``done`` of ``total``."""

    done: int
    total: int


class Done(Told, frozen=True, kw_only=True, tag="done"):
    """The job's result."""

    result: msgspec.Raw = msgspec.Raw(b"null")


class Failed(Told, frozen=True, kw_only=True, tag="failed"):
    """The job could not be done; the child goes on."""

    code: str
    message: str


AnyTold = Union[Progress, Done, Failed]
