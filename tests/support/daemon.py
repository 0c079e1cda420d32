"""A real daemon in a process of its own, with folders of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from npc_runtime.client import Client
from tests.support.random_adapter import write_random_adapter

START_TIMEOUT_S = 120

# One thread: several test processes may share two cores, and then threads that wait for each other crawl.
SETTINGS = {"threads": 1, "lanes": 4, "context_tokens": 1024, "prefill_chunk_tokens": 128}

PERSONA = """\
schema: npc/1
id: {id}
name: {name}
summary: a smith of the Ember Vale
personality: You know iron and not much else. You speak of the forge, the road and the price of coal.
greeting: What do you want?
adapters: {adapters}
sampling: {{temperature: 0, repeat_penalty: 1.15}}
max_tokens: 16
"""


def persona_text(persona_id: str, adapters: dict[str, float] | None = None, *, name: str = "", extra: str = "") -> str:
    """A greedy persona with the given adapters (name to scale)."""
    listed = "[" + ", ".join(f"{{name: {a}, scale: {s}}}" for a, s in (adapters or {}).items()) + "]"
    return PERSONA.format(id=persona_id, name=name or persona_id.capitalize(), adapters=listed) + extra


def replace_file(path: Path, content: str | bytes) -> None:
    """Put ``content`` in place by a rename, as editors and installers do."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content.encode() if isinstance(content, str) else content)
    draft.replace(path)


class Folders:
    """A personas and an adapters folder, filled with ``a``, ``b`` (an adapter each) and ``base`` (none)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.personas = root / "personas"
        self.adapters = root / "adapters"
        self.personas.mkdir(parents=True)
        self.adapters.mkdir()
        for seed, persona in enumerate(("a", "b"), start=1):
            write_random_adapter(self.adapters / f"{persona}.gguf", seed)
            self.write_persona(persona, {persona: 1.0})
        self.write_persona("base")

    def write_persona(
        self, persona_id: str, adapters: dict[str, float] | None = None, *, name: str = "", extra: str = ""
    ) -> None:
        """Put a persona file in place."""
        replace_file(self.personas / f"{persona_id}.yaml", persona_text(persona_id, adapters, name=name, extra=extra))


class Daemon:
    """``npc-runtime serve`` on ``folders``; ``port`` and ``endpoint`` once it listens."""

    def __init__(self, folders: Folders, **settings: object) -> None:
        self.folders = folders
        self.ready_file = folders.root / "ready.json"
        command = [sys.executable, "-m", "npc_runtime", "serve", "--log-level", "warning"]
        environment = os.environ | {
            f"NPC_RUNTIME_{name.upper()}": str(value)
            for name, value in {
                **SETTINGS,
                "personas_dir": folders.personas,
                "adapters_dir": folders.adapters,
                "ready_file": self.ready_file,
                **settings,
            }.items()
        }
        self.log = (folders.root / "daemon.log").open("ab")
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        if "listening on" not in self.first_line:
            raise AssertionError(f"the daemon did not start: {self.log_text()}")
        self.endpoint = self.first_line.split("listening on ")[1].split()[0]
        self.port = int(self.endpoint.rpartition(":")[2])

    def client(self) -> Client:
        """A new connection."""
        return Client(self.endpoint, timeout_s=60)

    def log_text(self) -> str:
        """What the daemon wrote to standard error."""
        return (self.folders.root / "daemon.log").read_text(encoding="utf-8", errors="replace")

    def engine_process(self) -> psutil.Process:
        """The engine's process."""
        with self.client() as client:
            pid = client.status().engine.pid
        assert pid is not None
        return psutil.Process(pid)

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """End it and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        code = self.process.wait(timeout=30)
        self.log.close()
        return code


@contextlib.contextmanager
def running(folders: Folders, **settings: object) -> Iterator[Daemon]:
    """A daemon for the length of a block."""
    daemon = Daemon(folders, **settings)
    try:
        yield daemon
    finally:
        daemon.stop()
