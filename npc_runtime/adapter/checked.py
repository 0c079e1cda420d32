"""Headers of adapters that were checked before, by content, from one start of the daemon to the next.

Reading and hashing an adapter of 5 MB takes 7 ms, parsing and checking it 40. So a folder of 64 is there in half a
second, not in three. Only what was found good is kept, and only as long as the checks are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
from pathlib import Path

import msgspec

from npc_runtime.adapter.header import AdapterHeader
from npc_runtime.ordinary_file import read_ordinary

log = logging.getLogger("npc_runtime.catalog")

MAX_KEPT = 4096
MAX_BYTES = 1 << 26


class _Content(msgspec.Struct):
    checks: str
    headers: list[AdapterHeader]


class CheckedAdapters:
    """Used by one thread. ``file`` is None where nothing is kept; one that is damaged, or was written with other
    checks, counts as empty."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        from importlib.metadata import version  # 15 ms that a client's import need not wait for

        checks = Path(__file__).with_name("check.py").read_bytes()  # not imported: see read.py
        self._checks = f"{hashlib.sha256(checks).hexdigest()} gguf {version('gguf')}"
        self._headers = {header.digest: header for header in self._read()}
        self._saved = len(self._headers)

    def _read(self) -> list[AdapterHeader]:
        if self._file is None:
            return []
        try:
            content = msgspec.msgpack.decode(read_ordinary(self._file, MAX_BYTES), type=_Content)
        except (OSError, msgspec.MsgspecError):
            return []
        return content.headers if content.checks == self._checks else []

    def find(self, digest: str) -> AdapterHeader | None:
        """The header of the file with this content, if it was found good before."""
        return self._headers.get(digest)

    def keep(self, header: AdapterHeader) -> None:
        """It was found good."""
        self._headers[header.digest] = header

    def save(self) -> None:
        """Write them down, where there are new ones. What cannot be written is checked again next time."""
        if self._file is None or len(self._headers) == self._saved:
            return
        self._saved = len(self._headers)
        data = msgspec.msgpack.encode(_Content(self._checks, list(self._headers.values())[-MAX_KEPT:]))
        draft = self._file.with_suffix(f".{secrets.token_hex(4)}.draft")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(data)
            draft.replace(self._file)
        except OSError as error:
            log.info("what was checked of adapters is not kept: %s", error)
            with contextlib.suppress(OSError):
                draft.unlink()
