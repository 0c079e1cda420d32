"""mistral.rs inside this process, from the wheel ``mistralrs``. Run by the interpreter of its own environment.

Takes one JSON object as argument. Then every line on standard input is one turn, every line on standard output its
times.
"""

import json
import os
import resource
import sys
import time
from importlib.metadata import version
from typing import Any

import mistralrs  # type: ignore[import-not-found]


def new_runner(wanted: dict[str, Any]) -> "mistralrs.Runner":
    adapters = [mistralrs.LoraAdapter(alias, folder) for alias, folder in wanted["adapters"].items()]
    which = mistralrs.Which.Lora(
        model_id=wanted["model"],
        adapters=adapters,
        arch=mistralrs.Architecture.Llama,
        dtype=mistralrs.ModelDType.F32,
        max_adapters=max(16, len(adapters)),
    )
    return mistralrs.Runner(which=which, max_seqs=1, prefix_cache_n=wanted["conversations"], token_source="none")


def turn(runner: "mistralrs.Runner", request: dict[str, Any]) -> dict[str, Any]:
    wanted = mistralrs.ChatCompletionRequest(
        messages=request["messages"],
        model="default",
        adapter=request["adapter"],
        max_tokens=request["count"],
        temperature=0.0,
        top_k=1,
        stream=True,
        ignore_eos=True,
    )
    start = time.perf_counter()
    times, text, usage = [], "", None
    for chunk in runner.send_chat_completion_request(wanted):
        piece = chunk.choices[0].delta.content or ""
        text += piece
        if piece.strip():
            times.append((time.perf_counter() - start) * 1e3)
        usage = getattr(chunk, "usage", None) or usage
    return {
        "text": text,
        "times_ms": times,
        "end_ms": (time.perf_counter() - start) * 1e3,
        "prompt_tokens": getattr(usage, "prompt_tokens", 0),
        "reply_tokens": getattr(usage, "completion_tokens", 0),
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    # Its log goes to standard output, where our lines are.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    runner = new_runner(json.loads(sys.argv[1]))
    print(json.dumps({"version": f"mistralrs {version('mistralrs')}"}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(turn(runner, json.loads(line))), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
