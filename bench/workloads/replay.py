"""B10: a reply that was computed from kept KV must be the one that a daemon gives which has kept nothing."""

from __future__ import annotations

from contextlib import closing

from bench.bench import Bench
from bench.outcome import Check, Outcome
from bench.systems.daemon import Daemon, DaemonConversation, Played

SAMPLE = 4
"""Conversations of each workload that are played again, with all of their turns."""


def replay(bench: Bench) -> Outcome:
    """Play a sample of every workload's conversations again, each workload's on a new daemon with a lane for each."""
    outcome = Outcome()
    compared = wrong = 0
    for workload, played in bench.played.items():
        bench.tell(workload)
        turns, differ = _compare(bench, spread(played, bench.pick(SAMPLE, 2)), outcome, workload)
        outcome.figures[workload] = {"conversations": len(played), "replies compared": turns, "different": differ}
        compared, wrong = compared + turns, wrong + differ
    outcome.checks = [Check("replies that differ: 0", float(wrong), 0, f"{wrong} of {compared} replies compared")]
    return outcome


def spread(played: list[Played], count: int) -> list[Played]:
    """At most ``count`` of them, evenly spread."""
    step = max(1, len(played) // count)
    return played[::step][:count]


def _compare(bench: Bench, sample: list[Played], outcome: Outcome, workload: str) -> tuple[int, int]:
    turns = differ = 0
    with closing(Daemon(bench.cast, bench.common, lanes=len(sample))) as daemon:
        daemon.wait_ready()
        for played in sample:
            for number, (want, got) in enumerate(_again(daemon, played), start=1):
                turns += 1
                if want != got:
                    differ += 1
                    outcome.samples.append(
                        {"workload": workload, "character": played.character, "turn": number, "was": want, "cold": got}
                    )
    return turns, differ


def _again(daemon: Daemon, played: Played) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    conversation: DaemonConversation = daemon.converse(played.character)
    pairs = []
    for step in played.steps:
        if step.count:
            pairs.append((step.reply, conversation.say(step.text, step.count, step.sampled).tokens))
        else:
            conversation.prime(step.text, complete=step.complete)
    return pairs
