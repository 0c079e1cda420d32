"""The system text of a persona: the writer's sections in one fixed order.

The order puts what never changes first. ``{{char}}`` and ``{{user}}`` are expanded once, in the writer's text only;
what they expand to is not looked at again.
"""

from __future__ import annotations

import re

from npc_runtime.persona import Persona

_MACRO = re.compile(r"\{\{\s*(char|user)\s*\}\}", re.IGNORECASE)


def system_text(persona: Persona, player: str) -> str:
    """The system message for ``persona`` talking to ``player`` (both as display names)."""

    def said(text: str) -> str:
        return expand(text.strip(), persona.name, player)

    parts = [
        f"You are {persona.name}. {said(persona.summary)}".strip(),
        said(persona.background),
        said(persona.personality),
        _labelled("How you speak", said(persona.speech_style)),
        _labelled("Now", said(persona.scenario)),
        _labelled(
            "For example, this is how you would answer",
            "".join(f"\n{player}: {said(e.player)}\n{persona.name}: {said(e.reply)}" for e in persona.examples),
        ),
    ]
    return "\n".join(part for part in parts if part)


def greeting_text(persona: Persona, player: str) -> str:
    """The persona's greeting, expanded."""
    return expand(persona.greeting.strip(), persona.name, player)


def expand(text: str, character: str, player: str) -> str:
    """``text`` with the macros replaced by the names."""
    names = {"char": character, "user": player}
    return _MACRO.sub(lambda match: names[match[1].lower()], text)


def _labelled(label: str, text: str) -> str:
    if not text:
        return ""
    return f"{label}:{text}" if text.startswith("\n") else f"{label}: {text}"
