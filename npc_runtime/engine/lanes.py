"""Lanes: contexts over one model, each bound to one adapter set and holding one conversation.

A lane's KV is described by its key (see ``identity.py``) and by the decode calls that computed it. It is used again
only for the same session under the same key, and only up to the first call that differs. The least recently used lane
is bound anew when all are taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from npc_runtime.engine.backend import ActiveSet, Context
from npc_runtime.engine.plan import Call, count_tokens, shared_calls


class Lane:
    """One context and what its KV cache holds."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.session_id = ""
        self.key = ""
        self.calls: list[Call] = []
        self.last_used = 0

    @property
    def position(self) -> int:
        """Tokens in the KV cache."""
        return count_tokens(self.calls)

    def assign(self, session_id: str, key: str) -> None:
        """Give the lane to a conversation; KV of any other is dropped."""
        if (self.session_id, self.key) != (session_id, key):
            self.release()
            self.session_id, self.key = session_id, key

    def release(self) -> None:
        """Forget the conversation and its KV."""
        self.context.clear()
        self.calls.clear()
        self.session_id = self.key = ""

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
        shared = min(shared_calls(self.calls, calls), len(calls) - 1)
        if shared < len(self.calls):
            position = count_tokens(self.calls[:shared])
            if self.context.truncate(position):
                del self.calls[shared:]
            else:
                self.context.clear()
                self.calls.clear()
        return self.position

    def decode(self, call: Call, adapters: ActiveSet, *, want_logits: bool) -> None:
        """Compute one call at the end of the KV. ``adapters`` is asserted to be active, on every call."""
        if self.context.adapters != adapters:
            raise AssertionError("the lane's active adapters are not the turn's")
        self.context.decode(call, self.position, want_logits=want_logits)
        self.calls.append(call)


class LanePool:
    """A fixed number of lanes, built at start."""

    def __init__(self, contexts: Sequence[Context]) -> None:
        self.lanes = [Lane(context) for context in contexts]
        self._clock = 0

    def take(self, session_id: str, key: str, adapters: ActiveSet) -> Lane:
        """The session's lane under ``key``, else a free one (best with the same adapters), else the one that was
        used the longest time ago."""
        lane = self._find(session_id, key) or self._free(adapters) or min(self.lanes, key=lambda lane: lane.last_used)
        lane.assign(session_id, key)
        self._clock += 1
        lane.last_used = self._clock
        return lane

    def forget(self, session_id: str) -> None:
        """Release every lane of a session."""
        for lane in self.lanes:
            if lane.session_id == session_id:
                lane.release()

    def unbind(self, adapter: object) -> None:
        """Take an adapter out of every lane that names it, so that it can be freed."""
        for lane in self.lanes:
            if any(used is adapter for used, _ in lane.context.adapters):
                lane.release()
                lane.bind(())

    @property
    def bound(self) -> int:
        """Lanes that hold a conversation."""
        return sum(1 for lane in self.lanes if lane.session_id)

    def _find(self, session_id: str, key: str) -> Lane | None:
        return next((lane for lane in self.lanes if (lane.session_id, lane.key) == (session_id, key)), None)

    def _free(self, adapters: ActiveSet) -> Lane | None:
        free = [lane for lane in self.lanes if not lane.session_id]
        return next((lane for lane in free if lane.context.adapters == adapters), free[0] if free else None)
