"""A thousand turns over 24 characters with 4 lanes: is memory flat, does every turn end, does every bound hold?

Run: python bench/soak.py [TURNS]. Starts a daemon with KV on disk and small budgets, lets a player go from character to
character (some lines primed, some ambient, some cancelled, some with a deadline), and looks at the memory of both
processes and at the counters. Exits with 1 where something does not hold.
"""

import itertools
import os
import platform
import random
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import llama_cpp

sys.path.insert(0, str(Path(__file__).parents[1]))

from npc_runtime import __version__
from npc_runtime.client import Client, Session
from npc_runtime.errors import DeadlineExceeded
from tests.support.daemon import Folders, running
from tests.support.random_adapter import write_random_adapter

CHARACTERS, LANES = 24, 4
RAM_MB, DISK_MB = 48, 96
SETTLED = 0.3
"""The share of turns after which memory has to be flat."""
GROWTH = 1.05
LINES = (
    "What news from the road?",
    "And of the river, what do they say?",
    "Tell me more of that.",
    "Farewell, friend.",
)


def cast(folder: Path) -> Folders:
    folders = Folders(folder)
    for number in range(CHARACTERS):
        write_random_adapter(folders.adapters / f"c{number}.gguf", seed=100 + number)
        folders.write_persona(f"c{number}", {f"c{number}": 1.0})
    return folders


def one_turn(session: Session, number: int, chance: random.Random) -> str:
    """How the turn ended."""
    line = LINES[number % len(LINES)]
    kind = chance.choice(("plain", "plain", "primed", "ambient", "cancelled", "deadline"))
    if kind == "primed":
        session.prime(line)
    reply = session.say(
        line,
        max_tokens=12,
        priority="ambient" if kind == "ambient" else "player",
        deadline_ms=250 if kind == "deadline" else None,
    )
    if kind == "cancelled":
        next(iter(reply), "")
        reply.cancel()
    try:
        return str(reply.wait().finish_reason)
    except DeadlineExceeded:
        return "deadline_exceeded"


def play(client: Client, turns: int) -> tuple[list[float], dict[str, int], list[str]]:
    chance = random.Random(7)
    sessions = [client.open_session(f"c{number}") for number in range(CHARACTERS)]
    order = itertools.cycle(range(CHARACTERS))
    memory, ends, broken = [], dict[str, int](), []
    for number in range(turns):
        end = one_turn(sessions[next(order)], number, chance)
        ends[end] = ends.get(end, 0) + 1
        if (number + 1) % (turns // 20) == 0:
            status = client.status()
            memory.append(status.rss_bytes / 2**20)
            engine = status.engine
            print(
                f"  turn {number + 1}: {memory[-1]:.0f} MiB, RAM tier {engine.ram_bytes / 2**20:.0f}, "
                f"disk {engine.disk_bytes / 2**20:.0f}",
                file=sys.stderr,
            )
            bounds = {
                "RAM tier": engine.ram_bytes <= RAM_MB << 20,
                "lanes": engine.lanes == LANES,
                "adapters": engine.adapters_loaded <= 16,
                "engine restarts": engine.restarts == 0,
            }
            broken += [f"{name} at turn {number + 1}" for name, holds in bounds.items() if not holds]
    status = client.status()
    if status.turns_finished + status.turns_failed != turns:
        broken.append(f"{turns} turns were asked, {status.turns_finished} finished and {status.turns_failed} failed")
    if status.engine.disk_bytes > (DISK_MB << 20) * 1.2:
        broken.append(f"disk tier {status.engine.disk_bytes}")
    return memory, ends, broken


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as name:
        settings = {
            "lanes": LANES,
            "threads": 0,
            "context_tokens": 512,
            "ram_cache_mb": RAM_MB,
            "kv_dir": Path(name) / "kv",
            "disk_cache_mb": DISK_MB,
            "max_loaded_adapters": 16,
        }
        with running(cast(Path(name) / "game"), **settings) as daemon, daemon.client() as client:
            start = perf_counter()
            memory, ends, broken = play(client, turns)
            took = perf_counter() - start
    settled = memory[int(len(memory) * SETTLED) :]
    growth = max(settled) / settled[0]
    if growth > GROWTH:
        broken.append(f"memory grew to {growth:.3f} times what it was")
    print(f"{turns} turns, {CHARACTERS} characters, {LANES} lanes, {took:.0f} s: {ends}")
    print(f"memory after {SETTLED:.0%}: {settled[0]:.0f} MiB, most later {max(settled):.0f} ({growth:.3f} times)")
    print("all bounds held" if not broken else "NOT held: " + "; ".join(broken))
    print(
        f"npc-runtime {__version__}, llama-cpp-python {llama_cpp.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    )
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
