"""The adapters that are loaded into the model, by the sha256 of their content.

A file is hashed before it is loaded and looked at again afterwards: what is loaded under a digest is that content, or
the load is refused. Loading never happens while another turn is between two decodes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from npc_runtime.base_model import file_digest
from npc_runtime.engine.backend import ActiveSet, Adapter, Backend
from npc_runtime.engine.commands import AdapterSource
from npc_runtime.errors import AdapterChanged, AdapterMissing


class LoadedAdapters:
    """Digest to loaded adapter. ``on_load`` is told before and after llama.cpp reads a file."""

    def __init__(self, backend: Backend, on_load: Callable[[str, bool], None]) -> None:
        self._backend = backend
        self._on_load = on_load
        self._loaded: dict[str, Adapter] = {}

    def __len__(self) -> int:
        return len(self._loaded)

    def active_set(self, sources: Sequence[AdapterSource]) -> ActiveSet:
        """The set for a turn; loads what is not loaded. Raises AdapterMissing, AdapterChanged or AdapterInvalid."""
        return tuple((self._get(source), source.scale) for source in sources)

    def _get(self, source: AdapterSource) -> Adapter:
        if source.digest not in self._loaded:
            self._loaded[source.digest] = self._load(source)
        return self._loaded[source.digest]

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

    def release(self, keep: Iterable[str], unbind: Callable[[Adapter], None]) -> None:
        """Free every adapter that is not in ``keep``; ``unbind`` takes it out of every lane first."""
        for digest in set(self._loaded) - set(keep):
            adapter = self._loaded.pop(digest)
            unbind(adapter)
            self._backend.free_adapter(adapter)

    @staticmethod
    def _changed(source: AdapterSource) -> AdapterChanged:
        return AdapterChanged(f"adapter '{source.name}' changed while it was being loaded; try again")


def _signature(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
