"""Adapter files: what they say of themselves."""

from npc_runtime.adapter.checked import CheckedAdapters
from npc_runtime.adapter.header import AdapterHeader, unusable
from npc_runtime.adapter.read import read_adapter

__all__ = ["AdapterHeader", "CheckedAdapters", "read_adapter", "unusable"]
