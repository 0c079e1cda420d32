"""The bare loop: llama.cpp's C API through ctypes, no protocol, no scheduler. What machine and library can do.

Takes one JSON object as argument. Then every line on standard input is one turn, every line on standard output its
times.
"""

import ctypes
import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("GGML_NO_BACKTRACE", "1")

import llama_cpp as lib

Message = dict[str, Any]
Clock = time.perf_counter
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _quiet(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    pass


class Loop:
    def __init__(self, wanted: Message) -> None:
        lib.llama_log_set(_quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = lib.llama_model_load_from_file(wanted["model"].encode(), params)
        self._wanted = wanted
        self._adapters = [lib.llama_adapter_lora_init(self._model, path.encode()) for path in wanted["adapters"]]
        self._contexts: dict[str, object] = {}

    def _context(self, conversation: str, adapter: int) -> object:
        if conversation not in self._contexts:
            context = lib.llama_init_from_model(self._model, self._context_params())
            pointers = (lib.llama_adapter_lora_p_ctypes * 1)(self._adapters[adapter])
            lib.llama_set_adapters_lora(context, pointers, 1, (ctypes.c_float * 1)(1.0))
            self._contexts[conversation] = context
        return self._contexts[conversation]

    def _context_params(self) -> object:
        params = lib.llama_context_default_params()
        params.n_ctx = self._wanted["context_tokens"]
        params.n_batch = params.n_ubatch = self._wanted["ubatch"]
        params.n_seq_max = params.n_outputs_max = 1
        params.n_threads = self._wanted["threads"]
        params.n_threads_batch = self._wanted["prefill_threads"]
        params.flash_attn_type = FLASH_ATTENTION[self._wanted["flash_attention"]]
        params.no_perf = True
        return params

    def turn(self, request: Message) -> Message:
        context = self._context(request["conversation"], request["adapter"])
        sampler = _sampler(request)
        start = Clock()
        self._decode(context, request["new_tokens"])
        tokens: list[int] = []
        times: list[float] = []
        while len(tokens) < request["count"]:
            tokens.append(lib.llama_sampler_sample(sampler, context, -1))
            times.append((Clock() - start) * 1e3)
            self._decode(context, tokens[-1:])
        lib.llama_sampler_free(sampler)
        return {"tokens": tokens, "times_ms": times, "end_ms": (Clock() - start) * 1e3}

    def _decode(self, context: object, tokens: list[int]) -> None:
        step = self._wanted["ubatch"]
        for at in range(0, len(tokens), step):
            part = tokens[at : at + step]
            array = (lib.llama_token * len(part))(*part)  # llama.cpp reads it; it must live as long as the batch
            if (code := lib.llama_decode(context, lib.llama_batch_get_one(array, len(part)))) != 0:
                raise RuntimeError(f"llama_decode returned {code}")

    def forget(self) -> Message:
        for context in self._contexts.values():
            lib.llama_free(context)
        self._contexts.clear()
        return {}


def _sampler(request: Message) -> object:
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    stages = [lib.llama_sampler_init_greedy()]
    if (seed := request.get("seed")) is not None:
        stages = [
            lib.llama_sampler_init_top_k(request["top_k"]),
            lib.llama_sampler_init_temp(request["temperature"]),
            lib.llama_sampler_init_dist(seed),
        ]
    for stage in stages:
        lib.llama_sampler_chain_add(chain, stage)
    return chain


def main() -> None:
    loop = Loop(json.loads(sys.argv[1]))
    print(json.dumps({"version": f"llama-cpp-python {lib.__version__}"}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(loop.forget() if request.get("forget") else loop.turn(request)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
