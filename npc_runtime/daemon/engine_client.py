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
    Alive,
    AnyCommand,
    EngineFailed,
    EngineReady,
    EngineSettings,
    EngineStats,
    Prepared,
    Probe,
    TurnDone,
    TurnFailed,
)
from npc_runtime.errors import AdapterInvalid, EngineUnavailable, NpcError
from npc_runtime.protocol.messages import EngineStatus

log = logging.getLogger("npc_runtime.daemon")

MAX_FAILED_STARTS = 3

PROBE_SECONDS = 1.0
STALL_SECONDS = 2.0

State = Literal["starting", "ready", "failed"]


class EngineClient:
    """The supervisor. Events of an engine that was given up are ignored. One thread."""

    def __init__(
        self,
        settings: EngineSettings,
        post: Callable[[EngineProcess, EngineMessage], None],
        clock: Callable[[], float],
        *,
        start_timeout_s: float,
        stuck_s: float,
    ) -> None:
        self._settings = settings
        self._post = post
        self._clock = clock
        self._start_timeout_s = start_timeout_s
        self._stuck_s = stuck_s
        self._probe = 0
        self._probed_at: float | None = None
        self._last_probe = self._checked_at = clock()
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
            case Alive(number, stats):
                self.stats = stats
                if number == self._probe:
                    self._probed_at = None
            case TurnDone() | TurnFailed() | Prepared():
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
        self._probed_at = None
        self._started = self._clock()
        self._process = EngineProcess(self._settings, self._post)

    def check_alive(self) -> None:
        """Ask a ready engine for a sign of life now and then; one that gives none for too long is ended, and its death
        handled like any other."""
        now, before = self._clock(), self._checked_at
        self._checked_at = now
        if self.state != "ready" or self._process is None:
            return
        if self._probed_at is None:
            if now - self._last_probe >= min(PROBE_SECONDS, self._stuck_s / 4):
                self._probe += 1
                self._probed_at = self._last_probe = now
                self.send(Probe(self._probe))
        elif now - before > STALL_SECONDS:
            # This process itself was stopped (a debugger, a suspended machine): the engine gets its time again.
            self._probed_at = now
        elif now - self._probed_at > self._stuck_s:
            log.error("the engine has given no sign of life for %g s; it is ended", self._stuck_s)
            self._probed_at = None
            self._process.kill()

    @property
    def context_tokens(self) -> int:
        """Tokens of context per conversation; 0 while no engine has been ready yet."""
        return self.stats.context_tokens if self.stats else 0

    @property
    def lanes(self) -> int:
        """How many turns may have begun at once."""
        return self.stats.lanes if self.stats else 1

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
        ready, self.state = self.state == "ready", "failed"
        if process is not None:
            process.stop(timeout_s, ready=ready)

    def status(self) -> EngineStatus:
        """The wire form."""
        info = self.info
        counters = {name: getattr(self.stats, name, 0) for name in EngineStats.__struct_fields__}
        return EngineStatus(
            state=self.state,
            pid=self.pid,
            restarts=self.restarts,
            last_error=self.last_error,
            model=info.name if info else "",
            model_digest=info.digest if info else "",
            architecture=info.architecture if info else "",
            **counters,
        )


def _is_crash(status: int) -> bool:
    """Whether the process ended by its own fault: an exit code, or a signal that the system sends for faults."""
    faults = {getattr(signal, name, None) for name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")}
    return status >= 0 or -status in faults
