"""``npc-runtime serve``: run the daemon."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.logging import RichHandler

from npc_runtime.client import default_ready_file
from npc_runtime.config import Settings, load_settings
from npc_runtime.daemon.daemon import Daemon


def serve(
    config: Annotated[Path | None, typer.Option(help="YAML file with settings.")] = None,
    base_model: Annotated[str | None, typer.Option(help="smollm2, gemma3, or a path to a GGUF.")] = None,
    personas_dir: Annotated[str | None, typer.Option(help="Folder with persona files.")] = None,
    adapters_dir: Annotated[str | None, typer.Option(help="Folder with adapter files.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port on 127.0.0.1; 0 picks a free one.")] = None,
    ipc_path: Annotated[str | None, typer.Option(help="Also listen on ipc:// at this path.")] = None,
    ready_file: Annotated[str | None, typer.Option(help="Write pid, port, daemon_id here as JSON.")] = None,
    lanes: Annotated[int | None, typer.Option(help="Conversations whose KV is kept in memory.")] = None,
    context_tokens: Annotated[int | None, typer.Option(help="Tokens of context per conversation.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; 0: physical cores, one left to the game.")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the daemon until SIGTERM or Ctrl-C. Every setting is in docs/configuration.md."""
    flags = {
        "base_model": base_model,
        "personas_dir": personas_dir,
        "adapters_dir": adapters_dir,
        "port": port,
        "ipc_path": ipc_path,
        "ready_file": ready_file,
        "lanes": lanes,
        "context_tokens": context_tokens,
        "threads": threads,
    }
    settings = load_settings(config, flags=flags)
    _set_up_log(log_level)
    run(settings)


def _set_up_log(level: str) -> None:
    os.environ.setdefault("NPC_RUNTIME_LOG", level)
    handler = RichHandler(console=Console(stderr=True), show_path=False, rich_tracebacks=False)
    logging.basicConfig(level=level.upper(), format="%(message)s", datefmt="%H:%M:%S", handlers=[handler])
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # what it saw is told by its effect


def run(settings: Settings) -> None:
    """Run a daemon in this thread until a signal; prints one line with its endpoint."""
    if settings.ready_file == "auto":
        settings = msgspec.structs.replace(settings, ready_file=str(default_ready_file()))
    daemon = Daemon(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.stop())
    facts = daemon.ready_file.facts
    typer.echo(f"npc-runtime {facts['version']} listening on {facts['endpoint']} (pid {facts['pid']})")
    daemon.run()
