"""What a client is told about a turn. The answers' ``reply_to`` is left open: many requests may wait for one turn."""

from __future__ import annotations

from npc_runtime.daemon.turns import Turn
from npc_runtime.engine.commands import TurnDone
from npc_runtime.persona import Persona
from npc_runtime.protocol.messages import Timings, TurnFinished, TurnStarted, Usage


def turn_started(turn: Turn, persona: Persona) -> TurnStarted:
    """The turn's adapters are active, the prompt is being read."""
    return TurnStarted(
        reply_to=None,
        turn_id=turn.id,
        session_id=turn.request.session_id,
        persona=persona.id,
        name=persona.name,
        adapters=turn.adapters,
        seed=turn.seed,
    )


def turn_finished(
    turn: Turn, done: TurnDone, text: str, dropped_exchanges: int, *, kept: bool, fallback: bool
) -> TurnFinished:
    """The reply is ``text``. ``dropped_exchanges`` of the session are not in its prompt."""
    session = turn.session
    return TurnFinished(
        reply_to=None,
        turn_id=turn.id,
        session_id=session.id,
        persona=session.persona_id,
        text=text,
        finish_reason=done.finish_reason,
        kept=kept,
        fallback=fallback,
        rebuilt=done.rebuilt,
        dropped_exchanges=dropped_exchanges,
        usage=_usage(done),
        timings=_timings(turn, done),
        adapters=turn.adapters,
        seed=turn.seed,
        tokens=done.tokens if turn.request.include_tokens else None,
    )


def _usage(done: TurnDone) -> Usage:
    return Usage(
        prompt_tokens=done.prompt_tokens,
        reused_tokens=done.reused_tokens,
        new_tokens=done.prompt_tokens - done.reused_tokens,
        generated_tokens=done.generated_tokens,
        reused_resident=done.reused_tokens if done.reused_from == "resident" else 0,
        reused_ram=done.reused_tokens if done.reused_from == "ram" else 0,
        reused_disk=done.reused_tokens if done.reused_from == "disk" else 0,
    )


def _timings(turn: Turn, done: TurnDone) -> Timings:
    return Timings(
        queue_ms=(turn.left_queue - turn.arrived) * 1e3,
        switch_ms=done.switch_ms,
        prefill_ms=done.prefill_ms,
        ttft_ms=(turn.first_text - turn.arrived) * 1e3 if turn.first_text else 0.0,
        decode_ms=done.decode_ms,
        restore_ms=done.restore_ms,
        tpot_ms=done.decode_ms / max(1, done.generated_tokens),
        preempted_ms=done.waited_ms,
    )
