"""Lanes: whose KV is kept, which lane a turn gets, and what is dropped for it."""

import pytest

from npc_runtime.engine.kv_cache import KvCache
from npc_runtime.engine.lanes import Lane, LanePool
from npc_runtime.errors import Busy
from npc_runtime.llama import ContextOptions
from tests.engine.scripted_backend import ScriptedAdapter, ScriptedBackend, ScriptedContext

A, B = (((ScriptedAdapter(name, name.encode()), 1.0),) for name in "ab")


def context() -> ScriptedContext:
    return ScriptedBackend().new_context(ContextOptions(64, 8, 1))


@pytest.fixture
def lane() -> Lane:
    lane = Lane(context())
    lane.assign("s", "key")
    lane.bind(A)
    for call in ((1, 2, 3), (4,), (5, 6)):
        lane.decode(call, A, want_logits=True)
    return lane


def pool(count: int) -> LanePool:
    return LanePool([context() for _ in range(count)])


def take(pool: LanePool, session: str, key: str, adapters=A) -> Lane:
    return KvCache(pool, 0, None).place(session, "", key, adapters, pinned=False)


def used(pool: LanePool, session: str, key: str, adapters=A) -> Lane:
    lane = take(pool, session, key, adapters)
    lane.bind(adapters)
    lane.decode((1, 2), adapters, want_logits=True)
    return lane


def test_a_lane_counts_the_tokens_it_holds(lane):
    assert lane.position == len(lane.context.tokens) == 6


def test_shared_calls_stay_and_the_rest_is_cut(lane):
    assert lane.keep_shared([(1, 2, 3), (4,), (7, 8), (9,)]) == 4
    assert lane.context.tokens == [1, 2, 3, 4]


def test_the_last_wanted_call_is_always_decoded_again_for_its_logits(lane):
    assert lane.keep_shared([(1, 2, 3), (4,), (5, 6)]) == 4


def test_a_prompt_that_goes_on_keeps_everything(lane):
    assert lane.keep_shared([(1, 2, 3), (4,), (5, 6), (7,)]) == 6


def test_the_same_tokens_in_other_calls_are_not_kept(lane):
    assert lane.keep_shared([(1, 2), (3, 4), (5, 6), (7,)]) == 0
    assert lane.context.tokens == []


def test_a_cache_that_cannot_be_cut_is_cleared():
    backend = ScriptedBackend()
    backend.can_truncate = False
    lane = Lane(backend.new_context(ContextOptions(64, 8, 1)))
    for call in ((1, 2, 3), (4,)):
        lane.decode(call, (), want_logits=True)
    assert lane.keep_shared([(1, 2, 3), (5,), (6,)]) == 0
    assert (lane.calls, lane.context.tokens) == ([], [])


@pytest.mark.parametrize(("session", "key"), [("other", "key"), ("s", "other")])
def test_a_lane_that_goes_to_another_conversation_or_key_loses_its_kv(lane, session, key):
    lane.assign(session, key)
    assert (lane.position, lane.context.tokens) == (0, [])


def test_a_lane_that_stays_with_its_conversation_keeps_its_kv(lane):
    lane.assign("s", "key")
    assert lane.position == 6


def test_binding_the_same_adapters_again_does_nothing(lane):
    assert not lane.bind(A)
    assert lane.bind(B)
    assert lane.bind(())
    assert not lane.bind(())


def test_decoding_under_other_adapters_than_the_turns_is_refused(lane):
    with pytest.raises(AssertionError, match="active adapters"):
        lane.decode((7,), B, want_logits=True)
    assert lane.position == 6


def test_a_conversation_finds_its_lane_again():
    lanes = pool(3)
    first = used(lanes, "s", "key")
    used(lanes, "t", "key")
    assert take(lanes, "s", "key", A) is first
    assert first.position == 2


def test_one_conversation_under_two_keys_has_two_lanes():
    lanes = pool(3)
    assert used(lanes, "s", "one") is not used(lanes, "s", "two")


def test_a_free_lane_with_the_same_adapters_is_taken_first():
    lanes = pool(3)
    lanes.lanes[2].bind(B)
    assert take(lanes, "s", "key", B) is lanes.lanes[2]
    assert take(lanes, "t", "key", A) is lanes.lanes[0]


def test_the_lane_that_was_used_the_longest_time_ago_gives_way():
    lanes = pool(2)
    one, two = used(lanes, "s", "key"), used(lanes, "t", "key")
    used(lanes, "s", "key")
    assert take(lanes, "u", "key", A) is two
    assert two.position == 0
    assert take(lanes, "s", "key", A) is one
    assert one.position == 4


def test_forgetting_a_session_frees_all_its_lanes_and_no_others():
    lanes = pool(3)
    used(lanes, "s", "one")
    used(lanes, "s", "two")
    kept = used(lanes, "t", "one")
    KvCache(lanes, 0, None).drop(lambda held: held.session_id == "s")
    assert lanes.bound == 1
    assert kept.position == 2


def test_an_adapter_is_taken_out_of_every_lane_that_names_it_and_the_kv_it_computed_stays():
    lanes = pool(3)
    one = used(lanes, "s", "key", A)
    both = used(lanes, "t", "key", (*A, *B))
    other = used(lanes, "u", "key", B)
    lanes.unbind(A[0][0])
    assert [lane.context.adapters for lane in (one, both, other)] == [(), (), B]
    assert [lane.position for lane in (one, both, other)] == [2, 2, 2]


def test_a_lane_that_a_turn_holds_is_never_taken_away():
    lanes = pool(2)
    one, two = used(lanes, "s", "key"), used(lanes, "t", "key")
    one.held = True
    assert take(lanes, "u", "key") is two
    two.held = True
    with pytest.raises(Busy, match="every lane is held"):
        take(lanes, "v", "key")


def test_a_pinned_personas_lane_gives_way_last():
    lanes = pool(2)
    pinned, other = used(lanes, "s", "key"), used(lanes, "t", "key")
    pinned.pinned = True
    assert take(lanes, "u", "key") is other
