"""A LoRA adapter with random weights that fits a base model: its effect is unmistakable and free of charge."""

from pathlib import Path

import gguf
import numpy as np

SMOLLM2_SHAPES = {
    "attn_q": (576, 576),
    "attn_k": (576, 192),
    "attn_v": (576, 192),
    "attn_output": (576, 576),
    "ffn_up": (576, 1536),
    "ffn_gate": (576, 1536),
    "ffn_down": (1536, 576),
}
GEMMA3_SHAPES = {
    "attn_q": (640, 1024),
    "attn_k": (640, 256),
    "attn_v": (640, 256),
    "attn_output": (1024, 640),
    "ffn_up": (640, 2048),
    "ffn_gate": (640, 2048),
    "ffn_down": (2048, 640),
}


def write_random_adapter(
    path: Path,
    seed: int,
    *,
    architecture: str = "llama",
    shapes: dict[str, tuple[int, int]] | None = None,
    blocks: int = 30,
    rank: int = 4,
    strength: float = 0.08,
    metadata: dict[str, str] | None = None,
) -> Path:
    """Write the adapter to ``path``. ``shapes`` maps a weight to (inputs, outputs)."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    for key, value in (metadata or {}).items():
        writer.add_string(key, value)
    random = np.random.default_rng(seed)
    for block in range(blocks):
        for weight, (n_in, n_out) in (shapes or SMOLLM2_SHAPES).items():
            name = f"blk.{block}.{weight}.weight"
            a = random.standard_normal((rank, n_in)) / np.sqrt(n_in)
            b = random.standard_normal((n_out, rank)) * strength
            writer.add_tensor(f"{name}.lora_a", a.astype(np.float16))
            writer.add_tensor(f"{name}.lora_b", b.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
