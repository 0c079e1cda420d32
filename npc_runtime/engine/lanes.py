"""Lanes: contexts over one model, each bound to one adapter set and holding one conversation.

A lane's KV is described by its key (see ``identity.py``) and by the decode calls that computed it. It is used again
only under the same key, and only up to the first call that differs. A lane is held while a turn runs in it; of the
others, the one that was used the longest time ago is bound anew when all are taken, a pinned persona's last of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npc_runtime.engine.backend import ActiveSet, Context, KvBytes
from npc_runtime.engine.plan import count_tokens, shared_calls
from npc_runtime.engine.snapshot import Snapshot
from npc_runtime.errors import DecodeError
from npc_runtime.prompt import Call


class Lane:
    """One context and what its KV cache holds. ``session_id`` is empty where it is a persona's fixed part only.

    ``position`` counts its tokens. ``joint`` is the last count of calls at which a copy is as good as the original.
    Without a sliding window that is everywhere. With one, a copy lacks the cells that the window has left behind, and
    the others lie at other places in the cache, which gives other low bits (Gemma 3, llama.cpp in llama-cpp-python
    0.3.36). So the cache itself is brought into that form at fixed points of every prompt, and copies are taken there
    only.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.session_id = ""
        self.persona_id = ""
        self.key = ""
        self.pinned = False
        self.held = False
        self.calls: list[Call] = []
        self.position = 0
        self.joint = 0
        self.last_used = 0

    def assign(self, session_id: str, key: str, persona_id: str = "", *, pinned: bool = False) -> None:
        """Give the lane to a conversation; KV of any other is dropped."""
        if (self.session_id, self.key) != (session_id, key):
            self.release()
        self.session_id, self.key, self.persona_id, self.pinned = session_id, key, persona_id, pinned

    def release(self) -> None:
        """Forget the conversation and its KV."""
        self._forget_calls()
        self.context.clear()
        self.session_id = self.key = self.persona_id = ""
        self.pinned = False

    @property
    def outgrown(self) -> bool:
        """Whether it holds more than the model's sliding window."""
        return 0 < self.context.window < self.position

    def pass_joint(self) -> None:
        """The calls so far end at a joint: bring the cache into the form that a restored one has."""
        if self.outgrown and self.joint != len(self.calls) and not self.restore(self.calls[:], self.context.save()):
            raise DecodeError(
                "the KV cache could not be rearranged; the conversation is computed anew at its next turn"
            )
        self.joint = len(self.calls)

    def can_copy(self) -> bool:
        """Whether a copy of all that is held is as good as the original."""
        return not self.outgrown or self.joint == len(self.calls)

    def bind(self, adapters: ActiveSet) -> bool:
        """Make ``adapters`` the lane's set. True where that was a change (llama.cpp then plans its graphs anew)."""
        if self.context.adapters == adapters:
            return False
        self.context.set_adapters(adapters)
        return True

    def keep_shared(self, calls: Sequence[Call]) -> int:
        """Cut the KV back to the calls that it shares with ``calls`` and return how many tokens stay.

        The last call is always left to be decoded again: its logits are wanted.
        """
        self.cut(min(shared_calls(self.calls, calls), len(calls) - 1))
        return self.position

    def cut(self, count: int) -> None:
        """Keep the first ``count`` calls; where the cache cannot be cut there, nothing."""
        if count >= len(self.calls):
            return
        position = count_tokens(self.calls[:count])
        if self.context.truncate(position):
            del self.calls[count:]
            self.position = position
        else:
            self._forget_calls()
            self.context.clear()
        self.joint = self.joint if self.joint <= len(self.calls) else 0

    def decode(self, call: Call, adapters: ActiveSet, *, want_logits: bool) -> None:
        """Compute one call at the end of the KV. ``adapters`` is asserted to be active, on every call."""
        if self.context.adapters != adapters:
            raise AssertionError("the lane's active adapters are not the turn's")
        self.context.decode(call, self.position, want_logits=want_logits)
        self.calls.append(call)
        self.position += len(call)

    def snapshot(self) -> Snapshot:
        """A copy of the KV."""
        return Snapshot(self.key, self.session_id, self.persona_id, tuple(self.calls), self.context.save(), self.pinned)

    def restore(self, calls: Sequence[Call], data: KvBytes) -> bool:
        """Take the KV of ``calls`` from ``data``. False, and nothing held, where it is not taken."""
        self._forget_calls()
        tokens = count_tokens(calls)
        if not self.context.restore(data, tokens):
            return False
        self.calls.extend(calls)
        self.position, self.joint = tokens, len(self.calls)
        return True

    def _forget_calls(self) -> None:
        self.calls.clear()
        self.position = self.joint = 0


class LanePool:
    """A fixed number of lanes, built at start."""

    def __init__(self, contexts: Sequence[Context]) -> None:
        self.lanes = [Lane(context) for context in contexts]
        self._clock = 0

    def __iter__(self) -> Iterator[Lane]:
        return iter(self.lanes)

    def find(self, session_id: str, key: str) -> Lane | None:
        """The lane that holds this conversation under this key."""
        return next((lane for lane in self.lanes if (lane.session_id, lane.key) == (session_id, key)), None)

    def choose(self, adapters: ActiveSet) -> Lane | None:
        """The lane for a conversation that has none: a free one (best with the same adapters), else the one to evict.

        None where all are held.
        """
        free = [lane for lane in self.lanes if not lane.key]
        if free:
            return next((lane for lane in free if lane.context.adapters == adapters), free[0])
        return self.next_evicted()

    def next_evicted(self) -> Lane | None:
        """The taken lane that would go first; None where a lane is free or all are held."""
        if any(not lane.key for lane in self.lanes):
            return None
        idle = [lane for lane in self.lanes if not lane.held]
        return min(idle, key=lambda lane: (lane.pinned, lane.last_used), default=None)

    def touch(self, lane: Lane) -> None:
        """Count a use of the lane."""
        self._clock += 1
        lane.last_used = self._clock

    def unbind(self, adapter: object) -> None:
        """Take an adapter out of every lane that names it, so that it can be freed. The KV stays: it is known by the
        adapter's content, not by the loaded copy."""
        for lane in self.lanes:
            if any(used is adapter for used, _ in lane.context.adapters):
                lane.bind(())

    @property
    def bound(self) -> int:
        """Lanes that hold something."""
        return sum(1 for lane in self.lanes if lane.key)
