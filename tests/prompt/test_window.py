"""Fitting a conversation into the context."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc_runtime.errors import LineTooLong, PersonaTooLong
from npc_runtime.prompt import Conversation, Exchange, fit
from npc_runtime.prompt.window import REFILL


def conversation(*sizes: int, system: int = 10, line: int = 5) -> Conversation:
    """Texts of so many characters; a token is a character."""
    exchanges = tuple(Exchange("p" * (size // 2), "r" * (size - size // 2)) for size in sizes)
    return Conversation(
        system="s" * system, greeting="", exchanges=exchanges, line="l" * line, player="Anna", character="Mira"
    )


def count(c: Conversation) -> int:
    return len(c.system) + len(c.line) + sum(len(exchange.player) + len(exchange.reply) for exchange in c.exchanges)


def fitted(c: Conversation, context_tokens: int = 100, reserve: int = 20) -> tuple[Conversation, int]:
    return fit(c, count, context_tokens=context_tokens, reserve=reserve)


def test_what_fits_stays_whole():
    c = conversation(20, 20, 25)
    assert count(c) == 80
    assert fitted(c) == (c, 0)


def test_the_oldest_exchanges_go_first_and_room_is_made_for_some_turns():
    c = conversation(20, 20, 20, 20)
    shorter, dropped = fitted(c)
    assert (shorter, dropped) == (c.without_oldest(2), 2)
    assert count(shorter) <= 80 * REFILL


def test_all_exchanges_go_where_no_fewer_will_do():
    c = conversation(20, 60)
    assert fitted(c) == (c.without_oldest(2), 2)


@given(st.lists(st.integers(0, 60), max_size=12), st.integers(1, 40), st.integers(0, 39))
def test_whole_oldest_exchanges_go_and_persona_and_newest_line_stay(sizes, system, line):
    c = conversation(*sizes, system=system, line=line)
    shorter, dropped = fitted(c)
    assert count(shorter) <= 80
    assert shorter == c.without_oldest(dropped)
    assert (shorter.system, shorter.line) == (c.system, c.line)
    assert dropped == 0 or count(c) > 80


def test_a_persona_that_is_too_long_is_named_with_the_numbers():
    with pytest.raises(PersonaTooLong) as caught:
        fitted(conversation(20, system=90))
    message = caught.value.message
    assert all(part in message for part in ("Mira", "90 tokens", "100 tokens", "keeps 20 free", "context_tokens"))


def test_a_line_that_is_too_long_is_named_with_the_numbers():
    with pytest.raises(LineTooLong) as caught:
        fitted(conversation(20, line=75))
    message = caught.value.message
    assert all(part in message for part in ("75 tokens", "persona of 10", "100 tokens", "keeps 20 free"))


def test_persona_and_line_that_just_fit_are_taken():
    c = conversation(20, system=40, line=40)
    assert fitted(c) == (c.without_oldest(1), 1)
    with pytest.raises(LineTooLong):
        fitted(msgspec.structs.replace(c, line="l" * 41))
    with pytest.raises(PersonaTooLong):
        fitted(msgspec.structs.replace(c, system="s" * 81))


def test_what_has_to_go_from_a_long_past_is_found_in_few_looks():
    looks = []

    def counted(c: Conversation) -> int:
        looks.append(c)
        return count(c)

    c = conversation(*[20] * 5000)
    shorter, dropped = fit(c, counted, context_tokens=100, reserve=20)
    assert dropped == next(n for n in range(5001) if count(c.without_oldest(n)) <= 80 * REFILL)
    assert shorter == c.without_oldest(dropped)
    assert len(looks) < 20
