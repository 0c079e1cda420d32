"""Where a conversation's KV comes from: its lane, else memory, else disk, else it is computed.

Rules: a copy into memory may be made on a turn's way (about 1 ms for 300 tokens), a write to disk never is. What is
restored was computed by the same decode calls under the same key, or it is not restored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from npc_runtime.engine.backend import ActiveSet
from npc_runtime.engine.disk_tier import DiskTier, Header
from npc_runtime.engine.lanes import Lane, LanePool
from npc_runtime.engine.plan import usable_calls
from npc_runtime.engine.snapshot import RamTier, Slot, Snapshot
from npc_runtime.errors import Busy
from npc_runtime.prompt import Call

Tier = Literal["", "resident", "ram", "disk"]
"""Where the KV that a turn used again was; empty: nowhere."""

MAX_REMEMBERED = 4096
"""Snapshots whose writing is remembered; they are written once more after that many others."""

Matches = Callable[[Lane | Snapshot | Header], bool]
"""Picks by ``session_id`` and ``persona_id``, which all three have."""


class KvCache:
    """The lanes and the two tiers behind them. ``disk`` is None where no folder is configured."""

    def __init__(self, lanes: LanePool, ram_budget: int, disk: DiskTier | None) -> None:
        self.lanes = lanes
        self._ram_budget = ram_budget
        self._no_room: tuple[Lane, int] | None = None
        self.disk = disk
        self.ram = RamTier(ram_budget, self._pass_on)
        self.evictions = 0
        self.restored = {"resident": 0, "ram": 0, "disk": 0}
        self._keeps = ram_budget > 0 or disk is not None
        self._persisted: dict[Slot, tuple[Call, ...]] = {}

    def place(self, session_id: str, persona_id: str, key: str, adapters: ActiveSet, *, pinned: bool) -> Lane:
        """A lane for the conversation: its own, or one whose KV was copied to memory first. Raises Busy."""
        lane = self.lanes.find(session_id, key) or self.lanes.choose(adapters)
        if lane is None:
            raise Busy("every lane is held by a turn; raise lanes (and kv_memory_mb), or lower max_active_turns")
        if (lane.session_id, lane.key) != (session_id, key):
            self._evict(lane)
        lane.assign(session_id, key, persona_id, pinned=pinned)
        self.lanes.touch(lane)
        return lane

    def fill(self, lane: Lane, calls: Sequence[Call]) -> tuple[Tier, int]:
        """Let the lane hold as much of ``calls`` (all but the last) as is known; from where, and how many tokens."""
        if tokens := lane.keep_shared(calls):
            return "resident", tokens
        tier = self._fetch(lane, calls)
        tokens = lane.keep_shared(calls)
        return (tier, tokens) if tokens else ("", 0)

    def _evict(self, lane: Lane) -> None:
        if lane.calls:
            self.evictions += 1
            if not lane.can_copy():
                lane.cut(lane.joint)
            self.keep(lane)

    def keep(self, lane: Lane) -> None:
        """Have a copy of the lane's KV in memory."""
        if self._keeps and self._has_no_copy(lane):
            self.ram.put(lane.snapshot())

    def keep_prefix(self, lane: Lane) -> None:
        """The lane holds a persona's fixed part and no more: keep a copy for its other conversations."""
        if self._keeps and not self.ram.holds(lane.key, "", lane.calls):
            self.ram.put(replace(lane.snapshot(), session_id=""))

    def _fetch(self, lane: Lane, calls: Sequence[Call]) -> Tier:
        cuttable = lane.context.cuttable
        held, from_ram = self.ram.best(lane.key, calls, cuttable=cuttable)
        donor, from_lane = self._donor(lane, calls)
        while self.disk is not None:
            entry, from_disk = self.disk.best(lane.key, calls, cuttable=cuttable)
            if entry is None or from_disk <= max(from_ram, from_lane):
                break
            loaded = self.disk.load(entry)
            if loaded is not None and self._restore(lane, loaded, "disk"):
                return "disk"
            self.disk.forget(entry)
        if held is not None and from_ram >= from_lane:
            taken = self._restore(lane, held, "ram")
            if not taken or held.session_id == lane.session_id != "":
                self.ram.remove(held)  # the lane has it now; what it holds later is another copy
            if taken:
                return "ram"
        if donor is not None and self._restore(lane, donor.snapshot(), "resident"):
            return "resident"
        return ""

    def _donor(self, lane: Lane, calls: Sequence[Call]) -> tuple[Lane | None, int]:
        """Another lane under the same key that begins as ``calls`` do, and how many calls they share."""
        found: tuple[Lane | None, int] = (None, 0)
        for other in self.lanes:
            if other is lane or other.key != lane.key or not other.can_copy():
                continue
            shared = usable_calls(other.calls, calls, cuttable=lane.context.cuttable)
            found = (other, shared) if shared > found[1] else found
        return found

    def _restore(self, lane: Lane, snapshot: Snapshot, tier: Tier) -> bool:
        if not lane.restore(snapshot.calls, snapshot.data):
            return False
        self.restored[tier] += 1
        return True

    # Idle time

    def has_chore(self) -> bool:
        """Whether there is a piece of work that would cost a turn time later."""
        lane = self.lanes.next_evicted()
        return lane is not None and self._wants_copy(lane)

    def chore(self) -> bool:
        """Copy the lane that goes next to memory before it has to; False where there is nothing to do."""
        lane = self.lanes.next_evicted()
        if lane is None or not self._wants_copy(lane):
            return False
        self.keep(lane)
        if self._has_no_copy(lane):
            self._no_room = (lane, lane.position)
        return True

    def _wants_copy(self, lane: Lane) -> bool:
        # What found no room beside pinned copies is not tried again and again.
        return self._ram_budget > 0 and self._no_room != (lane, lane.position) and self._has_no_copy(lane)

    def _has_no_copy(self, lane: Lane) -> bool:
        """Whether memory lacks what the lane holds, and a copy would be as good."""
        return bool(lane.calls) and lane.can_copy() and not self.ram.holds(lane.key, lane.session_id, lane.calls)

    def persist(self) -> bool:
        """Have one snapshot written to disk that is not there yet; False where all are, or too many wait."""
        if self.disk is None:
            return False
        for lane in self.lanes:
            if (
                lane.calls
                and lane.can_copy()
                and not lane.held
                and not self._is_on_disk(lane.key, lane.session_id, tuple(lane.calls))
            ):
                return self._to_disk(lane.snapshot())
        for snapshot in self.ram:
            if not self._is_outdated(snapshot) and not self._is_on_disk(
                snapshot.key, snapshot.session_id, snapshot.calls
            ):
                return self._to_disk(snapshot)
        return False

    def _is_on_disk(self, key: str, session_id: str, calls: tuple[Call, ...]) -> bool:
        """Whether it is there, waits to be written, or was written and then made room for others."""
        assert self.disk is not None
        slot = (key, session_id, () if session_id else calls)
        return self._persisted.get(slot) == calls or self.disk.holds(key, session_id, calls)

    def _is_outdated(self, snapshot: Snapshot) -> bool:
        """Whether it was copied from a lane that has gone on since: there is one file of both."""
        lane = self.lanes.find(snapshot.session_id, snapshot.key) if snapshot.session_id else None
        if lane is None or lane.held or not lane.can_copy():
            return False
        return bool(lane.calls) and tuple(lane.calls) != snapshot.calls

    def _pass_on(self, snapshot: Snapshot) -> None:
        if not self._is_outdated(snapshot):
            self._to_disk(snapshot)

    def _to_disk(self, snapshot: Snapshot) -> bool:
        if self.disk is None or not self.disk.put(snapshot):
            return False
        if len(self._persisted) >= MAX_REMEMBERED:
            self._persisted.clear()
        self._persisted[snapshot.slot] = snapshot.calls
        return True

    # Dropping

    def drop(self, matches: Matches) -> None:
        """Drop the KV of all that matches, in every tier; what a turn holds goes on."""
        for lane in self.lanes:
            if lane.key and not lane.held and matches(lane):
                lane.release()
        self.ram.drop(matches)
        self._persisted.clear()
        if self.disk is not None:
            self.disk.drop(matches)
