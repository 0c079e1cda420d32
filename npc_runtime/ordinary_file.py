"""Reading a file that somebody else put there: never a pipe or a device, never more than was agreed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class FileTooLarge(OSError):
    """The file is larger than allowed; ``size`` is what it has, in bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(errno.EFBIG, f"it has {size} bytes")
        self.size = size


def open_ordinary(path: Path) -> BinaryIO:
    """Open ``path`` for reading. Raises OSError, also where it is a folder, a pipe or a device (which could block)."""
    descriptor = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not an ordinary file")
    return os.fdopen(descriptor, "rb")


def read_ordinary(path: Path, max_bytes: int) -> bytes:
    """The content of ``path``. Raises OSError, FileTooLarge over ``max_bytes``."""
    with open_ordinary(path) as file:
        data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise FileTooLarge(os.fstat(file.fileno()).st_size)
        return data
