"""The bare loop on the C API as a system: the floor."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path

from bench.cast import Cast
from bench.systems.dialogue import Dialogue
from bench.systems.process import Program
from bench.systems.system import REPLY_TOKENS, Common, Sampled
from bench.timing import Turn


class DirectLoop:
    """One context per conversation, the prompt's end known, nothing else to do. Times are taken inside its process."""

    name = "direct loop"

    def __init__(self, cast: Cast, common: Common, characters: Sequence[int]) -> None:
        self.cast = cast
        adapters = [str(cast.characters[number].adapter) for number in characters]
        self.program = Program(
            Path(sys.executable),
            "run_direct_loop.py",
            {"model": str(cast.model), "adapters": adapters, **asdict(common)},
        )
        self.adapter_of = {number: index for index, number in enumerate(characters)}
        self._numbers = count()

    def converse(self, character: int) -> DirectConversation:
        """Begin a conversation in a context of its own."""
        return DirectConversation(self, character, f"conversation {next(self._numbers)}")

    def forget(self) -> None:
        """Free all contexts."""
        self.program.ask({"forget": True})

    def close(self) -> None:
        """End the process."""
        self.program.close()


class DirectConversation:
    """A conversation whose KV is always there."""

    def __init__(self, loop: DirectLoop, character: int, name: str) -> None:
        self._loop = loop
        self._character = character
        self._name = name
        self._dialogue = Dialogue(loop.cast, character)
        self._held = 0

    def say(self, line: str, count: int = REPLY_TOKENS, sampled: Sampled | None = None) -> Turn:
        """See :class:`bench.systems.Conversation`. ``extra["floor_ms"]``: prefill of the new tokens and one decode."""
        prompt = self._dialogue.prompt(line)
        new = prompt[self._held :]
        request = {
            "conversation": self._name,
            "adapter": self._loop.adapter_of[self._character],
            "new_tokens": new,
            "count": count,
            **({} if sampled is None else asdict(sampled)),
        }
        answer = self._loop.program.ask(request)
        times = answer["times_ms"]
        self._held = len(prompt) + count
        self._dialogue.add(line, answer["tokens"])
        return Turn(
            ttft_ms=times[0],
            total_ms=times[-1],
            text_ms=times[-1] - times[0],
            prompt_tokens=len(prompt),
            new_tokens=len(new),
            tokens=tuple(answer["tokens"]),
            extra={"floor_ms": times[1] if count > 1 else times[0]},
        )
