"""KV on disk, so that a character is as quick after a restart as before.

One file a snapshot: a header (msgpack, with the KV's identity and the decode calls that computed it), then the bytes.
The header holds a checksum of everything; a file that is damaged, of another form or cut short is dropped with a log
line, and the KV is computed again. Files are written to a draft and renamed, by a thread of their own: a turn never
waits for a write. Only headers are read at the start; the least recently used files go where the budget is exceeded.
The folder holds what was said in token ids: it is made readable for its owner only.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import msgspec

from npc_runtime.engine.backend import KvBytes
from npc_runtime.engine.plan import usable_calls
from npc_runtime.engine.snapshot import Snapshot
from npc_runtime.prompt import Call

log = logging.getLogger("npc_runtime.engine")

MAGIC = b"NPCKV001"
SUFFIX = ".kv"
NAME = re.compile(rf"[0-9a-f]{{40}}{re.escape(SUFFIX)}")
MAX_HEADER_BYTES = 1 << 24
MAX_PENDING = 8
"""Snapshots that wait to be written; beyond, new ones are left out (they are written at the next idle moment)."""


class Header(msgspec.Struct, frozen=True):
    """What a file says of itself. ``checksum``: BLAKE2b (32 bytes) of the other fields and of the data."""

    key: str
    session_id: str
    persona_id: str
    calls: tuple[tuple[int, ...], ...]
    data_bytes: int
    checksum: bytes


@dataclass
class Entry:
    """One file that is known. ``used`` orders entries by their last use."""

    path: Path
    header: Header
    data_at: int
    used: float

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.data_at + self.header.data_bytes


class DiskTier:
    """Snapshots in ``folder``, at most ``budget`` bytes. Written by a thread; everything else by the engine's."""

    def __init__(self, folder: Path, budget: int) -> None:
        self._folder = folder
        self._budget = budget
        self._lock = threading.Condition()
        self._entries: dict[str, Entry] = {}
        self._pending: dict[str, Snapshot] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        self.dropped = 0
        self.usable = self._prepare()
        if self.usable:
            self._read_folder()
            self._keep_budget()
            self._thread.start()

    def _prepare(self) -> bool:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for draft in self._ours(".draft"):
                draft.unlink()
            probe = self._folder / f".{os.getpid()}.npc-runtime"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            log.warning("kv_dir '%s' cannot be used (%s); KV is not kept over a restart", self._folder, error)
            return False
        return True

    def _ours(self, more: str = "") -> list[Path]:
        """The files whose names we gave; whatever else is in the folder is somebody else's."""
        found = sorted(self._folder.glob(f"*{SUFFIX}{more}"))
        return [path for path in found if NAME.fullmatch(path.name.removesuffix(more))]

    # Reading

    def _read_folder(self) -> None:
        for path in self._ours():
            try:
                with path.open("rb") as file:
                    header, data_at = _read_header(file)
                stat = path.stat()
                if stat.st_size != data_at + header.data_bytes:
                    raise ValueError(f"it has {stat.st_size} bytes instead of {data_at + header.data_bytes}")
            except (OSError, ValueError) as error:
                self._count_dropped(path, error)
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            self._entries[path.name] = Entry(path, header, data_at, stat.st_mtime)

    def best(self, key: str, calls: Sequence[Call], *, cuttable: bool) -> tuple[Entry | None, int]:
        """The file that holds most of the first ``calls`` under ``key``, and how many of them."""
        found: tuple[Entry | None, int] = (None, 0)
        with self._lock:
            for entry in self._entries.values():
                header = entry.header
                if header.key == key and (shared := usable_calls(header.calls, calls, cuttable=cuttable)) > found[1]:
                    found = (entry, shared)
        return found

    def load(self, entry: Entry) -> Snapshot | None:
        """The snapshot in a file; None where the file turns out to be damaged (it is dropped)."""
        try:
            with entry.path.open("rb") as file:
                header, _ = _read_header(file)
                data = file.read()
            if len(data) != header.data_bytes or _checksum(header, data) != header.checksum:
                raise ValueError("its checksum is wrong")
        except (OSError, ValueError) as error:
            self.forget(entry)
            self._count_dropped(entry.path, error)
            return None
        if header != entry.header:
            return None  # a newer one has just taken its place
        with self._lock:
            entry.used = time.time()
        with contextlib.suppress(OSError):
            os.utime(entry.path)
        return Snapshot(header.key, header.session_id, header.persona_id, header.calls, data)

    def holds(self, key: str, session_id: str, calls: Sequence[Call]) -> bool:
        """Whether exactly these calls are kept for that session."""
        with self._lock:
            entry = self._entries.get(_file_name(key, session_id, calls))
            return entry is not None and entry.header.calls == tuple(calls)

    # Writing

    def put(self, snapshot: Snapshot) -> bool:
        """Have it written soon; False where too many wait already."""
        name = _file_name(snapshot.key, snapshot.session_id, snapshot.calls)
        with self._lock:
            if not self.usable or (len(self._pending) >= MAX_PENDING and name not in self._pending):
                return False
            self._pending[name] = snapshot
            self._lock.notify_all()
        return True

    @property
    def full(self) -> bool:
        """Whether no more can be put before something was written."""
        with self._lock:
            return len(self._pending) >= MAX_PENDING

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was put is written; False where that takes longer than ``timeout_s``."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._pending, timeout_s)

    def close(self, timeout_s: float = 1.0) -> None:
        """End the writing thread once nothing waits any more; wait for that for ``timeout_s`` at most."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        if self.usable:
            self._thread.join(timeout_s)

    def _write_all(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._pending or self._closed)
                if not self._pending:
                    return
                name, snapshot = next(iter(self._pending.items()))
            try:
                self._write(name, snapshot)
            except OSError as error:
                log.warning("KV could not be kept in '%s': %s", self._folder, error)
            with self._lock:
                if self._pending.get(name) is snapshot:
                    del self._pending[name]
                self._lock.notify_all()
            self._keep_budget()

    def _write(self, name: str, snapshot: Snapshot) -> None:
        path, draft = self._folder / name, self._folder / f"{name}.draft"
        fields = Header(snapshot.key, snapshot.session_id, snapshot.persona_id, snapshot.calls, len(snapshot.data), b"")
        header = msgspec.structs.replace(fields, checksum=_checksum(fields, snapshot.data))
        packed = msgpack.packb(msgspec.to_builtins(header, builtin_types=(bytes,)))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # somebody may have cleared it away
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(MAGIC + struct.pack("<I", len(packed)) + packed)
                file.write(snapshot.data)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        with self._lock:
            if name not in self._pending:  # it was dropped while it was being written
                draft.unlink()
                return
            draft.replace(path)
            self._entries[name] = Entry(path, header, len(MAGIC) + 4 + len(packed), time.time())

    def _keep_budget(self) -> None:
        with self._lock:
            by_age = sorted(self._entries.values(), key=lambda entry: entry.used)
        for entry in by_age:
            if self.bytes <= self._budget:
                return
            self.forget(entry)

    # Dropping

    def drop(self, matches: Callable[[Header | Snapshot], bool]) -> None:
        """Remove the files whose headers match, and do not write what waits and matches."""
        with self._lock:
            for name in [name for name, snapshot in self._pending.items() if matches(snapshot)]:
                del self._pending[name]
            found = [entry for entry in self._entries.values() if matches(entry.header)]
        for entry in found:
            self.forget(entry)

    def forget(self, entry: Entry) -> None:
        """Remove one file, unless a newer one has taken its place."""
        with self._lock:
            if self._entries.get(entry.path.name) is not entry:
                return
            del self._entries[entry.path.name]
            with contextlib.suppress(OSError):
                entry.path.unlink()

    def _count_dropped(self, path: Path, error: Exception) -> None:
        self.dropped += 1
        log.warning("KV file '%s' is dropped and will be computed again: %s", path.name, error)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        with self._lock:
            return sum(entry.size for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Header]:
        with self._lock:
            return iter([entry.header for entry in self._entries.values()])


def _read_header(file: BinaryIO) -> tuple[Header, int]:
    """The header and where the data begins. Raises ValueError for what is none of our files."""
    start = file.read(len(MAGIC) + 4)
    if len(start) != len(MAGIC) + 4 or start[: len(MAGIC)] != MAGIC:
        raise ValueError("it is not a KV file of this version")
    length = struct.unpack("<I", start[len(MAGIC) :])[0]
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header claims {length} bytes")
    try:
        fields: dict[str, Any] = msgpack.unpackb(file.read(length))
        return msgspec.convert(fields, Header, builtin_types=(bytes,)), len(start) + length
    except Exception as error:  # msgpack raises half a dozen families for damaged bytes
        raise ValueError(f"its header is damaged ({type(error).__name__})") from None


def _checksum(header: Header, data: KvBytes) -> bytes:
    fields = msgspec.to_builtins(msgspec.structs.replace(header, checksum=b""), builtin_types=(bytes,))
    digest = hashlib.blake2b(msgpack.packb(fields), digest_size=32)
    digest.update(data)
    return digest.digest()


def _file_name(key: str, session_id: str, calls: Sequence[Call]) -> str:
    """One name for a session under a key; for a persona's fixed part, one for its content."""
    content = b"" if session_id else msgpack.packb([list(call) for call in calls])
    return hashlib.blake2b(f"{key}\0{session_id}\0".encode() + content, digest_size=20).hexdigest() + SUFFIX
