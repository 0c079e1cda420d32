"""What an exception inside a turn or a preparation is to its client."""

from __future__ import annotations

import logging

from npc_runtime.errors import DecodeError, InternalError, NpcError
from npc_runtime.llama import DecodeFailed

log = logging.getLogger("npc_runtime.engine")


def typed_error(error: Exception, what: str) -> NpcError:
    """The error that ends ``what`` (a turn, a preparation). A defect is logged with where it happened."""
    match error:
        case NpcError():
            return error
        case DecodeFailed():
            return DecodeError(f"{error}; the conversation is computed anew at its next turn")
        case _:
            log.error("%s failed", what, exc_info=error)
            return InternalError(f"the engine failed inside {what} ({type(error).__name__}); see its log")
