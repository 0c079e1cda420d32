"""B2: the daemon reads the player's words while they are typed; the reply then only waits for what is left."""

from __future__ import annotations

from bench.bench import Bench
from bench.outcome import Check, Outcome
from bench.systems.daemon import DaemonConversation
from bench.timing import Turn, summary


def primed(bench: Bench) -> Outcome:
    """B2 with as many characters as there is room for, and with three times as many."""
    outcome = Outcome()
    room = bench.pick(8, 2)
    for count, workload, limit in ((bench.pick(8, 2), "B1", 1 / 3), (bench.pick(24, 4), "B1b", 1 / 25)):
        name = f"{count} characters"
        turns = _returns(bench, outcome, name, count, room, complete=True)
        figures = outcome.sum_up(name, turns)
        figures["decode_step_ms"] = summary([turn.text_ms / (len(turn.tokens) - 1) for turn in turns])
        ttft, step = figures["ttft_ms"]["p50"], figures["decode_step_ms"]["p50"]
        peer = bench.figure(workload, "llama-server", "ttft_ms", "p50")
        goal = f"{count} characters: TTFT ≤ 1/{round(1 / limit)} × llama-server ({workload})"
        outcome.ratio(goal, ttft, peer, limit, "{:.0f} ms, llama-server {:.0f} ms")
        detail = f"{ttft:.0f} ms at {step:.1f} ms a step"
        outcome.checks.append(Check(f"{count} characters: TTFT ≤ 5 decode steps", ttft / step, 5, detail))
    open_end = _returns(bench, outcome, "without complete", room, room, complete=False)
    figures = outcome.sum_up("without complete", open_end)
    outcome.notes.append(
        "The last look says complete: the line may end here. Without it the last word is not read in advance: "
        f"TTFT {figures['ttft_ms']['p50']:.0f} ms with {room} characters."
    )
    return outcome


def _returns(bench: Bench, outcome: Outcome, name: str, count: int, room: int, *, complete: bool) -> list[Turn]:
    returns: list[Turn] = []
    with bench.daemon(lanes=room, ram_cache_mb=1024) as daemon:
        conversations = [daemon.converse(number) for number in range(count)]
        for number in range(bench.pick(4, 2)):
            bench.tell(f"{name}, round {number + 1}")
            turns = [_type_and_say(conversation, bench.lines[number], complete) for conversation in conversations]
            outcome.add(turns, system=daemon.name, characters=count, round=number + 1, complete=complete)
            returns += turns if number else []
    return returns


def _type_and_say(conversation: DaemonConversation, line: str, complete: bool) -> Turn:
    """Two looks at what is being typed: half of the words, then all of them; the player presses Enter right after."""
    words = line.split()
    conversation.prime(" ".join(words[: len(words) // 2]), complete=False)
    conversation.prime(line, complete=complete)
    return conversation.say(line)
