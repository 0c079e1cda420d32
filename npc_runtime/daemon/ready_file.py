"""How a game finds the daemon: one JSON file that appears, complete, when the socket answers."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from npc_runtime import __version__
from npc_runtime.config import Settings
from npc_runtime.errors import ConfigError
from npc_runtime.protocol import PROTOCOL_VERSION


class ReadyFile:
    """The facts of one running daemon, and the file they are written to (none where ``ready_file`` is empty)."""

    def __init__(self, settings: Settings, port: int, daemon_id: str) -> None:
        self._path = Path(settings.ready_file) if settings.ready_file else None
        self.facts = {
            "pid": os.getpid(),
            "host": "127.0.0.1",
            "port": port,
            "endpoint": f"tcp://127.0.0.1:{port}",
            "ipc": f"ipc://{settings.ipc_path}" if settings.ipc_path else None,
            "protocol": PROTOCOL_VERSION,
            "version": __version__,
            "daemon_id": daemon_id,
        }

    def write(self) -> None:
        """Write it atomically, readable by its owner only. Raises ConfigError."""
        if self._path is None:
            return
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.touch(mode=0o600)
            draft.write_text(json.dumps(self.facts) + "\n", encoding="utf-8")
            draft.replace(self._path)
        except OSError as error:
            raise ConfigError(f"ready_file '{self._path}' cannot be written: {error}") from None

    def remove(self) -> None:
        """Remove it, where it is still ours."""
        if self._path is None:
            return
        with contextlib.suppress(OSError, ValueError):
            if json.loads(self._path.read_text(encoding="utf-8"))["daemon_id"] == self.facts["daemon_id"]:
                self._path.unlink()
