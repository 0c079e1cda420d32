"""B8: how long after its start the daemon answers, and how long until a character speaks."""

from __future__ import annotations

import time
from contextlib import closing

from bench.bench import Bench
from bench.outcome import Check, Outcome
from bench.systems.daemon import Daemon
from bench.timing import summary


def start(bench: Bench) -> Outcome:
    """Start it several times; the files are in the system's cache from the second time on at the latest."""
    outcome = Outcome()
    hello: list[float] = []
    speech: list[float] = []
    for number in range(bench.pick(7, 2)):
        bench.tell(f"start {number + 1}")
        with closing(Daemon(bench.cast, bench.common)) as daemon:
            hello.append(daemon.greeted - daemon.started)
            conversation = daemon.converse(0)
            if hasattr(conversation.session, "warm"):
                conversation.session.warm()
            asked = time.perf_counter()
            turn = conversation.say(bench.lines[0])
            speech.append(asked - daemon.started + turn.ttft_ms / 1e3)
            bench.keep_played(daemon)
        outcome.samples.append({"hello_s": round(hello[-1], 4), "first_text_s": round(speech[-1], 4)})
    outcome.figures = {"hello_s": summary(hello), "first_text_s": summary(speech)}
    for goal, values, limit in (
        ("`hello` answered ≤ 0.5 s", hello, 0.5),
        ("first text of a warm persona ≤ 2.5 s", speech, 2.5),
    ):
        outcome.checks.append(Check(goal, summary(values)["p50"], limit, f"{summary(values)['p50']:.2f} s"))
    return outcome
