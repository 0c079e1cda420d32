"""All settings and limits, with their defaults and units, in one place.

A value comes from, in rising precedence: the default here, the YAML file of ``--config``, an environment variable
``NPC_RUNTIME_<NAME>``, a command line flag. Paths in a file are relative to that file. The table in
``docs/configuration.md`` is generated from this module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import psutil
import yaml
from msgspec import Meta

from npc_runtime.base_model import EMBEDDED
from npc_runtime.errors import ConfigError, suggest

KvType = Literal["f16", "q8_0"]
FlashAttention = Literal["auto", "on", "off"]
GpuSplit = Literal["none", "layer", "row"]

ENV_PREFIX = "NPC_RUNTIME_"
ENV_OTHER = ("endpoint", "log")
"""Variables with our prefix that are no settings of a daemon: what the commands connect to, the engine's log level."""
PATHS = ("base_model", "personas_dir", "adapters_dir", "ready_file", "ipc_path", "kv_dir")


def default_threads() -> int:
    """Physical cores; where there are more than two, one is left to the game."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    return cores if cores <= 2 else cores - 1


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One running daemon's settings."""

    base_model: Annotated[
        str, Meta(description="`smollm2`, `gemma3` (models from PyPI extras), or a path to a GGUF")
    ] = "smollm2"
    personas_dir: Annotated[str, Meta(description="folder with `*.yaml`, watched")] = "personas"
    adapters_dir: Annotated[str, Meta(description="folder with `*.gguf` adapters, watched")] = "adapters"
    allow_base_mismatch: Annotated[
        bool, Meta(description="accept adapters whose recorded base model is another one than ours")
    ] = False

    host: Annotated[str, Meta(description="address to listen on; loopback only")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="TCP port; 0 picks a free one")] = 0
    ipc_path: Annotated[str, Meta(description="path of an additional `ipc://` socket; empty: none")] = ""
    ready_file: Annotated[
        str,
        Meta(
            description="file that gets pid, port, daemon_id as JSON; `auto`: in the user's runtime folder; empty: none"
        ),
    ] = "auto"

    lanes: Annotated[
        int, Meta(ge=1, le=256, description="conversations whose KV is resident, as far as `kv_memory_mb` allows")
    ] = 8
    context_tokens: Annotated[int, Meta(ge=256, le=131072, description="tokens of context per conversation")] = 2048
    kv_memory_mb: Annotated[
        int,
        Meta(ge=1, description="MiB of resident KV: lanes x context_tokens x bytes a token (SmolLM2: 23,040)"),
    ] = 512
    kv_type: Annotated[KvType, Meta(description="numbers of the KV cache; `q8_0`: half the memory, less exact")] = "f16"
    ram_cache_mb: Annotated[
        int, Meta(ge=0, description="MiB for KV that lost its lane, and for persona prefixes; 0: none is kept")
    ] = 512
    kv_dir: Annotated[str, Meta(description="folder that keeps KV over a restart; empty: none")] = ""
    disk_cache_mb: Annotated[int, Meta(ge=1, description="MiB in `kv_dir`; least recently used files go first")] = 1024
    prefill_chunk_tokens: Annotated[
        int, Meta(ge=16, le=4096, description="tokens per prefill step (llama.cpp's n_batch and n_ubatch)")
    ] = 64
    threads: Annotated[int, Meta(ge=0, le=512, description="CPU threads; 0: physical cores, one left to the game")] = 0
    prefill_threads: Annotated[int, Meta(ge=0, le=512, description="CPU threads of prefill; 0: as `threads`")] = 0
    spin_count: Annotated[
        int,
        Meta(ge=0, le=10_000_000_000, description="how often a worker thread looks for work before it sleeps"),
    ] = 1_000_000
    flash_attention: Annotated[
        FlashAttention, Meta(description="`auto`: on a GPU or with `q8_0`; a CPU is faster without")
    ] = "auto"
    gpu_layers: Annotated[
        int, Meta(ge=-1, description="layers on the GPU, for builds that have one; -1: all; 0: none")
    ] = 0
    gpu_device: Annotated[int, Meta(ge=0, description="number of the GPU")] = 0
    gpu_split: Annotated[GpuSplit, Meta(description="how a model is split over several GPUs")] = "layer"
    low_priority: Annotated[
        bool, Meta(description="the engine runs below the game's priority: it gets what the game leaves")
    ] = False
    max_tokens_per_second: Annotated[
        float, Meta(ge=0, description="reply tokens a second, all turns together; 0: as fast as can be")
    ] = 0.0
    max_loaded_adapters: Annotated[
        int, Meta(ge=1, description="adapters in memory; the least recently used one makes room and comes back on use")
    ] = 64
    max_active_turns: Annotated[
        int, Meta(ge=1, le=64, description="turns that are computed side by side, in turn; more wait")
    ] = 1
    starvation_seconds: Annotated[
        float, Meta(gt=0, description="a turn that has waited this long counts as `player`, whatever its priority")
    ] = 10.0
    engine_start_timeout_s: Annotated[float, Meta(gt=0, description="seconds the model may take to load")] = 120.0

    max_clients: Annotated[int, Meta(ge=1, description="connected clients")] = 64
    max_sessions: Annotated[int, Meta(ge=1, description="open sessions")] = 1024
    max_queued_turns: Annotated[int, Meta(ge=1, description="turns waiting; beyond: `busy`")] = 64
    max_message_bytes: Annotated[int, Meta(ge=1024, description="bytes of one message")] = 262_144
    max_line_chars: Annotated[int, Meta(ge=1, le=20_000, description="characters of one player line")] = 4000
    max_persona_bytes: Annotated[int, Meta(ge=1024, description="bytes of one persona file")] = 65_536
    max_personas: Annotated[int, Meta(ge=1, description="personas in the catalog")] = 4096
    max_adapter_bytes: Annotated[int, Meta(ge=1024, description="bytes of one adapter file")] = 536_870_912
    max_turn_seconds: Annotated[float, Meta(gt=0, description="seconds of computing one reply")] = 120.0
    stuck_engine_seconds: Annotated[
        float, Meta(gt=0, description="seconds without a sign of life after which the engine is started anew")
    ] = 20.0
    max_outbox_messages: Annotated[int, Meta(ge=16, description="messages kept for a client that does not read")] = 4096
    finished_turns_kept: Annotated[int, Meta(ge=1, description="finished turns that a repeated turn_id can fetch")] = (
        256
    )
    drain_seconds: Annotated[
        float, Meta(ge=0, le=1.5, description="seconds a running turn may take to end at stop")
    ] = 0.7


def load_settings(
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from file, environment and flags (None values in ``flags`` mean "not given"). Raises ConfigError."""
    merged: dict[str, Any] = {}
    if config is not None:
        merged.update(_from_file(config))
    merged.update(_from_environ(os.environ if environ is None else environ))
    merged.update({name: value for name, value in (flags or {}).items() if value is not None})
    try:
        settings = msgspec.convert(merged, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"setting {_explain(error)}; see docs/configuration.md for what is allowed") from None
    return _checked(settings)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"config file '{path}' cannot be read: {error}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"config file '{path}' must be a map of settings, like 'port: 5710'")
    for name in loaded:
        _check_name(str(name), f"config file '{path}'")
    for name in PATHS:
        value = loaded.get(name)
        if isinstance(value, str) and value not in ("", "auto", *EMBEDDED):
            loaded[name] = str(path.parent / value)
    return loaded


def _from_environ(environ: Mapping[str, str]) -> dict[str, str]:
    found = {key[len(ENV_PREFIX) :].lower(): value for key, value in environ.items() if key.startswith(ENV_PREFIX)}
    for name in ENV_OTHER:
        found.pop(name, None)
    for name in found:
        _check_name(name, f"environment variable {ENV_PREFIX}{name.upper()}")
    return found


def _check_name(name: str, where: str) -> None:
    if name not in Settings.__struct_fields__:
        raise ConfigError(
            f"{where}: unknown setting '{name}'.{suggest(name, Settings.__struct_fields__)} "
            "All settings are in docs/configuration.md"
        )


def _explain(error: msgspec.ValidationError) -> str:
    text = str(error)
    return text.replace("`$.", "`") if "`$." in text else text


def _checked(settings: Settings) -> Settings:
    if settings.host not in ("127.0.0.1", "localhost"):
        raise ConfigError(
            f"host '{settings.host}' is not loopback; allowed is 127.0.0.1: there is no encryption on this socket"
        )
    for name in PATHS:
        try:
            getattr(settings, name).encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"{name} {getattr(settings, name)!r} is not UTF-8; move it to a folder whose name is"
            ) from None
    if settings.prefill_chunk_tokens > settings.context_tokens:
        raise ConfigError(
            f"prefill_chunk_tokens {settings.prefill_chunk_tokens} is larger than "
            f"context_tokens {settings.context_tokens}; make it smaller"
        )
    if settings.kv_type != "f16" and settings.flash_attention == "off":
        raise ConfigError(f"kv_type {settings.kv_type} needs flash attention; set flash_attention to auto or on")
    return settings
