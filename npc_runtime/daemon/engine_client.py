"""Keeps an engine running: starts it, restarts it when it dies, and says what state it is in."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import Literal

from npc_runtime.daemon.engine_process import EngineDied, EngineMessage, EngineProcess
from npc_runtime.engine.commands import (
    AdapterLoaded,
    AdapterLoading,
    AnyCommand,
    EngineFailed,
    EngineReady,
    EngineSettings,
    EngineStats,
    TurnDone,
    TurnFailed,
)
from npc_runtime.errors import AdapterInvalid, EngineUnavailable, NpcError
from npc_runtime.protocol.messages import EngineStatus

log = logging.getLogger("npc_runtime.daemon")

MAX_FAILED_STARTS = 3

State = Literal["starting", "ready", "failed"]


class EngineClient:
    """The supervisor. Events of an engine that was given up are ignored. One thread."""

    def __init__(
        self,
        settings: EngineSettings,
        post: Callable[[EngineProcess, EngineMessage], None],
        clock: Callable[[], float],
        start_timeout_s: float,
    ) -> None:
        self._settings = settings
        self._post = post
        self._clock = clock
        self._start_timeout_s = start_timeout_s
        self._failed_starts = 0
        self._loading: str | None = None
        self._poisonous: set[str] = set()
        self._suspects: set[str] = set()
        self.state: State = "starting"
        self.restarts = 0
        self.last_error = ""
        self.info: EngineReady | None = None
        self.stats: EngineStats | None = None
        self._started = clock()
        self._process: EngineProcess | None = EngineProcess(settings, post)

    def send(self, command: AnyCommand) -> None:
        """Send a command to a ready engine; to no other."""
        if self.state == "ready" and self._process is not None:
            self._process.send(command)

    def check_adapter(self, digest: str, name: str) -> None:
        """Raises AdapterInvalid for a file that took the engine down while it was loaded."""
        if digest in self._poisonous:
            raise AdapterInvalid(
                f"adapter '{name}' took the engine down when it was loaded; it is not tried again; replace the file"
            )

    def unavailable(self) -> NpcError | None:
        """Why no turn can run, now and later; None while there is hope."""
        if self.state != "failed":
            return None
        return EngineUnavailable(f"the engine is not running: {self.last_error}; see the daemon's log and restart it")

    def take(self, process: EngineProcess, message: EngineMessage) -> bool:
        """Note what ``message`` says of the engine itself. False where it comes from an engine of the past."""
        if process is not self._process:
            return False
        match message:
            case EngineReady():
                self.state, self.info, self.stats = "ready", message, message.stats
                self._failed_starts = 0
                log.info("engine ready: %s (%s), pid %d", message.name, message.architecture, process.pid)
            case EngineFailed(_, text):
                self._give_up(text)
            case AdapterLoading(digest):
                self._loading = digest
            case AdapterLoaded():
                self._loading = None
            case TurnDone() | TurnFailed():
                self.stats = message.stats
            case EngineDied():
                self._restart(message)
        return True

    def _restart(self, death: EngineDied) -> None:
        if self.state == "failed":
            return
        how = f"signal {-death.status}" if death.status < 0 else f"exit code {death.status}"
        last_words = death.tail.splitlines()[-1] if death.tail else "no last words"
        self.last_error = f"engine process {death.pid} ended ({how}): {last_words}"
        log.error("%s; starting a new one", self.last_error)
        if self._loading is not None:
            # Killed from outside while it loaded: may happen to a sound file, once.
            if _is_crash(death.status) or self._loading in self._suspects:
                self._poisonous.add(self._loading)
            self._suspects.add(self._loading)
            self._loading = None
        if self.state == "starting":
            self._failed_starts += 1
        if self._failed_starts == MAX_FAILED_STARTS:
            self._give_up(f"it died {MAX_FAILED_STARTS} times in a row before it was ready; last: {self.last_error}")
            return
        self.restarts += 1
        self.state = "starting"
        self._started = self._clock()
        self._process = EngineProcess(self._settings, self._post)

    def restart_stuck(self) -> None:
        """End an engine that does not go on; its death is then handled like any other."""
        log.error("the engine does not go on with its turn; it is ended")
        if self._process is not None:
            self._process.kill()

    def check_start(self) -> None:
        """Give up on an engine that does not get ready in time."""
        if self.state == "starting" and self._clock() - self._started > self._start_timeout_s:
            self._give_up(f"the model was not loaded within {self._start_timeout_s:g} s (engine_start_timeout_s)")

    def _give_up(self, text: str) -> None:
        self.state, self.last_error = "failed", text
        log.error("engine given up: %s", text)
        if self._process is not None:
            self._process.kill()

    @property
    def pid(self) -> int | None:
        """The engine's process id while it lives."""
        return self._process.pid if self._process is not None and self.state != "failed" else None

    def stop(self, timeout_s: float) -> None:
        """End the process for good."""
        process, self._process = self._process, None
        self.state = "failed"
        if process is not None:
            process.stop(timeout_s)

    def status(self) -> EngineStatus:
        """The wire form."""
        info, stats = self.info, self.stats
        return EngineStatus(
            state=self.state,
            pid=self.pid,
            restarts=self.restarts,
            last_error=self.last_error,
            model=info.name if info else "",
            model_digest=info.digest if info else "",
            architecture=info.architecture if info else "",
            context_tokens=stats.context_tokens if stats else 0,
            lanes=stats.lanes if stats else 0,
            lanes_bound=stats.lanes_bound if stats else 0,
            adapters_loaded=stats.adapters_loaded if stats else 0,
            decode_calls=stats.decode_calls if stats else 0,
            decoded_tokens=stats.decoded_tokens if stats else 0,
            adapter_switches=stats.adapter_switches if stats else 0,
        )


def _is_crash(status: int) -> bool:
    """Whether the process ended by its own fault: an exit code, or a signal that the system sends for faults."""
    faults = {getattr(signal, name, None) for name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")}
    return status >= 0 or -status in faults
