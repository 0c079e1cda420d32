"""llama-server as a system: one request per turn with the whole prompt, as its users do; its prompt cache is on."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.cast import Cast
from bench.systems.dialogue import Dialogue
from bench.systems.process import Program
from bench.systems.system import REPLY_TOKENS, Common, FlashAttention, NotAvailable, Sampled
from bench.timing import Turn

TIMEOUT_S = 120


class LlamaServer:
    """A server with ``slots`` slots and one adapter per character, chosen by each request."""

    def __init__(
        self,
        python: Path,
        cast: Cast,
        common: Common,
        characters: Sequence[int],
        slots: int,
        flash_attention: FlashAttention,
    ) -> None:
        self.name = "llama-server" if flash_attention == "auto" else f"llama-server, flash attention {flash_attention}"
        self.cast = cast
        adapters = [str(cast.characters[number].adapter) for number in characters]
        wanted = {
            "model": str(cast.model),
            "adapters": adapters,
            "slots": slots,
            **asdict(common),
            "flash_attention": flash_attention,
        }
        self.program = Program(python, "run_llama_server.py", wanted)
        self.adapter_of = {number: index for index, number in enumerate(characters)}
        self.about = self.program.about
        self._address = urlsplit(self.about["address"]).netloc

    def converse(self, character: int) -> LlamaServerConversation:
        """Begin a conversation; the server hears of it with its first turn."""
        return LlamaServerConversation(self, character)

    def connect(self) -> http.client.HTTPConnection:
        """A new connection: after a stream the server closes the one that it had."""
        connection = http.client.HTTPConnection(self._address, timeout=TIMEOUT_S)
        connection.connect()
        return connection

    @staticmethod
    def stream(connection: http.client.HTTPConnection, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of one completion."""
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise NotAvailable(f"llama-server answered {response.status}: {response.read()[:200]!r}")
        for line in response:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])

    def close(self) -> None:
        """End the server."""
        self.program.close()


class LlamaServerConversation:
    """A conversation that the client keeps and sends again with every turn, as token ids."""

    def __init__(self, server: LlamaServer, character: int) -> None:
        self._server = server
        self._character = character
        self._dialogue = Dialogue(server.cast, character)

    def say(self, line: str, count: int = REPLY_TOKENS, sampled: Sampled | None = None) -> Turn:
        """See :class:`bench.systems.Conversation`."""
        prompt = self._dialogue.prompt(line)
        body = self._body(prompt, count, sampled)
        first = last = 0.0
        tokens: list[int] = []
        timings: dict[str, Any] = {}
        connection = self._server.connect()
        start = time.perf_counter()
        for event in self._server.stream(connection, body):
            tokens += event.get("tokens", [])
            if event["content"].strip():
                last = time.perf_counter()
                first = first or last
            timings = event.get("timings", {})
        total = time.perf_counter() - start
        connection.close()
        self._dialogue.add(line, tokens)
        return Turn(
            ttft_ms=(first - start) * 1e3,
            total_ms=total * 1e3,
            text_ms=(last - first) * 1e3,
            prompt_tokens=len(prompt),
            new_tokens=int(timings["prompt_n"]),
            tokens=tuple(tokens),
            extra={"prefill_ms": timings["prompt_ms"], "decode_ms": timings["predicted_ms"]},
        )

    def _body(self, prompt: list[int], count: int, sampled: Sampled | None) -> dict[str, Any]:
        sampling = {"temperature": 0} if sampled is None else {**asdict(sampled), "top_p": 1, "min_p": 0}
        return {
            "prompt": prompt,
            "n_predict": count,
            "ignore_eos": True,
            "stream": True,
            "cache_prompt": True,
            "return_tokens": True,
            "lora": [{"id": self._server.adapter_of[self._character], "scale": 1.0}],
            **sampling,
        }
