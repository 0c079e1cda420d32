"""The engine process: ``python -m npc_runtime.engine.child``.

The main thread owns the model and runs the steps. A second thread reads commands from standard input; when the input
ends, the daemon is gone and so is this process, whatever it was doing. Events go to what was standard output; file
descriptor 1 itself is pointed at standard error, so that nothing printed by a library can break the stream.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import msgspec
import psutil

from npc_runtime.base_model import file_digest
from npc_runtime.engine.commands import AnyCommand, AnyEvent, EngineFailed, EngineSettings
from npc_runtime.engine.core import EngineCore
from npc_runtime.errors import EngineUnavailable, NpcError

LOW_PRIORITY = 10
"""Niceness of an engine that is to leave the cores to the game: it then gets about a tenth of what the game wants."""
LEAVE_SECONDS = 0.8
"""How long an engine that was told to leave may write KV to disk."""

log = logging.getLogger("npc_runtime.engine")


def main() -> None:
    """Load the model, tell, and serve until standard input ends."""
    logging.basicConfig(level=os.environ.get("NPC_RUNTIME_LOG", "WARNING").upper(), format="%(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the daemon's to handle
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    try:
        core = _load(msgspec.convert(commands.get(), EngineSettings), out)
    except NpcError as error:
        _send(out, EngineFailed(error.code, error.message))
        sys.exit(1)
    except MemoryError:
        _send(out, EngineFailed(EngineUnavailable.code, "not enough memory; lower lanes or context_tokens"))
        sys.exit(1)
    _serve(core, commands, out)


def _load(settings: EngineSettings, out: BinaryIO) -> EngineCore:
    if settings.low_priority:
        psutil.Process().nice(getattr(psutil, "BELOW_NORMAL_PRIORITY_CLASS", LOW_PRIORITY))
    core = new_core(settings, lambda event: _send(out, event))
    _send(out, core.ready(Path(settings.base_model).name))
    return core


def new_core(settings: EngineSettings, notify: Callable[[AnyEvent], None] = lambda event: None) -> EngineCore:
    """The engine over the real model, in this process. Raises ConfigError or EngineUnavailable."""
    from npc_runtime.llama import GpuOptions, LlamaModel, build_id

    path = Path(settings.base_model)
    gpu = GpuOptions(settings.gpu_layers, settings.gpu_device, settings.gpu_split)
    model = LlamaModel(path, gpu)
    return EngineCore(model, settings, base_digest=file_digest(path), build=build_id(), notify=notify)


def _serve(core: EngineCore, commands: queue.SimpleQueue[dict[str, Any]], out: BinaryIO) -> None:
    while not core.left:
        with contextlib.suppress(queue.Empty):
            wait = core.wait_seconds()
            while True:
                core.submit(msgspec.convert(commands.get(wait != 0, wait), AnyCommand))
                wait = 0
        for event in core.step():
            _send(out, event)
    core.persist_all(LEAVE_SECONDS)
    os._exit(0)


def _read_commands(commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    with os.fdopen(os.dup(0), "rb", buffering=0) as raw:
        for command in msgpack.Unpacker(raw, raw=False, max_buffer_size=1 << 28):
            commands.put(command)
    os._exit(0)


def _send(out: BinaryIO, event: AnyEvent) -> None:
    try:
        out.write(msgpack.packb(msgspec.to_builtins(event)))
        out.flush()
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
