"""From folders to catalogs. Reads files; remembers what it read, so that a scan reads only what changed.

Rules: a file that was good and is broken now (or names an adapter that is not there) leaves its last good version in
service and becomes a problem; a deleted persona file takes its persona away; a deleted adapter file makes its personas
unavailable at once (they are never answered by the base model); a file that is still being written waits for a later
scan (see ``reads.py``).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import platformdirs

from npc_runtime.adapter import CheckedAdapters, read_adapter, unusable
from npc_runtime.catalog.catalog import WIRE, AdapterFile, Catalog, CatalogEntry, FileProblem
from npc_runtime.catalog.reads import Reads, Signature, signature
from npc_runtime.config import Settings
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
from npc_runtime.ordinary_file import FileTooLarge, read_ordinary
from npc_runtime.persona import AdapterRef, Persona, PersonaText, decode_text, persona_key, read_persona

PERSONA_SETTLE_SECONDS = 0.1
ADAPTER_SETTLE_SECONDS = 0.5


@dataclass(frozen=True)
class BaseIdentity:
    """The base model that adapters must fit: its architecture and the sha256 of its file (of the original, where the
    engine has loaded another file type that was prepared from it)."""

    architecture: str
    digest: str


class CatalogBuilder:
    """Owns what was read. Used by one thread. ``checked_file``: where it is kept which adapters were found good."""

    def __init__(
        self,
        personas_dir: Path,
        adapters_dir: Path,
        *,
        max_persona_bytes: int,
        max_personas: int,
        max_adapter_bytes: int,
        allow_base_mismatch: bool,
        checked_file: Path | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.personas_dir = personas_dir
        self.adapters_dir = adapters_dir
        self._base: BaseIdentity | None = None
        self._max_persona_bytes = max_persona_bytes
        self._max_personas = max_personas
        self._max_adapter_bytes = max_adapter_bytes
        self._allow_base_mismatch = allow_base_mismatch
        self._checked_file = checked_file
        self._now = now
        self._persona_files: Reads[PersonaText] = Reads(
            self._load_persona,
            self._refuse_persona,
            settle_seconds=PERSONA_SETTLE_SECONDS,
            new_at_once=False,
            is_doubtful=_lost_its_adapters,
            now=now,
        )
        self._adapter_files: Reads[AdapterFile] = Reads(
            self._load_adapter,
            self._refuse_adapter,
            settle_seconds=ADAPTER_SETTLE_SECONDS,
            new_at_once=True,
            now=now,
        )
        self._good: dict[Path, CatalogEntry] = {}
        self._wire: dict[str, PersonaText] = {}
        self._removed: dict[str, str] = {}
        self._since: dict[tuple[str, str], float] = {}

    @classmethod
    def from_settings(cls, settings: Settings) -> CatalogBuilder:
        """With the folders and limits of the settings."""
        return cls(
            Path(settings.personas_dir),
            Path(settings.adapters_dir),
            max_persona_bytes=settings.max_persona_bytes,
            max_personas=settings.max_personas,
            max_adapter_bytes=settings.max_adapter_bytes,
            allow_base_mismatch=settings.allow_base_mismatch,
            checked_file=platformdirs.user_cache_path("npc-runtime") / "checked-adapters.msgpack",
        )

    def set_base(self, base: BaseIdentity) -> None:
        """From now on adapters must fit ``base``."""
        self._base = base

    @property
    def unsettled(self) -> bool:
        """Whether the last scan left out files that are still being written."""
        return self._persona_files.unsettled or self._adapter_files.unsettled

    def scan(self) -> Catalog:
        """A new catalog of what the folders hold now."""
        self._persona_files.begin()
        self._adapter_files.begin()
        problems: list[FileProblem] = []
        adapters, bad_adapters = self._scan_adapters(problems)
        entries: dict[str, CatalogEntry] = {}
        files = _files(self.personas_dir, ".yaml")
        for path in files:
            self._scan_persona(path, entries, problems)
        self._good = {path: entry for path, entry in self._good.items() if path in files}
        for key, text in self._wire.items():
            entries[key] = self._entry(text, None, None)
        self._persona_files.end()
        self._adapter_files.end()
        self._checked.save()
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
        for text in self._persona_files.values():
            if persona_key(text.persona.id) == key:
                self._removed[key] = text.digest

    def _scan_adapters(self, problems: list[FileProblem]) -> tuple[dict[str, AdapterFile], dict[str, NpcError]]:
        adapters: dict[str, AdapterFile] = {}
        bad: dict[str, NpcError] = {}
        for path in _files(self.adapters_dir, ".gguf"):
            name = path.relative_to(self.adapters_dir).with_suffix("").as_posix()
            try:
                adapters[name] = self._adapter_file(path)
            except NpcError as error:
                bad[name] = error
                problems.append(self._problem(path.relative_to(self.adapters_dir).as_posix(), 0, error.message))
        return adapters, bad

    def _scan_persona(self, path: Path, entries: dict[str, CatalogEntry], problems: list[FileProblem]) -> None:
        source = path.relative_to(self.personas_dir).as_posix()
        read = self._persona_files.get(path)
        if read is None:
            return
        entry = self._good.get(path)
        error = read.error
        if read.value is not None:
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
            known = [path.name for path in _files(self.adapters_dir, ".gguf")]
            raise AdapterMissing(
                f"adapter '{ref.alias}' is missing: there is no file '{ref.path}' in the adapters folder "
                f"'{self.adapters_dir}'.{suggest(ref.path, known)} Put it there or take it out of the persona"
            )
        return self._adapter_file(path)

    def _adapter_file(self, path: Path) -> AdapterFile:
        read = self._adapter_files.get(path)
        if read is None:
            raise AdapterMissing(f"adapter '{path.name}' is missing: '{path}'")
        if read.error is not None:
            raise read.error
        assert read.value is not None
        self._check_base(read.value)
        return read.value

    @cached_property  # the daemon can answer before this is read
    def _checked(self) -> CheckedAdapters:
        return CheckedAdapters(self._checked_file)

    def _load_adapter(self, path: Path, sign: Signature) -> AdapterFile:
        name = path.relative_to(self.adapters_dir).with_suffix("").as_posix()
        header = read_adapter(path, self._max_adapter_bytes, self._checked.find)
        self._checked.keep(header)
        return AdapterFile(name, path, header, sign)

    @staticmethod
    def _refuse_adapter(path: Path, reason: str) -> NpcError:
        return unusable(path, reason)

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

    def _load_persona(self, path: Path, _sign: Signature) -> PersonaText:
        source = path.relative_to(self.personas_dir).as_posix()
        try:
            data = read_ordinary(path, self._max_persona_bytes)
        except FileTooLarge as error:
            text = f"{source}: the file has {error.size} bytes; allowed are {self._max_persona_bytes}"
            raise PersonaInvalid(text, source=source) from None
        return read_persona(decode_text(data, source), source)

    def _refuse_persona(self, path: Path, reason: str) -> NpcError:
        source = path.relative_to(self.personas_dir).as_posix()
        return PersonaInvalid(f"{source}: {reason}", source=source)

    def _problem(self, file: str, line: int, message: str) -> FileProblem:
        since = self._since.setdefault((file, message), self._now())
        return FileProblem(file, line, message, since)


def _files(folder: Path, suffix: str) -> list[Path]:
    """Files below ``folder`` with that ending, sorted; names that begin with '.' or '_' are not ours."""
    found = sorted(folder.rglob(f"*{suffix}")) if folder.is_dir() else []
    return [path for path in found if not any(part[0] in "._" for part in path.relative_to(folder).parts)]


def _lost_its_adapters(known: PersonaText, new: PersonaText) -> bool:
    """Half of a save looks like this: a persona without its adapters would speak in the base model's voice."""
    return known.persona.id == new.persona.id and bool(known.persona.adapters) and not new.persona.adapters
