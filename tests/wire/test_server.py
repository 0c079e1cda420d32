"""The socket layer alone, with real sockets: nothing is lost in silence, nobody is waited for."""

import pytest
import zmq

from npc_runtime.daemon.server import Server

MESSAGES = 5000
BODY = b"x" * 1000


@pytest.fixture
def make_server():
    servers = []

    def make(max_outbox: int) -> Server:
        servers.append(Server(host="127.0.0.1", port=0, ipc_path="", max_message_bytes=10_000, max_outbox=max_outbox))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def connect():
    context = zmq.Context()
    sockets = []

    def make(server: Server) -> zmq.Socket:
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVHWM, 1)
        dealer.setsockopt(zmq.RCVBUF, 4096)
        dealer.setsockopt(zmq.RCVTIMEO, 10_000)
        dealer.connect(f"tcp://127.0.0.1:{server.port}")
        sockets.append(dealer)
        return dealer

    yield make
    for dealer in sockets:
        dealer.close(0)
    context.term()


def meet(server: Server, dealer: zmq.Socket) -> bytes:
    """Make the server know a client; its identity."""
    dealer.send(b"hi")
    for _ in range(100):
        for peer, data in server.receive(100):
            assert data == b"hi"
            return peer.identity
    raise AssertionError("the message did not arrive")


def test_a_client_that_stops_reading_gets_everything_in_order_when_it_reads_again(make_server, connect):
    server = make_server(MESSAGES)
    dealer = connect(server)
    identity = meet(server, dealer)
    for number in range(MESSAGES):
        server.send(identity, number.to_bytes(4, "big") + BODY)
    assert server.peers[identity].outbox, "all went into buffers: the test does not test anything"
    for number in range(MESSAGES):
        while not dealer.poll(0):
            assert list(server.receive(1)) == []
        assert dealer.recv()[:4] == number.to_bytes(4, "big")
    assert server.lost == [] and server.slow == []


def test_a_client_with_a_full_outbox_is_reported_and_others_are_served(make_server, connect):
    server = make_server(16)
    stuck, other = connect(server), connect(server)
    identity, neighbour = meet(server, stuck), meet(server, other)
    while not server.slow:
        server.send(identity, BODY * 50)
    assert server.slow == [identity]
    server.send(neighbour, b"you")
    assert other.recv() == b"you"


def test_a_client_that_left_is_reported(make_server, connect):
    server = make_server(16)
    dealer = connect(server)
    identity = meet(server, dealer)
    dealer.close(0)
    while not server.lost:
        assert list(server.receive(100)) == []
    assert server.lost == [identity]
    assert identity not in server.peers


def test_many_clients_that_come_and_go_leave_nothing_behind(make_server, connect):
    server = make_server(16)
    for _ in range(50):
        dealer = connect(server)
        meet(server, dealer)
        dealer.close(0)
    while len(server.lost) < 50:
        assert list(server.receive(100)) == []
    assert server.peers == {}


def test_wake_makes_a_waiting_receive_return(make_server):
    import threading

    server = make_server(16)
    threading.Thread(target=server.wake).start()
    assert list(server.receive(600_000)) == []
