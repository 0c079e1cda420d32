"""Where and with what a run was made."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import psutil

from npc_runtime.base_model import file_digest
from npc_runtime.llama import build_id

_FLAGS = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16")

QUIET_SHARE = 0.05
QUIET_FOR_S = 2.0


def machine() -> dict[str, Any]:
    """The hardware and the system."""
    info = _first_cpu()
    flags = info.get("flags", "").split()
    return {
        "cpu": info.get("model name", platform.processor()),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "cpu_flags": [flag for flag in _FLAGS if flag in flags],
        "hypervisor": "hypervisor" in flags,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def load_now() -> dict[str, Any]:
    """How busy the machine is."""
    return {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "uptime_s": round(datetime.now().timestamp() - psutil.boot_time()),
        "load_1_5_15": [round(value, 2) for value in os.getloadavg()],
    }


class OthersWatch:
    """How much of the machine programs that are not ours used since it was made."""

    def __init__(self) -> None:
        self._at = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        times = psutil.cpu_times()
        everything = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        busy = everything - times.idle - getattr(times, "iowait", 0.0)
        return everything, busy - sum(os.times()[:4])

    def share(self) -> float:
        """Between 0 and 1. Processes count as ours when they have ended."""
        everything, others = self._now()
        return round(max(0.0, others - self._at[1]) / max(1e-9, everything - self._at[0]), 3)


def wait_until_quiet(patience_s: float, tell: Callable[[str], None]) -> None:
    """Wait until other programs leave the machine alone, but no longer than ``patience_s``."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        watch = OthersWatch()
        time.sleep(QUIET_FOR_S)
        if (share := watch.share()) <= QUIET_SHARE:
            return
        tell(f"waiting: other programs use {share:.0%} of the machine")


def versions() -> dict[str, str]:
    """What runs in this interpreter."""
    named = {name: version(name) for name in ("npc-runtime", "llama-cpp-python", "pyzmq", "msgpack", "numpy")}
    return {"python": platform.python_version(), **named, "llama.cpp build": build_id(), "commit": _commit()}


def model_info(path: Path) -> dict[str, Any]:
    """The model file: its name, type, size, digest."""
    field = gguf.GGUFReader(path).fields["general.file_type"]
    kind = gguf.LlamaFileType(field.contents()).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    return {"file": path.name, "type": kind, "bytes": path.stat().st_size, "sha256": file_digest(path)}


def _first_cpu() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    pairs = [line.partition(":") for line in path.read_text().split("\n\n")[0].splitlines()]
    return {key.strip(): value.strip() for key, _, value in pairs}


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
