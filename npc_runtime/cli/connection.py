"""How the commands find a running daemon."""

from __future__ import annotations

from typing import Annotated

import typer

from npc_runtime.client import Client

Endpoint = Annotated[
    str,
    typer.Option(
        "--endpoint",
        envvar="NPC_RUNTIME_ENDPOINT",
        help="Daemon to talk to, like tcp://127.0.0.1:5710; default: the one that was started last.",
    ),
]


def connect(endpoint: str) -> Client:
    """A connection to ``endpoint``, or (empty) to the daemon of the default ready file."""
    return Client(endpoint) if endpoint else Client.local()
