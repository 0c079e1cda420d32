"""The sockets: one ROUTER, one thread. The only module of the daemon that knows ZeroMQ.

A message is one frame. A client that uses REQ (an empty frame in front) is answered in the same form. Sends never
block and never drop in silence: what a client does not take waits in its outbox, in order; a client whose outbox is
full, or that is gone, is reported.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils.monitor import parse_monitor_message

from npc_runtime.errors import ConfigError

Identity = bytes

HEARTBEAT_MS = 5_000
HEARTBEAT_TIMEOUT_MS = 30_000
SEND_HWM = 256
RETRY_MS = 20
MAX_IPC_PATH = 103
"""Bytes that every supported system allows for a socket path."""


@dataclass
class Peer:
    """One client connection, as far as the ROUTER knows it. ``link`` is the file descriptor under it."""

    identity: Identity
    envelope: list[bytes]
    descriptor: int = -1
    greeted: bool = False
    slow: bool = False
    outbox: deque[bytes] = field(default_factory=deque)


class Server:
    """Binds at once (raises ConfigError); ``wake`` may be called from any thread, all else from one."""

    def __init__(self, *, host: str, port: int, ipc_path: str, max_message_bytes: int, max_outbox: int) -> None:
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.setsockopt(zmq.SNDHWM, SEND_HWM)
        self._router.setsockopt(zmq.RCVHWM, 1000)
        # A little more than what is allowed, so that a slightly too large message gets an answer and not a closed link.
        self._router.setsockopt(zmq.MAXMSGSIZE, 4 * max_message_bytes)
        self._router.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self._router.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        # A ROUTER does not tell when a client leaves; its monitor does, by file descriptor.
        self._monitor = self._router.get_monitor_socket(int(zmq.EVENT_DISCONNECTED))
        self._poller.register(self._monitor, zmq.POLLIN)
        self._poller.register(self._wake_in, zmq.POLLIN)
        self._max_outbox = max_outbox
        self.peers: dict[Identity, Peer] = {}
        self.lost: list[Identity] = []
        self.slow: list[Identity] = []
        self.ipc_path = ipc_path
        try:
            self.port = self._bind_tcp(host, port)
            if ipc_path:
                self._bind_ipc(ipc_path)
        except ConfigError:
            self.close()
            raise

    def _bind_tcp(self, host: str, port: int) -> int:
        address = "127.0.0.1" if host == "localhost" else host
        try:
            self._router.bind(f"tcp://{address}:{port or '*'}")
        except zmq.ZMQError as error:
            raise ConfigError(
                f"port {port} on {address} cannot be used: {error}; another daemon may be running; "
                "stop it, choose another port, or use port 0 for a free one"
            ) from None
        endpoint = str(self._router.getsockopt_string(zmq.LAST_ENDPOINT))
        return int(endpoint.rpartition(":")[2])

    def _bind_ipc(self, path: str) -> None:
        if not zmq.has("ipc"):
            self.ipc_path = ""
            raise ConfigError("this build of ZeroMQ has no ipc:// transport; leave ipc_path empty and use TCP")
        try:
            _clear_socket_path(path)
            self._router.bind(f"ipc://{path}")
        except ConfigError:
            self.ipc_path = ""
            raise
        except (zmq.ZMQError, OSError) as error:
            self.ipc_path = ""
            raise ConfigError(f"ipc_path '{path}' cannot be used: {error}") from None

    def wake(self) -> None:
        """Make a running ``receive`` return."""
        with contextlib.suppress(OSError):  # a full pipe wakes just as well; a closed one has nobody to wake
            self._wake_out.send(b"\0")

    def receive(self, timeout_ms: int) -> Iterator[tuple[Peer, bytes]]:
        """The messages that are there, after waiting for at most ``timeout_ms`` for one or for ``wake``."""
        if any(peer.outbox for peer in self.peers.values()):
            timeout_ms = min(timeout_ms, RETRY_MS)
        ready = dict(self._poller.poll(timeout_ms))
        if self._wake_in.fileno() in ready:
            self._drain_wake()
        self._flush()
        self._notice_lost()
        while True:
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            # Before a message is looked at: its descriptor may be one that a lost client had until just now.
            self._notice_lost()
            if len(frames) > 1:
                yield self._peer(frames), frames[-1].bytes

    def _notice_lost(self) -> None:
        while self._monitor.poll(0):
            link = parse_monitor_message(self._monitor.recv_multipart())["value"]
            for peer in [peer for peer in self.peers.values() if peer.descriptor == link]:
                self.drop(peer.identity)
                self.lost.append(peer.identity)

    def _drain_wake(self) -> None:
        try:
            while self._wake_in.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _peer(self, frames: Sequence[zmq.Frame]) -> Peer:
        identity, link = frames[0].bytes, -1
        with contextlib.suppress(zmq.ZMQError):  # not every transport has a descriptor
            link = int(frames[-1].get(zmq.SRCFD))
        peer = self.peers.get(identity)
        if peer is not None and peer.descriptor != link:
            # Another connection under the same identity: a stranger, who must not hear what was meant for the first.
            self.lost.append(identity)
            peer = None
        if peer is None:
            envelope = [b""] if len(frames) > 2 and not frames[1].bytes else []
            peer = self.peers[identity] = Peer(identity, envelope, link)
        return peer

    def send(self, identity: Identity, data: bytes) -> bool:
        """Send, or keep for later where the client does not read. False where the message is not taken.

        A client that is gone ends up in ``lost``, one with a full outbox in ``slow``, once, until ``forgive``.
        """
        peer = self.peers.get(identity)
        if peer is None or peer.slow:
            return False
        if len(peer.outbox) >= self._max_outbox:
            peer.slow = True
            self.slow.append(identity)
            return False
        peer.outbox.append(data)
        self._flush_peer(peer)
        return True

    def forgive(self, peer: Peer) -> None:
        """Begin anew with a slow client: what waited for it is dropped."""
        peer.outbox.clear()
        peer.slow = False

    def _flush(self) -> None:
        for peer in list(self.peers.values()):
            if peer.outbox:
                self._flush_peer(peer)

    def _flush_peer(self, peer: Peer) -> None:
        while peer.outbox:
            try:
                self._router.send_multipart([peer.identity, *peer.envelope, peer.outbox[0]], zmq.NOBLOCK)
            except zmq.Again:
                return
            except zmq.ZMQError:
                self.drop(peer.identity)
                self.lost.append(peer.identity)
                return
            peer.outbox.popleft()

    def drop(self, identity: Identity) -> None:
        """Forget a client."""
        self.peers.pop(identity, None)

    def close(self, linger_ms: int = 0) -> None:
        """Close the sockets; what was sent has ``linger_ms`` to leave. Removes the ipc socket file."""
        self._flush()
        self._router.disable_monitor()
        self._monitor.close(0)
        self._router.close(linger_ms)
        self._context.term()
        self._wake_in.close()
        self._wake_out.close()
        if self.ipc_path:
            Path(self.ipc_path).unlink(missing_ok=True)


def new_daemon_id() -> str:
    """A name for one run of the daemon."""
    return secrets.token_hex(8)


def _clear_socket_path(path: str) -> None:
    """libzmq would take over a live socket, and delete an ordinary file of that name, without a word (4.3.5)."""
    if len(os.fsencode(path)) > MAX_IPC_PATH:
        raise ConfigError(f"ipc_path '{path}' has {len(os.fsencode(path))} bytes; allowed are {MAX_IPC_PATH}")
    try:
        mode = Path(path).lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"ipc_path '{path}' is a file that is not a socket; choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            Path(path).unlink()
            return
    raise ConfigError(f"ipc_path '{path}' is in use by a running daemon; stop it or choose another path")
