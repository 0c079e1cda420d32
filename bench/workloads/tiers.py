"""B2b and B6: conversations whose KV is not in a lane any more but in RAM, or on disk after a restart."""

from __future__ import annotations

import time
from statistics import median

from bench.bench import Bench
from bench.outcome import Check, Outcome
from bench.systems.daemon import Daemon, DaemonConversation
from bench.timing import Turn

HISTORY_ROUNDS = 4
"""Persona and four exchanges: about 500 tokens."""
READING_S = 0.5


def from_ram(bench: Bench) -> Outcome:
    """B2b: every character is met twice in a row; the first time from RAM, the second time resident."""
    outcome = Outcome()
    with bench.daemon(lanes=2, ram_cache_mb=1024) as daemon:
        conversations = [daemon.converse(number) for number in range(bench.pick(12, 4))]
        for number in range(HISTORY_ROUNDS):
            bench.tell(f"history, round {number + 1} of {HISTORY_ROUNDS}")
            for conversation in conversations:
                conversation.say(bench.lines[number])
        bench.tell("returning")
        pairs = [
            (conversation.say(bench.lines[HISTORY_ROUNDS]), conversation.say(bench.lines[HISTORY_ROUNDS + 1]))
            for conversation in conversations
        ]
    # One that had not lost its lane is no return.
    returned = [back for back, _ in pairs if back.extra["reused_ram"]]
    resident = [stay for back, stay in pairs if back.extra["reused_ram"]]
    outcome.notes.append(f"{len(returned)} of {len(pairs)} conversations came back from RAM; the others are left out.")
    outcome.add(returned, system=daemon.name, kv="RAM")
    outcome.add(resident, system=daemon.name, kv="resident")
    back = outcome.sum_up("from RAM", returned)["ttft_ms"]["p50"]
    stay = outcome.sum_up("resident", resident)["ttft_ms"]["p50"]
    detail = f"{back:.0f} ms, resident {stay:.0f} ms, {median(turn.prompt_tokens for turn in returned):.0f} tokens"
    outcome.checks.append(Check("added TTFT ≤ 25 ms", back - stay, 25, detail))
    return outcome


def from_disk(bench: Bench) -> Outcome:
    """B6: the same conversations before and after a restart of the daemon."""
    outcome = Outcome()
    count, rounds = bench.pick(8, 3), HISTORY_ROUNDS
    settings = {"lanes": count, "kv_dir": bench.folder / "kv"}
    with bench.daemon(**settings) as daemon:
        conversations = [daemon.converse(number) for number in range(count)]
        for number in range(rounds):
            bench.tell(f"before the restart, round {number + 1}")
            resident = [_after_a_pause(conversation, bench.lines[number]) for conversation in conversations]
        histories = [conversation.history() for conversation in conversations]
        bench.tell("idle until the disk tier is at rest")
        daemon.settle()
    with bench.daemon(**settings) as daemon:
        bench.tell("after the restart")
        restored = [
            _after_a_pause(_go_on(daemon, old, history), bench.lines[rounds])
            for old, history in zip(conversations, histories, strict=True)
        ]
    outcome.add(resident, system=daemon.name, kv="resident")
    outcome.add(restored, system=daemon.name, kv="disk")
    before = outcome.sum_up("resident", resident)["ttft_ms"]["p50"]
    after = outcome.sum_up("from disk", restored)["ttft_ms"]["p50"]
    outcome.ratio("TTFT after the restart ≤ 1.5 × resident", after, before, 1.5, "{:.0f} ms, resident {:.0f} ms")
    missed = sum(1 for turn in restored if not turn.extra["reused_disk"])
    if missed:
        outcome.notes.append(f"{missed} of {len(restored)} conversations reused nothing from disk.")
    return outcome


def _after_a_pause(conversation: DaemonConversation, line: str) -> Turn:
    """A turn for which the daemon had the time to prepare, before the restart and after it alike."""
    time.sleep(READING_S)
    return conversation.say(line)


def _go_on(daemon: Daemon, old: DaemonConversation, history: object) -> DaemonConversation:
    return daemon.converse(old.played.character, history=history, played=old.played)
