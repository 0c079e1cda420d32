"""Adapter files: what they say of themselves."""

from npc_runtime.adapter.checked import CheckedAdapters
from npc_runtime.adapter.header import AdapterHeader, check_adapter, read_adapter

__all__ = ["AdapterHeader", "CheckedAdapters", "check_adapter", "read_adapter"]
