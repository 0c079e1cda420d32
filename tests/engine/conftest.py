"""Adapters for the scripted model: any file that begins like a GGUF will do."""

from pathlib import Path

import pytest

from npc_runtime.engine.commands import AdapterSource
from tests.engine.scene import source


@pytest.fixture
def a(tmp_path: Path) -> AdapterSource:
    """Adapter A at scale 1."""
    return _adapter(tmp_path / "a.gguf")


@pytest.fixture
def b(tmp_path: Path) -> AdapterSource:
    """Adapter B at scale 1."""
    return _adapter(tmp_path / "b.gguf")


def _adapter(path: Path) -> AdapterSource:
    path.write_bytes(b"GGUF" + path.stem.encode())
    return source(path)
