"""llama.cpp: model, contexts, adapters, samplers. Nothing outside this package imports ``llama_cpp``."""

from npc_runtime.llama.context import ContextOptions, DecodeFailed, LlamaContext, NotFinite
from npc_runtime.llama.library import build_id
from npc_runtime.llama.model import GpuOptions, LlamaAdapter, LlamaModel
from npc_runtime.llama.sampler import LlamaSampler

__all__ = [
    "ContextOptions",
    "DecodeFailed",
    "GpuOptions",
    "LlamaAdapter",
    "LlamaContext",
    "LlamaModel",
    "LlamaSampler",
    "NotFinite",
    "build_id",
]
