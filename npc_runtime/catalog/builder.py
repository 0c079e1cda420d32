"""From folders to catalogs. Reads files; remembers what it read, so that a scan reads only what changed.

Rules: a file that was good and is broken now (or names an adapter that is not there) leaves its last good version in
service and becomes a problem; a deleted persona file takes its persona away; a deleted adapter file makes its personas
unavailable at once (they are never answered by the base model); a file that is still being written (its time stamp is
younger than ``SETTLE_SECONDS``) is read at the next scan, except one that was put in place by a rename.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from npc_runtime.adapter import read_adapter
from npc_runtime.catalog.catalog import WIRE, AdapterFile, Catalog, CatalogEntry, FileProblem, Signature, signature
from npc_runtime.errors import (
    AdapterInvalid,
    AdapterMissing,
    Busy,
    MessageTooLarge,
    NpcError,
    PersonaConflict,
    PersonaInvalid,
    suggest,
)
from npc_runtime.persona import AdapterRef, Persona, PersonaText, decode_text, persona_key, read_persona

SETTLE_SECONDS = 0.1


@dataclass(frozen=True)
class BaseIdentity:
    """The base model that adapters must fit: its architecture and the sha256 of its file."""

    architecture: str
    digest: str


@dataclass(frozen=True)
class _Read:
    """What the last read of a file gave: a value or an error, and for which signature."""

    signature: Signature
    value: PersonaText | AdapterFile | None
    error: NpcError | None


class CatalogBuilder:
    """Owns what was read. Used by one thread."""

    def __init__(
        self,
        personas_dir: Path,
        adapters_dir: Path,
        *,
        max_persona_bytes: int,
        max_personas: int,
        max_adapter_bytes: int,
        allow_base_mismatch: bool,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.personas_dir = personas_dir
        self.adapters_dir = adapters_dir
        self.unsettled = False
        self._base: BaseIdentity | None = None
        self._max_persona_bytes = max_persona_bytes
        self._max_personas = max_personas
        self._max_adapter_bytes = max_adapter_bytes
        self._allow_base_mismatch = allow_base_mismatch
        self._now = now
        self._persona_reads: dict[Path, _Read] = {}
        self._adapter_reads: dict[Path, _Read] = {}
        self._good: dict[Path, CatalogEntry] = {}
        self._wire: dict[str, PersonaText] = {}
        self._removed: dict[str, str] = {}
        self._since: dict[tuple[str, str], float] = {}

    def set_base(self, base: BaseIdentity) -> None:
        """From now on adapters must fit ``base``."""
        self._base = base

    def scan(self) -> Catalog:
        """A new catalog of what the folders hold now."""
        self.unsettled = False
        problems: list[FileProblem] = []
        adapters, bad_adapters = self._scan_adapters(problems)
        entries: dict[str, CatalogEntry] = {}
        for path in self._files(self.personas_dir, ".yaml"):
            self._scan_persona(path, entries, problems)
        for gone in set(self._good) - set(self._persona_reads):
            del self._good[gone]
        for key, text in self._wire.items():
            entries[key] = self._entry(text, None, None)
        self._since = {key: at for key, at in self._since.items() if key in {(p.file, p.message) for p in problems}}
        return Catalog(entries, adapters, bad_adapters, tuple(problems))

    def add(self, text: str, *, replace_existing: bool) -> tuple[Persona, bool]:
        """Add a persona from YAML text; it shadows a file of the same id. Returns it and whether one was replaced.

        Raises PersonaInvalid, PersonaConflict, MessageTooLarge, Busy, or the error of one of its adapters.
        """
        data = text.encode("utf-8", "replace")
        if len(data) > self._max_persona_bytes:
            raise MessageTooLarge(f"the persona has {len(data)} bytes; allowed are {self._max_persona_bytes}")
        read = read_persona(text, WIRE)
        persona = read.persona
        key = persona_key(persona.id)
        entries = self.scan().entries
        if key in entries and not replace_existing:
            raise PersonaConflict(
                f"persona '{persona.id}' exists already (from {entries[key].source}); send replace: true to replace it"
            )
        if key not in entries and len(entries) >= self._max_personas:
            raise Busy(f"the catalog holds {len(entries)} personas, as many as max_personas allows; remove one")
        if (error := self._entry(read, None, None).error) is not None:
            raise error
        self._removed.pop(key, None)
        self._wire[key] = read
        return persona, key in entries

    def remove(self, persona_id: str) -> None:
        """Take a persona out: one from the wire for good, one from a file until the file's content changes."""
        key = persona_key(persona_id)
        self._wire.pop(key, None)
        for read in self._persona_reads.values():
            if isinstance(read.value, PersonaText) and persona_key(read.value.persona.id) == key:
                self._removed[key] = read.value.digest

    def _scan_adapters(self, problems: list[FileProblem]) -> tuple[dict[str, AdapterFile], dict[str, NpcError]]:
        adapters: dict[str, AdapterFile] = {}
        bad: dict[str, NpcError] = {}
        for path in self._files(self.adapters_dir, ".gguf"):
            name = path.relative_to(self.adapters_dir).with_suffix("").as_posix()
            try:
                adapters[name] = self._adapter_file(path)
            except NpcError as error:
                bad[name] = error
                problems.append(self._problem(path.relative_to(self.adapters_dir).as_posix(), 0, error.message))
        return adapters, bad

    def _scan_persona(self, path: Path, entries: dict[str, CatalogEntry], problems: list[FileProblem]) -> None:
        source = path.relative_to(self.personas_dir).as_posix()
        read = self._read_persona(path, source)
        if read is None:
            return
        entry = self._good.get(path)
        error = read.error
        if isinstance(read.value, PersonaText):
            fresh = self._entry(read.value, path, read.signature)
            error = fresh.error
            if error is None or entry is None or not self._can_go_on(entry):
                entry = fresh
        if error is not None:
            line = error.line if isinstance(error, PersonaInvalid) else 0
            problems.append(self._problem(source, line, error.message))
        if entry is not None:
            if error is not None and entry.error is not error:
                entry = replace(entry, signature=read.signature, problem=error.message)
            self._publish(path, entry, entries, problems)

    def _can_go_on(self, entry: CatalogEntry) -> bool:
        """Whether an older version can serve in place of a newer one that cannot: its adapters are there and fit."""
        try:
            for file in entry.adapters:
                self._check_base(file)
        except AdapterInvalid:
            return False
        return entry.error is None and all(signature(file.path) is not None for file in entry.adapters)

    def _publish(
        self, path: Path, entry: CatalogEntry, entries: dict[str, CatalogEntry], problems: list[FileProblem]
    ) -> None:
        key = persona_key(entry.persona.id)
        self._good[path] = entry
        if self._removed.get(key) == entry.digest:
            return
        if key in entries:
            text = f"persona id '{entry.persona.id}' is also in {entries[key].source}; that one is used; change one id"
            problems.append(self._problem(entry.source, 1, text))
        elif len(entries) >= self._max_personas:
            problems.append(self._problem(entry.source, 0, f"more than {self._max_personas} personas (max_personas)"))
        else:
            entries[key] = entry

    def _entry(self, text: PersonaText, path: Path | None, sign: Signature | None) -> CatalogEntry:
        adapters: list[AdapterFile] = []
        error: NpcError | None = None
        for index, (ref, line) in enumerate(zip(text.persona.adapters, text.adapter_lines, strict=True)):
            try:
                adapters.append(self._adapter(ref))
            except NpcError as found:
                error = type(found)(f"{text.source}, line {line}: adapters[{index}]: {found.message}")
                break
        version = hashlib.sha256("".join([text.digest, *(a.header.digest for a in adapters)]).encode())
        return CatalogEntry(
            persona=text.persona,
            source=text.source,
            path=path,
            signature=sign,
            digest=text.digest,
            adapters=tuple(adapters),
            version=version.hexdigest()[:16],
            error=error,
        )

    def _adapter(self, ref: AdapterRef) -> AdapterFile:
        path = self.adapters_dir / ref.path
        if signature(path) is None:
            known = [path.name for path in self._adapter_reads]
            raise AdapterMissing(
                f"adapter '{ref.alias}' is missing: there is no file '{ref.path}' in the adapters folder "
                f"'{self.adapters_dir}'.{suggest(ref.path, known)} Put it there or take it out of the persona"
            )
        return self._adapter_file(path)

    def _adapter_file(self, path: Path) -> AdapterFile:
        known = self._adapter_reads.get(path)
        sign = signature(path)
        if sign is None:
            raise AdapterMissing(f"adapter '{path.name}' is missing: '{path}'")
        if known is None or (known.signature != sign and self._is_settled(sign, known)):
            known = self._adapter_reads[path] = self._read_adapter(path, sign)
        if known.error is not None:
            raise known.error
        assert isinstance(known.value, AdapterFile)
        self._check_base(known.value)
        return known.value

    def _read_adapter(self, path: Path, sign: Signature) -> _Read:
        name = path.relative_to(self.adapters_dir).with_suffix("").as_posix()
        try:
            header = read_adapter(path, self._max_adapter_bytes)
        except NpcError as error:
            # A file that is still being copied looks damaged: it is looked at again when it has settled.
            self.unsettled |= not self._is_settled(sign, None)
            return _Read(sign, None, error)
        except OSError as error:
            return _Read(sign, None, AdapterInvalid(f"adapter '{path.name}' cannot be read: {error.strerror}"))
        return _Read(sign, AdapterFile(name, path, header, sign), None)

    def _check_base(self, file: AdapterFile) -> None:
        header, base = file.header, self._base
        if base is None:
            return
        if header.architecture != base.architecture:
            raise AdapterInvalid(
                f"adapter '{file.name}' is for architecture '{header.architecture}', the base model is "
                f"'{base.architecture}'; use an adapter that was trained for this base"
            )
        if header.base_digest and header.base_digest != base.digest and not self._allow_base_mismatch:
            raise AdapterInvalid(
                f"adapter '{file.name}' was made for base model '{header.base_name or header.base_digest[:12]}' "
                f"(sha256 {header.base_digest[:12]}…), this one is {base.digest[:12]}…; "
                "train it for this base, or set allow_base_mismatch"
            )

    def _read_persona(self, path: Path, source: str) -> _Read | None:
        known = self._persona_reads.get(path)
        sign = signature(path)
        if sign is None:
            return None
        if known is not None and (known.signature == sign or not self._is_settled(sign, known)):
            return known
        if known is None and not self._is_settled(sign, None):
            return None
        read = self._persona_reads[path] = self._load_persona(path, source, sign)
        return read

    def _load_persona(self, path: Path, source: str, sign: Signature) -> _Read:
        try:
            if sign[1] > self._max_persona_bytes:
                raise PersonaInvalid(
                    f"{source}: the file has {sign[1]} bytes; allowed are {self._max_persona_bytes}", source=source
                )
            data = path.read_bytes()
            text = read_persona(decode_text(data, source), source)
        except NpcError as error:
            return _Read(sign, None, error)
        except OSError as error:
            return _Read(sign, None, PersonaInvalid(f"{source}: cannot be read: {error.strerror}", source=source))
        return _Read(sign, text, None)

    def _is_settled(self, sign: Signature, known: _Read | None) -> bool:
        """Whether the file is at rest. A rename brings another inode, and with it content that is complete."""
        renamed = known is not None and known.signature[0] != sign[0]
        age = abs(self._now() - sign[2] / 1e9)
        settled = renamed or age >= SETTLE_SECONDS
        self.unsettled |= not settled
        return settled

    def _files(self, folder: Path, suffix: str) -> Iterator[Path]:
        """Files below ``folder`` with that ending, sorted; names that begin with '.' or '_' are not ours."""
        found = sorted(folder.rglob(f"*{suffix}")) if folder.is_dir() else []
        present = [p for p in found if not any(part[0] in "._" for part in p.relative_to(folder).parts)]
        reads = self._persona_reads if suffix == ".yaml" else self._adapter_reads
        for gone in set(reads) - set(present):
            del reads[gone]
        return iter(present)

    def _problem(self, file: str, line: int, message: str) -> FileProblem:
        since = self._since.setdefault((file, message), self._now())
        return FileProblem(file, line, message, since)
