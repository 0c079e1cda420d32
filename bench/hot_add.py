"""How long after a persona file (with a new adapter) is put in place can its first turn be started?

Run: python bench/hot_add.py. Starts a daemon on a copy of the shipped characters, keeps a long reply streaming, and
drops twelve new characters in, one after the other. Prints the median and the slowest, with machine and versions.
"""

import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import llama_cpp

from npc_runtime import __version__
from npc_runtime.cli.demo import running_daemon
from npc_runtime.client import Client

ROOT = Path(__file__).parents[1]
NEWCOMERS = 12


def newcomer(number: int) -> str:
    return f"schema: npc/1\nid: new{number}\nname: New {number}\nadapters: [{{name: new{number}}}]\n"


def put_in_place(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(content)
    draft.replace(path)


def add_one(client: Client, folder: Path, number: int) -> float:
    """Milliseconds from the rename of the persona file to the opened session."""
    # Content of its own for every newcomer, so that nothing is known from before.
    adapter = (ROOT / "adapters" / "mira.gguf").read_bytes()
    changed = adapter[:-1] + bytes([number])
    put_in_place(folder / "adapters" / f"new{number}.gguf", changed)
    start = time.perf_counter()
    put_in_place(folder / "personas" / f"new{number}.yaml", newcomer(number).encode())
    client.open_session(f"new{number}")
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("personas", "adapters"):
            shutil.copytree(ROOT / part, folder / part)
        with running_daemon(str(folder / "personas"), str(folder / "adapters")) as client:
            reply = client.open_session("mira").say("Tell me of the river.", max_tokens=900, min_tokens=900)
            pieces = iter(reply)
            next(pieces)
            times = [add_one(client, folder, number) for number in range(NEWCOMERS)]
            assert client.status().running_turn == reply.turn_id, "the stream ended before the measurement did"
            reply.cancel()
            reply.wait()
    print(f"rename to first possible turn: median {median(times):.0f} ms, slowest {max(times):.0f} ms of {NEWCOMERS}")
    print(
        f"npc-runtime {__version__}, llama-cpp-python {llama_cpp.__version__}, Python {platform.python_version()}, ",
        end="",
    )
    print(f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}")


if __name__ == "__main__":
    main()
