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
    parts = [
        f"You are {persona.name}. {persona.summary.strip()}".strip(),
        persona.background,
        persona.personality,
        _labelled("How you speak", persona.speech_style),
        _labelled("Now", persona.scenario),
        _examples(persona, player),
    ]
    return expand("\n".join(part.strip() for part in parts if part.strip()), persona.name, player)


def greeting_text(persona: Persona, player: str) -> str:
    """The persona's greeting, expanded."""
    return expand(persona.greeting.strip(), persona.name, player)


def expand(text: str, character: str, player: str) -> str:
    """``text`` with the macros replaced by the names."""
    names = {"char": character, "user": player}
    return _MACRO.sub(lambda match: names[match[1].lower()], text)


def _labelled(label: str, text: str) -> str:
    return f"{label}: {text.strip()}" if text.strip() else ""


def _examples(persona: Persona, player: str) -> str:
    if not persona.examples:
        return ""
    lines = [f"{player}: {e.player.strip()}\n{persona.name}: {e.reply.strip()}" for e in persona.examples]
    return "For example, this is how you would answer:\n" + "\n".join(lines)
