"""The command ``npc-runtime``."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer
from rich.console import Console

from npc_runtime import __version__
from npc_runtime.cli import personas, serve, talk
from npc_runtime.cli.demo import demo
from npc_runtime.errors import ConfigError, NpcError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Give game characters a voice of their own: one small model, an adapter per persona.",
)
app.command()(serve.serve)
app.command()(talk.say)
app.command()(talk.chat)
app.command(name="personas")(personas.personas)
app.command()(personas.status)
app.command()(demo)


def _imported_later(name: str, text: str, load: Callable[[], typer.Typer]) -> None:
    """A command whose modules are imported when it is called: a daemon must start quickly and has no use for them."""

    @app.command(
        name=name,
        help=text,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )
    def command(context: typer.Context) -> None:
        code = load()(context.args, prog_name=f"npc-runtime {name}", standalone_mode=False)
        if isinstance(code, int) and code:  # the command raised Exit, which comes back as a plain number here
            raise typer.Exit(code)


def _adapter() -> typer.Typer:
    from npc_runtime.training.cli import app as adapter_app

    return adapter_app


def _tune() -> typer.Typer:
    from npc_runtime.cli.tune import tune

    tune_app = typer.Typer(add_completion=False)
    tune_app.command()(tune)
    return tune_app


_imported_later("tune", "Find the fastest settings for this machine, and make a faster file of the base model.", _tune)
_imported_later("adapter", "Train and evaluate adapters.", _adapter)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"npc-runtime {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options that come before every command."""


def main() -> None:
    """Run the command; a known error is one red line and exit code 1 (2 for a wrong configuration)."""
    try:
        app()
    except NpcError as error:
        Console(stderr=True, highlight=False).print(f"[red]error[/red] ({error.code}): ", end="")
        sys.stderr.write(f"{error.message}\n")
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
