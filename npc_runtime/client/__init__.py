"""The Python client: ``Client``, ``Session``, ``Reply``, and the messages they carry."""

from npc_runtime.client.client import Client, default_ready_file
from npc_runtime.client.session import Reply, Session
from npc_runtime.protocol.messages import AdapterScale, PersonaInfo, Status, TurnFinished
from npc_runtime.sampling import SamplingOverrides

__all__ = [
    "AdapterScale",
    "Client",
    "PersonaInfo",
    "Reply",
    "SamplingOverrides",
    "Session",
    "Status",
    "TurnFinished",
    "default_ready_file",
]
