"""Conversations with whatever answers requests: a daemon at the other end of a socket, or a runtime in this process.

Answers are matched to requests by id, so a reply can be read while other requests are made; an answer that nobody waits
for any more is thrown away.
"""

from __future__ import annotations

import itertools
import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

from npc_runtime.errors import ConnectionLost, NpcError
from npc_runtime.protocol import answered_error
from npc_runtime.protocol.messages import (
    AdapterScale,
    Answer,
    CancelTurn,
    CloseSession,
    Error,
    Flush,
    Flushed,
    GetHistory,
    History,
    OpenSession,
    PastExchange,
    Prime,
    Primed,
    Priority,
    Request,
    SessionClosed,
    SessionOpened,
    StartTurn,
    TurnCancelled,
    TurnDelta,
    TurnFinished,
    TurnStarted,
    Warm,
    Warmed,
)
from npc_runtime.sampling import SamplingOverrides

AnswerType = TypeVar("AnswerType", bound=Answer)

REQUEST_TIMEOUT_S = 10.0
TURN_TIMEOUT_S = 180.0


class Link(ABC):
    """Takes requests and gives answers. Belongs to one thread.

    Every method raises the error that was answered as the class of :mod:`npc_runtime.errors` with that code.
    """

    def __init__(self, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._ids = itertools.count(1)
        self._inbox: dict[int, deque[Answer]] = {}

    # Conversations

    def open_session(
        self,
        persona: str,
        *,
        session_id: str | None = None,
        player: str = "Player",
        history: History | Sequence[PastExchange] = (),
    ) -> Session:
        """Begin a conversation with a persona (or take up the one that has this ``session_id``).

        A new one begins with ``history``: what :meth:`Session.history` gave before the daemon was restarted, or a past
        that the game makes up.
        """
        past = history.exchanges if isinstance(history, History) else tuple(history)
        request = OpenSession(id=self.new_id(), persona=persona, session_id=session_id, player=player, history=past)
        return Session(self, self.ask(request, SessionOpened))

    def warm(self, persona: str, *, player: str = "Player") -> Warmed:
        """Have a persona's prompt computed before anybody speaks with it; returns when that is done."""
        return self.ask(Warm(id=self.new_id(), persona=persona, player=player), Warmed)

    def flush(self, *, persona: str | None = None, session_id: str | None = None) -> None:
        """Drop computed KV: of a session, of a persona, or all of it. Conversations stay."""
        self.ask(Flush(id=self.new_id(), persona=persona, session_id=session_id), Flushed)

    def cancel_turn(self, turn_id: str, *, keep: bool = False) -> TurnCancelled:
        """Stop a turn; with ``keep`` what was said so far stays in the conversation."""
        return self.ask(CancelTurn(id=self.new_id(), turn_id=turn_id, keep=keep), TurnCancelled)

    # One request

    @abstractmethod
    def _send(self, request: Request) -> None:
        """Hand a request over."""

    @abstractmethod
    def _receive(self, timeout_s: float) -> None:
        """Wait for answers and :meth:`_sort` them. Raises ConnectionLost where none comes in time."""

    def new_id(self) -> int:
        """An id for a request."""
        return next(self._ids)

    def ask(self, request: Request, kind: type[AnswerType]) -> AnswerType:
        """Send a request that has one answer, and wait for it."""
        number = self.post(request)
        try:
            answer = self.next_answer(number, self.timeout_s)
        finally:
            self.forget(number)
        if not isinstance(answer, kind):
            raise NpcError(f"{type(answer).__name__} was answered where {kind.__name__} was expected")
        return answer

    def post(self, request: Request) -> int:
        """Send a request; its answers are read with :meth:`next_answer`."""
        assert isinstance(request.id, int)
        self._inbox[request.id] = deque()
        try:
            self._send(request)
        except BaseException:
            self.forget(request.id)
            raise
        return request.id

    def next_answer(self, number: int, timeout_s: float) -> Answer:
        """The next answer to request ``number``; raises the error that it is, or ConnectionLost."""
        deadline = time.monotonic() + timeout_s
        while not self._inbox[number]:
            self._receive(deadline - time.monotonic())
        answer = self._inbox[number].popleft()
        if isinstance(answer, Error):
            raise answered_error(answer)
        return answer

    def forget(self, number: int) -> None:
        """Throw away what still comes for request ``number``."""
        self._inbox.pop(number, None)

    def _sort(self, answer: Answer) -> None:
        if isinstance(answer.reply_to, int) and answer.reply_to in self._inbox:
            self._inbox[answer.reply_to].append(answer)
        elif isinstance(answer, Error) and answer.reply_to is None:
            # Not even the id of what was sent could be read, or messages to us were dropped: whoever waits must know.
            raise answered_error(answer)


class Session:
    """One conversation. ``greeting`` is the character's first line."""

    def __init__(self, link: Link, opened: SessionOpened) -> None:
        self._link = link
        self.id = opened.session_id
        self.persona = opened.persona
        self.name = opened.name
        self.greeting = opened.greeting
        self.resumed = opened.resumed
        self.turns = opened.turns

    def say(
        self,
        text: str,
        *,
        turn_id: str | None = None,
        adapters: Sequence[AdapterScale] | None = None,
        sampling: SamplingOverrides | None = None,
        max_tokens: int | None = None,
        min_tokens: int = 0,
        include_tokens: bool = False,
        priority: Priority = "normal",
        deadline_ms: float | None = None,
    ) -> Reply:
        """The player says ``text``. The turn runs at once; iterate over the reply to read it as it comes."""
        request = StartTurn(
            id=self._link.new_id(),
            session_id=self.id,
            turn_id=turn_id or secrets.token_hex(8),
            text=text,
            adapters=None if adapters is None else tuple(adapters),
            sampling=sampling,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            include_tokens=include_tokens,
            priority=priority,
            deadline_ms=deadline_ms,
        )
        return Reply(self._link, request)

    def warm(self) -> Warmed:
        """The player comes near: have all computed up to where the line begins; returns when that is done."""
        return self._link.ask(Warm(id=self._link.new_id(), session_id=self.id), Warmed)

    def warm_soon(self) -> None:
        """As :meth:`warm`, without waiting for it."""
        self._link.forget(self._link.post(Warm(id=self._link.new_id(), session_id=self.id)))

    def prime(self, text_so_far: str, *, complete: bool = False) -> Primed:
        """The player is typing: have the line so far read, all but its last word; returns when that is done.

        ``complete``: the line may end here, so have it read to its end, and what follows it too.
        """
        request = Prime(id=self._link.new_id(), session_id=self.id, text=text_so_far, complete=complete)
        return self._link.ask(request, Primed)

    def prime_soon(self, text_so_far: str, *, complete: bool = False) -> None:
        """As :meth:`prime`, without waiting for it: to be called with every few letters that are typed."""
        request = Prime(id=self._link.new_id(), session_id=self.id, text=text_so_far, complete=complete)
        self._link.forget(self._link.post(request))

    def history(self) -> History:
        """What the next prompt remembers; ``open_session(history=…)`` takes it back."""
        return self._link.ask(GetHistory(id=self._link.new_id(), session_id=self.id), History)

    def close(self) -> None:
        """Forget the conversation."""
        self._link.ask(CloseSession(id=self._link.new_id(), session_id=self.id), SessionClosed)


class Reply:
    """A reply in the making: iterate for its pieces, or call :meth:`wait` for its end.

    ``started`` and ``finished`` are the messages of that name, None before they came. The error that it ended with is
    raised whenever it is read.
    """

    def __init__(self, link: Link, request: StartTurn) -> None:
        self._link = link
        self.turn_id = request.turn_id
        self.started: TurnStarted | None = None
        self.finished: TurnFinished | None = None
        self._error: NpcError | None = None
        self._number = link.post(request)

    def __iter__(self) -> Iterator[str]:
        if self._error is not None:
            raise self._error
        try:
            while self.finished is None:
                answer = self._link.next_answer(self._number, TURN_TIMEOUT_S)
                if isinstance(answer, TurnStarted):
                    self.started = answer
                elif isinstance(answer, TurnDelta):
                    yield answer.text
                elif isinstance(answer, TurnFinished):
                    self.finished = answer
        except ConnectionLost:
            raise  # what was asked for may still come
        except NpcError as error:
            self._error = error
            raise
        finally:
            if self.finished is not None or self._error is not None:
                self._link.forget(self._number)

    def wait(self) -> TurnFinished:
        """Read to the end and return it."""
        for _ in self:
            pass
        assert self.finished is not None
        return self.finished

    def cancel(self, *, keep: bool = False) -> None:
        """Stop it; the end still comes, with finish reason ``cancelled``."""
        self._link.cancel_turn(self.turn_id, keep=keep)
