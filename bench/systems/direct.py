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
    """A conversation whose KV is always there, as far as the next prompt is known."""

    def __init__(self, loop: DirectLoop, character: int, name: str) -> None:
        self._loop = loop
        self._dialogue = Dialogue(loop.cast, character)
        self._held = 0
        self._where = {"conversation": name, "adapter": loop.adapter_of[character]}

    def _read_ahead(self) -> None:
        """What the template puts in front of the next line is known by now: read it, outside of any measured time."""
        known = self._dialogue.before_line()
        self._loop.program.ask({**self._where, "new_tokens": known[self._held :], "count": 0})
        self._held = len(known)

    def say(self, line: str, count: int = REPLY_TOKENS, sampled: Sampled | None = None) -> Turn:
        """See :class:`bench.systems.Conversation`. ``extra["floor_ms"]``: prefill of the new tokens and one decode."""
        prompt = self._dialogue.prompt(line)
        new = prompt[self._held :]
        request = {
            **self._where,
            "new_tokens": new,
            "count": count,
            **({} if sampled is None else asdict(sampled)),
        }
        answer = self._loop.program.ask(request)
        times = answer["times_ms"]
        self._held = len(prompt) + count
        self._dialogue.add(line, answer["tokens"])
        self._read_ahead()
        return Turn(
            ttft_ms=times[0],
            total_ms=times[-1],
            text_ms=times[-1] - times[0],
            prompt_tokens=len(prompt),
            new_tokens=len(new),
            tokens=tuple(answer["tokens"]),
            extra={"floor_ms": times[1] if count > 1 else times[0]},
        )
