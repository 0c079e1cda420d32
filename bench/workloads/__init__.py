"""The workloads, by key, in the order in which they run. ``NEEDS``: whose figures a workload compares with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.bench import Bench
from bench.outcome import Outcome
from bench.workloads import decoding, memory, priming, replay, returning, start, sweeps, tiers, together


@dataclass(frozen=True)
class Workload:
    """``title`` is what the page calls it; ``needs`` are the workloads that must have run before."""

    key: str
    title: str
    run: Callable[[Bench], Outcome]
    needs: tuple[str, ...] = ()


WORKLOADS = {
    workload.key: workload
    for workload in (
        Workload("B1", "8 characters in turn, room for 8", returning.room_for_all),
        Workload("B1b", "24 characters in turn, KV memory for 8", returning.room_for_a_third, ("B1",)),
        Workload("B2", "primed while the player types, 8 and 24 characters", priming.primed, ("B1", "B1b")),
        Workload("B2b", "return from the RAM tier, about 500 tokens", tiers.from_ram),
        Workload("B3", "decode rate with one adapter, through the wire", decoding.rate),
        Workload("B4", "two turns with different adapters at once", together.two_turns),
        Workload("B5", "a player's line while a long ambient reply runs", together.preempt),
        Workload("B6", "restart of the daemon, conversation on disk", tiers.from_disk),
        Workload("B7", "64 adapters in turn, room for 8 loaded", returning.many_adapters, ("B1",)),
        Workload("B8", "start of the daemon", start.start),
        Workload("B9", "memory: 8 adapters, 8 full conversations", memory.resident),
        Workload("characters", "first token against number of characters", sweeps.characters),
        Workload("history", "first token against length of the history", sweeps.history),
        Workload("B10", "the same conversations on a daemon that knows nothing", replay.replay),
    )
}


def in_order(wanted: set[str]) -> list[Workload]:
    """The wanted workloads, with those that they need, in running order."""
    keys = set(wanted)
    for key in wanted:
        keys.update(WORKLOADS[key].needs)
    return [workload for workload in WORKLOADS.values() if workload.key in keys]
