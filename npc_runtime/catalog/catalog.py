"""The catalog: an immutable picture of all personas and adapters at one moment.

Whoever holds a catalog or an entry of it sees one consistent version; a change makes a new catalog, and whoever looks
next sees that. Nothing here reads files (except to ask whether they are still the same).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from npc_runtime.adapter import AdapterHeader
from npc_runtime.catalog.reads import Signature, signature
from npc_runtime.errors import NpcError, PersonaInvalid, UnknownAdapter, UnknownPersona, suggest
from npc_runtime.persona import Persona, persona_key

WIRE = "wire"


@dataclass(frozen=True)
class AdapterFile:
    """One sound adapter file. ``name`` is its path in the adapters folder without ``.gguf``."""

    name: str
    path: Path
    header: AdapterHeader
    signature: Signature


@dataclass(frozen=True)
class CatalogEntry:
    """One version of one persona.

    ``adapters`` are in the order of ``persona.adapters``. ``error`` says why the persona cannot be talked to;
    ``problem`` what is wrong with its newest file while this, older version goes on serving. ``source`` is the file's
    path in the personas folder, or ``wire``; ``digest`` the sha256 of its text.
    """

    persona: Persona
    source: str
    path: Path | None
    signature: Signature | None
    digest: str
    adapters: tuple[AdapterFile, ...]
    version: str
    error: NpcError | None = None
    problem: str = ""

    def is_current(self) -> bool:
        """Whether every file behind this version is still the file that was read."""
        if self.path is not None and signature(self.path) != self.signature:
            return False
        return self.error is None and all(signature(file.path) == file.signature for file in self.adapters)


@dataclass(frozen=True)
class FileProblem:
    """What a writer should mend: file (relative), line (0: no line), text, and since when (seconds since the epoch)."""

    file: str
    line: int
    message: str
    since: float


@dataclass(frozen=True)
class Catalog:
    """All personas by their compared id, all sound adapters by name, all problems."""

    entries: Mapping[str, CatalogEntry] = field(default_factory=dict)
    adapters: Mapping[str, AdapterFile] = field(default_factory=dict)
    bad_adapters: Mapping[str, NpcError] = field(default_factory=dict)
    problems: tuple[FileProblem, ...] = ()

    def entry(self, persona_id: str) -> CatalogEntry:
        """The entry of ``persona_id``, available or not. Raises UnknownPersona, or PersonaInvalid where a file of that
        name is there but cannot be read."""
        found = self.entries.get(persona_key(persona_id))
        if found is not None:
            return found
        for problem in self.problems:
            if persona_key(PurePosixPath(problem.file).stem) == persona_key(persona_id):
                raise PersonaInvalid(f"persona '{persona_id}' is not available: {problem.message}")
        known = sorted(entry.persona.id for entry in self.entries.values())
        shown = ", ".join(known[:20]) or "none"
        raise UnknownPersona(
            f"no persona '{persona_id}' in the catalog; there are: {shown}.{suggest(persona_id, known)}"
        )

    def usable(self, persona_id: str) -> CatalogEntry:
        """Like :meth:`entry`, and raises the entry's own error where it cannot be talked to."""
        entry = self.entry(persona_id)
        if entry.error is not None:
            raise entry.error
        return entry

    def adapter(self, name: str) -> AdapterFile:
        """The adapter of that name. Raises UnknownAdapter, or the reason why the file is refused."""
        found = self.adapters.get(name)
        if found is not None:
            return found
        if name in self.bad_adapters:
            raise self.bad_adapters[name]
        known = sorted(self.adapters)
        shown = ", ".join(known[:20]) or "none"
        raise UnknownAdapter(f"no adapter '{name}' in the adapters folder; there are: {shown}.{suggest(name, known)}")
