"""B3: how fast a reply is written, seen by the client, against the bare loop and llama-server."""

from __future__ import annotations

from contextlib import ExitStack

from bench.bench import Bench, pause
from bench.outcome import Check, Outcome
from bench.systems import Sampled, System
from bench.timing import summary


def rate(bench: Bench) -> Outcome:
    """One character on every system; long replies, the systems in turn."""
    outcome = Outcome()
    count = bench.pick(128, 48)
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        daemon = stack.enter_context(bench.daemon(lanes=1))
        peer = stack.enter_context(bench.llama_server([0], slots=1))
        direct = stack.enter_context(bench.direct([0]))
        systems: list[System] = [daemon, peer, direct]
        if bench.common.flash_attention != "auto":
            systems.append(stack.enter_context(bench.llama_server([0], 1, bench.common.flash_attention)))
        conversations = [(system.name, system.converse(0)) for system in systems]
        for number in range(bench.pick(8, 2)):
            bench.tell(f"reply {number + 1}")
            for name, conversation in conversations:
                turn = conversation.say(bench.lines[number], count, Sampled(seed=number))
                outcome.add([turn], system=name, reply=number + 1)
                rates.setdefault(name, []).append(turn.tokens_per_second)
                pause()
    for name, values in rates.items():
        outcome.figures[name] = {"tokens_per_second": summary(values)}
    ours, theirs, bare = (summary(rates[system.name])["p50"] for system in (daemon, peer, direct))
    text = f"{ours:.1f} tokens/s, {{}} {{:.1f}}"
    outcome.checks = [
        Check("≥ 0.97 × the bare loop", ours / bare, 0.97, text.format("bare loop", bare), at_least=True),
        Check("≥ 1.1 × llama-server", ours / theirs, 1.1, text.format("llama-server", theirs), at_least=True),
    ]
    return outcome
