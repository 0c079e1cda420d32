"""Computing in advance, in idle time, what a session's next turn begins with.

Three occasions, one work: after a reply (the template's text up to where the player will speak, and what has to be
computed again when old exchanges were dropped), when the player comes near (``warm``), and while the player's line is
still being typed (``prime``). A preparation holds no lane: it stops where anything else has used it meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from npc_runtime.engine.commands import Prepare, Prepared
from npc_runtime.engine.plan import Plan, count_tokens, shared_calls
from npc_runtime.prompt import Call

if TYPE_CHECKING:
    from npc_runtime.engine.core import EngineCore
    from npc_runtime.engine.turn import Steps


class Preparation:
    """``steps`` is the whole of it; it yields the one ``Prepared`` at its end, unless it is given up before."""

    def __init__(self, command: Prepare, core: EngineCore) -> None:
        self.command = command
        self._core = core
        self._primed: tuple[Call, ...] = command.conversation.primed
        self._ready = 0
        self._computed = 0

    @property
    def asked_for(self) -> bool:
        """Whether a client waits for it."""
        return bool(self.command.prepare_id)

    def steps(self) -> Steps:
        """Every item is one step's events."""
        plan, certain = self._certain()
        if not certain or count_tokens(certain) > self._core.context_tokens:
            yield [self.ended()]
            return
        if not self.asked_for and not self._core.has_lane(self.command):
            yield [self.ended(superseded=True)]  # so no other conversation loses its lane for it
            return
        lane, key, adapters = self._core.place(self.command)
        calls = (*certain, *self._end_of_prompt(certain, plan.history)) if self.command.complete else certain
        if shared_calls(lane.calls, calls) < len(calls):
            # The last call is not wanted for its logits here, so a call that never comes stands in for it.
            self._core.kv.fill(lane, (*calls, ()))
        while (done := len(lane.calls)) < len(calls):
            yield []
            same = (lane.session_id, lane.key, len(lane.calls)) == (self.command.session_id, key, done)
            if lane.held or not same or lane.context.adapters != adapters:
                yield [self.ended(superseded=True)]
                return
            self._core.compute(lane, plan, calls[done], adapters, want_logits=False)
            self._computed += len(calls[done])
        self._primed, self._ready = calls[plan.history :], count_tokens(calls)
        yield [self.ended()]

    def _certain(self) -> tuple[Plan, tuple[Call, ...]]:
        """The plan up to where no further word changes it, and its calls."""
        conversation = self.command.conversation
        stable = msgspec.structs.replace(conversation, line=stable_words(conversation.line))
        plan = self._core.plan(stable)
        if not self.command.session_id:
            return plan, plan.calls[: plan.persona]
        before = plan.calls[: plan.history]
        if not stable.line:
            return plan, before
        known, left = _split(plan.line, conversation.primed)
        return plan, (*before, *known, *self._core.chunks(left))

    def _end_of_prompt(self, certain: tuple[Call, ...], history: int) -> list[Call]:
        """The calls of what follows where the line is complete. The prompt's last token is left to the turn, which
        wants its logits."""
        conversation = self.command.conversation
        line, primed = conversation.line.strip(), certain[history:]
        plan = self._core.plan(msgspec.structs.replace(conversation, line=line, primed=primed))
        if not line or plan.calls[: len(certain)] != certain or plan.tokens > self._core.context_tokens:
            return []
        rest = tuple(token for call in plan.calls[len(certain) :] for token in call)
        return self._core.chunks(rest[:-1])

    def ended(self, *, superseded: bool = False, code: str = "", error: str = "") -> Prepared:
        """The event that ends it."""
        return Prepared(
            prepare_id=self.command.prepare_id,
            session_id=self.command.session_id,
            ready_tokens=self._ready,
            computed_tokens=self._computed,
            primed=self._primed,
            superseded=superseded,
            error_code=code,
            error=error,
            stats=self._core.stats(),
        )


def _split(line: Call, primed: tuple[Call, ...]) -> tuple[tuple[Call, ...], Call]:
    """The calls that the line was computed in before, as far as they fit, and the tokens after them."""
    known: list[Call] = []
    for call in primed:
        if line[: len(call)] != call:
            break
        known.append(call)
        line = line[len(call) :]
    return tuple(known), line


def stable_words(text: str) -> str:
    """The part of a line in the making whose tokens will not change: all but the last word, which may go on."""
    text = text.lstrip()
    if text != text.rstrip():
        return text.rstrip()
    words = text.rsplit(maxsplit=1)
    return words[0] if len(words) == 2 else ""
