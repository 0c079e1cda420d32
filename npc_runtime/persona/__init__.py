"""Personas: the typed model, and reading it from YAML."""

from npc_runtime.persona.loader import PersonaText, decode_text, load_persona, read_persona
from npc_runtime.persona.model import AdapterRef, Example, Persona, persona_key

__all__ = [
    "AdapterRef",
    "Example",
    "Persona",
    "PersonaText",
    "decode_text",
    "load_persona",
    "persona_key",
    "read_persona",
]
