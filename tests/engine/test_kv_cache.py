"""Where a conversation's KV comes from: its lane, another lane, memory, disk; and what is kept of it."""

from pathlib import Path

import pytest

from npc_runtime.engine.disk_tier import DiskTier
from npc_runtime.engine.kv_cache import KvCache
from npc_runtime.engine.lanes import Lane, LanePool
from npc_runtime.engine.snapshot import Snapshot
from npc_runtime.errors import Busy
from npc_runtime.llama import ContextOptions
from tests.engine.scripted_backend import ScriptedBackend

PERSONA = ((1, 2), (3,))
HELLO = (*PERSONA, (4, 5), (6,))
KEY = "key"
ROOM = 1 << 20


def cache(
    lanes: int = 1,
    *,
    ram: int = ROOM,
    disk: DiskTier | None = None,
    backend: ScriptedBackend | None = None,
) -> KvCache:
    backend = backend or ScriptedBackend()
    return KvCache(LanePool([backend.new_context(ContextOptions(64, 8, 1)) for _ in range(lanes)]), ram, disk)


def on_disk(folder: Path, budget: int = ROOM) -> DiskTier:
    return DiskTier(folder, budget)


def place(kv: KvCache, session: str, *, key: str = KEY, persona: str = "mira", pinned: bool = False) -> Lane:
    return kv.place(session, persona, key, (), pinned=pinned)


def computed(kv: KvCache, session: str, calls=HELLO, **more) -> Lane:
    """The session's lane, in which the calls are."""
    lane = place(kv, session, **more)
    kv.fill(lane, (*calls, ()))
    for call in calls[len(lane.calls) :]:
        lane.decode(call, (), want_logits=True)
    return lane


def cells(calls=HELLO) -> list[bytes]:
    """The KV of the calls, computed by themselves."""
    return list(computed(cache(), "alone", calls).context.cells)


def wanted(kv: KvCache, session: str, calls, **more) -> tuple[Lane, str, int]:
    """The session's lane with what is known of the calls: from where, and how many tokens. It must be the right KV."""
    lane = place(kv, session, **more)
    tier, tokens = kv.fill(lane, calls)
    assert lane.position == tokens == len(lane.context.cells)
    assert lane.context.cells == cells(calls)[:tokens]
    return lane, tier, tokens


# From where


def test_what_nobody_has_computed_comes_from_nowhere():
    assert wanted(cache(), "s", HELLO)[1:] == ("", 0)


def test_a_conversation_finds_its_own_lane():
    kv = cache(2)
    lane = computed(kv, "s")
    computed(kv, "t")
    assert wanted(kv, "s", (*HELLO, (7,))) == (lane, "resident", 6)


def test_a_conversation_that_lost_its_lane_comes_back_from_memory():
    kv = cache()
    computed(kv, "s")
    computed(kv, "t", ((9,),))
    assert (kv.evictions, len(kv.ram)) == (1, 1)
    assert wanted(kv, "s", (*HELLO, (7,)))[1:] == ("ram", 6)
    assert (kv.evictions, kv.restored["ram"]) == (2, 1)


def test_a_new_conversation_begins_with_the_personas_fixed_part_from_another_lane():
    kv = cache(2)
    computed(kv, "s")
    assert wanted(kv, "t", (*PERSONA, (7,)))[1:] == ("resident", 3)
    assert kv.restored["resident"] == 1


def test_a_new_conversation_begins_with_the_personas_fixed_part_from_memory():
    kv = cache()
    kv.keep_prefix(computed(kv, "s", PERSONA))
    computed(kv, "other", ((9,),), key="other key")
    assert wanted(kv, "t", (*PERSONA, (7,)))[1:] == ("ram", 3)


@pytest.mark.parametrize("key", ["other adapters", "another scale", "another base"])
def test_nothing_is_taken_from_another_key_wherever_it_is(tmp_path, key):
    disk = on_disk(tmp_path)
    kv = cache(2, disk=disk)
    computed(kv, "s", key=key)
    kv.keep(kv.lanes.lanes[0])
    while kv.persist():
        disk.flush(30)
    assert len(disk) == 1
    assert wanted(kv, "s", (*HELLO, (7,)))[1:] == ("", 0)


def test_the_source_that_has_most_of_the_prompt_is_taken(tmp_path):
    disk = on_disk(tmp_path)
    disk.put(snapshot(HELLO))
    disk.flush(30)
    kv = cache(3, disk=disk)
    kv.ram.put(snapshot(HELLO[:3]))
    computed(kv, "t", (*PERSONA, (9,)))
    lane, tier, tokens = wanted(kv, "s", (*HELLO, (7,)))
    assert (tier, tokens) == ("disk", 6)
    lane.release()
    disk.drop(lambda what: True)
    assert wanted(kv, "s", (*HELLO, (7,)))[1:] == ("ram", 5)
    kv.ram.drop(lambda what: True)
    assert wanted(kv, "u", (*PERSONA, (7,)))[1:] == ("resident", 3)


def snapshot(calls, session: str = "s", *, key: str = KEY) -> Snapshot:
    lane = computed(cache(), session, calls, key=key)
    return lane.snapshot()


def test_another_conversation_with_the_same_beginning_leaves_a_conversations_copy_in_place():
    kv = cache()
    computed(kv, "s")
    computed(kv, "other", ((9,),), key="other key")
    assert wanted(kv, "t", (*HELLO[:3], (8,)))[1:] == ("ram", 5)
    assert wanted(kv, "s", (*HELLO, (7,)))[1:] == ("ram", 6)


def test_a_lane_that_shares_nothing_with_the_new_prompt_looks_elsewhere():
    kv = cache(2)
    computed(kv, "s", ((9,), (8,)))
    computed(kv, "t")
    assert wanted(kv, "s", (*PERSONA, (7,)))[1:] == ("resident", 3)


# What is damaged


def test_a_file_that_turns_out_to_be_damaged_is_passed_over(tmp_path):
    disk = on_disk(tmp_path)
    disk.put(snapshot(HELLO))
    disk.put(snapshot(PERSONA, ""))
    disk.flush(30)
    kv = cache(disk=disk)
    entry, _ = disk.best(KEY, HELLO, cuttable=True)
    entry.path.write_bytes(b"damaged")
    assert wanted(kv, "s", (*HELLO, (7,)))[1:] == ("disk", 3), "the persona's part is a file of its own"
    assert (disk.dropped, len(disk)) == (1, 1)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_bytes_that_the_model_does_not_take_are_passed_over_and_dropped(tmp_path, where):
    disk = on_disk(tmp_path)
    kv = cache(2, disk=disk)
    foreign = Snapshot(KEY, "s", "mira", HELLO, b"no KV")
    kv.ram.put(foreign) if where == "memory" else disk.put(foreign)
    disk.flush(30)
    computed(kv, "t", PERSONA)
    assert wanted(kv, "s", (*HELLO, (7,)))[1:] == ("resident", 3)
    assert (len(disk), len(kv.ram)) == (0, 0)


# What cannot be cut


@pytest.mark.parametrize("how", ["recurrent", "window"])
def test_copies_that_cannot_be_cut_are_used_whole_or_not_at_all(how):
    backend = ScriptedBackend()
    backend.can_truncate, backend.window = how != "recurrent", 2 if how == "window" else 0
    kv = cache(backend=backend)
    computed(kv, "s").pass_joint()
    kv.keep_prefix(computed(kv, "", PERSONA))
    kv.lanes.lanes[0].release()
    lane = place(kv, "t")
    assert kv.fill(lane, (*HELLO[:3], (8,))) == ("ram", 3)
    assert lane.calls == list(PERSONA)
    lane.release()
    assert kv.fill(place(kv, "s"), (*HELLO, (7,))) == ("ram", 6)


# Lanes


def test_a_lane_that_a_turn_holds_is_not_evicted_and_without_another_one_the_engine_is_busy():
    kv = cache(2)
    one, two = computed(kv, "s"), computed(kv, "t")
    one.held = True
    assert place(kv, "u") is two
    two.held = True
    with pytest.raises(Busy, match="every lane"):
        place(kv, "v")
    assert one.session_id == "s"


def test_pinned_lanes_are_evicted_last():
    kv = cache(2)
    pinned, other = computed(kv, "s", pinned=True), computed(kv, "t")
    assert place(kv, "u") is other
    assert place(kv, "v") is other
    assert pinned.position == 6


# What is kept


def test_without_a_budget_and_a_folder_nothing_is_copied():
    kv = cache(ram=0)
    kv.keep_prefix(computed(kv, "s", PERSONA))
    computed(kv, "s")
    assert not kv.has_chore()
    computed(kv, "t", ((9,),))
    assert (kv.ram.bytes, kv.persist(), kv.chore()) == (0, False, False)
    assert wanted(kv, "s", (*HELLO, (7,)))[1:] == ("", 0)


def test_without_a_budget_but_with_a_folder_an_evicted_conversation_goes_to_disk(tmp_path):
    disk = on_disk(tmp_path)
    kv = cache(ram=0, disk=disk)
    computed(kv, "s")
    computed(kv, "t", ((9,),))
    disk.flush(30)
    assert wanted(kv, "s", (*HELLO, (7,)))[1:] == ("disk", 6)


def test_what_memory_has_no_room_for_goes_to_disk(tmp_path):
    disk = on_disk(tmp_path)
    kv = cache(ram=len(snapshot(HELLO).data) + 10, disk=disk)
    for session in "stu":
        computed(kv, session)
    disk.flush(30)
    assert len(kv.ram) == 1 and {header.session_id for header in disk} == {"s"}
    assert wanted(kv, "s", (*HELLO, (7,)))[1] in ("ram", "disk")


def test_the_lane_that_would_go_next_is_copied_in_idle_time_once():
    kv = cache(2)
    computed(kv, "s")
    assert not kv.has_chore(), "a lane is free"
    computed(kv, "t", ((9,),))
    assert kv.has_chore() and kv.chore()
    assert kv.ram.holds(KEY, "s", HELLO)
    assert not kv.has_chore() and not kv.chore()


def test_a_copy_that_finds_no_room_is_not_tried_again_and_again():
    kv = cache(ram=5)
    computed(kv, "s")
    assert kv.chore()
    assert not kv.has_chore()


def test_every_lane_and_every_copy_is_written_to_disk_once(tmp_path):
    disk = on_disk(tmp_path)
    kv = cache(2, disk=disk)
    kv.keep_prefix(computed(kv, "s", PERSONA))
    computed(kv, "s")
    computed(kv, "t", ((9,),))
    written = 0
    while kv.persist():
        written += 1
        disk.flush(30)
    assert written == 3
    assert {(header.session_id, header.calls) for header in disk} == {("s", HELLO), ("t", ((9,),)), ("", PERSONA)}
    computed(kv, "s", (*HELLO, (7,)))
    assert kv.persist() and disk.flush(30) and not kv.persist()
    assert disk.holds(KEY, "s", (*HELLO, (7,)))


def test_an_older_copy_of_a_conversation_that_has_a_lane_is_not_written_in_turn_with_the_newer_one(tmp_path):
    disk = on_disk(tmp_path)
    kv = cache(disk=disk)
    computed(kv, "s")
    assert kv.chore()
    computed(kv, "s", (*HELLO, (7,)))
    for _ in range(3):
        kv.persist()
        disk.flush(30)
    assert not kv.persist()
    assert disk.holds(KEY, "s", (*HELLO, (7,)))
    kv.ram.put(Snapshot(KEY, "", "mira", ((9,),), b"x" * ROOM))
    disk.flush(30)
    assert disk.holds(KEY, "s", (*HELLO, (7,))), "nor when it has to make room"


def test_a_file_that_made_room_for_others_is_not_written_again_and_again(tmp_path):
    disk = on_disk(tmp_path, budget=1)
    kv = cache(disk=disk)
    computed(kv, "s")
    assert kv.persist()
    disk.flush(30)
    disk.close(30)
    assert len(disk) == 0
    assert not kv.persist()


def test_what_a_turn_holds_is_not_written(tmp_path):
    kv = cache(disk=on_disk(tmp_path))
    computed(kv, "s").held = True
    assert not kv.persist()


# Dropping


def test_a_session_is_dropped_in_every_tier(tmp_path):
    disk = on_disk(tmp_path)
    kv = cache(2, disk=disk)
    computed(kv, "s"), computed(kv, "t")
    for lane in kv.lanes:
        kv.keep(lane)
    while kv.persist():
        disk.flush(30)
    kv.drop(lambda what: what.session_id == "s")
    assert [lane.session_id for lane in kv.lanes] == ["", "t"]
    assert [copy.session_id for copy in kv.ram] == [header.session_id for header in disk] == ["t"]


def test_a_persona_is_dropped_in_every_tier_with_its_fixed_part(tmp_path):
    disk = on_disk(tmp_path)
    kv = cache(3, disk=disk)
    kv.keep_prefix(computed(kv, "s", PERSONA))
    computed(kv, "s"), computed(kv, "t", ((9,),), persona="bram")
    while kv.persist():
        disk.flush(30)
    kv.drop(lambda what: what.persona_id == "mira")
    assert (kv.lanes.bound, len(kv.ram), [header.persona_id for header in disk]) == (1, 0, ["bram"])


def test_what_a_turn_holds_is_not_dropped_under_it():
    kv = cache()
    lane = computed(kv, "s")
    lane.held = True
    kv.drop(lambda what: True)
    assert lane.position == 6
