"""The search, on a machine that is on paper only: each setting has a known effect, each measurement a known cost."""

import itertools
from dataclasses import replace

import pytest

from npc_runtime.errors import ConfigError, EngineCrashed
from npc_runtime.tuning.jobs import Speed
from npc_runtime.tuning.search import ALL_FIGURES, MAX_ROUNDS, Factor, Search, Setup, turn_ms
from npc_runtime.tuning.worker import OutOfTime

START = Setup("q4_1", 2, 2, 64, "auto", "f16", 1_000_000)


def values(name, *found):
    return tuple({name: value} for value in found)


TYPES = Factor("type", values("file_type", "q4_0", "q8_0"), weight=3, adopt=False)
THREADS = Factor("threads", values("threads", 1, 2, 4), ("decode",))
PREFILL_THREADS = Factor("prefill threads", values("prefill_threads", 1, 2, 4), ("prefill", "line_ms"))
CHUNKS = Factor("chunk", values("prefill_chunk_tokens", 32, 64, 128, 256), ("prefill",))
ATTENTION = Factor(
    "attention", ({"flash_attention": "on", "kv_type": "f16"}, {"flash_attention": "on", "kv_type": "q8_0"})
)
EVERYTHING = [TYPES, PREFILL_THREADS, THREADS, ATTENTION, CHUNKS]


class Paper:
    """A machine: 4 decode threads and 4 prefill threads are best, chunks of 128 a little, flash attention is slow."""

    def __init__(self, cost: float = 1.0, noise=lambda number: 1.0) -> None:
        self.now = 0.0
        self.cost = cost
        self.noise = noise
        self.asked: list[tuple[Setup, tuple[str, ...]]] = []
        self.broken: dict[Setup, Exception] = {}

    def clock(self) -> float:
        return self.now

    def measure(self, setup: Setup, figures: tuple[str, ...]) -> Speed:
        self.now += self.cost
        self.asked.append((setup, figures))
        if setup in self.broken:
            raise self.broken[setup]
        speed = self.speed(setup)
        wave = self.noise(len(self.asked))
        return Speed(
            prefill=speed.prefill * wave if "prefill" in figures else None,
            line_ms=speed.line_ms / wave if "line_ms" in figures else None,
            decode=speed.decode * wave if "decode" in figures else None,
        )

    def speed(self, setup: Setup) -> Speed:
        kind = {"q4_1": 1.0, "q4_0": 2.0, "q8_0": 1.5}[setup.file_type]
        flash = 0.5 if setup.flash_attention == "on" else 1.0
        chunk = {32: 0.8, 64: 1.0, 128: 1.4, 256: 1.41}[setup.prefill_chunk_tokens]
        return Speed(
            prefill=170 * kind * flash * chunk * setup.prefill_threads,
            line_ms=100 / kind / flash / setup.prefill_threads,
            decode=60 * flash * setup.threads,
        )

    def search(self, factors, seconds: float = 1000.0, start: Setup = START):
        return Search(self.measure, seconds, self.clock).run(start, factors)


def chosen(outcome):
    return {choice.factor.name: choice.factor.of(choice.best) for choice in outcome.choices}


def test_each_factor_ends_at_its_fastest_value():
    outcome = Paper().search(EVERYTHING)
    assert outcome.best == replace(START, threads=4, prefill_threads=4, prefill_chunk_tokens=128)
    assert chosen(outcome)["attention"] == "auto f16"


def test_a_better_file_type_is_reported_but_the_search_goes_on_with_the_one_there_is():
    paper = Paper()
    outcome = paper.search(EVERYTHING)
    assert outcome.choices[0].best.file_type == "q4_0"
    assert outcome.choices[0].gain > 0.2
    assert outcome.best.file_type == "q4_1"
    later = paper.asked[len(paper.asked) // 2 :]
    assert {setup.file_type for setup, _ in later} == {"q4_1"}


def test_the_gain_of_all_of_it_is_measured_side_by_side():
    paper = Paper()
    outcome = paper.search([THREADS])
    assert {setup for setup, _ in paper.asked[-2 * MAX_ROUNDS :]} == {outcome.start, outcome.best}
    assert outcome.gain == pytest.approx(1 - turn_ms(paper.speed(outcome.best)) / turn_ms(paper.speed(START)))


def test_only_the_figures_that_a_factor_can_change_are_measured_again():
    paper = Paper()
    paper.search([THREADS, CHUNKS])
    assert paper.asked[0] == (START, ALL_FIGURES)
    figures = {figures for setup, figures in paper.asked if setup.prefill_chunk_tokens == 32}
    assert figures == {("prefill",)}


def test_values_take_turns_so_that_a_slow_moment_meets_them_all():
    paper = Paper()
    paper.search([THREADS])
    order = [setup.threads for setup, _ in paper.asked]
    assert order[:6] == [2, 1, 4, 4, 1, 2] or order[:5] == [2, 1, 4, 4, 2]


def test_a_hopeless_value_is_measured_once():
    paper = Paper()
    paper.search([ATTENTION])
    slow = [setup for setup, _ in paper.asked if setup.flash_attention == "on"]
    assert len(slow) == len(set(slow)) == 2


def test_a_gain_within_the_noise_changes_nothing():
    start = replace(START, prefill_chunk_tokens=128)
    outcome = Paper().search([CHUNKS], start=start)
    assert outcome.best == start
    assert outcome.gain is None


def test_a_single_slow_moment_does_not_make_a_winner():
    """The first measurement of what there is now falls into a moment in which everything takes ten times as long."""
    same = Factor("spin", values("spin_count", 1000, 100_000))
    outcome = Paper(noise=lambda number: 0.1 if number == 1 else 1.0).search([same])
    assert outcome.best == START


def scripted(times: dict[int, list[float]], seconds: float = 1000.0) -> Setup:
    """The choice between the spin counts of ``times``, whose measurements are the turn times listed there."""
    left = {spin: itertools.cycle(found) for spin, found in times.items()}
    now = itertools.count()

    def measure(setup: Setup, figures: tuple[str, ...]) -> Speed:
        return Speed(prefill=1e9, line_ms=next(left[setup.spin_count]), decode=1e9)

    factor = Factor("spin", values("spin_count", *times))
    start = replace(START, spin_count=min(times))
    return Search(measure, seconds, lambda: float(next(now))).run(start, [factor]).choices[0].best


def test_a_value_must_have_been_the_faster_one_in_two_rounds_of_three():
    """The median of the others is 3.6 % lower each time."""
    assert scripted({1: [100, 100, 110, 110, 110], 2: [106]}).spin_count == 1
    assert scripted({1: [100, 110, 110, 110, 110], 2: [106]}).spin_count == 2


@pytest.mark.parametrize(("time", "taken"), [(95, False), (85, True)])
def test_what_was_measured_in_one_round_only_must_gain_more(time, taken):
    assert scripted({1: [100], 2: [time]}, seconds=6).spin_count == (2 if taken else 1)
    assert scripted({1: [100], 2: [time]}).spin_count == 2


def test_gains_that_do_not_show_side_by_side_are_given_up():
    class Fickle(Paper):
        def speed(self, setup):
            speed = super().speed(setup)
            return speed if len(self.asked) < 16 else super().speed(START)

    outcome = Fickle().search([THREADS])
    assert chosen(outcome)["threads"] == "4"
    assert outcome.best == START
    assert outcome.gain == pytest.approx(0, abs=1e-9)


def test_of_two_values_that_are_about_as_fast_the_frugal_one_is_taken():
    """Chunks of 256 are 0.7 % better at prefill than those of 128, and hold everything up twice as long."""
    start = replace(START, threads=4, prefill_threads=4)
    assert Paper().search([CHUNKS], start=start).best.prefill_chunk_tokens == 128


def test_a_longer_chunk_must_not_hold_everything_up_for_long():
    """128 tokens at 80 a second are 1.6 s in which no cancel is heard."""

    class Slow(Paper):
        def speed(self, setup):
            speed = super().speed(setup)
            return Speed(prefill=speed.prefill / 6, line_ms=speed.line_ms, decode=speed.decode)

    assert Slow().search([CHUNKS]).best == START
    assert Slow().search([CHUNKS], start=replace(START, prefill_chunk_tokens=256)).best.prefill_chunk_tokens == 256


@pytest.mark.parametrize("error", [ConfigError("not in this build"), EngineCrashed("GGML_ASSERT(false)")])
def test_a_value_that_cannot_be_measured_is_left_out_and_told(error):
    paper = Paper()
    paper.broken[replace(START, threads=4)] = error
    outcome = paper.search([THREADS])
    assert outcome.best.threads == 2
    assert [tried.error for tried in outcome.choices[0].tried if tried.setup.threads == 4] == [error.message]
    assert sum(setup.threads == 4 for setup, _ in paper.asked) == 1


def test_where_nothing_works_as_it_is_set_the_reason_is_told():
    paper = Paper()
    paper.broken[START] = ConfigError("the model is gone")
    with pytest.raises(ConfigError, match="the model is gone"):
        paper.search([THREADS])


@pytest.mark.parametrize("seconds", [3, 10, 17, 40, 77, 200])
def test_the_time_limit_holds_whatever_it_is(seconds):
    paper = Paper(cost=2.0)
    outcome = paper.search(EVERYTHING, seconds=seconds)
    assert paper.now <= seconds + paper.cost
    assert len(outcome.choices) == len(EVERYTHING)


def test_what_there_was_no_time_for_stays_and_says_so():
    outcome = Paper(cost=3.0).search(EVERYTHING, seconds=20)
    assert outcome.choices[-1].note == "no time left"
    assert outcome.choices[-1].best.prefill_chunk_tokens == 64


def test_a_measurement_that_is_cut_off_ends_the_factor_and_not_the_run():
    paper = Paper()
    paper.broken[replace(START, threads=1)] = OutOfTime()
    outcome = paper.search([THREADS, CHUNKS])
    assert outcome.choices[0].note == "no time left"
    assert outcome.best.prefill_chunk_tokens == 128


def test_a_factor_without_alternatives_costs_nothing():
    paper = Paper()
    outcome = paper.search([Factor("type", (), adopt=False), Factor("threads", values("threads", 2))])
    assert paper.asked == []
    assert outcome.best == START
