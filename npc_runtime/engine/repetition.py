"""Noticing that a reply goes round in circles."""

from __future__ import annotations

from collections.abc import Sequence

MAX_PERIOD = 32
ROUNDS = 4
MIN_TOKENS = 24


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether the last tokens are one cycle (of at most 32 tokens) at least four times over, 24 tokens or more."""
    for period in range(1, MAX_PERIOD + 1):
        length = max(ROUNDS * period, MIN_TOKENS)
        if len(tokens) < length:
            continue
        tail = tokens[-length:]
        if all(tail[i] == tail[i - period] for i in range(period, length)):
            return True
    return False
