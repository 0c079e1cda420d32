"""When a reply counts as going round in circles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc_runtime.engine.repetition import MAX_PERIOD, MIN_TOKENS, ROUNDS, is_looping


def rounds_needed(period: int) -> int:
    return max(ROUNDS * period, MIN_TOKENS)


@pytest.mark.parametrize("period", [1, 2, 3, 7, MAX_PERIOD])
def test_a_cycle_is_noticed_at_its_last_needed_token_and_not_before(period):
    cycle = list(range(period)) * rounds_needed(period)
    needed = rounds_needed(period)
    assert is_looping(cycle[:needed])
    assert not is_looping(cycle[: needed - 1])


def test_a_cycle_longer_than_the_bound_is_not_noticed():
    assert not is_looping(list(range(MAX_PERIOD + 1)) * 10)


def test_a_cycle_counts_wherever_it_begins():
    assert is_looping([*range(1000, 1100), *[1, 2, 3] * 8])


def test_a_cycle_that_was_left_again_does_not_count():
    assert not is_looping([*[1, 2, 3] * 20, 4])


def test_a_refrain_with_other_words_between_is_no_loop():
    verse = [token for number in range(20) for token in (1, 2, 3, 4, 100 + number)]
    assert not is_looping(verse)


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_any_beginning_followed_by_enough_rounds_is_a_loop(beginning, cycle):
    assert is_looping(beginning + cycle * MIN_TOKENS)


@given(st.lists(st.integers(), unique=True, max_size=200))
def test_tokens_that_never_repeat_are_no_loop(tokens):
    assert not is_looping(tokens)
