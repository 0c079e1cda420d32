"""What a workload has at hand: the cast, the systems, the results so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cast import Cast
from bench.outcome import Outcome
from bench.systems import Common, FlashAttention
from bench.systems.daemon import Daemon, Played
from bench.systems.direct import DirectLoop
from bench.systems.llama_server import LlamaServer
from npc_runtime.errors import NpcError

PAUSE_S = 0.2
"""Between two systems, so that the worker threads of the one that had its round sleep again."""


@dataclass
class Bench:
    """One run with one model file. ``played`` has the conversations of each workload that the daemon took part in."""

    cast: Cast
    common: Common
    lines: list[str]
    quick: bool
    environments: Path
    folder: Path
    tell: Callable[[str], None] = lambda text: None
    done: dict[str, Outcome] = field(default_factory=dict)
    played: dict[str, list[Played]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    workload: str = ""

    def pick(self, full: int, quick: int) -> int:
        """A size that is smaller in a quick run."""
        return quick if self.quick else full

    @contextmanager
    def daemon(self, **settings: Any) -> Iterator[Daemon]:
        """A running daemon whose model is loaded; what is played on it counts for B10."""
        with closing(Daemon(self.cast, self.common, **settings)) as daemon:
            try:
                yield daemon.wait_ready()
            except NpcError as error:
                raise RuntimeError(f"{error}; the daemon's log ends: {daemon.last_words()}") from error
            self.keep_played(daemon)

    def keep_played(self, daemon: Daemon) -> None:
        """Remember the daemon's conversations for B10."""
        self.versions[daemon.name] = daemon.client.welcome.version
        self.played.setdefault(self.workload, []).extend(p for p in daemon.played if p.steps)

    @contextmanager
    def llama_server(
        self, characters: Sequence[int], slots: int, flash_attention: FlashAttention = "auto"
    ) -> Iterator[LlamaServer]:
        """A running llama-server; ``flash_attention`` auto is its default."""
        python = self.environments / "llama-server" / "bin" / "python"
        server = LlamaServer(python, self.cast, self.common, characters, slots, flash_attention)
        with closing(server):
            self.versions["llama-server"] = server.about["version"]
            self.versions["llama-server CPU features"] = server.about["system"]
            yield server

    @contextmanager
    def direct(self, characters: Sequence[int]) -> Iterator[DirectLoop]:
        """A running bare loop."""
        with closing(DirectLoop(self.cast, self.common, characters)) as loop:
            self.versions[loop.name] = loop.program.about["version"]
            yield loop

    def figure(self, workload: str, *path: str) -> float | None:
        """A figure of a workload that ran before, or None."""
        value: Any = self.done[workload].figures if workload in self.done else {}
        for name in path:
            value = value.get(name, {})
        return float(value) if isinstance(value, int | float) else None


def pause() -> None:
    """Let the worker threads of the system before fall asleep."""
    time.sleep(PAUSE_S)
