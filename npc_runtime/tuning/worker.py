"""A child process that does jobs (see ``child.py``), seen from the command: ask, see progress, give up in time."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

import msgspec

from npc_runtime.errors import EngineCrashed, from_code
from npc_runtime.tuning.jobs import AnyTold, Done, Failed, Job, Progress

Result = TypeVar("Result")
TICK_SECONDS = 0.2
STOP_SECONDS = 2.0

_FIRST_WORDS = ("GGML_ASSERT", "error", "Error", "failed")


class OutOfTime(Exception):
    """The job was not done in the time that there was; its process is gone."""


class Worker:
    """One child process. ``spin_count`` is its GOMP_SPINCOUNT, which OpenMP reads once, at the start."""

    def __init__(self, spin_count: int) -> None:
        environment = {**os.environ, "GOMP_SPINCOUNT": str(spin_count), "GGML_NO_BACKTRACE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "npc_runtime.tuning.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        self._told: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._last_words: deque[str] = deque(maxlen=20)
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ask(
        self,
        job: Job,
        result: type[Result],
        *,
        seconds: float | None = None,
        report: Callable[[int, int], None] = lambda _done, _total: None,
        tick: Callable[[], None] = lambda: None,
    ) -> Result:
        """Have a job done. ``tick`` is called several times a second meanwhile.

        Raises OutOfTime after ``seconds``, EngineCrashed where the process dies, or the job's own error.
        """
        self._send(job)
        try:
            told = self._last(None if seconds is None else time.monotonic() + seconds, report, tick)
        except BaseException:
            self.close(kill=True)  # it is at work for nobody, and its answer would be taken for another job's
            raise
        if isinstance(told, Failed):
            raise from_code(told.code, told.message)
        return msgspec.json.decode(told.result, type=result)

    def _last(self, until: float | None, report: Callable[[int, int], None], tick: Callable[[], None]) -> Done | Failed:
        while True:
            told = self._next(until, tick)
            if not isinstance(told, Progress):
                return told
            report(told.done, told.total)

    def _send(self, job: Job) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):  # it is gone: reading tells
            stdin.write(msgspec.json.encode(job) + b"\n")
            stdin.flush()

    def _next(self, until: float | None, tick: Callable[[], None]) -> AnyTold:
        while True:
            if until is not None and time.monotonic() >= until:
                raise OutOfTime
            wait = TICK_SECONDS if until is None else max(0.0, min(TICK_SECONDS, until - time.monotonic()))
            try:
                line = self._told.get(timeout=wait)
            except queue.Empty:
                tick()
                continue
            if line is None:
                raise self._crashed()
            return msgspec.json.decode(line, type=AnyTold)

    def _crashed(self) -> EngineCrashed:
        status = self._process.wait()
        for reader in self._readers:
            reader.join(timeout=1)
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        told = [line for line in self._last_words if any(word in line for word in _FIRST_WORDS)]
        words = told[-1] if told else next(reversed(self._last_words), "it said nothing")
        return EngineCrashed(f"llama.cpp ended its process ({how}): {words}")

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        for line in stdout:
            self._told.put(line)
        self._told.put(None)

    def _read_errors(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        for line in stderr:
            if text := line.decode("utf-8", "replace").strip():
                self._last_words.append(text)

    def close(self, *, kill: bool = False) -> None:
        """End the process."""
        if kill:
            self._process.kill()
        elif self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for reader in self._readers:
            reader.join(timeout=1)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(kill=kind is not None)
