"""B8: how long after its start the daemon answers, and how long until a character speaks."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from bench.bench import Bench
from bench.outcome import Check, Outcome
from bench.systems.daemon import Daemon
from bench.timing import summary

FIRST, LATER = "the first start ever", "a later start, with `kv_dir`"


def start(bench: Bench) -> Outcome:
    """Start it several times; the files are in the system's cache from the second time on at the latest.

    Every start warms one persona and says a line to it. At a first start its beginning is computed; at a later one it
    lies on disk.
    """
    outcome = Outcome()
    settings: dict[str, dict[str, Any]] = {FIRST: {}, LATER: {"kv_dir": bench.folder / "known-kv"}}
    bench.tell("a start that fills the disk tier")
    with bench.daemon(**settings[LATER]) as daemon:
        daemon.converse(0).session.warm()
        daemon.settle()
    hello: list[float] = []
    speech: dict[str, list[float]] = {kind: [] for kind in settings}
    for number in range(bench.pick(7, 2)):
        for kind in settings:
            bench.tell(f"{kind}, {number + 1}")
            greeted, spoke = _start(bench, settings[kind])
            hello.append(greeted)
            speech[kind].append(spoke)
            outcome.samples.append({"kind": kind, "hello_s": round(greeted, 4), "first_text_s": round(spoke, 4)})
    outcome.figures = {"hello_s": summary(hello)} | {kind: summary(values) for kind, values in speech.items()}
    outcome.checks.append(_check("`hello` answered ≤ 0.5 s", hello, 0.5))
    outcome.checks.extend(
        _check(f"first text of a warm persona ≤ 2.5 s: {kind}", values, 2.5) for kind, values in speech.items()
    )
    return outcome


def _start(bench: Bench, settings: dict[str, Any]) -> tuple[float, float]:
    """Seconds from the start of the process to the answer to `hello`, and to the first text."""
    with closing(Daemon(bench.cast, bench.common, **settings)) as daemon:
        conversation = daemon.converse(0)
        conversation.session.warm()
        asked = time.perf_counter()
        turn = conversation.say(bench.lines[0])
        bench.keep_played(daemon)
    return daemon.greeted - daemon.started, asked - daemon.started + turn.ttft_ms / 1e3


def _check(goal: str, values: list[float], limit: float) -> Check:
    middle = summary(values)["p50"]
    return Check(goal, middle, limit, f"{middle:.2f} s")
