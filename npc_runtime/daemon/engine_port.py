"""What the dialogue asks of an engine, wherever that runs: in a process of its own or in this one."""

from __future__ import annotations

from typing import Literal, Protocol

from npc_runtime.engine.commands import AnyCommand
from npc_runtime.errors import NpcError


class EnginePort(Protocol):
    """An engine, seen from the dialogue."""

    @property
    def state(self) -> Literal["starting", "ready", "failed"]:
        """Commands are taken when it is ready."""
        ...

    @property
    def context_tokens(self) -> int:
        """Tokens of context per conversation; 0 while that is not known."""
        ...

    @property
    def lanes(self) -> int:
        """How many turns may have begun at once."""
        ...

    def send(self, command: AnyCommand) -> None:
        """Hand a command to a ready engine; to no other."""
        ...

    def check_adapter(self, digest: str, name: str) -> None:
        """Raises AdapterInvalid for a file that took an engine down."""
        ...

    def unavailable(self) -> NpcError | None:
        """Why no turn can run, now and later; None while there is hope."""
        ...
