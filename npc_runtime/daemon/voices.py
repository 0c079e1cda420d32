"""Whose voice a conversation is computed in: persona version, prompt, adapters with the scales that are in force.

Personas whose fixed part does not fit the context are found when they are loaded: the engine counts their tokens, and
from then on they cannot be used until their text changes.
"""

from __future__ import annotations

import logging

from npc_runtime.catalog import Catalog, CatalogEntry
from npc_runtime.daemon.adapter_set import check_scales, scaled_adapters, turn_adapters
from npc_runtime.daemon.engine_port import EnginePort
from npc_runtime.daemon.sessions import Session, Sessions
from npc_runtime.engine.commands import AdapterSource, KeepAdapters, MeasurePersona, PersonaMeasured
from npc_runtime.errors import InvalidField, PersonaTooLong
from npc_runtime.persona import Persona, persona_key
from npc_runtime.prompt import Conversation, Exchange, greeting_text, system_text
from npc_runtime.protocol.messages import AdapterListed, AdapterScale, SetAdapterScales

log = logging.getLogger("npc_runtime.daemon")

MAX_TRIES = 2
MEASURED_FOR = "Player"
"""The player's name with which a persona's tokens are counted."""


class Voices:
    """The catalog in use and what was changed at run time. ``base_known``: its adapters were compared with the base."""

    def __init__(self, engine: EnginePort, sessions: Sessions) -> None:
        self.catalog = Catalog()
        self.base_known = False
        self._engine = engine
        self._sessions = sessions
        self._scales: dict[str, dict[str, float]] = {}
        self._tokens: dict[str, int] = {}
        self._asked: set[str] = set()
        self._tries: dict[str, int] = {}

    def use(self, catalog: Catalog) -> None:
        """Speak by this catalog from now on; adapters that it does not know are freed."""
        before = {problem.message for problem in self.catalog.problems}
        for problem in catalog.problems:
            if problem.message not in before:
                log.warning("%s", problem.message)
        self.catalog = catalog
        self.measure()
        in_use = {file.header.digest for entry in catalog.entries.values() for file in entry.adapters}
        known = {file.header.digest for file in catalog.adapters.values()}
        self._engine.send(KeepAdapters(tuple(sorted(in_use | known))))

    def usable(self, persona_id: str) -> CatalogEntry:
        """The persona's newest version. Raises UnknownPersona, or why it cannot be talked to."""
        entry = self.catalog.usable(persona_id)
        if error := self.too_long(entry):
            raise error
        return entry

    # Length

    def measure(self) -> None:
        """Have the engine count the tokens of every version that was not counted yet."""
        if self._engine.state != "ready":
            return
        for entry in self.catalog.entries.values():
            version, tries = entry.version, self._tries.get(entry.version, 0)
            if entry.error is None and version not in self._tokens and version not in self._asked and tries < MAX_TRIES:
                self._asked.add(version)
                self._tries[version] = tries + 1
                bare = conversation(entry.persona, MEASURED_FOR, (), "")
                self._engine.send(MeasurePersona(version=version, conversation=bare))

    def on_measured(self, event: PersonaMeasured) -> None:
        """The engine has counted."""
        self._tokens[event.version] = event.tokens
        for entry in self.catalog.entries.values():
            if entry.version == event.version and (error := self.too_long(entry)):
                log.warning("%s: %s", entry.source, error.message)

    def on_engine_ready(self) -> None:
        """A new engine does not know what the one before was asked. What was asked twice without an answer is not asked
        again: it may be what the engine died of."""
        self._asked.clear()
        self.measure()

    def tokens(self, entry: CatalogEntry) -> int | None:
        """Tokens of the persona's fixed part; None where they were not counted yet."""
        return self._tokens.get(entry.version)

    def too_long(self, entry: CatalogEntry) -> PersonaTooLong | None:
        """What is wrong with the persona's length."""
        tokens, context = self.tokens(entry), self._engine.context_tokens
        if tokens is None or not context:
            return None
        reserve = min(entry.persona.max_tokens, context // 4)
        if tokens <= context - reserve:
            return None
        return PersonaTooLong(
            f"the persona of {entry.persona.name} takes {tokens} tokens; the context has {context} tokens and keeps "
            f"{reserve} free for the reply; shorten it or raise context_tokens"
        )

    # Adapters

    def set_scales(self, request: SetAdapterScales) -> tuple[str, tuple[AdapterListed, ...]]:
        """Change scales from the next turn on; the persona's id and its adapters as they are then."""
        if (request.persona is None) == (request.session_id is None):
            raise InvalidField("set_adapter_scales: give either persona or session_id, exactly one of them")
        if request.session_id is not None:
            session = self._sessions.get(request.session_id)
            entry = self.catalog.entry(session.persona_id)
            check_scales(entry, request.scales or {})
            session.scales = None if request.scales is None else {**(session.scales or {}), **request.scales}
            return entry.persona.id, scaled_adapters(entry, self._scales_of(entry), session.scales)
        entry = self.catalog.entry(str(request.persona))
        check_scales(entry, request.scales or {})
        key = persona_key(entry.persona.id)
        if request.scales is None:
            self._scales.pop(key, None)
        else:
            self._scales.setdefault(key, {}).update(request.scales)
        return entry.persona.id, scaled_adapters(entry, self._scales_of(entry))

    def _scales_of(self, entry: CatalogEntry) -> dict[str, float] | None:
        return self._scales.get(persona_key(entry.persona.id))

    def adapters(
        self,
        entry: CatalogEntry,
        session: Session | None = None,
        requested: tuple[AdapterScale, ...] | None = None,
    ) -> tuple[AdapterSource, ...]:
        """The set for a turn. Raises UnknownAdapter, AdapterInvalid or InvalidField."""
        own = session.scales if session is not None else None
        adapters = turn_adapters(self.catalog, entry, requested, self._scales_of(entry), own)
        for adapter in adapters:
            self._engine.check_adapter(adapter.digest, adapter.name)
        return adapters


def conversation(
    persona: Persona,
    player: str,
    exchanges: tuple[Exchange, ...],
    line: str,
    primed: tuple[tuple[int, ...], ...] = (),
) -> Conversation:
    """What the prompt is made of."""
    return Conversation(
        system=system_text(persona, player),
        greeting=greeting_text(persona, player),
        exchanges=exchanges,
        line=line,
        player=player,
        character=persona.name,
        primed=primed,
    )
