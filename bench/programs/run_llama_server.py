"""llama-server inside this process, from the wheel ``xllamacpp``. Run by the interpreter of its own environment.

Takes one JSON object as argument, prints one with its address, and serves until its standard input ends.
"""

import json
import os
import sys
from importlib.metadata import version
from typing import Any

import xllamacpp  # type: ignore[import-not-found]

FLASH_ATTENTION = {
    "auto": "LLAMA_FLASH_ATTN_TYPE_AUTO",
    "off": "LLAMA_FLASH_ATTN_TYPE_DISABLED",
    "on": "LLAMA_FLASH_ATTN_TYPE_ENABLED",
}


def server_params(wanted: dict[str, Any]) -> "xllamacpp.CommonParams":
    params = xllamacpp.CommonParams()
    params.model.path = wanted["model"]
    params.n_parallel = wanted["slots"]
    params.n_ctx = wanted["context_tokens"] * wanted["slots"]
    params.n_ubatch = wanted["ubatch"]
    params.cpuparams.n_threads = wanted["threads"]
    params.cpuparams_batch.n_threads = wanted["prefill_threads"]
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 0.0) for path in wanted["adapters"]]
    params.lora_init_without_apply = True
    params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, FLASH_ATTENTION[wanted["flash_attention"]])
    params.n_gpu_layers = 0
    params.verbosity = 1
    params.port = 0
    return params


def main() -> None:
    server = xllamacpp.Server(server_params(json.loads(sys.argv[1])))
    about = {
        "address": server.listening_address,
        "version": f"xllamacpp {version('xllamacpp')}",
        "system": xllamacpp.get_system_info(),
    }
    print(json.dumps(about), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
