"""A bare ZeroMQ socket: what other languages' clients are."""

from __future__ import annotations

import zmq

from npc_runtime.protocol import decode_answer
from npc_runtime.protocol.messages import AnyAnswer


class RawSocket:
    """One socket and its context. Connects at once, unless it is told to wait."""

    def __init__(self, endpoint: str, kind: int = zmq.DEALER, *, identity: bytes = b"", connect: bool = True) -> None:
        self._endpoint = endpoint
        self.context = zmq.Context()
        self.socket = self.context.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 30_000)
        if identity:
            self.socket.setsockopt(zmq.IDENTITY, identity)
        if connect:
            self.connect()

    def connect(self) -> None:
        """Connect to the daemon."""
        self.socket.connect(self._endpoint)

    def ask(self, data: bytes) -> AnyAnswer:
        """Send bytes and read one answer."""
        self.socket.send(data)
        return decode_answer(self.socket.recv())

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()
        self.context.term()
