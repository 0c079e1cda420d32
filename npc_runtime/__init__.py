"""NPC Runtime: a local daemon that gives game characters a voice of their own.

One small base model, one catalog of personas, one set of LoRA adapters per persona. See ``docs/architecture.md``.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``Runtime``, imported on its first use only: it brings llama.cpp along, which clients do without."""
    if name == "Runtime":
        return import_module("npc_runtime.runtime").Runtime
    raise AttributeError(f"module 'npc_runtime' has no attribute {name!r}")
