"""B9: what both processes hold when every lane holds a full conversation."""

from __future__ import annotations

from bench.bench import Bench
from bench.cast import filler
from bench.outcome import Check, Outcome

LINE_TOKENS = 535
LINES = 3
"""Persona and three such exchanges: about 2,010 tokens."""


def resident(bench: Bench) -> Outcome:
    """Fill eight conversations nearly to the brim, then ask for the resident set sizes."""
    outcome = Outcome()
    count = bench.pick(8, 2)
    line = filler(bench.cast.prompts, LINE_TOKENS)
    with bench.daemon(lanes=count) as daemon:
        for number in range(count):
            bench.tell(f"filling conversation {number + 1} of {count}")
            conversation = daemon.converse(number)
            turns = [conversation.say(line) for _ in range(LINES)]
            outcome.add(turns, system=daemon.name, character=number)
        status = daemon.client.status()
    parts = {
        "model_bytes": bench.cast.model.stat().st_size,
        "adapter_bytes": sum(c.adapter.stat().st_size for c in bench.cast.characters[:count]),
        "kv_bytes": status.engine.kv_bytes,
        "ram_tier_bytes": status.engine.ram_bytes,
    }
    outcome.figures = {**parts, "rss_bytes": status.rss_bytes, "adapters_loaded": status.engine.adapters_loaded}
    limit = 1.15 * sum(parts.values()) + 150e6
    detail = f"{status.rss_bytes / 1e6:.0f} MB, limit {limit / 1e6:.0f} MB"
    outcome.notes.append("KV is what the lanes allocate and what the RAM tier holds (its default budget).")
    goal = "RSS ≤ 1.15 × (model + adapters + KV) + 150 MB, as a share of that"
    outcome.checks = [Check(goal, status.rss_bytes / limit, 1.0, detail)]
    return outcome
