"""The engine process, seen from the daemon: start it, talk to it, notice when it dies.

The pipe is read and written by two threads of this module; everything they learn goes to ``on_event`` (called from
those threads). A full pipe or a stopped engine never blocks the caller.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

import msgpack
import msgspec

from npc_runtime.engine.commands import AnyCommand, AnyEvent, EngineSettings, Leave


@dataclass(frozen=True)
class EngineDied:
    """The process ended. ``status`` is its exit code (negative: the signal), ``tail`` its last words."""

    pid: int
    status: int
    tail: str


EngineMessage = AnyEvent | EngineDied


class EngineProcess:
    """One run of the engine. Starts at once."""

    def __init__(self, settings: EngineSettings, on_event: Callable[[EngineProcess, EngineMessage], None]) -> None:
        self._on_event = on_event
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._tail: deque[str] = deque(maxlen=20)
        # How long OpenMP's threads spin before they sleep (libgomp): 96 -> 122 tokens/s of decode with an adapter was
        # measured on 2 cores with a million; an endless spin would burn the player's cores.
        # glibc otherwise raises its limit for returning memory with every big block that is freed: binding other
        # adapters to eight contexts a few times then left 180 MB more in the process (900 instead of 720).
        environment = {
            "GOMP_SPINCOUNT": str(settings.spin_count),
            "GGML_NO_BACKTRACE": "1",
            "MALLOC_TRIM_THRESHOLD_": "1000000",
            **os.environ,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "npc_runtime.engine.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        self._stderr_reader = threading.Thread(target=self._read_stderr, args=(stderr,), daemon=True)
        self._stderr_reader.start()
        threading.Thread(target=self._write, args=(stdin,), daemon=True).start()
        threading.Thread(target=self._read, args=(stdout,), daemon=True).start()
        self._send(msgspec.to_builtins(settings))

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, command: AnyCommand) -> None:
        """Queue a command; never blocks."""
        self._send(msgspec.to_builtins(command))

    def _send(self, fields: object) -> None:
        self._outgoing.put(msgpack.packb(fields))

    def stop(self, timeout_s: float, *, ready: bool) -> None:
        """End the process: a ready one may keep its KV on disk first, any other has its input closed. It is killed
        where it does not leave in time."""
        if ready:
            self.send(Leave())
        else:
            self._outgoing.put(None)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the process now."""
        self._process.kill()
        self._process.wait()

    def _write(self, stdin: BinaryIO) -> None:
        try:
            while (data := self._outgoing.get()) is not None:
                stdin.write(data)
                stdin.flush()
            stdin.close()
        except OSError:
            pass  # the process is gone: the reading thread tells

    def _read(self, stdout: BinaryIO) -> None:
        raw = stdout.raw if hasattr(stdout, "raw") else stdout
        for fields in msgpack.Unpacker(raw, raw=False, max_buffer_size=1 << 28):
            self._on_event(self, msgspec.convert(fields, AnyEvent))
        status = self._process.wait()
        self._outgoing.put(None)
        self._stderr_reader.join(timeout=1)
        self._on_event(self, EngineDied(self._process.pid, status, "\n".join(self._tail)))

    def _read_stderr(self, stderr: BinaryIO) -> None:
        for line in stderr:
            text = line.decode("utf-8", "replace").rstrip()
            self._tail.append(text)
            sys.stderr.write(f"engine: {text}\n")
