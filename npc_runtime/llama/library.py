"""llama.cpp's shared library: loaded once, its log lines in our log.

This package is the only place that touches ``llama_cpp``. Everything in it must be called from one thread, in the
engine process: a failed assertion inside llama.cpp ends the process.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

# llama.cpp would start a debugger when it aborts, which can hang for ever.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

import llama_cpp

lib = llama_cpp

log = logging.getLogger("npc_runtime.llama")

_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
_HARMLESS = "cannot use buft 'CPU_REPACK'"
"""A warning for each tensor of an adapter (0.3.36): the base's tensors were reordered for speed, adapters' are not."""
_recent: deque[str] = deque(maxlen=50)


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    line = text.decode("utf-8", "replace").strip()
    if len(line) > 1:
        _recent.append(line)
        log.log(logging.DEBUG if _HARMLESS in line else _LEVELS.get(level, logging.DEBUG), "%s", line)


lib.llama_log_set(_on_log, ctypes.c_void_p(0))
lib.llama_backend_init()


@contextmanager
def captured_log() -> Iterator[list[str]]:
    """Collects the library's log lines of the block: the only place where it says why it returned NULL."""
    _recent.clear()
    lines: list[str] = []
    try:
        yield lines
    finally:
        lines.extend(_recent)


def reason(lines: list[str]) -> str:
    """The line of a captured log that tells what failed, or a plain statement that none does."""
    for line in reversed(lines):
        if "fail" in line or "error" in line or "mismatch" in line or "incorrect" in line:
            return line
    return "llama.cpp gave no reason"


def build_id() -> str:
    """Identifies the library build: version of the binding and its CPU features (part of the KV identity)."""
    return f"llama-cpp-python {lib.__version__}; {lib.llama_print_system_info().decode('utf-8', 'replace').strip()}"
