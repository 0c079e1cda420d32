"""mistral.rs as a system. It takes adapters only for safetensors, so the same numbers are given to it in that form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from bench.cast import RANK, Cast
from bench.safetensors import write_adapter, write_model
from bench.systems.process import Program
from bench.systems.system import REPLY_TOKENS, Common, NotAvailable, Sampled
from bench.timing import Turn


class MistralRs:
    """A runner with one adapter per character and a prefix cache for all conversations; no HTTP in between."""

    name = "mistral.rs"
    notes = (
        "mistral.rs computes in float32 from the dequantised weights of the same file: for a GGUF of this "
        "architecture it refuses adapters. It is measured inside its own process, without HTTP.",
    )

    def __init__(self, program: Program, cast: Cast) -> None:
        self.program = program
        self.about = program.about
        self.cast = cast

    @classmethod
    @contextmanager
    def running(
        cls, environments: Path, cast: Cast, common: Common, characters: Sequence[int], folder: Path
    ) -> Iterator[MistralRs]:
        """Convert model and adapters into ``folder`` (once) and start it."""
        target = folder / "safetensors"
        if not target.exists():
            write_model(cast.model, target / "model")
        adapters = {}
        for number in characters:
            character = cast.characters[number]
            place = target / character.id
            adapters[character.id] = str(place if place.exists() else write_adapter(character.adapter, place, RANK))
        wanted = {"model": str(target / "model"), "adapters": adapters, "conversations": len(characters)}
        python = environments / "mistralrs" / "bin" / "python"
        threads = {"RAYON_NUM_THREADS": str(common.prefill_threads)}
        with closing(Program(python, "run_mistralrs.py", wanted, threads)) as program:
            yield cls(program, cast)

    def converse(self, character: int) -> MistralRsConversation:
        """Begin a conversation."""
        return MistralRsConversation(self, character)

    def close(self) -> None:
        """End it."""
        self.program.close()


class MistralRsConversation:
    """A conversation that is sent again with every turn, as messages."""

    def __init__(self, system: MistralRs, character: int) -> None:
        self._system = system
        self._character = system.cast.characters[character]
        self._messages = [_message("system", self._character.system)]

    def say(self, line: str, count: int = REPLY_TOKENS, sampled: Sampled | None = None) -> Turn:
        """See :class:`bench.systems.Conversation`."""
        if sampled is not None:
            raise NotAvailable("only greedy replies are compared with mistral.rs")
        self._messages.append(_message("user", line))
        answer = self._system.program.ask({"messages": self._messages, "adapter": self._character.id, "count": count})
        self._messages.append(_message("assistant", answer["text"]))
        times = answer["times_ms"]
        return Turn(
            ttft_ms=times[0],
            total_ms=answer["end_ms"],
            text_ms=times[-1] - times[0],
            prompt_tokens=answer["prompt_tokens"],
            new_tokens=0,
            tokens=(0,) * answer["reply_tokens"],
            extra={"peak_rss_mb": answer["rss_mb"]},
        )


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
