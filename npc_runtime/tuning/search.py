"""Which setting is fastest: one factor after the other, against the best so far. Knows no model, only how to measure.

What is compared is the time of a turn (``turn_ms``), made up of three figures. The values of a factor are measured in
rounds, each value once a round, so that what else the machine does meets all of them; medians count. A value takes over
only where it gains more than chance would.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from npc_runtime.config import FlashAttention, KvType
from npc_runtime.errors import NpcError
from npc_runtime.tuning.jobs import Speed
from npc_runtime.tuning.worker import OutOfTime

REPLY_TOKENS = 24
PREFILL_SHARE = 30
"""Tokens of prefill a turn: 300 of a character's own text, computed once in ten turns."""
MIN_GAIN = 0.03
MIN_GAIN_ONCE = 0.10
"""Share of the turn's time that a value must save to take over: measured in several rounds, and in one only."""
MIN_WON = 2 / 3
"""Share of the rounds in which it must have been the faster one."""
HOPELESS = 1.5
"""A value that takes this many times the best one's time is not measured again."""
MAX_ROUNDS = 5
MAX_STEP_MS = 300.0
"""How long one step of prefill may take: a cancel, or another character's stream, waits for it."""
FINAL_SHARE = 0.2
"""Share of the time that is kept for measuring the outcome against what was there before."""

ALL_FIGURES = ("prefill", "line_ms", "decode")


@dataclass(frozen=True)
class Setup:
    """A point of the search: settings under their names, and the file type of the base."""

    file_type: str
    threads: int
    prefill_threads: int
    prefill_chunk_tokens: int
    flash_attention: FlashAttention
    kv_type: KvType
    spin_count: int


@dataclass(frozen=True)
class Factor:
    """One thing that is chosen: values are settings that change together, listed from what takes least.

    ``figures`` are those that it can change; ``weight`` its part of the time; with ``adopt`` False a better value is
    reported, but the search goes on without it. ``name`` and ``value`` are for people.
    """

    name: str
    values: tuple[Mapping[str, object], ...]
    figures: tuple[str, ...] = ALL_FIGURES
    weight: float = 1.0
    adopt: bool = True

    def of(self, setup: Setup) -> str:
        """The value that a setup has, as people read it."""
        names = list(dict.fromkeys(name for value in self.values for name in value))
        return " ".join(str(getattr(setup, name)) for name in names)


@dataclass(frozen=True)
class Tried:
    """One value of a factor: its setup and its medians; or why it could not be measured."""

    setup: Setup
    speed: Speed | None
    rounds: int
    error: str = ""


@dataclass(frozen=True)
class Choice:
    """What came out for a factor. ``before`` and ``best`` are among ``tried``; ``note`` where nothing was measured."""

    factor: Factor
    before: Setup
    best: Setup
    tried: tuple[Tried, ...] = ()
    note: str = ""

    @property
    def gain(self) -> float:
        """The share of a turn's time that the best value saves."""
        times = {tried.setup: turn_ms(tried.speed) for tried in self.tried if tried.speed is not None}
        if self.best == self.before or not {self.best, self.before} <= times.keys():
            return 0.0
        return 1 - times[self.best] / times[self.before]


@dataclass(frozen=True)
class Outcome:
    """All choices, and start and best measured side by side at the end (None: there was no time, or no change)."""

    start: Setup
    best: Setup
    choices: tuple[Choice, ...]
    start_speed: Speed | None = None
    best_speed: Speed | None = None

    @property
    def gain(self) -> float | None:
        """The share of a turn's time that all of it saves; None where that was not measured."""
        if self.start_speed is None or self.best_speed is None:
            return None
        return 1 - turn_ms(self.best_speed) / turn_ms(self.start_speed)


Measure = Callable[[Setup, tuple[str, ...]], Speed]
"""Measures some figures. Raises NpcError where this setup cannot be measured, OutOfTime where time is up."""
Report = Callable[[str, str, int, int], None]
"""Told what is being measured: factor, value, measurements done, measurements in all (of this factor)."""


def turn_ms(speed: Speed) -> float:
    """The time of a typical turn: a short line, a reply, and the share of a character's own text."""
    assert speed.prefill is not None and speed.line_ms is not None and speed.decode is not None
    return speed.line_ms + 1e3 * (REPLY_TOKENS / speed.decode + PREFILL_SHARE / speed.prefill)


@dataclass
class Search:
    """One run. ``seconds`` are a hard limit as far as ``measure`` keeps it too."""

    measure: Measure
    seconds: float
    clock: Callable[[], float]
    report: Report = lambda factor, value, done, total: None
    _until: float = field(init=False)
    known: dict[Setup, Speed] = field(init=False, default_factory=dict)
    """Medians of what earlier factors settled on."""

    def __post_init__(self) -> None:
        self._until = self.clock() + self.seconds

    def run(self, start: Setup, factors: Sequence[Factor]) -> Outcome:
        """Choose each factor in turn."""
        best, choices = start, []
        kept = self.seconds * FINAL_SHARE
        for index, factor in enumerate(factors):
            weights = sum(later.weight for later in factors[index:])
            left = self._until - kept - self.clock()
            choice = self._choose(factor, best, self.clock() + left * factor.weight / weights)
            choices.append(choice)
            if factor.adopt:
                best = choice.best
        return self._compare(Outcome(start, best, tuple(choices)))

    def _choose(self, factor: Factor, before: Setup, until: float) -> Choice:
        setups = [replace(before, **value) for value in factor.values]  # type: ignore[arg-type]
        others = [setup for setup in dict.fromkeys(setups) if setup != before]
        if not others:
            return Choice(factor, before, before, note="nothing to choose from")
        rounds = Rounds(self, factor, [before, *others])
        rounds.run(until)
        tried = rounds.tried()
        if not rounds.enough:
            return Choice(factor, before, before, tried, note="no time left")
        best = _frugal([t for t in tried if self._may_take(t, before, rounds)] or [tried[0]])
        self.known |= {t.setup: t.speed for t in (best, tried[0]) if t.speed is not None}
        left_out = sum(t.speed is None and not t.error for t in tried)
        return Choice(factor, before, best.setup, tried, note=f"no time for {left_out} more" if left_out else "")

    def _may_take(self, tried: Tried, before: Setup, rounds: Rounds) -> bool:
        if tried.speed is None or tried.setup == before:
            return False
        assert tried.speed.prefill is not None
        step_ms = 1e3 * tried.setup.prefill_chunk_tokens / tried.speed.prefill
        longer = tried.setup.prefill_chunk_tokens > before.prefill_chunk_tokens
        return rounds.beats(tried.setup, before) and not (longer and step_ms > MAX_STEP_MS)

    def _compare(self, outcome: Outcome) -> Outcome:
        if outcome.best == outcome.start:
            return outcome
        both = Factor("together", (), weight=1.0)
        rounds = Rounds(self, both, [outcome.start, outcome.best])
        rounds.run(self._until)
        found = {tried.setup: tried.speed for tried in rounds.tried()}
        start, best = found[outcome.start], found[outcome.best]
        if start is None or best is None:
            return outcome
        if not rounds.beats(outcome.best, outcome.start):
            # The factors' gains were chance, or they do not add up: what is there stays.
            return replace(outcome, best=outcome.start, start_speed=start, best_speed=best)
        return replace(outcome, start_speed=start, best_speed=best)

    @property
    def out_of_time(self) -> bool:
        """Whether the limit is reached."""
        return self.clock() >= self._until


class Rounds:
    """Several setups, measured in turn, round after round; the first one is what the others are compared with."""

    def __init__(self, search: Search, factor: Factor, setups: Sequence[Setup]) -> None:
        self._search = search
        self._factor = factor
        self._setups = list(setups)
        self._speeds: dict[Setup, list[Speed]] = {setup: [] for setup in setups}
        self._errors: dict[Setup, str] = {}
        self._known = search.known.get(setups[0])

    def run(self, until: float) -> None:
        """Measure until then; but at least the first two setups, where the whole limit allows."""
        total = MAX_ROUNDS * len(self._setups)
        done = 0
        for number in range(MAX_ROUNDS):
            # Every other round the other way round: what warms up or cools down meets all alike.
            for setup in self._setups if number % 2 == 0 else reversed(self._setups):
                if self._search.out_of_time or (self.enough and self._search.clock() >= until):
                    return
                done += 1
                if setup in self._errors or (number and self._hopeless(setup)):
                    continue
                self._search.report(self._factor.name, self._factor.of(setup), done, total)
                try:
                    self._speeds[setup].append(self._complete(self._measured(setup)))
                except NpcError as error:
                    self._errors[setup] = error.message
                    if setup == self._setups[0]:
                        raise  # without what is there now, nothing can be compared
                except OutOfTime:
                    return

    def _measured(self, setup: Setup) -> Speed:
        figures = self._factor.figures if self._known is not None else ALL_FIGURES
        return self._search.measure(setup, figures)

    def _complete(self, speed: Speed) -> Speed:
        """With the figures that this factor does not change, as they were measured before."""
        if self._known is None:
            self._known = speed
        known = self._known
        return Speed(
            prefill=known.prefill if speed.prefill is None else speed.prefill,
            line_ms=known.line_ms if speed.line_ms is None else speed.line_ms,
            decode=known.decode if speed.decode is None else speed.decode,
        )

    def _hopeless(self, setup: Setup) -> bool:
        speeds = self.medians()
        if setup == self._setups[0] or setup not in speeds:
            return False
        return turn_ms(speeds[setup]) > HOPELESS * min(map(turn_ms, speeds.values()))

    @property
    def enough(self) -> bool:
        """Whether there is something to compare: the first setup was measured, and another one, or all others fail."""
        others = [setup for setup in self._setups[1:] if setup not in self._errors]
        return bool(self._speeds[self._setups[0]]) and (not others or any(self._speeds[setup] for setup in others))

    def medians(self) -> dict[Setup, Speed]:
        """The medians of what was measured."""
        return {setup: _median(speeds) for setup, speeds in self._speeds.items() if speeds}

    def tried(self) -> tuple[Tried, ...]:
        """All setups with what is known of them."""
        medians = self.medians()
        return tuple(
            Tried(setup, medians.get(setup), len(self._speeds[setup]), self._errors.get(setup, ""))
            for setup in self._setups
        )

    def beats(self, setup: Setup, other: Setup) -> bool:
        """Whether ``setup`` is faster than ``other`` by more than chance."""
        medians = self.medians()
        if not {setup, other} <= medians.keys():
            return False
        pairs = list(zip(self._speeds[setup], self._speeds[other], strict=False))
        won = sum(turn_ms(ours) < turn_ms(theirs) for ours, theirs in pairs) / len(pairs)
        needed = MIN_GAIN if len(pairs) > 1 else MIN_GAIN_ONCE
        return won >= MIN_WON and turn_ms(medians[setup]) <= (1 - needed) * turn_ms(medians[other])


def _median(speeds: Sequence[Speed]) -> Speed:
    def median(name: str) -> float:
        return float(statistics.median(getattr(speed, name) for speed in speeds))

    return Speed(prefill=median("prefill"), line_ms=median("line_ms"), decode=median("decode"))


def _frugal(tried: Sequence[Tried]) -> Tried:
    """The first that is about as fast as the fastest: a factor's values are listed from what takes least."""
    times = [turn_ms(each.speed) for each in tried if each.speed is not None]
    return next(each for each, time in zip(tried, times, strict=True) if time <= min(times) * (1 + MIN_GAIN))


def differences(before: Setup, after: Setup) -> dict[str, object]:
    """The settings that are not the same, with their values after."""
    names = [f.name for f in fields(Setup)]
    return {name: getattr(after, name) for name in names if getattr(before, name) != getattr(after, name)}
