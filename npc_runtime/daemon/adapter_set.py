"""Which adapters at which scales a turn runs under: one rule, from the strongest to the weakest word.

``start_turn.adapters`` (absolute, in place of everything), else the persona's own list with scales from: the session's
``set_adapter_scales``, the persona's ``set_adapter_scales``, the file. A run-time scale wins over an edited file for as
long as the persona lists that adapter; it ends when it is taken back (null), with the session, or with the daemon.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

from npc_runtime.catalog import AdapterFile, Catalog, CatalogEntry
from npc_runtime.engine.commands import AdapterSource
from npc_runtime.errors import AdapterInvalid, InvalidField, UnknownAdapter, suggest
from npc_runtime.protocol.messages import AdapterListed, AdapterScale

MAX_ADAPTERS = 16

Scales = Mapping[str, float]


def scaled_adapters(entry: CatalogEntry, *overrides: Scales | None) -> tuple[AdapterListed, ...]:
    """The persona's adapters with the scales that are in force; later ``overrides`` are stronger."""
    scales = {ref.alias: ref.scale for ref in entry.persona.adapters}
    for override in overrides:
        scales.update({name: scale for name, scale in (override or {}).items() if name in scales})
    return tuple(AdapterListed(name, scale) for name, scale in scales.items())


def check_scales(entry: CatalogEntry, scales: Scales) -> None:
    """Raises UnknownAdapter where a name is not one of the persona's adapters."""
    known = [ref.alias for ref in entry.persona.adapters]
    for name in scales:
        if name not in known:
            raise UnknownAdapter(
                f"persona '{entry.persona.id}' has no adapter '{name}'; it has: {', '.join(known) or 'none'}."
                f"{suggest(name, known)}"
            )


def turn_adapters(
    catalog: Catalog, entry: CatalogEntry, requested: Sequence[AdapterScale] | None, *overrides: Scales | None
) -> tuple[AdapterSource, ...]:
    """The set for one turn, without those at scale 0. Raises UnknownAdapter, AdapterInvalid or InvalidField."""
    if requested is not None:
        _check_request(requested)
        return _sources([(catalog.adapter(wish.name), wish.scale) for wish in requested])
    scaled = scaled_adapters(entry, *overrides)
    return _sources([(file, wish.scale) for file, wish in zip(entry.adapters, scaled, strict=True)])


def _check_request(requested: Sequence[AdapterScale]) -> None:
    names = [wish.name for wish in requested]
    if len(names) != len(set(names)):
        raise InvalidField(f"start_turn: adapters names one adapter twice ({', '.join(names)}); each at most once")
    if len(names) > MAX_ADAPTERS:
        raise InvalidField(f"start_turn: {len(names)} adapters; allowed are {MAX_ADAPTERS}")


def _sources(files: Sequence[tuple[AdapterFile, float]]) -> tuple[AdapterSource, ...]:
    # What is zero as llama.cpp's 32-bit float is without effect.
    active = [(file, scale) for file, scale in files if ctypes.c_float(scale).value != 0]
    seen: dict[str, str] = {}
    for file, _ in active:
        if file.header.digest in seen:
            raise AdapterInvalid(
                f"adapters '{seen[file.header.digest]}' and '{file.name}' are the same file content; use one of them"
            )
        seen[file.header.digest] = file.name
    return tuple(AdapterSource(file.name, file.header.digest, str(file.path), scale) for file, scale in active)
