"""The interface of a system under test, and what all of them are given alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from bench.timing import Turn

REPLY_TOKENS = 24


class NotAvailable(Exception):
    """This system or feature cannot be measured here; the text says why."""


FlashAttention = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class Common:
    """Settings that are the same for every system. Thread counts of 0 are not allowed here.

    ``flash_attention`` is for this runtime and the bare loop. llama-server is measured with its default, and once more
    with this.
    """

    threads: int
    prefill_threads: int
    ubatch: int
    context_tokens: int = 2048
    flash_attention: FlashAttention = "off"


@dataclass(frozen=True)
class Sampled:
    """Sampling for long replies, which would go in circles if they were greedy."""

    seed: int
    temperature: float = 1.0
    top_k: int = 40


class Conversation(Protocol):
    """One conversation of the player with one character, on one system."""

    def say(self, line: str, count: int = REPLY_TOKENS, sampled: Sampled | None = None) -> Turn:
        """Say ``line``; the reply has exactly ``count`` tokens, greedy unless ``sampled``."""


class System(Protocol):
    """A running system."""

    name: str

    def converse(self, character: int) -> Conversation:
        """Begin a conversation."""

    def close(self) -> None:
        """End it and everything it started."""
