"""Turns: from ``start_turn`` to ``turn_finished``.

Rules: which turn goes first is the schedule's to say; a persona's version and adapters are fixed when its turn leaves
the queue, and nothing that happens later changes them; every turn ends with exactly one ``turn_finished`` or
``error``; the session gains both lines, or none.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Literal

import msgspec

from npc_runtime.catalog import CatalogEntry
from npc_runtime.config import Settings
from npc_runtime.daemon.engine_port import EnginePort
from npc_runtime.daemon.rehearsals import Rehearsals
from npc_runtime.daemon.schedule import Schedule
from npc_runtime.daemon.sessions import Session, Sessions
from npc_runtime.daemon.turn_answers import turn_finished, turn_started
from npc_runtime.daemon.turns import Listener, Turn, Turns
from npc_runtime.daemon.voices import Voices, conversation
from npc_runtime.engine.commands import (
    AnyEvent,
    DropKv,
    PersonaMeasured,
    Prepared,
    ReplyDelta,
    RunTurn,
    SetRunning,
    StopTurn,
    TurnBegan,
    TurnDone,
    TurnFailed,
)
from npc_runtime.errors import (
    AdapterChanged,
    AdapterInvalid,
    Busy,
    DeadlineExceeded,
    EngineCrashed,
    InternalError,
    InvalidField,
    MessageTooLarge,
    NpcError,
    ShuttingDown,
    from_code,
)
from npc_runtime.persona import Persona, persona_key
from npc_runtime.prompt import Exchange
from npc_runtime.protocol import error_answer
from npc_runtime.protocol.messages import (
    AdapterUse,
    Answer,
    StartTurn,
    TurnDelta,
)

log = logging.getLogger("npc_runtime.daemon")

NO_WORDS = "…"
"""What a character says where the model gave nothing and its writer gave no fallback lines."""
USUAL_TURN_SECONDS = 2.0
"""How long a turn takes, as long as none has been measured."""


class Dialogue:
    """All conversations. ``send(client, answer)`` delivers, or is False where the client cannot take it;
    ``look_again(turn)`` asks for a scan of the folders."""

    def __init__(
        self,
        settings: Settings,
        engine: EnginePort,
        send: Callable[[bytes, Answer], bool],
        look_again: Callable[[Turn], None],
        clock: Callable[[], float],
    ) -> None:
        self.sessions = Sessions(settings.max_sessions)
        self.voices = Voices(engine, self.sessions)
        self.rehearsals = Rehearsals(engine, self.voices, self.sessions, send, settings.max_line_chars)
        self.turns = Turns(max_queued=settings.max_queued_turns, finished_kept=settings.finished_turns_kept)
        self.draining = False
        self.finished = 0
        self.failed = 0
        self._schedule = Schedule(
            max_active=settings.max_active_turns, starvation_seconds=settings.starvation_seconds, clock=clock
        )
        self._running: tuple[str, ...] = ()
        self._turn_seconds = USUAL_TURN_SECONDS
        self._settings = settings
        self._engine = engine
        self._send = send
        self._look_again = look_again
        self._clock = clock

    # Turns

    def start_turn(self, client: bytes, request: StartTurn) -> None:
        """Queue a turn, or attach to the one that the request repeats. Raises what is wrong with the request."""
        repeated = self.turns.repeated(request)
        if repeated is not None:
            self._attach(repeated, client, request)
            return
        session = self._check(request)
        turn = Turn(request, session, [Listener(client, request.id)], self._clock())
        self._make_room(turn)
        self.turns.enqueue(turn)
        self.pump()

    def _make_room(self, turn: Turn) -> None:
        """Raises Busy where the queue is full of turns that go before this one; else the last of the others goes."""
        queue = self.turns.queue
        if len(queue) < self.turns.max_queued:
            return
        error = Busy(
            f"the queue is full: {len(queue)} waiting, as many as max_queued_turns allows; try again later",
            position=len(queue),
            retry_after_ms=self._turn_seconds * 1e3 / self._settings.max_active_turns,
        )
        last = self._schedule.in_order(queue)[-1]
        if self._schedule.rank(last) >= self._schedule.rank(turn):
            raise error
        self._fail(last, error)

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
        """Start what can be started, and let those run that go first. Not before the adapters were compared with the
        base model."""
        self.rehearsals.pump()
        if self._engine.state == "ready" and self.voices.base_known:
            for turn in self._schedule.in_order(self.turns.queue):
                self._start(turn)
            self._let_run()
        if unavailable := self._engine.unavailable():
            for turn in list(self.turns.queue):
                self._fail(turn, unavailable)
            self.rehearsals.give_up(unavailable)
        self._end_late()

    def _start(self, turn: Turn) -> None:
        active, queue = self.turns.active, self.turns.queue
        if turn not in queue or not self._schedule.may_begin(turn, active, queue, self._engine.lanes):
            return
        try:
            self._begin(turn)
        except NpcError as error:
            self._fail(turn, error)
        except Exception:
            # Whatever is odd about this turn, the others wait behind it.
            log.exception("turn could not be started")
            self._fail(turn, InternalError("the daemon failed on this turn; see its log"))

    def _begin(self, turn: Turn) -> None:
        """Hand the turn to the engine, unless the folders have to be looked at first."""
        entry = self._current_entry(turn)
        if entry is None:
            return
        command = self._command(turn, entry)
        self._engine.send(command)
        turn.session.primed = ()
        self.turns.begin(turn, self._clock())
        turn.entry, turn.seed = entry, command.seed
        turn.adapters = tuple(AdapterUse(a.name, a.digest, a.scale) for a in command.adapters)

    def _let_run(self) -> None:
        """Tell the engine which of its turns are computed, where that has changed."""
        running = self._schedule.running(self.turns.active, self.turns.queue)
        now = self._clock()
        for turn in self.turns.active:
            if turn in running:
                turn.waiting_since = None
            elif turn.waiting_since is None:
                turn.waiting_since = now
        ids = tuple(turn.id for turn in running)
        if ids != self._running:
            self._running = ids
            self._engine.send(SetRunning(ids))

    def _end_late(self) -> None:
        """End the turns whose deadline has passed in the queue; the engine ends those that have begun."""
        now = self._clock()
        for turn in [turn for turn in self.turns.queue if turn.deadline is not None and now >= turn.deadline]:
            self._fail(turn, _too_late(turn))

    @property
    def first_running(self) -> str | None:
        """The id of the turn that goes first."""
        return self._running[0] if self._running else None

    def seconds_to_deadline(self) -> float | None:
        """How long until a waiting turn's deadline passes."""
        deadlines = [turn.deadline for turn in self.turns.queue if turn.deadline is not None]
        return max(0.0, min(deadlines) - self._clock()) if deadlines else None

    def _current_entry(self, turn: Turn) -> CatalogEntry | None:
        """The persona's version for this turn; None while files that turned out to be changed are being read."""
        found = self.voices.catalog.entries.get(persona_key(turn.session.persona_id))
        if turn.files == "not checked" and (found is None or not found.is_current()):
            turn.files = "being read"
            self._look_again(turn)
        if turn.files == "being read":
            return None
        return self.voices.usable(turn.session.persona_id)

    def _command(self, turn: Turn, entry: CatalogEntry) -> RunTurn:
        request, session, persona = turn.request, turn.session, entry.persona
        sampling = request.sampling.over(persona.sampling) if request.sampling is not None else persona.sampling
        return RunTurn(
            turn_id=turn.id,
            session_id=session.id,
            persona_id=persona_key(persona.id),
            conversation=conversation(
                persona, session.player, session.remembered, request.text.strip(), session.primed
            ),
            adapters=self.voices.adapters(entry, session, request.adapters),
            pinned=persona.pinned,
            sampling=sampling,
            seed=sampling.seed if sampling.seed is not None else secrets.randbits(32),
            stops=persona.stop,
            max_tokens=request.max_tokens or persona.max_tokens,
            min_tokens=request.min_tokens,
            max_seconds=self._settings.max_turn_seconds,
            deadline_seconds=None if turn.deadline is None else max(0.0, turn.deadline - self._clock()),
        )

    def cancel(self, turn_id: str, *, keep: bool) -> Literal["queued", "running", "finished", "unknown"]:
        """Stop a turn, if there is one of that id; what it was."""
        turn = self.turns.find(turn_id)
        if turn is None:
            return "unknown"
        was = turn.state
        self._cancel(turn, keep=keep)
        return was

    def cancel_in(self, session_id: str) -> None:
        """Cancel the turns of a session."""
        for turn in self.turns.open_turns():
            if turn.request.session_id == session_id:
                self._cancel(turn, keep=False)

    def cancel_of(self, client: bytes) -> None:
        """A client is gone: cancel every turn that nobody else listens to."""
        self.rehearsals.drop_client(client)
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
            self._engine.send(StopTurn(turn.id))
        elif turn.state == "queued":
            turn.left_queue = self._clock()
            self._finish_unstarted(turn)

    def _finish_unstarted(self, turn: Turn) -> None:
        nothing = TurnDone(turn_id=turn.id, finish_reason="cancelled")
        self._end(turn, turn_finished(turn, nothing, "", turn.session.dropped, kept=False, fallback=False))

    # Events of the engine

    def on_engine_ready(self) -> None:
        """A new engine: it knows nothing yet."""
        self._running = ()
        self.voices.on_engine_ready()

    def take(self, event: AnyEvent) -> None:
        """What the engine has done."""
        match event:
            case Prepared():
                self.rehearsals.on_prepared(event)
            case PersonaMeasured():
                self.voices.on_measured(event)
            case TurnBegan():
                self.on_began(event)
            case ReplyDelta():
                self.on_delta(event)
            case TurnDone():
                self.on_done(event)
            case TurnFailed():
                self.on_failed(event)

    def on_began(self, event: TurnBegan) -> None:
        """The engine has loaded and bound the adapters."""
        turn = self._active(event.turn_id)
        if turn is None or turn.entry is None:
            return
        self._answer(turn, turn_started(turn, turn.entry.persona))

    def on_delta(self, event: ReplyDelta) -> None:
        """A piece of the reply."""
        turn = self._active(event.turn_id)
        if turn is not None:
            self._say(turn, event.text)

    def _say(self, turn: Turn, text: str) -> None:
        if turn.deltas == 0:
            turn.first_text = self._clock()
        self._answer(turn, TurnDelta(reply_to=None, turn_id=turn.id, index=turn.deltas, text=text))
        turn.deltas += 1

    def on_done(self, event: TurnDone) -> None:
        """The reply is complete: keep the exchange, tell the client, go on with the next turn."""
        turn = self._active(event.turn_id)
        if turn is None or turn.entry is None:
            return
        session = turn.session
        cancelled = event.finish_reason == "cancelled"
        if event.finish_reason == "time" and not event.text and self._is_late(turn):
            self._fail(turn, _too_late(turn))
            self.pump()
            return
        text, fallback = event.text, not event.text and not cancelled
        if fallback:
            text = _fallback_line(turn.entry.persona, turn.seed)
            self._say(turn, text)
        kept = bool(event.text) and (turn.keep if cancelled else True)
        session.dropped += event.dropped_exchanges
        answer_dropped = session.dropped
        if kept:
            line = turn.request.text.strip()
            session.exchanges.append(Exchange(line, event.text, event.tokens, event.rest, event.cuts))
            session.dropped += event.drop_next
        self.finished += 1
        self._end(turn, turn_finished(turn, event, text, answer_dropped, kept=kept, fallback=fallback))
        self.pump()
        if session in self.sessions and not any(other.session is session for other in self.turns.open_turns()):
            self.rehearsals.after_reply(session)

    def _is_late(self, turn: Turn) -> bool:
        return turn.deadline is not None and self._clock() >= turn.deadline

    def on_failed(self, event: TurnFailed) -> None:
        """The engine ended the turn with an error."""
        turn = self._active(event.turn_id)
        if turn is None:
            return
        error = from_code(event.code, event.message)
        if isinstance(error, AdapterChanged) and turn.entry is not None and turn.entry.problem:
            # The version that serves is not loaded any more, and its file has become one that cannot be used.
            error = AdapterInvalid(turn.entry.problem)
        self._fail(turn, error)
        self.pump()

    def give_up_active(self, error: NpcError) -> None:
        """End every turn that has begun with ``error``, whatever the engine is doing with it."""
        for turn in list(self.turns.active):
            self._engine.send(StopTurn(turn.id))
            self._fail(turn, error)

    def on_engine_lost(self) -> None:
        """The engine died: the turns it had begun end with an error; sessions and queue stay.

        A turn of which nothing was said goes back to its place in the queue, once.
        """
        for turn in list(self.turns.active):
            if not turn.answers and not turn.cancelled and not turn.started_again:
                turn.started_again = True
                self.turns.put_back(turn, self._clock())
            else:
                text = "the engine process ended during this turn; nothing of it was kept; say the line again"
                self._fail(turn, EngineCrashed(text))
        self._running = ()
        self.rehearsals.on_engine_lost()
        self.pump()

    def _active(self, turn_id: str) -> Turn | None:
        return next((turn for turn in self.turns.active if turn.id == turn_id), None)

    def _fail(self, turn: Turn, error: NpcError) -> None:
        self.failed += 1
        self._end(turn, error_answer(error, None, turn.id))

    def _end(self, turn: Turn, answer: Answer) -> None:
        self.turns.finish(turn)
        if turn.left_queue and turn.answers:
            self._turn_seconds += 0.2 * (self._clock() - turn.left_queue - self._turn_seconds)
        if turn.session not in self.sessions:
            self._engine.send(DropKv(session_id=turn.session.id))
        self._answer(turn, answer)

    def _answer(self, turn: Turn, answer: Answer) -> None:
        turn.answers.append(answer)
        for client, reply_to in turn.listeners:
            self._send(client, msgspec.structs.replace(answer, reply_to=reply_to))


def _too_late(turn: Turn) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the turn's deadline_ms of {turn.request.deadline_ms:g} passed before anything was said; nothing is kept"
    )


def _fallback_line(persona: Persona, seed: int) -> str:
    return persona.fallback[seed % len(persona.fallback)] if persona.fallback else NO_WORDS
