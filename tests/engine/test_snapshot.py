"""Copies of KV in memory: what is kept, what goes first, and what a prompt gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc_runtime.engine.snapshot import RamTier, Snapshot

PERSONA = ((1, 2), (3, 4))
KEY, OTHER_KEY = "key", "other key"


def copy(session: str, calls=PERSONA, *, size: int = 10, key: str = KEY, pinned: bool = False, persona: str = "mira"):
    return Snapshot(key, session, persona, tuple(calls), b"x" * size, pinned)


def tier(budget: int = 100) -> tuple[RamTier, list[Snapshot]]:
    gone: list[Snapshot] = []
    return RamTier(budget, gone.append), gone


def sessions(ram: RamTier) -> list[str]:
    return [snapshot.session_id for snapshot in ram]


def test_a_session_has_one_copy_under_a_key_and_a_newer_one_takes_its_place():
    ram, gone = tier()
    ram.put(copy("s", PERSONA))
    ram.put(copy("s", (*PERSONA, (5,)), size=20))
    ram.put(copy("s", PERSONA, key=OTHER_KEY))
    assert (len(ram), ram.bytes, gone) == (2, 30, [])
    assert ram.holds(KEY, "s", [*PERSONA, (5,)])
    assert not ram.holds(KEY, "s", PERSONA)
    assert ram.holds(OTHER_KEY, "s", PERSONA)


def test_fixed_parts_of_personas_are_kept_by_their_content():
    ram, _ = tier()
    ram.put(copy("", PERSONA))
    ram.put(copy("", ((7, 8),)))
    ram.put(copy("", PERSONA))
    assert len(ram) == 2
    assert ram.holds(KEY, "", PERSONA) and ram.holds(KEY, "", ((7, 8),))


def test_what_was_used_the_longest_time_ago_makes_room():
    ram, gone = tier(30)
    for session in "stu":
        ram.put(copy(session, ((ord(session),), (9,))))
    ram.best(KEY, ((ord("s"),), (9,)), cuttable=True)
    ram.put(copy("v"))
    assert sessions(ram) == ["u", "s", "v"]
    assert [snapshot.session_id for snapshot in gone] == ["t"]


def test_a_look_at_what_is_held_is_no_use_of_it():
    ram, gone = tier(20)
    ram.put(copy("s"))
    ram.put(copy("t"))
    ram.holds(KEY, "s", PERSONA)
    ram.put(copy("u"))
    assert [snapshot.session_id for snapshot in gone] == ["s"]


def test_a_pinned_copy_goes_last():
    ram, gone = tier(30)
    ram.put(copy("pinned", pinned=True))
    for session in "stu":
        ram.put(copy(session))
    assert sessions(ram) == ["pinned", "t", "u"]
    assert [snapshot.session_id for snapshot in gone] == ["s"]


def test_pinned_copies_do_not_break_the_budget_either():
    ram, gone = tier(30)
    for session in "stuv":
        ram.put(copy(session, pinned=True))
    assert ram.bytes == 30
    assert sessions(ram) == ["t", "u", "v"]
    ram.put(copy("not pinned"))
    assert sessions(ram) == ["t", "u", "v"], "it finds no room beside the pinned ones"
    assert [snapshot.session_id for snapshot in gone] == ["s", "not pinned"]


@pytest.mark.parametrize("budget", [0, 9])
def test_what_is_larger_than_the_budget_is_passed_on_at_once(budget):
    ram, gone = tier(budget)
    ram.put(copy("s"))
    assert (len(ram), ram.bytes) == (0, 0)
    assert [snapshot.session_id for snapshot in gone] == ["s"]


def test_a_copy_that_has_grown_beyond_the_budget_leaves_no_older_one_behind():
    ram, _ = tier(15)
    ram.put(copy("s"))
    ram.put(copy("s", (*PERSONA, (5,)), size=16))
    assert (len(ram), ram.bytes) == (0, 0)


def test_the_copy_that_shares_most_calls_is_found_under_its_own_key_only():
    ram, _ = tier()
    short, long = copy("s", PERSONA), copy("t", (*PERSONA, (5,), (6,)))
    ram.put(long)
    ram.put(short)
    ram.put(copy("u", (*PERSONA, (5,), (6,), (7,)), key=OTHER_KEY))
    assert ram.best(KEY, (*PERSONA, (5,), (6,), (7,)), cuttable=True) == (long, 4)
    assert ram.best(KEY, (*PERSONA, (9,)), cuttable=True)[1] == 2
    assert ram.best("unknown key", PERSONA, cuttable=True) == (None, 0)
    assert ram.best(KEY, ((1,), (2, 3, 4)), cuttable=True) == (None, 0), "the same tokens in other calls are other KV"


def test_what_cannot_be_cut_is_used_whole_or_not_at_all():
    ram, _ = tier()
    short, long = copy("s", PERSONA), copy("t", (*PERSONA, (5,), (6,)))
    ram.put(long)
    ram.put(short)
    assert ram.best(KEY, (*PERSONA, (5,), (7,)), cuttable=True) == (long, 3)
    assert ram.best(KEY, (*PERSONA, (5,), (7,)), cuttable=False) == (short, 2)


def test_what_matches_is_dropped_and_not_passed_on():
    ram, gone = tier()
    for session, persona in (("s", "mira"), ("t", "bram"), ("", "mira")):
        ram.put(copy(session, persona=persona))
    ram.drop(lambda snapshot: snapshot.persona_id == "mira")
    assert (sessions(ram), ram.bytes, gone) == (["t"], 10, [])


SIZES = st.integers(0, 40)


@given(st.integers(0, 100), st.lists(st.tuples(st.sampled_from("stuvw"), SIZES, st.booleans(), st.booleans())))
def test_the_budget_and_the_count_of_bytes_always_hold(budget, steps):
    ram, gone = tier(budget)
    for session, size, pinned, drop in steps:
        if drop:
            ram.remove(copy(session))
        else:
            ram.put(copy(session, size=size, pinned=pinned))
        assert ram.bytes == sum(len(snapshot.data) for snapshot in ram) <= budget
        assert not {id(snapshot) for snapshot in gone} & {id(snapshot) for snapshot in ram}
