"""A blocking client for Python games and tools. Needs ``pyzmq``, ``msgpack`` and ``msgspec``; no model, no YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import platformdirs
import zmq

from npc_runtime import __version__
from npc_runtime.client.session import REQUEST_TIMEOUT_S, Link
from npc_runtime.errors import ConnectionLost
from npc_runtime.protocol import PROTOCOL_VERSION, decode_answer, encode
from npc_runtime.protocol.messages import (
    AdapterListed,
    AdapterScalesSet,
    AddPersona,
    Answer,
    GetStatus,
    Hello,
    ListPersonas,
    PersonaAdded,
    PersonaInfo,
    Personas,
    Ping,
    Pong,
    RemovePersona,
    Request,
    SetAdapterScales,
    Status,
    Welcome,
)


def default_ready_file() -> Path:
    """Where a daemon with ``ready_file: auto`` says where it is: one place per user."""
    return platformdirs.user_runtime_path("npc-runtime") / "daemon.json"


class Client(Link):
    """One connection to a daemon. Use as a context manager, or call :meth:`close`.

    ``endpoint`` is like ``tcp://127.0.0.1:5710``. Raises ConnectionLost where no daemon answers within ``timeout_s``.
    """

    def __init__(self, endpoint: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self.endpoint = endpoint
        super().__init__(timeout_s)
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

    def personas(self) -> tuple[PersonaInfo, ...]:
        """The catalog."""
        return self.ask(ListPersonas(id=self.new_id()), Personas).personas

    def add_persona(self, yaml: str, *, replace: bool = False) -> PersonaInfo:
        """Add a persona from the text of a persona file."""
        return self.ask(AddPersona(id=self.new_id(), yaml=yaml, replace=replace), PersonaAdded).persona

    def remove_persona(self, persona: str) -> None:
        """Take a persona out of the catalog."""
        self.ask(RemovePersona(id=self.new_id(), persona=persona), Answer)

    def set_adapter_scales(
        self, scales: Mapping[str, float] | None, *, persona: str | None = None, session_id: str | None = None
    ) -> tuple[AdapterListed, ...]:
        """Change scales for a persona or for one session; None takes the change back. The adapters as they are then."""
        request = SetAdapterScales(
            id=self.new_id(), persona=persona, session_id=session_id, scales=None if scales is None else dict(scales)
        )
        return self.ask(request, AdapterScalesSet).adapters

    def status(self) -> Status:
        """How the daemon is."""
        return self.ask(GetStatus(id=self.new_id()), Status)

    def ping(self) -> None:
        """Raises ConnectionLost where the daemon does not answer."""
        self.ask(Ping(id=self.new_id()), Pong)

    # The wire

    def _greet(self) -> Welcome:
        self._greeted = True
        hello = Hello(id=self.new_id(), protocol=PROTOCOL_VERSION, client=f"npc_runtime.client {__version__}")
        return self.ask(hello, Welcome)

    def _send(self, request: Request) -> None:
        if not self._greeted and not isinstance(request, Hello):
            self.welcome = self._greet()
        try:
            self._socket.send(encode(request), zmq.NOBLOCK)
        except zmq.Again:
            raise ConnectionLost(f"the daemon at {self.endpoint} takes no messages; is it running?") from None

    def _receive(self, timeout_s: float) -> None:
        ready = dict(self._poller.poll(int(timeout_s * 1e3))) if timeout_s > 0 else {}
        if not ready:
            raise ConnectionLost(
                f"no answer from {self.endpoint} in time; is the daemon running? start it with: npc-runtime serve"
            )
        if self._socket in ready:
            while (data := self._next_message()) is not None:
                self._sort(decode_answer(data))
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
