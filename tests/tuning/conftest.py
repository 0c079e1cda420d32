"""What these tests share: a cache folder of their own, and a prepared file that is made once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from npc_runtime.base_model import find_base_model
from npc_runtime.tuning import prepared
from npc_runtime.tuning.prepared import Original, find_original, inspect, prepare, prepared_path
from npc_runtime.tuning.worker import Worker


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Iterator[Path]:
    """The user's cache folder, for as long as tests of this package run."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    """A child process for models."""
    with Worker(1000) as found:
        yield found


@pytest.fixture(scope="session")
def original(worker) -> Original:
    """SmolLM2 as it is shipped."""
    path = find_base_model("smollm2")
    found = find_original(path, inspect(path, worker), worker)
    assert found is not None
    return found


@pytest.fixture(scope="session")
def made(cache, original, worker) -> tuple[Path, list[tuple[str, int, int]]]:
    """SmolLM2 in Q4_0, where the command keeps it (made after less reading); and what was told while it was made."""
    told: list[tuple[str, int, int]] = []
    path = prepared_path(original.digest, "q4_0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared, "PLAIN_TALK", prepared.PLAIN_TALK[:500])
        prepare(original, "q4_0", path, 1, worker, lambda *progress: told.append(progress))
    return path, told


@pytest.fixture(scope="session")
def q4_0(made) -> Path:
    """The file alone."""
    return made[0]
