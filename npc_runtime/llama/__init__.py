"""llama.cpp: model, contexts, adapters, samplers. Nothing outside this package imports ``llama_cpp``."""

from npc_runtime.llama.context import DecodeFailed, LlamaContext
from npc_runtime.llama.library import build_id
from npc_runtime.llama.model import LlamaAdapter, LlamaModel
from npc_runtime.llama.sampler import LlamaSampler

__all__ = ["DecodeFailed", "LlamaAdapter", "LlamaContext", "LlamaModel", "LlamaSampler", "build_id"]
