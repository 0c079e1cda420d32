"""What one turn took, and how samples are summed up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Turn:
    """One turn, timed where the player sits.

    ``ttft_ms``: from sending the line to the first visible text. ``total_ms``: to the end of the reply. ``text_ms``:
    from the first text to the last. ``new_tokens`` were computed before the reply. ``tokens`` is the reply. ``extra``
    is what the system itself reports.
    """

    ttft_ms: float
    total_ms: float
    text_ms: float
    prompt_tokens: int
    new_tokens: int
    tokens: tuple[int, ...]
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Rate of writing, between the first text and the last."""
        return (len(self.tokens) - 1) / self.text_ms * 1e3 if self.text_ms else 0.0

    def record(self, **where: Any) -> dict[str, Any]:
        """As a row of the results: times rounded, the reply as its length."""
        row = asdict(self) | {"tokens": len(self.tokens)}
        row["extra"] = {name: round(value, 3) for name, value in self.extra.items()}
        return where | {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least ``share`` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def summary(values: Sequence[float]) -> dict[str, float]:
    """p50, p95, smallest, largest and count."""
    return {
        "p50": round(median(values), 3),
        "p95": round(percentile(values, 0.95), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
        "n": len(values),
    }
