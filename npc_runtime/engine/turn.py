"""One turn inside the engine: from the conversation to the reply, step by step.

A step is one decode call. Between two steps the engine looks at its commands, so a cancel takes effect within one step
and nothing else ever runs inside a step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npc_runtime.engine.backend import ActiveSet
from npc_runtime.engine.commands import AnyEvent, ReplyDelta, RunTurn, TurnBegan, TurnDone
from npc_runtime.engine.identity import kv_key
from npc_runtime.engine.lanes import Lane
from npc_runtime.engine.plan import Call, Plan, make_plan
from npc_runtime.engine.repetition import is_looping
from npc_runtime.engine.reply_text import ReplyText
from npc_runtime.prompt import Conversation, fit
from npc_runtime.protocol.messages import FinishReason

if TYPE_CHECKING:
    from npc_runtime.engine.core import EngineCore

Events = list[AnyEvent]
Steps = Iterator[Events]

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
    """The running turn. ``steps`` is the whole of it; setting ``cancelled`` ends it at the next step.

    ``forgotten``: its session was closed meanwhile; what is kept for it goes when the turn has ended.
    """

    def __init__(self, turn: RunTurn, core: EngineCore, clock: Callable[[], float]) -> None:
        self.turn = turn
        self.cancelled = False
        self.forgotten = False
        self.lane: Lane | None = None
        self._core = core
        self._clock = clock
        self._deadline = clock() + turn.max_seconds

    def steps(self) -> Steps:
        """Run the turn; every item is one step's events."""
        turn, clock, began = self.turn, self._clock, self._clock()
        adapters = self._core.adapters.active_set(turn.adapters)
        conversation, dropped = self._fit()
        plan = self._plan(conversation)
        lane = self._take_lane(adapters)
        reused = lane.keep_shared(plan.calls)
        switched = clock()
        yield [TurnBegan(turn.turn_id)]

        yield from self._prefill(lane, plan.calls, adapters)
        prefilled = clock()
        reply = yield from self._answer(lane, plan.calls, adapters)
        yield [
            TurnDone(
                turn_id=turn.turn_id,
                text=reply.text,
                finish_reason=reply.reason,
                tokens=reply.tokens,
                rest=reply.rest,
                prompt_tokens=plan.tokens,
                reused_tokens=reused,
                generated_tokens=reply.generated,
                dropped_exchanges=dropped,
                rebuilt=bool(conversation.exchanges) and reused < plan.history_tokens,
                switch_ms=(switched - began) * 1e3,
                prefill_ms=(prefilled - switched) * 1e3,
                decode_ms=(clock() - prefilled) * 1e3,
                stats=self._core.stats(),
            )
        ]

    def _fit(self) -> tuple[Conversation, int]:
        context = self._core.context_tokens
        reserve = min(self.turn.max_tokens, context // 4)
        return fit(
            self.turn.conversation,
            lambda conversation: self._plan(conversation).tokens,
            context_tokens=context,
            reserve=reserve,
        )

    def _plan(self, conversation: Conversation) -> Plan:
        core = self._core
        segments = core.template.render(conversation)
        return make_plan(segments, core.backend, bos=core.bos, chunk_tokens=core.settings.chunk_tokens)

    def _take_lane(self, adapters: ActiveSet) -> Lane:
        core = self._core
        key = kv_key(core.base_digest, self.turn.adapters, core.layout)
        self.lane = lane = core.lanes.take(self.turn.session_id, key, adapters)
        if lane.bind(adapters):
            core.adapter_switches += 1
        return lane

    def _prefill(self, lane: Lane, calls: tuple[Call, ...], adapters: ActiveSet) -> Steps:
        done = len(lane.calls)
        for index in range(done, len(calls)):
            if self.cancelled or self._clock() >= self._deadline:
                return
            lane.decode(calls[index], adapters, want_logits=index == len(calls) - 1)
            yield []

    def _answer(self, lane: Lane, calls: tuple[Call, ...], adapters: ActiveSet) -> Generator[Events, None, Reply]:
        """The reply; where the first attempt says nothing, a second one that may not end at once."""
        reply = yield from self._attempt(lane, adapters, self.turn.min_tokens, 0)
        if reply.text or reply.reason in ("cancelled", "time"):
            return reply
        lane.keep_shared(calls)
        yield from self._prefill(lane, calls, adapters)
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
                # The token is decoded even where it is the last one: the next turn then finds the whole reply.
                lane.decode((token,), adapters, want_logits=True)
                yield [ReplyDelta(turn.turn_id, delta)] if delta else []
        finally:
            sampler.close()
        if tail := said.finish():
            yield [ReplyDelta(turn.turn_id, tail)]
        kept, rest = said.settle(tokens, pieces)
        return Reply("stop" if said.stopped else reason, said.text, kept, rest, len(tokens))

    def _why_end(self, tokens: list[int], lane: Lane) -> FinishReason | None:
        if self.cancelled:
            return "cancelled"
        if self._clock() >= self._deadline:
            return "time"
        if len(tokens) >= self.turn.max_tokens or lane.position >= self._core.context_tokens:
            return "length"
        return "loop" if is_looping(tokens) else None
