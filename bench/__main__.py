"""The command line of the benchmark; ``scripts/bench`` calls it after setting up what it needs."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.page import write_page
from bench.run import Options, run
from bench.systems import Common, FlashAttention
from bench.workloads import WORKLOADS, Workload, in_order
from npc_runtime.base_model import find_base_model
from npc_runtime.config import Settings, default_threads

ROOT = Path(__file__).parents[1]
console = Console(highlight=False)


def main(
    quick: Annotated[bool, typer.Option(help="Few characters and rounds: does it work? No figures to quote.")] = False,
    only: Annotated[str, typer.Option(help=f"Some of {','.join(WORKLOADS)}; what they need runs too.")] = "",
    model: Annotated[str, typer.Option(help="smollm2, or the path of a SmolLM2-135M GGUF.")] = "smollm2",
    tuned_model: Annotated[Path | None, typer.Option(help="Another file of the same base; measured as well.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of decode, for every system; 0: physical cores.")] = 0,
    prefill_threads: Annotated[int, typer.Option(help="Threads of prefill; 0: as many as for decode.")] = 0,
    ubatch: Annotated[int, typer.Option(help="Tokens per prefill step, for every system; 0: our default.")] = 0,
    flash_attention: Annotated[
        str,
        typer.Option(help="auto, on or off: of this runtime and the bare loop; llama-server is measured both ways."),
    ] = "off",
    environments: Annotated[Path, typer.Option(help="Folder of the peers' environments.")] = ROOT / ".venv-bench",
    results: Annotated[Path, typer.Option(help="Folder for the result files.")] = ROOT / "bench" / "results",
    patience: Annotated[float, typer.Option(help="Seconds to wait for a quiet machine before each workload.")] = 30.0,
    page_only: Annotated[bool, typer.Option(help="Measure nothing; write the page from the newest results.")] = False,
) -> None:
    """Measure this runtime against its peers and write docs/benchmarks.md."""
    if unknown := [key for key in _keys(only) if key not in WORKLOADS]:
        raise typer.BadParameter(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    files: list[Path] = []
    if not page_only:
        threads = threads or default_threads()
        common = Common(
            threads=threads,
            prefill_threads=prefill_threads or threads,
            ubatch=ubatch or Settings().prefill_chunk_tokens,
            flash_attention=_flash(flash_attention),
        )
        options = Options(common, quick, environments, results, patience)
        workloads = in_order(_keys(only) or set(WORKLOADS))
        for role, path in (("shipped", find_base_model(model)), ("tuned", tuned_model)):
            if path is not None:
                files.append(_measure(path, role, workloads, options))
    if quick:
        console.print("A quick run: docs/benchmarks.md is left as it is.")
    else:
        console.print(f"written: {write_page(ROOT, results, environments)}")
    for file in files:
        console.print(f"results: {file}")


def _flash(wanted: str) -> FlashAttention:
    for known in get_args(FlashAttention):
        if wanted == known:
            return wanted  # type: ignore[return-value]
    raise typer.BadParameter(f"flash_attention is auto, on or off, not {wanted}")


def _keys(only: str) -> set[str]:
    return {key.strip() for key in only.split(",") if key.strip()}


def _measure(path: Path, role: str, workloads: list[Workload], options: Options) -> Path:
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(path.name, total=len(workloads))

        def finished(key: str, record: dict[str, Any]) -> None:
            progress.advance(task)
            progress.print(_table(key, record))

        def tell(key: str, text: str) -> None:
            progress.update(task, description=f"{path.name}: {key}: {text}")

        return run(path, role, workloads, options, tell, finished)


def _table(key: str, record: dict[str, Any]) -> Table:
    table = Table("goal", "measured", "met", title=f"{key}: {record['title']}", title_justify="left", min_width=60)
    for check in record.get("checks", []):
        met = {True: "[green]met[/]", False: "[red]NOT met[/]", None: "not judged"}[check["met"]]
        value = "–" if check["measured"] is None else f"{check['measured']:.3g}"
        table.add_row(check["goal"], f"{value}  ({check['detail']})", met)
    if "not_run" in record:
        table.add_row("[yellow]not run[/]", record["not_run"], "")
    for note in record.get("notes", []):
        table.add_row("note", note, "")
    return table


def _ended(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit("ended by a signal; what was measured so far is in bench/results/")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _ended)  # so that what was started is stopped
    typer.run(main)
