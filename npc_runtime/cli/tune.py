"""``npc-runtime tune``: measure what is fastest on this machine, and make faster files of the base model."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from npc_runtime.base_model import EMBEDDED, find_base_model
from npc_runtime.config import Settings, default_threads, load_settings
from npc_runtime.errors import ConfigError, ContentFault
from npc_runtime.tuning.choices import overruled, settings_to_write
from npc_runtime.tuning.jobs import Agreement, MeasureVoices, Perplexity, VoiceFigures
from npc_runtime.tuning.lab import Lab
from npc_runtime.tuning.machine import factors, file_types, load_now, start_setup
from npc_runtime.tuning.prepared import (
    FILE_TYPES,
    Original,
    check_file_type,
    find_original,
    inspect,
    is_prepared,
    prepare,
    prepared_path,
)
from npc_runtime.tuning.search import Outcome, Search
from npc_runtime.tuning.settings_file import as_yaml, write_settings
from npc_runtime.tuning.tables import comparison_table, conditions, figures_table, outcome_table, quality_table
from npc_runtime.tuning.texts import quality_texts
from npc_runtime.tuning.worker import OutOfTime, Worker

DEFAULT_CONFIG = Path("npc-runtime.yaml")
MIN_SECONDS = 5.0
PHASES = {"reading": "finding out what matters", "writing": "writing {}"}
OFFER = 0.05
"""Share of a turn's time that another file type must save to be offered."""

out = Console(highlight=False)
told = Console(stderr=True, highlight=False)
"""Progress and remarks; what a script may want to read goes to standard output."""


def tune(
    config: Annotated[
        Path | None, typer.Option(help="YAML file with settings; default: npc-runtime.yaml in this folder.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write what was found into that file.")] = False,
    seconds: Annotated[float, typer.Option(help="Longest time that measuring may take.")] = 90.0,
    prepare_model: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help=f"Make a file of the base in another type: {', '.join(FILE_TYPES)}."),
    ] = None,
    quality: Annotated[bool, typer.Option(help="Measure what a prepared file costs in quality.")] = True,
) -> None:
    """Measure which settings are fastest on this machine; or prepare a faster file of the base model.

    Prints the settings as YAML, and writes them only with --write.
    """
    path = config or DEFAULT_CONFIG
    settings = _settings(path, must_exist=config is not None and not write)
    base = find_base_model(settings.base_model)
    if prepare_model is not None:
        _prepare(settings, base, check_file_type(prepare_model), path, write=write, quality=quality)
        return
    if seconds < MIN_SECONDS:
        raise ConfigError(f"--seconds is {seconds:g}; allowed is {MIN_SECONDS:g} or more, 90 is a good value")
    _say_if_busy()
    better = _tune(settings, base, path, seconds, write=write)
    if better is not None and _offer(better, interactive=sys.stdin.isatty() and told.is_terminal):
        _prepare(settings, base, better, path, write=write, quality=quality)


def _settings(path: Path, *, must_exist: bool) -> Settings:
    return load_settings(path if must_exist or path.exists() else None)


def _say_if_busy() -> None:
    load = load_now()
    if load.busy:
        told.print(
            f"[yellow]this machine is busy[/yellow]: {load.in_use:.0%} of its {load.cores} cores in use, load "
            f"{load.average:.1f}. Figures will be worse and less certain than on a quiet one; close other programs, "
            "or tune again later"
        )


# Settings


def _tune(settings: Settings, base: Path, path: Path, seconds: float, *, write: bool) -> str | None:
    """Search, show, write; the name of a file type that would be faster."""
    began = time.monotonic()
    with Worker(settings.spin_count) as worker:
        facts = inspect(base, worker)
        original = find_original(base, facts, worker)
    start = start_setup(settings, facts.file_type)
    types = file_types(original.facts, original.path.stat().st_size) if original is not None else ()
    with Lab(settings, base, facts, original, seconds - (time.monotonic() - began), time.monotonic) as lab:
        with _search_bar(seconds, began) as show:
            show("first look", f"{base.name}, {facts.file_type or 'unknown file type'}", 0, 1)
            try:
                lab.begin(start)
            except OutOfTime:
                raise ConfigError(
                    f"{seconds:g} seconds are not enough for one measurement of '{base.name}' here; raise --seconds"
                ) from None
            chosen = factors(
                start,
                types,
                prefill_tokens=lab.work.prefill,
                context_tokens=settings.context_tokens,
                on_gpu=settings.gpu_layers != 0,
            )
            search = Search(lab.measure, seconds - (time.monotonic() - began), time.monotonic, show)
            outcome = search.run(start, chosen)
        _show_outcome(outcome, lab, base)
    _deliver(settings_to_write(settings, outcome.start, outcome.best), path, write=write)
    return _better_type(outcome)


@contextmanager
def _search_bar(seconds: float, began: float) -> Iterator[Callable[[str, str, int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[value]}"), TimeElapsedColumn())
    with Progress(*columns, console=told) as progress:
        whole = progress.add_task("time", total=seconds, value=f"of at most {seconds:g} s")
        tasks: dict[str, TaskID] = {}

        def show(factor: str, value: str, done: int, total: int) -> None:
            for name, known in tasks.items():
                if name != factor:
                    progress.update(known, completed=1, total=1)
                    progress.stop_task(known)
            if factor not in tasks:
                tasks[factor] = progress.add_task(factor, total=total, value="")
            progress.update(tasks[factor], completed=done, total=total, value=value)
            progress.update(whole, completed=min(seconds, time.monotonic() - began))

        yield show


def _show_outcome(outcome: Outcome, lab: Lab, base: Path) -> None:
    out.print(outcome_table(outcome, base.name))
    out.print(f"[dim]{conditions(lab.work, lab.adapter.stem)}[/dim]")
    measured = [choice for choice in outcome.choices if any(tried.speed is not None for tried in choice.tried)]
    if measured:
        out.print(figures_table(measured[0]))
    if outcome.gain is not None:
        out.print(comparison_table(outcome))
        if outcome.best == outcome.start:
            out.print("Side by side, the best values together gained nothing that is certain: nothing is changed.")
    elif outcome.best != outcome.start:
        out.print("There was no time to measure all of it together; raise --seconds to see that.")


def _deliver(values: Mapping[str, object], path: Path, *, write: bool) -> None:
    """Print the settings; write them where that is wanted."""
    if not values:
        out.print("Nothing to change: no other setting is clearly faster here.")
        return
    out.print(as_yaml(values), markup=False, end="", soft_wrap=True)
    if write:
        kept = write_settings(path, values)
        told.print(f"wrote {path}{'' if kept else ' (its comments could not be kept)'}; use it with: ", end="")
        told.print(f"npc-runtime serve --config {path}", soft_wrap=True)
    else:
        told.print(f"[dim]not written; --write puts it into {path}[/dim]", soft_wrap=True)
    if variables := overruled(values):
        told.print(f"[yellow]the environment wins over the file[/yellow]: unset {', '.join(variables)}")


# File types


def _better_type(outcome: Outcome) -> str | None:
    for choice in outcome.choices:
        if not choice.factor.adopt and choice.gain >= OFFER and choice.best.file_type in FILE_TYPES:
            told.print(
                f"A file of the type {choice.best.file_type} makes a turn {choice.gain:.0%} faster "
                f"({FILE_TYPES[choice.best.file_type]})."
            )
            return choice.best.file_type
    return None


def _offer(file_type: str, *, interactive: bool) -> bool:
    command = f"npc-runtime tune --prepare-model {file_type}"
    if not interactive:
        told.print(f"To make it, and see what it costs in quality: {command}")
        return False
    return typer.confirm(f"Make it now, and see what it costs in quality? (later: {command})", err=True)


def _prepare(settings: Settings, base: Path, file_type: str, path: Path, *, write: bool, quality: bool) -> None:
    with Worker(settings.spin_count) as worker:
        facts = inspect(base, worker)
        original = find_original(base, facts, worker)
        if original is None:
            raise ConfigError(
                f"'{base.name}' was itself prepared from '{facts.source_name}', which is not there; a file made of it "
                f"would be worse twice over. Put '{facts.source_name}' beside it, or set base_model to it"
            )
        target = _made(original, file_type, settings.threads or default_threads(), worker)
        if quality and target != original.path:
            _show_quality(settings, original, target, file_type, worker)
    if write:
        value = settings.base_model if settings.base_model in EMBEDDED and target == base else str(target.resolve())
        _deliver({"base_model": value}, path, write=True)
    out.print(str(target), markup=False, soft_wrap=True)


def _made(original: Original, file_type: str, threads: int, worker: Worker) -> Path:
    """The file of that type: the original itself, one that was made before, or a new one."""
    if file_type == original.facts.file_type:
        told.print(f"{original.path.name} has that type already")
        return original.path
    target = prepared_path(original.digest, file_type)
    if is_prepared(target, original, file_type, worker):
        told.print(f"{target.name} was made before")
        return target
    began = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[size]}"), TimeElapsedColumn())
    with Progress(*columns, console=told) as progress:
        tasks: dict[str, TaskID] = {}

        def show(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = progress.add_task(PHASES[phase].format(file_type), total=total, size="")
            size = f"{done / 1e6:.1f} of {total / 1e6:.1f} MB" if phase == "writing" else f"{done} of {total}"
            progress.update(tasks[phase], completed=done, total=total, size=size)

        prepare(original, file_type, target, threads, worker, show)
    before, after = original.path.stat().st_size, target.stat().st_size
    told.print(f"made in {time.monotonic() - began:.1f} s: {after / 1e6:.1f} MB, the original has {before / 1e6:.1f}")
    return target


def _show_quality(settings: Settings, original: Original, target: Path, file_type: str, worker: Worker) -> None:
    threads = settings.prefill_threads or settings.threads or default_threads()
    texts = quality_texts(Path(settings.personas_dir))
    job = Perplexity(source=str(original.path), prepared=str(target), texts=texts, threads=threads)
    with _quality_bar() as bar:
        agreement = worker.ask(job, Agreement, report=bar(f"perplexity of both files, {len(texts)} texts"))
        voices: list[VoiceFigures] = []
        problem = ""
        try:
            for path, title in ((original.path, original.facts.file_type), (target, file_type)):
                voices.append(
                    worker.ask(
                        MeasureVoices(
                            model=str(path),
                            personas_dir=settings.personas_dir,
                            adapters_dir=settings.adapters_dir,
                            threads=threads,
                        ),
                        VoiceFigures,
                        report=bar(f"voices on {title}"),
                    )
                )
        except ContentFault as error:
            problem = error.message
    out.print(quality_table(agreement, voices, original.facts.file_type, file_type))
    if problem:
        told.print(f"[yellow]voices were not measured[/yellow]: {problem}", soft_wrap=True)


@contextmanager
def _quality_bar() -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=told) as progress:

        def bar(title: str) -> Callable[[int, int], None]:
            task = progress.add_task(title, total=None)
            return lambda done, total: progress.update(task, completed=done, total=total)

        yield bar
