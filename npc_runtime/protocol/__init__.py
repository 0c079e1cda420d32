"""The wire protocol: typed messages and their bytes."""

from npc_runtime.protocol.codec import BadMessage, answered_error, decode_answer, decode_request, encode, error_answer
from npc_runtime.protocol.messages import PROTOCOL_VERSION

__all__ = [
    "PROTOCOL_VERSION",
    "BadMessage",
    "answered_error",
    "decode_answer",
    "decode_request",
    "encode",
    "error_answer",
]
