"""``npc-runtime personas`` and ``npc-runtime status``: tables of what the daemon has and how it is."""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table
from rich.text import Text

from npc_runtime.cli.connection import Endpoint, connect
from npc_runtime.client import Status

console = Console(highlight=False)


def personas(endpoint: Endpoint = "") -> None:
    """List the catalog."""
    with connect(endpoint) as client:
        table = Table("id", "name", "adapters", "from", "state")
        for info in client.personas():
            adapters = ", ".join(f"{a.name} × {a.scale:g}" for a in info.adapters) or "none (base model)"
            state = Text("ready", "green") if info.available and not info.problem else Text(info.problem, "yellow")
            table.add_row(*map(Text, (info.id, info.name, adapters, info.source)), state)
        console.print(table)


def status(endpoint: Endpoint = "") -> None:
    """Show how the daemon is, and what a writer should mend."""
    with connect(endpoint) as client:
        _show(client.status())


def _show(status: Status) -> None:
    engine = status.engine
    table = Table(show_header=False)
    rows = {
        "daemon": f"{status.state}, version {status.version}, pid {status.pid}, up {status.uptime_s:.0f} s",
        "engine": f"{engine.state}, pid {engine.pid}, {engine.restarts} restarts {engine.last_error}",
        "model": f"{engine.model} ({engine.architecture}), sha256 {engine.model_digest[:12]}",
        "lanes": f"{engine.lanes_bound} of {engine.lanes} in use, {engine.context_tokens} tokens each, "
        f"{_mib(engine.kv_bytes)} ({engine.kv_bytes_per_token} bytes a token)",
        "KV in memory": f"{engine.ram_snapshots} copies, {_mib(engine.ram_bytes)}",
        "KV on disk": f"{engine.disk_snapshots} files, {_mib(engine.disk_bytes)}, {engine.kv_files_dropped} damaged",
        "KV restored": f"{engine.restored_resident} from lanes, {engine.restored_ram} from memory, "
        f"{engine.restored_disk} from disk; {engine.evictions} conversations lost their lane",
        "adapters": f"{engine.adapters_loaded} loaded, {engine.adapter_loads} loads, "
        f"{engine.adapter_switches} times bound to a lane",
        "decoded": f"{engine.decoded_tokens} tokens in {engine.decode_calls} calls",
        "personas": f"{status.personas}, {status.personas_unavailable} not available",
        "sessions": f"{status.sessions} open, {status.clients} clients",
        "turns": f"{status.turns_finished} finished, {status.turns_failed} failed, {status.turns_active} active, "
        f"{status.turns_queued} queued",
        "memory": f"{_mib(status.rss_bytes)} resident, both processes",
    }
    for name, value in rows.items():
        table.add_row(Text(name, "bold"), Text(value))
    console.print(table)
    for problem in status.problems:
        since = time.strftime("%H:%M:%S", time.localtime(problem.since))
        console.print(Text(f"since {since}: {problem.message}", "yellow"))


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
