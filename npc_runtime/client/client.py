"""A blocking client for Python games and tools. Needs ``pyzmq``, ``msgpack`` and ``msgspec``; no model, no YAML.

One :class:`Client` is one connection and belongs to one thread. Answers are matched to requests by id, so a reply can
be read while other requests are made; an answer that nobody waits for any more is thrown away.
"""

from __future__ import annotations

import itertools
import json
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import platformdirs
import zmq

from npc_runtime import __version__
from npc_runtime.errors import ConnectionLost, NpcError
from npc_runtime.protocol import PROTOCOL_VERSION, answered_error, decode_answer, encode
from npc_runtime.protocol.messages import (
    AdapterListed,
    AdapterScale,
    AdapterScalesSet,
    AddPersona,
    Answer,
    CancelTurn,
    CloseSession,
    Error,
    Flush,
    Flushed,
    GetHistory,
    GetStatus,
    Hello,
    History,
    ListPersonas,
    OpenSession,
    PastExchange,
    PersonaAdded,
    PersonaInfo,
    Personas,
    Ping,
    Pong,
    Prime,
    Primed,
    Priority,
    RemovePersona,
    Request,
    SessionClosed,
    SessionOpened,
    SetAdapterScales,
    StartTurn,
    Status,
    TurnCancelled,
    TurnDelta,
    TurnFinished,
    TurnStarted,
    Warm,
    Warmed,
    Welcome,
)
from npc_runtime.sampling import SamplingOverrides

AnswerType = TypeVar("AnswerType", bound=Answer)

REQUEST_TIMEOUT_S = 10.0
TURN_TIMEOUT_S = 180.0


def default_ready_file() -> Path:
    """Where a daemon with ``ready_file: auto`` says where it is: one place per user."""
    return platformdirs.user_runtime_path("npc-runtime") / "daemon.json"


class Client:
    """A connection to a daemon. Use as a context manager, or call :meth:`close`.

    ``endpoint`` is like ``tcp://127.0.0.1:5710``. Raises ConnectionLost where no daemon answers within ``timeout_s``.
    Every method raises the daemon's error as the class of :mod:`npc_runtime.errors` with that code.
    """

    def __init__(self, endpoint: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self._ids = itertools.count(1)
        self._inbox: dict[int, deque[Answer]] = {}
        self._greeted = False
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        try:
            self.welcome = self._greet()
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_ready_file(cls, path: Path | str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Client:
        """Connect to the daemon that wrote ``path`` (``serve --ready-file``)."""
        try:
            endpoint = json.loads(Path(path).read_text(encoding="utf-8"))["endpoint"]
        except (OSError, ValueError, KeyError) as error:
            raise ConnectionLost(
                f"no running daemon is known from '{path}' ({error}); start one: npc-runtime serve"
            ) from None
        return cls(endpoint, timeout_s=timeout_s)

    @classmethod
    def local(cls, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Client:
        """Connect to the daemon that this user started last (``npc-runtime serve`` without ``--ready-file``)."""
        return cls.from_ready_file(default_ready_file(), timeout_s=timeout_s)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; may be called again."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()

    # Requests

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
        request = OpenSession(id=self._id(), persona=persona, session_id=session_id, player=player, history=past)
        return Session(self, self._ask(request, SessionOpened))

    def warm(self, persona: str, *, player: str = "Player") -> Warmed:
        """Have a persona's prompt computed before anybody speaks with it; returns when that is done."""
        return self._ask(Warm(id=self._id(), persona=persona, player=player), Warmed)

    def flush(self, *, persona: str | None = None, session_id: str | None = None) -> None:
        """Drop computed KV: of a session, of a persona, or all of it. Conversations stay."""
        self._ask(Flush(id=self._id(), persona=persona, session_id=session_id), Flushed)

    def personas(self) -> tuple[PersonaInfo, ...]:
        """The catalog."""
        return self._ask(ListPersonas(id=self._id()), Personas).personas

    def add_persona(self, yaml: str, *, replace: bool = False) -> PersonaInfo:
        """Add a persona from the text of a persona file."""
        return self._ask(AddPersona(id=self._id(), yaml=yaml, replace=replace), PersonaAdded).persona

    def remove_persona(self, persona: str) -> None:
        """Take a persona out of the catalog."""
        self._ask(RemovePersona(id=self._id(), persona=persona), Answer)

    def set_adapter_scales(
        self, scales: Mapping[str, float] | None, *, persona: str | None = None, session_id: str | None = None
    ) -> tuple[AdapterListed, ...]:
        """Change scales for a persona or for one session; None takes the change back. The adapters as they are then."""
        request = SetAdapterScales(
            id=self._id(), persona=persona, session_id=session_id, scales=None if scales is None else dict(scales)
        )
        return self._ask(request, AdapterScalesSet).adapters

    def status(self) -> Status:
        """How the daemon is."""
        return self._ask(GetStatus(id=self._id()), Status)

    def ping(self) -> None:
        """Raises ConnectionLost where the daemon does not answer."""
        self._ask(Ping(id=self._id()), Pong)

    def cancel_turn(self, turn_id: str, *, keep: bool = False) -> TurnCancelled:
        """Stop a turn; with ``keep`` what was said so far stays in the conversation."""
        return self._ask(CancelTurn(id=self._id(), turn_id=turn_id, keep=keep), TurnCancelled)

    # The wire

    def _id(self) -> int:
        return next(self._ids)

    def _greet(self) -> Welcome:
        self._greeted = True
        hello = Hello(id=self._id(), protocol=PROTOCOL_VERSION, client=f"npc_runtime.client {__version__}")
        return self._ask(hello, Welcome)

    def _ask(self, request: Request, kind: type[AnswerType]) -> AnswerType:
        number = self.post(request)
        try:
            answer = self.next_answer(number, self.timeout_s)
        finally:
            self.forget(number)
        if not isinstance(answer, kind):
            raise NpcError(f"the daemon answered {type(answer).__name__} where {kind.__name__} was expected")
        return answer

    def post(self, request: Request) -> int:
        """Send a request; its answers are read with :meth:`next_answer`."""
        if not self._greeted and not isinstance(request, Hello):
            self.welcome = self._greet()
        assert isinstance(request.id, int)
        self._inbox[request.id] = deque()
        try:
            self._socket.send(encode(request), zmq.NOBLOCK)
        except zmq.Again:
            raise ConnectionLost(f"the daemon at {self.endpoint} takes no messages; is it running?") from None
        return request.id

    def next_answer(self, number: int, timeout_s: float) -> Answer:
        """The next answer to request ``number``; raises the error that it is, or ConnectionLost."""
        deadline = time.monotonic() + timeout_s
        while not self._inbox[number]:
            self._receive(deadline)
        answer = self._inbox[number].popleft()
        if isinstance(answer, Error):
            raise answered_error(answer)
        return answer

    def forget(self, number: int) -> None:
        """Throw away what still comes for request ``number``."""
        self._inbox.pop(number, None)

    def _receive(self, deadline: float) -> None:
        wait = deadline - time.monotonic()
        ready = dict(self._poller.poll(max(0, int(wait * 1e3)))) if wait > 0 else {}
        if not ready:
            raise ConnectionLost(
                f"no answer from {self.endpoint} in time; is the daemon running? start it with: npc-runtime serve"
            )
        if self._socket in ready:
            while (data := self._next_message()) is not None:
                self._sort(data)
        elif self._monitor in ready:
            self._monitor.recv_multipart()
            # The daemon knows a connection by its socket: a new connection has to greet again.
            self._greeted = False
            raise ConnectionLost(f"the daemon at {self.endpoint} closed the connection; it may have been stopped")

    def _next_message(self) -> bytes | None:
        try:
            return bytes(self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def _sort(self, data: bytes) -> None:
        answer = decode_answer(data)
        if isinstance(answer.reply_to, int) and answer.reply_to in self._inbox:
            self._inbox[answer.reply_to].append(answer)
        elif isinstance(answer, Error) and answer.reply_to is None:
            # Not even the id of what we sent could be read, or messages to us were dropped: whoever waits must know.
            raise answered_error(answer)


class Session:
    """One conversation. ``greeting`` is the character's first line."""

    def __init__(self, client: Client, opened: SessionOpened) -> None:
        self.client = client
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
            id=self.client._id(),
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
        return Reply(self.client, request)

    def warm(self) -> Warmed:
        """The player comes near: have all computed up to where the line begins; returns when that is done."""
        return self.client._ask(Warm(id=self.client._id(), session_id=self.id), Warmed)

    def warm_soon(self) -> None:
        """As :meth:`warm`, without waiting for it."""
        self.client.forget(self.client.post(Warm(id=self.client._id(), session_id=self.id)))

    def prime(self, text_so_far: str, *, complete: bool = False) -> Primed:
        """The player is typing: have the line so far read, all but its last word; returns when that is done.

        ``complete``: the line may end here, so have it read to its end, and what follows it too.
        """
        request = Prime(id=self.client._id(), session_id=self.id, text=text_so_far, complete=complete)
        return self.client._ask(request, Primed)

    def prime_soon(self, text_so_far: str, *, complete: bool = False) -> None:
        """As :meth:`prime`, without waiting for it: to be called with every few letters that are typed."""
        request = Prime(id=self.client._id(), session_id=self.id, text=text_so_far, complete=complete)
        self.client.forget(self.client.post(request))

    def history(self) -> History:
        """What the next prompt remembers; ``open_session(history=…)`` takes it back."""
        return self.client._ask(GetHistory(id=self.client._id(), session_id=self.id), History)

    def close(self) -> None:
        """Forget the conversation."""
        self.client._ask(CloseSession(id=self.client._id(), session_id=self.id), SessionClosed)


class Reply:
    """A reply in the making: iterate for its pieces, or call :meth:`wait` for its end.

    ``started`` and ``finished`` are the messages of that name, None before they came.
    """

    def __init__(self, client: Client, request: StartTurn) -> None:
        self._client = client
        self.turn_id = request.turn_id
        self.started: TurnStarted | None = None
        self.finished: TurnFinished | None = None
        self._number = client.post(request)

    def __iter__(self) -> Iterator[str]:
        try:
            while self.finished is None:
                answer = self._client.next_answer(self._number, TURN_TIMEOUT_S)
                if isinstance(answer, TurnStarted):
                    self.started = answer
                elif isinstance(answer, TurnDelta):
                    yield answer.text
                elif isinstance(answer, TurnFinished):
                    self.finished = answer
        finally:
            if self.finished is not None:
                self._client.forget(self._number)

    def wait(self) -> TurnFinished:
        """Read to the end and return it."""
        for _ in self:
            pass
        assert self.finished is not None
        return self.finished

    def cancel(self, *, keep: bool = False) -> None:
        """Stop it; the end still comes, with finish reason ``cancelled``."""
        self._client.cancel_turn(self.turn_id, keep=keep)
