"""What an exception inside a turn or a preparation is to its client."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from npc_runtime.engine.commands import AdapterSource
from npc_runtime.errors import AdapterInvalid, DecodeError, InternalError, NpcError
from npc_runtime.llama import DecodeFailed, NotFinite

log = logging.getLogger("npc_runtime.engine")


def typed_error(error: Exception, what: str, adapters: Sequence[AdapterSource] = ()) -> NpcError:
    """The error that ends ``what`` (a turn, a preparation) under ``adapters``. A defect is logged with where it was."""
    match error:
        case NpcError():
            return error
        case NotFinite() if adapters:
            named = ", ".join(f"'{adapter.name}' × {adapter.scale:g}" for adapter in adapters)
            return AdapterInvalid(f"under {named} the {error}; lower the scale or replace the file")
        case DecodeFailed():
            return DecodeError(f"{error}; the conversation is computed anew at its next turn")
        case _:
            log.error("%s failed", what, exc_info=error)
            return InternalError(f"the engine failed inside {what} ({type(error).__name__}); see its log")
