"""``npc-runtime say`` and ``npc-runtime chat``: talk to characters in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from npc_runtime.cli.connection import Endpoint, connect
from npc_runtime.client import Client, Session, TurnFinished
from npc_runtime.errors import NpcError

console = Console(highlight=False)

HELP = "/to NAME talks to another character, /who lists them, /quit leaves"


def say(
    persona: Annotated[str, typer.Argument(help="Persona id.")],
    text: Annotated[str, typer.Argument(help="What the player says.")],
    endpoint: Endpoint = "",
    player: Annotated[str, typer.Option(help="The player's name.")] = "Player",
) -> None:
    """Say one line to a character and print the reply."""
    with connect(endpoint) as client:
        session = client.open_session(persona, player=player)
        speak(session, text)
        session.close()


def chat(
    persona: Annotated[str, typer.Argument(help="Persona id; empty: the first of the catalog.")] = "",
    endpoint: Endpoint = "",
    player: Annotated[str, typer.Option(help="The player's name.")] = "Player",
) -> None:
    """Talk to characters; /to NAME changes who listens, /quit leaves."""
    with connect(endpoint) as client:
        Chat(client, player).run(persona)


class Chat:
    """An interactive conversation with one character at a time; each keeps its own session."""

    def __init__(self, client: Client, player: str) -> None:
        self._client = client
        self._player = player
        self._sessions: dict[str, Session] = {}

    def run(self, persona: str) -> None:
        """Read lines until ``/quit`` or the end of input."""
        available = [info.id for info in self._client.personas() if info.available]
        if not available:
            console.print("No character can be talked to; see: npc-runtime personas")
            return
        console.print(f"[dim]{HELP}[/dim]")
        session = self._meet(persona or available[0])
        while (line := self._read()) is not None:
            try:
                session = self._obey(line, session)
            except NpcError as error:
                console.print(f"[red]{error.code}[/red]", end=": ")
                console.print(error.message, markup=False)

    def _read(self) -> str | None:
        while True:
            try:
                line = input("> ").strip()
            except EOFError:
                return None
            if line == "/quit":
                return None
            if line:
                return line

    def _obey(self, line: str, session: Session) -> Session:
        command, _, argument = line.partition(" ")
        if command == "/to" and argument.strip():
            return self._meet(argument.strip())
        if command == "/who":
            for info in self._client.personas():
                console.print(f"{info.id}: {info.name}{'' if info.available else ' (not available)'}", markup=False)
        elif command.startswith("/"):
            console.print(f"[dim]{HELP}[/dim]")
        else:
            speak(session, line)
        return session

    def _meet(self, persona: str) -> Session:
        if persona not in self._sessions:
            self._sessions[persona] = session = self._client.open_session(persona, player=self._player)
            if session.greeting:
                _speaker(session.name)
                console.print(session.greeting, markup=False)
            session.warm_soon()
        return self._sessions[persona]


def speak(session: Session, text: str, max_tokens: int | None = None) -> TurnFinished:
    """Send a line and print the reply as it comes."""
    reply = session.say(text, max_tokens=max_tokens)
    _speaker(session.name)
    for piece in reply:
        console.print(piece, end="", markup=False, soft_wrap=True)
    console.print()
    assert reply.finished is not None
    return reply.finished


def _speaker(name: str) -> None:
    console.print(name, style="bold cyan", end=": ", markup=False)
