"""``npc-runtime demo``: a daemon, a short scene with every shipped character, then a chat."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from npc_runtime.cli.talk import Chat, speak
from npc_runtime.client import Client, Session, TurnFinished
from npc_runtime.errors import ConfigError, ConnectionLost, EngineUnavailable

console = Console(highlight=False)

START_TIMEOUT_S = 120.0
SCENE = (
    "Good evening. Who are you?",
    "I need to get across the river tonight.",
    "What do they say about this place?",
)


def demo(
    personas_dir: Annotated[str, typer.Option(help="Folder with persona files.")] = "personas",
    adapters_dir: Annotated[str, typer.Option(help="Folder with adapter files.")] = "adapters",
    chat: Annotated[bool, typer.Option(help="Hand over to an interactive chat after the scene.")] = True,
) -> None:
    """Start a daemon, let every character of the catalog speak, then talk to them yourself."""
    with running_daemon(personas_dir, adapters_dir) as client:
        play(client)
        if chat:
            Chat(client, "Traveller").run("")


@contextlib.contextmanager
def running_daemon(personas_dir: str, adapters_dir: str) -> Iterator[Client]:
    """A daemon of our own, with a connected client; it ends with the block."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        command = [sys.executable, "-m", "npc_runtime", "serve", "--log-level", "warning", "--ready-file", str(ready)]
        command += ["--personas-dir", personas_dir, "--adapters-dir", adapters_dir]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            with console.status("starting the daemon and loading the model …"):
                client = _wait_until_ready(process, ready)
            with client:
                yield client
        finally:
            process.terminate()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], ready: Path) -> Client:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not ready.exists():
        if process.poll() is not None:
            raise ConfigError(f"the daemon ended with exit code {process.returncode}; its reason is above")
        if time.monotonic() > deadline:
            raise ConnectionLost(f"the daemon did not start within {START_TIMEOUT_S:g} s")
        time.sleep(0.02)
    client = Client.from_ready_file(ready)
    while (status := client.status()).state == "loading":
        time.sleep(0.05)
    if status.state != "ready":
        client.close()
        raise EngineUnavailable(status.engine.last_error)
    return client


def play(client: Client) -> None:
    """Every available character hears the same lines in turn, so that the switches show."""
    sessions = [client.open_session(info.id, player="Traveller") for info in client.personas() if info.available]
    for session in sessions:
        console.print(Text.assemble((session.name, "bold cyan"), f": {session.greeting}"))
    table = Table("who", "active adapters", "first token", "reused", "new", "generated", title="What just happened")
    for line in SCENE:
        console.print(Text.assemble("\n", ("Traveller", "bold green"), f": {line}"))
        for session in sessions:
            _row(table, session, speak(session, line, max_tokens=60))
    console.print()
    console.print(table)


def _row(table: Table, session: Session, turn: TurnFinished) -> None:
    adapters = " + ".join(f"{a.name} × {a.scale:g}" for a in turn.adapters) or "none (base model)"
    usage = turn.usage
    numbers = (f"{turn.timings.ttft_ms:.0f} ms", usage.reused_tokens, usage.new_tokens, usage.generated_tokens)
    table.add_row(Text(session.name), Text(adapters), *map(str, numbers))
