"""What a workload found: its samples, its figures, and the goals that are judged by them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.timing import Turn, summary


@dataclass(frozen=True)
class Check:
    """One goal and what was measured. ``measured`` None: it could not be judged, ``detail`` says why."""

    goal: str
    measured: float | None
    limit: float
    detail: str
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def record(self) -> dict[str, Any]:
        measured = None if self.measured is None else round(self.measured, 4)
        return asdict(self) | {"measured": measured, "met": self.met}


@dataclass
class Outcome:
    """The result of one workload. ``samples`` has one row per turn."""

    figures: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, turns: Iterable[Turn], **where: Any) -> None:
        """Keep the turns as samples; ``where`` tells what they were."""
        self.samples += [turn.record(**where) for turn in turns]

    def sum_up(self, name: str, turns: list[Turn]) -> dict[str, Any]:
        """Figures of a set of turns, under ``name``."""
        short = [len(turn.tokens) for turn in turns]
        figures: dict[str, Any] = {
            "ttft_ms": summary([turn.ttft_ms for turn in turns]),
            "turn_ms": summary([turn.total_ms for turn in turns]),
            "new_tokens": summary([turn.new_tokens for turn in turns]),
            "reply_tokens": summary(short),
        }
        for key in sorted({key for turn in turns for key in turn.extra}):
            figures[key] = summary([turn.extra[key] for turn in turns if key in turn.extra])
        self.figures[name] = figures
        return figures

    def ratio(self, goal: str, ours: float, other: float | None, limit: float, detail: str) -> None:
        """Judge ``ours / other`` against ``limit``; ``detail`` names both, in that order, in braces."""
        if not other:
            self.checks.append(Check(goal, None, limit, "there is nothing to compare with in this run"))
            return
        self.checks.append(Check(goal, ours / other, limit, detail.format(ours, other)))

    def record(self) -> dict[str, Any]:
        checks = [check.record() for check in self.checks]
        return {"figures": self.figures, "checks": checks, "notes": self.notes, "samples": self.samples}
