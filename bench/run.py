"""A run: every wanted workload with one model file, written down as it goes."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from bench.bench import Bench
from bench.cast import lines, make_cast
from bench.machine import OthersWatch, load_now, machine, model_info, versions, wait_until_quiet
from bench.outcome import Outcome
from bench.systems import Common, NotAvailable
from bench.systems.process import ENVIRONMENT
from bench.workloads import Workload

CAST = {"full": 64, "quick": 8}
LINES = 48


class ResultFile:
    """The JSON file of a run; workloads that are measured again replace what was there."""

    def __init__(self, folder: Path, model: dict[str, Any], *, quick: bool) -> None:
        end = "-quick" if quick else ""
        self.path = folder / f"{date.today().isoformat()}-{model['type']}{end}.json"
        folder.mkdir(parents=True, exist_ok=True)
        before = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        self.content: dict[str, Any] = {
            "workloads": before.get("workloads", {}),
            "versions": before.get("versions", {}),
        }

    def update(self, **parts: Any) -> None:
        """Set parts of the file and write it."""
        self.content |= parts
        self.content["workloads"] = dict(self.content.pop("workloads"))  # the long part comes last
        self.path.write_text(_as_text(self.content), encoding="utf-8")


def _as_text(content: dict[str, Any]) -> str:
    """JSON with a line for each sample."""
    rows: list[str] = []

    def aside(record: dict[str, Any]) -> dict[str, Any]:
        samples = record.get("samples", [])
        rows.extend(json.dumps(sample, ensure_ascii=False) for sample in samples)
        return record | {"samples": [f"row {len(rows) - len(samples) + index}" for index in range(len(samples))]}

    workloads = {key: aside(record) for key, record in content["workloads"].items()}
    text = json.dumps(content | {"workloads": workloads}, indent=1, ensure_ascii=False)
    return re.sub(r'"row (\d+)"', lambda found: rows[int(found[1])], text) + "\n"


@dataclass(frozen=True)
class Options:
    """What a run is told from outside. ``environments``: the folder of the peers' environments."""

    common: Common
    quick: bool
    environments: Path
    results: Path
    patience_s: float


def run(
    model: Path,
    role: str,
    workloads: list[Workload],
    options: Options,
    tell: Callable[[str, str], None],
    finished: Callable[[str, dict[str, Any]], None],
) -> Path:
    """Run ``workloads`` with ``model``. ``role``: shipped or tuned. Returns the result file."""
    common, quick = options.common, options.quick
    about = model_info(model)
    file = ResultFile(options.results, about, quick=quick)
    file.update(
        date=date.today().isoformat(),
        quick=quick,
        role=role,
        model=about,
        machine=machine(),
        load_at_start=load_now(),
        common=asdict(common) | {"environment": ENVIRONMENT},
    )
    with tempfile.TemporaryDirectory(prefix="npc-bench-") as name:
        folder = Path(name)
        cast = make_cast(folder / "cast", model, CAST["quick" if quick else "full"])
        bench = Bench(cast, common, lines(cast.prompts, LINES), quick, options.environments, folder)
        for workload in workloads:
            bench.tell = partial(tell, workload.key)
            wait_until_quiet(options.patience_s, bench.tell)
            record = _run_one(bench, workload)
            file.content["workloads"][workload.key] = record
            file.update(versions=file.content["versions"] | versions() | bench.versions)
            finished(workload.key, record)
    return file.path


def _run_one(bench: Bench, workload: Workload) -> dict[str, Any]:
    bench.workload = workload.key
    started, watch = time.monotonic(), OthersWatch()
    record: dict[str, Any] = {"title": workload.title, **load_now()}
    try:
        outcome = workload.run(bench)
    except NotAvailable as reason:
        return record | {"not_run": str(reason)}
    except Exception as error:
        return record | {"not_run": f"failed: {type(error).__name__}: {error}"}
    bench.done[workload.key] = outcome
    record |= {"seconds": round(time.monotonic() - started, 1), "cpu_share_of_others": watch.share()}
    return record | _checked(outcome).record()


def _checked(outcome: Outcome) -> Outcome:
    """An outcome whose short replies are noted: they would make a turn look faster than it is."""
    rows = [row for row in outcome.samples if "system" in row]
    wanted = max((row["tokens"] for row in rows), default=0)
    short = sum(1 for row in rows if row["tokens"] < wanted)
    if short:
        outcome.notes.append(f"{short} of {len(rows)} replies ended before {wanted} tokens.")
    return outcome
