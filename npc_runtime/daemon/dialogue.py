"""Sessions and turns: from ``start_turn`` to ``turn_finished``.

Rules: turns run one at a time, in the order of their arrival; a persona's version and adapters are fixed when its turn
leaves the queue, and nothing that happens later changes them; every turn ends with exactly one ``turn_finished`` or
``error``; the session gains both lines, or none.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

import msgspec

from npc_runtime.catalog import Catalog, CatalogEntry
from npc_runtime.config import Settings
from npc_runtime.daemon.adapter_set import check_scales, scaled_adapters, turn_adapters
from npc_runtime.daemon.engine_client import EngineClient
from npc_runtime.daemon.sessions import Session, Sessions
from npc_runtime.daemon.turns import Listener, Turn, Turns
from npc_runtime.engine.commands import ForgetSession, ReplyDelta, RunTurn, StopTurn, TurnBegan, TurnDone, TurnFailed
from npc_runtime.errors import (
    AdapterChanged,
    AdapterInvalid,
    EngineCrashed,
    InternalError,
    InvalidField,
    MessageTooLarge,
    NpcError,
    ShuttingDown,
    from_code,
)
from npc_runtime.persona import Persona, persona_key
from npc_runtime.prompt import Conversation, Exchange, greeting_text, system_text
from npc_runtime.protocol import error_answer
from npc_runtime.protocol.messages import (
    AdapterListed,
    AdapterUse,
    Answer,
    CancelTurn,
    OpenSession,
    SessionOpened,
    SetAdapterScales,
    StartTurn,
    Timings,
    TurnCancelled,
    TurnDelta,
    TurnFinished,
    TurnStarted,
    Usage,
)

log = logging.getLogger("npc_runtime.daemon")

NO_WORDS = "…"
"""What a character says where the model gave nothing and its writer gave no fallback lines."""


class Dialogue:
    """All conversations. ``send(client, answer)`` delivers, or is False where the client cannot take it;
    ``look_again(turn)`` asks for a scan of the folders."""

    def __init__(
        self,
        settings: Settings,
        engine: EngineClient,
        send: Callable[[bytes, Answer], bool],
        look_again: Callable[[Turn], None],
        clock: Callable[[], float],
    ) -> None:
        self.catalog = Catalog()
        self.sessions = Sessions(settings.max_sessions)
        self.turns = Turns(max_queued=settings.max_queued_turns, finished_kept=settings.finished_turns_kept)
        self.draining = False
        self.base_known = False
        self.finished = 0
        self.failed = 0
        self._settings = settings
        self._engine = engine
        self._send = send
        self._look_again = look_again
        self._clock = clock
        self._persona_scales: dict[str, dict[str, float]] = {}

    # Sessions

    def open_session(self, request: OpenSession) -> SessionOpened:
        """Raises the error of the persona, SessionConflict or Busy."""
        persona = self.catalog.usable(request.persona).persona
        session, resumed = self.sessions.open(persona.id, request.session_id, request.player)
        return SessionOpened(
            reply_to=request.id,
            session_id=session.id,
            persona=persona.id,
            name=persona.name,
            greeting=greeting_text(persona, session.player),
            resumed=resumed,
            turns=len(session.exchanges),
        )

    def close_session(self, session_id: str) -> None:
        """Cancel its turns and forget it."""
        for turn in self.turns.open_turns():
            if turn.request.session_id == session_id:
                self._cancel(turn, keep=False)
        self.sessions.close(session_id)
        self._engine.send(ForgetSession(session_id))

    # Scales

    def set_scales(self, request: SetAdapterScales) -> tuple[str, tuple[AdapterListed, ...]]:
        """Change scales from the next turn on; the persona's id and its adapters as they are then."""
        if (request.persona is None) == (request.session_id is None):
            raise InvalidField("set_adapter_scales: give either persona or session_id, exactly one of them")
        if request.session_id is not None:
            session = self.sessions.get(request.session_id)
            entry = self.catalog.entry(session.persona_id)
            check_scales(entry, request.scales or {})
            session.scales = None if request.scales is None else {**(session.scales or {}), **request.scales}
            return entry.persona.id, scaled_adapters(entry, self._scales_of(entry), session.scales)
        entry = self.catalog.entry(str(request.persona))
        check_scales(entry, request.scales or {})
        key = persona_key(entry.persona.id)
        if request.scales is None:
            self._persona_scales.pop(key, None)
        else:
            self._persona_scales.setdefault(key, {}).update(request.scales)
        return entry.persona.id, scaled_adapters(entry, self._scales_of(entry))

    def _scales_of(self, entry: CatalogEntry) -> dict[str, float] | None:
        return self._persona_scales.get(persona_key(entry.persona.id))

    # Turns

    def start_turn(self, client: bytes, request: StartTurn) -> None:
        """Queue a turn, or attach to the one that the request repeats. Raises what is wrong with the request."""
        repeated = self.turns.repeated(request)
        if repeated is not None:
            self._attach(repeated, client, request)
            return
        session = self._check(request)
        self.turns.enqueue(Turn(request, session, [Listener(client, request.id)], self._clock()))
        self.pump()

    def _check(self, request: StartTurn) -> Session:
        if self.draining:
            raise ShuttingDown("the daemon is stopping and takes no new turns; start it again")
        if error := self._engine.unavailable():
            raise error
        if not request.text.strip():
            raise InvalidField("start_turn: text is blank; send what the player says")
        if len(request.text) > self._settings.max_line_chars:
            raise MessageTooLarge(
                f"start_turn: text has {len(request.text)} characters; allowed are {self._settings.max_line_chars} "
                "(max_line_chars); say less at once"
            )
        return self.sessions.get(request.session_id)

    def _attach(self, turn: Turn, client: bytes, request: StartTurn) -> None:
        listener = Listener(client, request.id)
        if listener not in turn.listeners:
            turn.listeners.append(listener)
        for answer in turn.answers:
            if not self._send(client, msgspec.structs.replace(answer, reply_to=request.id)):
                return

    def pump(self) -> None:
        """Start the next turn where that is possible: not before the adapters were compared with the base model."""
        while self.turns.queue and self.turns.running is None and self._engine.state == "ready" and self.base_known:
            turn = self.turns.queue[0]
            try:
                if not self._begin(turn):
                    return
            except NpcError as error:
                self._fail(turn, error)
            except Exception:
                # Whatever is odd about this turn, the others wait behind it.
                log.exception("turn could not be started")
                self._fail(turn, InternalError("the daemon failed on this turn; see its log"))
        if unavailable := self._engine.unavailable():
            for turn in list(self.turns.queue):
                self._fail(turn, unavailable)

    def _begin(self, turn: Turn) -> bool:
        """Hand the turn to the engine; False where the folders have to be looked at first."""
        entry = self._current_entry(turn)
        if entry is None:
            return False
        command = self._command(turn, entry)
        self._engine.send(command)
        self.turns.queue.popleft()
        self.turns.running = turn
        turn.state, turn.left_queue = "running", self._clock()
        turn.must_end = turn.left_queue + self._settings.max_turn_seconds
        turn.entry, turn.seed = entry, command.seed
        turn.adapters = tuple(AdapterUse(a.name, a.digest, a.scale) for a in command.adapters)
        return True

    def _current_entry(self, turn: Turn) -> CatalogEntry | None:
        """The persona's version for this turn; None while files that turned out to be changed are being read."""
        found = self.catalog.entries.get(persona_key(turn.session.persona_id))
        if turn.files == "not checked" and (found is None or not found.is_current()):
            turn.files = "being read"
            self._look_again(turn)
        if turn.files == "being read":
            return None
        return self.catalog.usable(turn.session.persona_id)

    def _command(self, turn: Turn, entry: CatalogEntry) -> RunTurn:
        request, session, persona = turn.request, turn.session, entry.persona
        sampling = request.sampling.over(persona.sampling) if request.sampling is not None else persona.sampling
        adapters = turn_adapters(self.catalog, entry, request.adapters, self._scales_of(entry), session.scales)
        for adapter in adapters:
            self._engine.check_adapter(adapter.digest, adapter.name)
        return RunTurn(
            turn_id=turn.id,
            session_id=session.id,
            conversation=_conversation(persona, session, request.text.strip()),
            adapters=adapters,
            sampling=sampling,
            seed=sampling.seed if sampling.seed is not None else secrets.randbits(32),
            stops=persona.stop,
            max_tokens=request.max_tokens or persona.max_tokens,
            min_tokens=request.min_tokens,
            max_seconds=self._settings.max_turn_seconds,
        )

    def cancel_turn(self, request: CancelTurn) -> TurnCancelled:
        """Stop a turn; what it was when the request came."""
        turn = self.turns.find(request.turn_id)
        was = turn.state if turn is not None else "unknown"
        if turn is not None:
            self._cancel(turn, keep=request.keep)
        return TurnCancelled(reply_to=request.id, turn_id=request.turn_id, was=was)

    def cancel_of(self, client: bytes) -> None:
        """A client is gone: cancel every turn that nobody else listens to."""
        for turn in self.turns.open_turns():
            turn.listeners = [listener for listener in turn.listeners if listener.client != client]
            if not turn.listeners:
                self._cancel(turn, keep=False)

    def cancel_all(self) -> None:
        """Cancel every turn."""
        for turn in self.turns.open_turns():
            self._cancel(turn, keep=False)

    def _cancel(self, turn: Turn, *, keep: bool) -> None:
        if turn.state == "running":
            turn.keep = keep
            turn.cancelled = True
            turn.must_end = min(turn.must_end, self._clock())
            self._engine.send(StopTurn(turn.id))
        elif turn.state == "queued":
            turn.left_queue = self._clock()
            self._finish_unstarted(turn)

    def _finish_unstarted(self, turn: Turn) -> None:
        session = turn.session
        zero = Usage(prompt_tokens=0, reused_tokens=0, new_tokens=0, generated_tokens=0)
        queue_ms = (turn.left_queue - turn.arrived) * 1e3
        answer = TurnFinished(
            reply_to=None,
            turn_id=turn.id,
            session_id=session.id,
            persona=session.persona_id,
            text="",
            finish_reason="cancelled",
            kept=False,
            fallback=False,
            rebuilt=False,
            dropped_exchanges=session.dropped,
            usage=zero,
            timings=Timings(queue_ms=queue_ms, switch_ms=0, prefill_ms=0, ttft_ms=0, decode_ms=0),
            adapters=(),
            seed=0,
        )
        self._end(turn, answer)

    # Events of the engine

    def on_began(self, event: TurnBegan) -> None:
        """The engine has loaded and bound the adapters."""
        turn = self._running(event.turn_id)
        if turn is None or turn.entry is None:
            return
        persona = turn.entry.persona
        self._answer(
            turn,
            TurnStarted(
                reply_to=None,
                turn_id=turn.id,
                session_id=turn.request.session_id,
                persona=persona.id,
                name=persona.name,
                adapters=turn.adapters,
                seed=turn.seed,
            ),
        )

    def on_delta(self, event: ReplyDelta) -> None:
        """A piece of the reply."""
        turn = self._running(event.turn_id)
        if turn is not None:
            self._say(turn, event.text)

    def _say(self, turn: Turn, text: str) -> None:
        if turn.deltas == 0:
            turn.first_text = self._clock()
        self._answer(turn, TurnDelta(reply_to=None, turn_id=turn.id, index=turn.deltas, text=text))
        turn.deltas += 1

    def on_done(self, event: TurnDone) -> None:
        """The reply is complete: keep the exchange, tell the client, go on with the next turn."""
        turn = self._running(event.turn_id)
        if turn is None or turn.entry is None:
            return
        session = turn.session
        cancelled = event.finish_reason == "cancelled"
        text, fallback = event.text, not event.text and not cancelled
        if fallback:
            text = _fallback_line(turn.entry.persona, turn.seed)
            self._say(turn, text)
        kept = bool(event.text) and (turn.keep if cancelled else True)
        session.dropped += event.dropped_exchanges
        if kept:
            session.exchanges.append(Exchange(turn.request.text.strip(), event.text, event.tokens, event.rest))
        self.finished += 1
        self._end(turn, self._finished(turn, event, text, kept=kept, fallback=fallback))
        self.pump()

    def _finished(self, turn: Turn, event: TurnDone, text: str, *, kept: bool, fallback: bool) -> TurnFinished:
        session = turn.session
        return TurnFinished(
            reply_to=None,
            turn_id=turn.id,
            session_id=session.id,
            persona=session.persona_id,
            text=text,
            finish_reason=event.finish_reason,
            kept=kept,
            fallback=fallback,
            rebuilt=event.rebuilt,
            dropped_exchanges=session.dropped,
            usage=Usage(
                prompt_tokens=event.prompt_tokens,
                reused_tokens=event.reused_tokens,
                new_tokens=event.prompt_tokens - event.reused_tokens,
                generated_tokens=event.generated_tokens,
            ),
            timings=Timings(
                queue_ms=(turn.left_queue - turn.arrived) * 1e3,
                switch_ms=event.switch_ms,
                prefill_ms=event.prefill_ms,
                ttft_ms=(turn.first_text - turn.arrived) * 1e3 if turn.first_text else 0.0,
                decode_ms=event.decode_ms,
            ),
            adapters=turn.adapters,
            seed=turn.seed,
            tokens=event.tokens if turn.request.include_tokens else None,
        )

    def on_failed(self, event: TurnFailed) -> None:
        """The engine ended the turn with an error."""
        turn = self._running(event.turn_id)
        if turn is None:
            return
        error = from_code(event.code, event.message)
        if isinstance(error, AdapterChanged) and turn.entry is not None and turn.entry.problem:
            # The version that serves is not loaded any more, and its file has become one that cannot be used.
            error = AdapterInvalid(turn.entry.problem)
        self._fail(turn, error)
        self.pump()

    def give_up_running(self, error: NpcError) -> None:
        """End the running turn with ``error``, whatever the engine is doing with it."""
        turn = self.turns.running
        if turn is not None:
            self._engine.send(StopTurn(turn.id))
            self._fail(turn, error)

    def is_stuck(self) -> bool:
        """Whether the engine gave no end to the running turn long after it had to."""
        turn = self.turns.running
        return turn is not None and self._clock() > turn.must_end + self._settings.stuck_engine_seconds

    def on_engine_lost(self) -> None:
        """The engine died: the running turn ends with an error; sessions and queue stay.

        A turn that the engine had not begun goes back to the head of the queue, once.
        """
        turn = self.turns.running
        if turn is not None and not turn.answers and not turn.cancelled and not turn.started_again:
            turn.started_again = True
            self.turns.put_back(turn)
        elif turn is not None:
            text = "the engine process ended during this turn; nothing of it was kept; say the line again"
            self._fail(turn, EngineCrashed(text))
        self.pump()

    def _running(self, turn_id: str) -> Turn | None:
        running = self.turns.running
        return running if running is not None and running.id == turn_id else None

    def _fail(self, turn: Turn, error: NpcError) -> None:
        self.failed += 1
        self._end(turn, error_answer(error, None, turn.id))

    def _end(self, turn: Turn, answer: Answer) -> None:
        self.turns.finish(turn)
        if turn.session not in self.sessions:
            self._engine.send(ForgetSession(turn.session.id))
        self._answer(turn, answer)

    def _answer(self, turn: Turn, answer: Answer) -> None:
        turn.answers.append(answer)
        for client, reply_to in turn.listeners:
            self._send(client, msgspec.structs.replace(answer, reply_to=reply_to))


def _conversation(persona: Persona, session: Session, line: str) -> Conversation:
    return Conversation(
        system=system_text(persona, session.player),
        greeting=greeting_text(persona, session.player),
        exchanges=session.remembered,
        line=line,
        player=session.player,
        character=persona.name,
    )


def _fallback_line(persona: Persona, seed: int) -> str:
    return persona.fallback[seed % len(persona.fallback)] if persona.fallback else NO_WORDS
