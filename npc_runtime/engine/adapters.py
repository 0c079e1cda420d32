"""The adapters that are loaded into the model, by the sha256 of their content.

A file is hashed before it is loaded and looked at again afterwards: what is loaded under a digest is that content, or
the load is refused. Loading happens between two steps, on the thread that owns the model. At most ``limit`` stay
loaded: the one that was used the longest time ago makes room and comes back on its next use. What a turn runs under
stays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from pathlib import Path

from npc_runtime.base_model import file_digest
from npc_runtime.engine.backend import ActiveSet, Adapter, Backend
from npc_runtime.engine.commands import AdapterSource
from npc_runtime.errors import AdapterChanged, AdapterMissing

Unbind = Callable[[Adapter], None]


class LoadedAdapters:
    """Digest to loaded adapter. ``on_load`` is told before and after llama.cpp reads a file."""

    def __init__(self, backend: Backend, on_load: Callable[[str, bool], None], limit: int) -> None:
        self._backend = backend
        self._on_load = on_load
        self._limit = limit
        self._loaded: OrderedDict[str, Adapter] = OrderedDict()
        self.loads = 0

    def __len__(self) -> int:
        return len(self._loaded)

    def active_set(
        self, sources: Sequence[AdapterSource], leased: Set[str] = frozenset(), unbind: Unbind = lambda adapter: None
    ) -> ActiveSet:
        """The set for a turn; loads what is not loaded. Raises AdapterMissing, AdapterChanged or AdapterInvalid.

        ``leased`` are the digests that turns run under; ``unbind`` takes an adapter out of every lane.
        """
        wanted = leased | {source.digest for source in sources}
        for source in sources:
            if source.digest not in self._loaded:
                self._make_room(wanted, unbind)
                self._loaded[source.digest] = self._load(source)
            self._loaded.move_to_end(source.digest)
        return tuple((self._loaded[source.digest], source.scale) for source in sources)

    def _make_room(self, wanted: Set[str], unbind: Unbind) -> None:
        idle = [digest for digest in self._loaded if digest not in wanted]
        for digest in idle[: max(0, len(self._loaded) + 1 - self._limit)]:
            self._free(digest, unbind)

    def _load(self, source: AdapterSource) -> Adapter:
        path = Path(source.path)
        try:
            before = _signature(path)
            digest = file_digest(path)
        except OSError as error:
            raise AdapterMissing(
                f"adapter '{source.name}' cannot be read: '{path}': {error.strerror}; put the file back"
            ) from None
        if digest != source.digest:
            raise self._changed(source)
        self._on_load(source.digest, False)
        self.loads += 1
        try:
            adapter = self._backend.load_adapter(path)
        finally:
            self._on_load(source.digest, True)
        try:
            unchanged = _signature(path) == before
        except OSError:
            unchanged = True  # deleted after llama.cpp had read it: what is loaded is still the content asked for
        if not unchanged:
            self._backend.free_adapter(adapter)
            raise self._changed(source)
        return adapter

    def release(self, keep: Set[str], unbind: Unbind) -> None:
        """Free every adapter that is not in ``keep``; ``unbind`` takes it out of every lane first."""
        for digest in set(self._loaded) - keep:
            self._free(digest, unbind)

    def _free(self, digest: str, unbind: Unbind) -> None:
        adapter = self._loaded.pop(digest)
        unbind(adapter)
        self._backend.free_adapter(adapter)

    @staticmethod
    def _changed(source: AdapterSource) -> AdapterChanged:
        return AdapterChanged(f"adapter '{source.name}' changed while it was being loaded; try again")


def _signature(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
