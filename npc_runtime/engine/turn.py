"""One turn inside the engine: from the conversation to the reply, step by step.

A step is one decode call. Between two steps the engine looks at its commands and may let another turn go first, so a
cancel takes effect within one step, and nothing else ever runs inside a step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from npc_runtime.engine.backend import ActiveSet
from npc_runtime.engine.commands import AnyEvent, ReplyDelta, RunTurn, TurnBegan, TurnDone
from npc_runtime.engine.lanes import Lane
from npc_runtime.engine.plan import Plan
from npc_runtime.engine.repetition import is_looping
from npc_runtime.engine.reply_text import ReplyText
from npc_runtime.errors import ContentFault
from npc_runtime.prompt import Conversation, Exchange, fit
from npc_runtime.protocol.messages import FinishReason

if TYPE_CHECKING:
    from npc_runtime.engine.core import EngineCore

Events = list[AnyEvent]
Steps = Iterator[Events]

LINE_SHARE = 8
"""A player line of up to an eighth of the context is expected: for it, room is made before it comes."""

RETRY_MIN_TOKENS = 4
"""An empty reply is tried once more with the end tokens barred for this many draws."""


@dataclass
class Reply:
    """What one attempt at a reply gave."""

    reason: FinishReason
    text: str
    tokens: tuple[int, ...]
    rest: str
    generated: int


class TurnRun:
    """One turn that has begun. ``steps`` is the whole of it; setting ``cancelled`` ends it at the next step.

    ``forgotten``: its KV is to be dropped when it has ended. ``used`` is the time its own steps took, in
    seconds, ``waited`` the time that the steps of other turns took;
    ``share`` the same, counted as if it had begun with the others that run.
    ``wants_token`` is true where its next step draws a token of the reply.
    """

    def __init__(self, turn: RunTurn, core: EngineCore, clock: Callable[[], float]) -> None:
        self.turn = turn
        self.cancelled = False
        self.forgotten = False
        self.used = 0.0
        self.used_before = 0.0
        self.waited = 0.0
        self.wants_token = False
        self.lane: Lane | None = None
        self._core = core
        self._clock = clock
        self._deadline = None if turn.deadline_seconds is None else clock() + turn.deadline_seconds

    @property
    def share(self) -> float:
        """What is compared between turns that run side by side."""
        return self.used_before + self.used

    def go_on_beside(self, others: Sequence[TurnRun]) -> None:
        """From now on it is computed beside ``others``, and counts as having had as much time as who had the least."""
        self.used_before = min((other.share for other in others), default=0.0) - self.used

    @property
    def must_end(self) -> bool:
        """Whether its next step ends it, even while other turns have precedence."""
        return self.cancelled or self._out_of_time()

    def seconds_left(self) -> float | None:
        """How long it may still wait; None: as long as it takes."""
        return None if self._deadline is None else self._deadline - self._clock()

    def _out_of_time(self) -> bool:
        late = self._deadline is not None and self._clock() >= self._deadline
        return late or self.used >= self.turn.max_seconds

    def steps(self) -> Steps:
        """Run the turn; every item is one step's events."""
        turn, core, clock, began = self.turn, self._core, self._clock, self._clock()
        if self.must_end:
            yield [self._never_begun()]
            return
        conversation, dropped = self._fit(self.turn.conversation, self._reserve)
        plan = core.plan(conversation)
        self.lane, _, adapters = core.place(turn)
        lane = self.lane
        lane.held = True
        switched = clock()
        reused_from, reused = core.kv.fill(lane, plan.calls)
        restored = clock()
        yield [TurnBegan(turn.turn_id)]

        before = self.used
        yield from self._prefill(lane, plan, adapters)
        prefilled = self.used
        reply = yield from self._answer(lane, plan, adapters)
        yield [
            TurnDone(
                turn_id=turn.turn_id,
                text=reply.text,
                finish_reason=reply.reason,
                tokens=reply.tokens,
                rest=reply.rest,
                cuts=plan.line_cuts,
                prompt_tokens=plan.tokens,
                reused_tokens=reused,
                reused_from=reused_from,
                generated_tokens=reply.generated,
                dropped_exchanges=dropped,
                drop_next=self._drop_next(conversation, reply, plan.line_cuts),
                rebuilt=bool(conversation.exchanges) and reused < plan.said_tokens,
                switch_ms=(switched - began) * 1e3,
                restore_ms=(restored - switched) * 1e3,
                prefill_ms=(prefilled - before) * 1e3,
                decode_ms=(self.used - prefilled) * 1e3,
                waited_ms=self.waited * 1e3,
                stats=core.stats(),
            )
        ]

    def _never_begun(self) -> TurnDone:
        """It was cancelled, or its time ran out, while it waited: it takes no lane and loads no adapter."""
        reason: FinishReason = "cancelled" if self.cancelled else "time"
        waited_ms = self.waited * 1e3
        return TurnDone(turn_id=self.turn.turn_id, finish_reason=reason, waited_ms=waited_ms, stats=self._core.stats())

    @property
    def _reserve(self) -> int:
        return min(self.turn.max_tokens, self._core.context_tokens // 4)

    def _fit(self, conversation: Conversation, reserve: int) -> tuple[Conversation, int]:
        core = self._core
        return fit(
            conversation,
            lambda conversation: core.plan(conversation).tokens,
            context_tokens=core.context_tokens,
            reserve=reserve,
        )

    def _drop_next(self, conversation: Conversation, reply: Reply, cuts: tuple[int, ...]) -> int:
        """How many exchanges the next prompt has to leave out if its line has a usual length.

        Decided now, from the conversation alone, so that what changes can be computed before the player speaks.
        """
        exchange = Exchange(conversation.line, reply.text, reply.tokens, reply.rest, cuts)
        upcoming = msgspec.structs.replace(
            conversation, exchanges=(*conversation.exchanges, exchange), line="", primed=()
        )
        try:
            _, dropped = self._fit(upcoming, self._reserve + self._core.context_tokens // LINE_SHARE)
        except ContentFault:
            return 0  # the persona leaves no room for a line of that length: a shorter one may still fit
        return dropped

    def _prefill(self, lane: Lane, plan: Plan, adapters: ActiveSet) -> Steps:
        calls = plan.calls
        for index in range(len(lane.calls), len(calls)):
            if self.must_end:
                return
            self._core.compute(lane, plan, calls[index], adapters, want_logits=index == len(calls) - 1)
            yield []

    def _answer(self, lane: Lane, plan: Plan, adapters: ActiveSet) -> Generator[Events, None, Reply]:
        """The reply; where the first attempt says nothing, a second one that may not end at once."""
        reply = yield from self._attempt(lane, adapters, self.turn.min_tokens, 0)
        if reply.text or reply.reason in ("cancelled", "time"):
            return reply
        lane.keep_shared(plan.calls)
        yield from self._prefill(lane, plan, adapters)
        again = yield from self._attempt(lane, adapters, max(self.turn.min_tokens, RETRY_MIN_TOKENS), 1)
        again.generated += reply.generated
        return again

    def _attempt(self, lane: Lane, adapters: ActiveSet, min_tokens: int, number: int) -> Generator[Events, None, Reply]:
        turn, backend = self.turn, self._core.backend
        recent = [token for exchange in turn.conversation.exchanges for token in exchange.tokens]
        sampler = backend.new_sampler(turn.sampling, (turn.seed + number) % 2**32, min_tokens, recent)
        said = ReplyText(
            (*turn.stops, *self._core.template.stops), turn.conversation.player, turn.conversation.character
        )
        tokens: list[int] = []
        pieces: list[bytes] = []
        self.wants_token = True
        try:
            while (reason := self._why_end(tokens, lane)) is None:
                token = sampler.sample(lane.context)
                if token in backend.end_tokens:
                    reason = "end"
                    break
                tokens.append(token)
                pieces.append(backend.piece(token))
                delta = said.feed(pieces[-1])
                if said.stopped:
                    reason = "stop"
                    break
                # Said first, decoded then: the player need not wait for what only the next token needs. It is decoded
                # even where it is the last one, so that the next turn finds the whole reply.
                yield [ReplyDelta(turn.turn_id, delta)] if delta else []
                if not self.must_end:
                    lane.decode((token,), adapters, want_logits=True)
        finally:
            self.wants_token = False
            sampler.close()
        if tail := said.finish():
            yield [ReplyDelta(turn.turn_id, tail)]
        kept, rest = said.settle(tokens, pieces)
        return Reply("stop" if said.stopped else reason, said.text, kept, rest, len(tokens))

    def _why_end(self, tokens: list[int], lane: Lane) -> FinishReason | None:
        if self.cancelled:
            return "cancelled"
        if self._out_of_time():
            return "time"
        if len(tokens) >= self.turn.max_tokens or lane.position >= self._core.context_tokens:
            return "length"
        return "loop" if is_looping(tokens) else None
