"""``npc-runtime adapter``: train a persona's adapters, and measure every adapter set.

The commands print what they found and end with 1 where something must be changed first.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from npc_runtime.base_model import find_base_model
from npc_runtime.config import Settings, default_threads, load_settings
from npc_runtime.errors import ConfigError, NpcError, UnknownAdapter, UnknownPersona, suggest
from npc_runtime.persona import Persona, decode_text, load_persona, persona_key
from npc_runtime.training.dialogue import dialogue_path
from npc_runtime.training.evaluate import BASE, Evaluation, evaluate, load_voices
from npc_runtime.training.lora import Progress
from npc_runtime.training.settings import TrainingSettings
from npc_runtime.training.train import AdapterReport, Paths, adapters_before, train_adapter
from npc_runtime.training.voices_page import DECIMALS, draw_heat_map, render

app = typer.Typer(add_completion=False, help="Train the voices of personas, and measure them.", no_args_is_help=True)
console = Console()

_DEFAULTS = TrainingSettings()
ConfigOption = Annotated[Path | None, typer.Option("--config", help="YAML file of settings; else the defaults.")]


@app.command()
def train(
    persona: Annotated[str, typer.Argument(help="Persona id, as in its file.")],
    adapter: Annotated[str | None, typer.Option(help="Only this adapter of the persona; else all of them.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write to; else the adapters folder.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training lines.")] = _DEFAULTS.epochs,
    rank: Annotated[int, typer.Option(help="LoRA rank; alpha is twice that.")] = _DEFAULTS.rank,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = _DEFAULTS.learning_rate,
    seed: Annotated[int, typer.Option(help="Equal seeds and lines give equal adapters.")] = _DEFAULTS.seed,
    config: ConfigOption = None,
) -> None:
    """Train the adapters of PERSONA that have a dialogue file, in the order in which the persona lists them."""
    with _errors_told():
        chosen = dataclasses.replace(
            _DEFAULTS, epochs=epochs, rank=rank, alpha=2.0 * rank, learning_rate=lr, seed=seed
        ).checked()
        settings = load_settings(config)
        paths = _paths(settings)
        found = find_persona(paths.personas, persona)
        names = trainable_adapters(found, paths.personas, adapter)
        _need("torch", "transformers", "peft")
        for name in names:
            _say(name, _train_shown(found, name, paths, chosen, out))


@app.command("eval")
def evaluate_command(
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Also write docs/voices.md and its picture.")
    ] = False,
    docs: Annotated[Path, typer.Option(help="Folder of the documentation.")] = Path("docs"),
    config: ConfigOption = None,
) -> None:
    """Score every persona's held-out lines under every adapter set; ends with 1 where a margin is missed."""
    with _errors_told():
        settings = load_settings(config)
        paths = _paths(settings)
        voices = load_voices(paths.personas)
        if write_docs:
            _need("matplotlib")
        with _bar("scoring held-out replies") as bar:
            evaluation = evaluate(voices, paths, settings.threads or default_threads(), bar.show)
        _print_matrix(evaluation)
        if write_docs:
            page = docs / "voices.md"
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(render(evaluation, paths), encoding="utf-8")
            draw_heat_map(evaluation, docs / "img" / "voices.png")
            console.print(f"wrote {page} and {docs / 'img' / 'voices.png'}")
    if not all(row.holds for row in evaluation.rows):
        raise typer.Exit(1)


def find_persona(folder: Path, persona_id: str) -> Persona:
    """The persona with that id in ``folder``. Raises UnknownPersona, PersonaInvalid."""
    known: dict[str, Path] = {}
    for path in sorted(folder.glob("*.yaml")):
        known[path.stem] = path
    if persona_id in known:
        found = _load(known[persona_id])
        if persona_key(found.id) == persona_key(persona_id):
            return found
    for path in known.values():
        found = _load(path)
        if persona_key(found.id) == persona_key(persona_id):
            return found
    raise UnknownPersona(
        f"no persona '{persona_id}' in '{folder}'.{suggest(persona_id, known)} "
        f"There are: {', '.join(known) or 'none'}. The folder is the setting personas_dir"
    )


def trainable_adapters(persona: Persona, personas_dir: Path, only: str | None) -> list[str]:
    """The adapters of ``persona`` that have dialogue lines, in list order; or just ``only``. Raises UnknownAdapter."""
    if only is not None:
        adapters_before(persona, only)
        return [only]
    names = [ref.alias for ref in persona.adapters]
    with_lines = [name for name in names if dialogue_path(personas_dir, name).is_file()]
    if not with_lines:
        raise UnknownAdapter(
            f"persona '{persona.id}' lists the adapters {', '.join(names) or '(none)'}, but there are lines "
            f"for none of them in '{personas_dir / 'dialogue'}'; write NAME.jsonl there and list NAME under 'adapters:'"
        )
    return with_lines


def _load(path: Path) -> Persona:
    return load_persona(decode_text(path.read_bytes(), str(path)), str(path))


def _paths(settings: Settings) -> Paths:
    return Paths(find_base_model(settings.base_model), Path(settings.personas_dir), Path(settings.adapters_dir))


def _need(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} is not installed; run: pip install 'npc-runtime[train]'")


def _train_shown(
    persona: Persona, name: str, paths: Paths, settings: TrainingSettings, out: Path | None
) -> AdapterReport:
    with _bar(f"{name}: loading") as bar:

        def show(progress: Progress) -> None:
            bar.show(
                progress.step,
                progress.steps,
                f"{name}: epoch {progress.epoch}/{settings.epochs}, loss {progress.loss:.2f}",
            )

        target = None if out is None else out / f"{name}.gguf"
        return train_adapter(persona, name, paths, settings, out=target, report=show)


class _Bar:
    """One line of progress."""

    def __init__(self, bar: ProgressBar, title: str) -> None:
        self._bar = bar
        self._task = bar.add_task(title, total=None)

    def show(self, done: int, total: int, title: str | None = None) -> None:
        self._bar.update(self._task, completed=done, total=total)
        if title is not None:
            self._bar.update(self._task, description=title)


@contextmanager
def _bar(title: str) -> Iterator[_Bar]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with ProgressBar(*columns, console=console) as bar:
        yield _Bar(bar, title)


def _say(name: str, made: AdapterReport) -> None:
    console.print(
        f"{made.path}: {made.size / 1e6:.2f} MB in {made.seconds:.0f} s; nat per token: "
        f"{made.train_loss:.2f} on the training lines, {made.held_out_loss:.2f} on the held-out ones",
        soft_wrap=True,
    )


def _print_matrix(evaluation: Evaluation) -> None:
    table = Table(title="mean log-likelihood per token of held-out replies (nat)")
    table.add_column("lines of")
    for adapter_set in evaluation.sets:
        table.add_column(adapter_set.title, justify="right")
    table.add_column("over base", justify="right")
    table.add_column("over others", justify="right")
    for row in evaluation.rows:
        cells = [f"{row.means[adapter_set.title]:.{DECIMALS}f}" for adapter_set in evaluation.sets]
        margins = [f"{row.over_base:+.{DECIMALS}f}", f"{row.over_best_other:+.{DECIMALS}f}"]
        table.add_row(row.persona_id, *cells, *margins, style="" if row.holds else "red")
    console.print(table)
    missed = [row.persona_id for row in evaluation.rows if not row.holds]
    if missed:
        console.print(f"margins missed by: {', '.join(missed)}; '{BASE}' and every other set must be beaten")


@contextmanager
def _errors_told() -> Iterator[None]:
    try:
        yield
    except NpcError as error:
        console.print(f"error: {error.message}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
