"""KV that has no lane: copies in memory, by identity and by the decode calls that computed them.

A snapshot is used for a prompt under the same key (see ``identity.py``) as far as both begin with the same calls.
Two kinds are kept: a conversation whose lane went to another, and the fixed part of a persona's prompt (no session),
which every new conversation with that persona begins with.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from npc_runtime.engine.backend import KvBytes
from npc_runtime.engine.plan import usable_calls
from npc_runtime.prompt import Call

Slot = tuple[str, str, tuple[Call, ...]]
"""KV key, session, and calls (empty where the session names it)."""


@dataclass(frozen=True)
class Snapshot:
    """``data`` is the KV of ``calls``. ``session_id`` is empty for a persona's fixed part. ``pinned``: stays."""

    key: str
    session_id: str
    persona_id: str
    calls: tuple[Call, ...]
    data: KvBytes = field(repr=False)
    pinned: bool = False

    @property
    def slot(self) -> Slot:
        """What there is one snapshot of: a session under a key, or a persona's fixed part."""
        return self.key, self.session_id, () if self.session_id else self.calls


class RamTier:
    """Snapshots in memory, never more than ``budget`` bytes; the least recently used goes first, a pinned one last.

    ``on_evict`` gets what goes.
    """

    def __init__(self, budget: int, on_evict: Callable[[Snapshot], object] = lambda snapshot: None) -> None:
        self._budget = budget
        self._on_evict = on_evict
        self._entries: OrderedDict[Slot, Snapshot] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Snapshot]:
        return iter(self._entries.values())

    def put(self, snapshot: Snapshot) -> None:
        """Keep it, in place of an older one of the same slot, as far as the budget goes."""
        self.remove(snapshot)
        if len(snapshot.data) > self._budget:
            self._on_evict(snapshot)
            return
        self._entries[snapshot.slot] = snapshot
        self.bytes += len(snapshot.data)
        for old in sorted(self, key=lambda entry: entry.pinned):
            if self.bytes <= self._budget:
                break
            self.remove(old)
            self._on_evict(old)

    def remove(self, snapshot: Snapshot) -> None:
        """Drop what is kept in its slot."""
        if (old := self._entries.pop(snapshot.slot, None)) is not None:
            self.bytes -= len(old.data)

    def drop(self, matches: Callable[[Snapshot], bool]) -> None:
        """Drop all that match."""
        for snapshot in [entry for entry in self if matches(entry)]:
            self.remove(snapshot)

    def best(self, key: str, calls: Sequence[Call], *, cuttable: bool) -> tuple[Snapshot | None, int]:
        """The snapshot that holds most of the first ``calls``, and how many of them."""
        found: tuple[Snapshot | None, int] = (None, 0)
        for entry in self:
            if entry.key == key and (shared := usable_calls(entry.calls, calls, cuttable=cuttable)) > found[1]:
                found = (entry, shared)
        if found[0] is not None:
            self._entries.move_to_end(found[0].slot)
        return found

    def holds(self, key: str, session_id: str, calls: Sequence[Call]) -> bool:
        """Whether exactly these calls are kept for that session."""
        calls = tuple(calls)
        entry = self._entries.get((key, session_id, () if session_id else calls))
        return entry is not None and entry.calls == calls
