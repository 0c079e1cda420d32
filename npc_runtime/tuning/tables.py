"""What ``npc-runtime tune`` shows: every choice, the whole side by side, and what a prepared file is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from npc_runtime.tuning.jobs import Agreement, Speed, VoiceFigures, Work
from npc_runtime.tuning.search import REPLY_TOKENS, Choice, Outcome, Tried, turn_ms

FIGURES: tuple[tuple[str, Callable[[Speed], float], bool], ...] = (
    ("prefill, tokens/s", lambda speed: speed.prefill or 0.0, True),
    ("short line, ms", lambda speed: speed.line_ms or 0.0, False),
    ("reply, tokens/s", lambda speed: speed.decode or 0.0, True),
    ("a turn, ms", turn_ms, False),
)
"""Title, figure, and whether more of it is better."""


def outcome_table(outcome: Outcome, title: str) -> Table:
    """One row for each factor: what is set, what is best, what that alone gains, and all that was measured."""
    table = Table(
        "setting", "now", "best", "gain", "a turn in ms", title=f"{title}: one at a time", title_justify="left"
    )
    for choice in outcome.choices:
        now, best = choice.factor.of(choice.before), choice.factor.of(choice.best)
        gain = f"{choice.gain:+.0%}" if choice.best != choice.before else ""
        style = "bold green" if gain else ""
        table.add_row(choice.factor.name, now, Text(best, style), Text(gain, style), Text(_measured(choice)))
    return table


def figures_table(choice: Choice) -> Table:
    """The figures behind the times of one factor's values."""
    table = Table(choice.factor.name, *(title for title, _, _ in FIGURES))
    for tried in choice.tried:
        if tried.speed is not None:
            table.add_row(choice.factor.of(tried.setup), *(f"{figure(tried.speed):.0f}" for _, figure, _ in FIGURES))
    return table


def _measured(choice: Choice) -> str:
    tried = [_one(choice, each) for each in choice.tried if each.speed is not None or each.error]
    return ": ".join(part for part in (choice.note, ", ".join(tried)) if part)


def _one(choice: Choice, tried: Tried) -> str:
    value = choice.factor.of(tried.setup)
    return f"{value} {turn_ms(tried.speed):.0f}" if tried.speed is not None else f"{value}: {tried.error}"


def conditions(work: Work, adapter: str) -> str:
    """What the figures mean."""
    return (
        f"A turn: a line of {work.line} tokens behind {work.history}, a reply of {REPLY_TOKENS} tokens, and a tenth of "
        f"a character's own text of 300 (prefill measured with {work.prefill}). Medians; "
        f"what else runs changes from row to row, so compare within a row. "
        f"{f'The adapter {adapter} is active.' if adapter else 'Without an adapter: none of the folder fits.'}"
    )


def comparison_table(outcome: Outcome) -> Table:
    """The figures before and after, from the measurement side by side."""
    assert outcome.start_speed is not None and outcome.best_speed is not None
    table = Table("all together, side by side", "now", "best", "gain")
    for title, figure, more_is_better in FIGURES:
        now, best = figure(outcome.start_speed), figure(outcome.best_speed)
        gain = best / now - 1 if more_is_better else 1 - best / now
        table.add_row(title, f"{now:.0f}", f"{best:.0f}", f"{gain:+.0%}")
    return table


def quality_table(agreement: Agreement, voices: Sequence[VoiceFigures], source: str, prepared: str) -> Table:
    """What the prepared file is worth, beside the original. ``voices`` of both, or none."""
    table = Table("quality", source, prepared, "difference")
    ratio = agreement.prepared / agreement.source
    table.add_row(
        f"perplexity ({agreement.tokens} tokens)",
        f"{agreement.source:.2f}",
        f"{agreement.prepared:.2f}",
        f"{ratio - 1:+.1%} ± {agreement.error * ratio:.1%} (standard error)",
    )
    table.add_row("likeliest token is the same", "", "", f"in {agreement.same_choice:.1%} of the places")
    if len(voices) == 2:
        for old, new in zip(voices[0].rows, voices[1].rows, strict=True):
            style = "red" if old.holds and not new.holds else ""
            for title, one, other in (
                (f"voice of {old.persona_id}", old.own, new.own),
                ("… over the base", old.over_base, new.over_base),
                ("… over the best other set", old.over_others, new.over_others),
            ):
                if one is not None and other is not None:
                    cells = (f"{one:+.2f}", f"{other:+.2f}", f"{other - one:+.2f} nat a token")
                    table.add_row(title, *cells, style=style)
    return table
