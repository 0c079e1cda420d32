import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from npc_runtime.client import Client
from tests.support.daemon import Daemon, Folders, running
from tests.support.raw_socket import RawSocket


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for a whole module, with the personas ``a``, ``b`` and ``base``."""
    with running(Folders(tmp_path_factory.mktemp("daemon") / "d")) as started:
        yield started


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with daemon.client() as connected:
        yield connected


@pytest.fixture
def raw(daemon: Daemon) -> Iterator[Callable[..., RawSocket]]:
    """Opens bare sockets to the daemon."""
    sockets: list[RawSocket] = []

    def connect(kind: int = zmq.DEALER, **options: object) -> RawSocket:
        sockets.append(RawSocket(daemon.endpoint, kind, **options))
        return sockets[-1]

    yield connect
    for opened in sockets:
        opened.close()


@pytest.fixture
def new_folders(tmp_path: Path) -> Callable[[], Folders]:
    """Makes folders that nobody else uses."""
    numbers = itertools.count()
    return lambda: Folders(tmp_path / f"f{next(numbers)}")


@pytest.fixture
def folders(new_folders: Callable[[], Folders]) -> Folders:
    return new_folders()
