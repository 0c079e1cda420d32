"""What was read of the files of one kind, and when a file is read again.

A file is read when its signature changed and it is at rest. Errors of the operating system are not remembered: they may
have passed by the next scan.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from npc_runtime.errors import NpcError

T = TypeVar("T")

DOUBT_SECONDS = 2.0
"""How long a file must have been seen unchanged whose new content looks like half of the old."""


@dataclass(frozen=True)
class Signature:
    """What changes when a file does. Times are nanoseconds."""

    inode: int
    size: int
    modified: int
    changed: int


def signature(path: Path) -> Signature | None:
    """The file's signature now; None where it cannot be looked at."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return Signature(stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@dataclass(frozen=True)
class Read(Generic[T]):
    """What the last read of a file gave: a value or an error. ``good``: the last value that a read of this file gave,
    also before an error. ``passing``: an error that is not remembered."""

    signature: Signature
    value: T | None
    error: NpcError | None
    good: T | None
    passing: bool = False


class Reads(Generic[T]):
    """The reads of one kind of file.

    ``load`` reads a file and makes its value, or raises NpcError or OSError; ``refuse`` makes the error of a file that
    cannot be read at all. ``settle_seconds``: how long a file that is written in place must be at rest before it is
    read again; one that was put in place by a rename is complete at once. ``new_at_once``: a file that was not known is
    read even while it is being written (its checks find out). ``is_doubtful`` compares the last good value with the new
    one. ``now`` is the clock that files' times are of; ``monotonic`` is one that nobody sets.
    """

    def __init__(
        self,
        load: Callable[[Path, Signature], T],
        refuse: Callable[[Path, str], NpcError],
        *,
        settle_seconds: float,
        new_at_once: bool,
        is_doubtful: Callable[[T, T], bool] = lambda known, new: False,
        now: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.unsettled = False
        self._load = load
        self._refuse = refuse
        self._settle_seconds = settle_seconds
        self._new_at_once = new_at_once
        self._is_doubtful = is_doubtful
        self._now = now
        self._monotonic = monotonic
        self._known: dict[Path, Read[T]] = {}
        self._doubted: dict[Path, tuple[Signature, float]] = {}
        self._asked: set[Path] = set()

    def begin(self) -> None:
        """A scan begins."""
        self.unsettled = False
        self._asked.clear()

    def end(self) -> None:
        """The scan is over: forget the files that it did not ask for."""
        self._known = {path: read for path, read in self._known.items() if path in self._asked}
        self._doubted = {path: doubt for path, doubt in self._doubted.items() if path in self._known}

    def values(self) -> list[T]:
        """Every value that is known."""
        return [read.value for read in self._known.values() if read.value is not None]

    def get(self, path: Path) -> Read[T] | None:
        """The newest read of ``path`` that can be relied on; None where there is none."""
        self._asked.add(path)
        known, sign = self._known.get(path), signature(path)
        if sign is None:
            return None
        if known is not None and known.signature == sign and not known.passing:
            return known
        if not self._is_at_rest(sign, known):
            self.unsettled = True
            if known is not None or not self._new_at_once:
                return known
        read = self._read(path, sign, known.good if known is not None else None)
        if self._is_in_doubt(path, read, known):
            self.unsettled = True
            return known
        self._doubted.pop(path, None)
        self._known[path] = read
        return read

    def _is_in_doubt(self, path: Path, read: Read[T], known: Read[T] | None) -> bool:
        """Whether this looks like half of the old content and was not seen for long enough."""
        if known is None or known.good is None or read.value is None or not self._is_doubtful(known.good, read.value):
            return False
        now = self._monotonic()
        doubt = self._doubted.get(path)
        if doubt is None or doubt[0] != read.signature:
            self._doubted[path] = doubt = (read.signature, now)
        return now - doubt[1] < DOUBT_SECONDS

    def _is_at_rest(self, sign: Signature, known: Read[T] | None) -> bool:
        """Whether nobody writes to the file any more. A rename changes the inode's own time after the content's."""
        renamed = known is not None and known.signature.inode != sign.inode and sign.changed > sign.modified
        return renamed or abs(self._now() - sign.modified / 1e9) >= self._settle_seconds

    def _read(self, path: Path, sign: Signature, good: T | None) -> Read[T]:
        try:
            value = self._load(path, sign)
            return Read(sign, value, None, good=value)
        except NpcError as error:
            return Read(sign, None, error, good)
        except (OSError, MemoryError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or "not enough memory"
            return Read(sign, None, self._refuse(path, f"it cannot be read: {reason}"), good, passing=True)
