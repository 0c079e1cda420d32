"""The model and its adapters in the form that PyTorch programs read (safetensors), for mistral.rs.

mistral.rs takes adapters only for models in that form (0.9.5), so it computes with the same numbers in float32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_OUTSIDE_BLOCKS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_DTYPES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16"}
_CONTROL = 3


def write_adapter(source: Path, folder: Path, rank: int) -> Path:
    """Write the GGUF adapter ``source`` into ``folder`` in the layout of PEFT."""
    folder.mkdir(parents=True)
    tensors = {}
    for tensor in gguf.GGUFReader(source).tensors:
        weight, _, part = tensor.name.rpartition(".lora_")
        name = _block_tensor(f"{weight.removesuffix('.weight')}.weight").removesuffix(".weight")
        tensors[f"base_model.model.{name}.lora_{part.upper()}.weight"] = np.asarray(tensor.data)
    _write(folder / "adapter_model.safetensors", tensors)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [module.rpartition(".")[2] for module in _MODULES.values() if module.endswith("_proj")],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_model(source: Path, folder: Path) -> Path:
    """Write the GGUF model ``source`` (llama architecture, tied embeddings) into ``folder``, with its tokenizer."""
    folder.mkdir(parents=True)
    reader = gguf.GGUFReader(source)
    config = _config(reader)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        data = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name in _OUTSIDE_BLOCKS:
            tensors[_OUTSIDE_BLOCKS[tensor.name]] = data
        elif tensor.name.startswith("blk."):
            count = heads.get(tensor.name.split(".")[2])
            tensors[_block_tensor(tensor.name)] = data if count is None else _unpermuted(data, count)
    _write(folder / "model.safetensors", tensors)
    for name, content in (("config.json", config), ("tokenizer.json", _tokenizer(reader))):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    template = {"chat_template": _value(reader, "tokenizer.chat_template"), "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(template), encoding="utf-8")
    return folder


def _block_tensor(name: str) -> str:
    _, block, weight, kind = name.split(".")
    return f"model.layers.{block}.{_MODULES[weight]}.{kind}"


def _unpermuted(data: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head in the order of the original model; GGUF has the two halves of a rotation next to each other."""
    rows, columns = data.shape
    turned: np.ndarray = data.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2)
    return turned.reshape(rows, columns)


def _value(reader: gguf.GGUFReader, key: str) -> Any:
    field = reader.fields[key]
    return field.contents()


def _config(reader: gguf.GGUFReader) -> dict[str, Any]:
    def llama(key: str) -> Any:
        return _value(reader, f"llama.{key}")

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": llama("embedding_length"),
        "intermediate_size": llama("feed_forward_length"),
        "max_position_embeddings": llama("context_length"),
        "num_attention_heads": llama("attention.head_count"),
        "num_hidden_layers": llama("block_count"),
        "num_key_value_heads": llama("attention.head_count_kv"),
        "rms_norm_eps": llama("attention.layer_norm_rms_epsilon"),
        "rope_theta": llama("rope.freq_base"),
        "tie_word_embeddings": True,
        "vocab_size": len(_value(reader, "tokenizer.ggml.tokens")),
        "bos_token_id": _value(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _value(reader, "tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float32",
    }


def _tokenizer(reader: gguf.GGUFReader) -> dict[str, Any]:
    """The byte-level BPE tokenizer with single digits that the model file describes."""
    tokens = _value(reader, "tokenizer.ggml.tokens")
    kinds = _value(reader, "tokenizer.ggml.token_type")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": tokens[index], **flags} for index, kind in enumerate(kinds) if kind == _CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": _value(reader, "tokenizer.ggml.merges"),
        },
    }


def _write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header: dict[str, Any] = {}
    at = 0
    for name, data in tensors.items():
        header[name] = {"dtype": _DTYPES[data.dtype], "shape": list(data.shape), "data_offsets": [at, at + data.nbytes]}
        at += data.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for data in tensors.values():
            file.write(np.ascontiguousarray(data).tobytes())
