"""Decode calls: what is computed together is a function of the conversation alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc_runtime.engine.plan import count_tokens, make_plan, shared_calls
from npc_runtime.prompt import Conversation, Exchange, JinjaTemplate, Segment
from tests.engine.scripted_backend import BOS, ScriptedBackend
from tests.prompt.templates import CHATML

BACKEND = ScriptedBackend()
LINES = st.text(alphabet="abc é", max_size=40)


def plan_of(*segments: Segment, bos: int | None = None, chunk: int = 4):
    return make_plan(segments, BACKEND, bos=bos, chunk_tokens=chunk)


def conversation(exchanges: list[Exchange], line: str) -> Conversation:
    return Conversation(
        system="You are Mira.", greeting="", exchanges=tuple(exchanges), line=line, player="Anna", character="Mira"
    )


def planned(exchanges: list[Exchange], line: str, chunk: int = 8):
    segments = JinjaTemplate(CHATML, "<|im_end|>").render(conversation(exchanges, line))
    return make_plan(segments, BACKEND, bos=BOS, chunk_tokens=chunk)


def test_a_text_is_cut_into_chunks_of_the_fixed_size():
    assert plan_of(Segment("abcdefghij")).calls == (tuple(b"abcd"), tuple(b"efgh"), tuple(b"ij"))


def test_the_beginning_token_is_part_of_the_first_chunk():
    assert plan_of(Segment("abcd"), bos=BOS).calls == ((BOS, *b"abc"), (ord("d"),))


def test_a_block_that_ends_begins_a_new_call():
    assert plan_of(Segment("abc", ends_block=True), Segment("de")).calls == (tuple(b"abc"), tuple(b"de"))


def test_segments_of_one_block_share_calls():
    assert plan_of(Segment("ab"), Segment("cd")).calls == (tuple(b"abcd"),)


def test_a_reply_is_decoded_token_by_token_as_it_was_generated():
    plan = plan_of(Segment("ab"), Segment("", tokens=(1, 2, 3), ends_block=True), Segment("c"))
    assert plan.calls == (tuple(b"ab"), (1,), (2,), (3,), (ord("c"),))


def test_the_rest_of_a_reply_follows_its_tokens_in_a_call_of_its_own():
    plan = plan_of(Segment("ab"), Segment("xy", tokens=(1, 2), ends_block=True), Segment("c"))
    assert plan.calls == (tuple(b"ab"), (1,), (2,), tuple(b"xy"), (ord("c"),))


def test_only_scaffolding_may_become_control_tokens():
    plan = plan_of(Segment("<bos>", special=True), Segment("<bos>"), chunk=64)
    assert plan.calls == ((BOS, *b"<bos>"),)


def test_what_was_said_ends_with_the_last_block_and_history_where_the_newest_line_begins():
    plan = plan_of(
        Segment("abcde", ends_block=True), Segment("fg"), Segment("hi", begins_line=True), Segment("j"), chunk=8
    )
    assert (plan.said_tokens, plan.tokens) == (5, 10)
    assert plan.calls == (tuple(b"abcde"), tuple(b"fg"), tuple(b"hij"))
    assert (plan.persona, plan.history, plan.line, plan.joints) == (1, 2, tuple(b"hi"), {1, 2})


def test_a_line_is_computed_in_the_calls_that_it_was_computed_in_before():
    past = Segment("abcdefgh", begins_line=True, cuts=(2, 3))
    assert plan_of(past, chunk=4).calls == (tuple(b"ab"), tuple(b"cde"), tuple(b"fgh"))
    typed = Segment("abcdefgh", begins_line=True, primed=(tuple(b"abc"), tuple(b"d"), tuple(b"xy")))
    assert plan_of(typed, chunk=4).calls == (tuple(b"abc"), tuple(b"d"), tuple(b"efgh"))


def test_calls_that_are_larger_than_a_chunk_or_than_the_line_are_not_taken_over():
    for cuts in ((5,), (0, 4), (-1,), (9,)):
        assert plan_of(Segment("abcdef", begins_line=True, cuts=cuts), chunk=4).calls == (tuple(b"abcd"), tuple(b"ef"))


@pytest.mark.parametrize("chunk", [4, 8, 64])
@given(st.lists(st.tuples(LINES, st.text(alphabet="xyz", min_size=1, max_size=12)), max_size=4), LINES)
def test_the_next_turns_calls_begin_with_this_turns_calls_and_its_reply(chunk, past, line):
    exchanges = [Exchange(said, reply, tuple(reply.encode())) for said, reply in past]
    reply = tuple(b"so it is")
    now = planned(exchanges, line, chunk)
    then = planned([*exchanges, Exchange(line, "so it is", reply)], "And?", chunk)
    computed = (*now.calls, *((token,) for token in reply))
    assert then.calls[: len(computed)] == computed
    assert shared_calls(computed, then.calls) == len(computed)


@given(st.lists(LINES, max_size=4), LINES)
def test_no_call_is_longer_than_a_chunk_and_none_is_empty(past, line):
    plan = planned([Exchange(said, "yes", tuple(b"yes")) for said in past], line)
    assert all(0 < len(call) <= 8 for call in plan.calls)
    assert plan.tokens == count_tokens(plan.calls)


def test_shared_calls_stop_at_the_first_that_differs():
    assert shared_calls([(1, 2), (3,)], [(1, 2), (3,), (4,)]) == 2
    assert shared_calls([(1, 2), (3,)], [(1,), (2, 3)]) == 0, "the same tokens in other calls are not the same KV"
    assert shared_calls([], [(1,)]) == 0
