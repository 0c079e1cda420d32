"""What a persona is: the typed form of one persona file."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from npc_runtime.protocol.messages import MAX_SCALE
from npc_runtime.sampling import Sampling

Name = Annotated[str, Meta(min_length=1, max_length=64)]


class AdapterRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One adapter of a persona: ``name`` (``adapters/NAME.gguf``) or ``file`` (path inside the adapters folder)."""

    name: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    file: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    scale: Annotated[float, Meta(ge=-MAX_SCALE, le=MAX_SCALE)] = 1.0

    @property
    def alias(self) -> str:
        """The name by which messages speak of it: ``name``, or the file without ``.gguf``."""
        if self.name is not None:
            return self.name
        return (self.file or "").removesuffix(".gguf")

    @property
    def path(self) -> str:
        """The file's path inside the adapters folder."""
        return self.file if self.file is not None else f"{self.name}.gguf"


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One example exchange: how the character answers such a line."""

    player: Annotated[str, Meta(min_length=1)]
    reply: Annotated[str, Meta(min_length=1)]


class Persona(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A character as its writer made it. All texts are exactly the characters of the file."""

    schema: Literal["npc/1"]
    id: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^\s/\\][^/\\\x00-\x1f]*\Z")]
    name: Name
    summary: str = ""
    background: str = ""
    personality: str = ""
    speech_style: str = ""
    scenario: str = ""
    greeting: str = ""
    examples: tuple[Example, ...] = ()
    adapters: tuple[AdapterRef, ...] = ()
    sampling: Sampling = Sampling()
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...], Meta(max_length=32)] = ()
    max_tokens: Annotated[int, Meta(ge=1, le=8192)] = 160
    pinned: bool = False
    fallback: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    notes: str = ""


def persona_key(persona_id: str) -> str:
    """The form in which ids are compared: Unicode NFC, case-folded."""
    return unicodedata.normalize("NFC", persona_id).casefold()
