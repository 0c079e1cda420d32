"""B1, B1b, B7: the player goes round the characters and comes back to each, round after round."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.bench import Bench, pause
from bench.outcome import Outcome
from bench.systems import Conversation, NotAvailable, System
from bench.systems.daemon import Daemon
from bench.systems.mistralrs import MistralRs
from bench.timing import Turn, percentile, summary

READING_S = 0.5


@dataclass
class Tour:
    """One system's way round its characters. ``rounds`` has the turns of each round, the first one included."""

    system: System
    conversations: Sequence[Conversation]
    rounds: list[list[Turn]] = field(default_factory=list)

    def play(self, line: str, gap_s: float = 0.0) -> list[Turn]:
        """One round: the same line to every character, ``gap_s`` after the end of the reply before."""
        turns = []
        for conversation in self.conversations:
            time.sleep(gap_s)
            turns.append(conversation.say(line))
        return turns

    @property
    def returns(self) -> list[Turn]:
        """All turns from the second round on."""
        return [turn for turns in self.rounds[1:] for turn in turns]


def tour(system: System, characters: Sequence[int]) -> Tour:
    """A tour that begins with no conversation."""
    return Tour(system, [system.converse(number) for number in characters])


def play(bench: Bench, tours: Sequence[Tour], rounds: dict[str, int]) -> None:
    """Let the systems play in turn, round by round; ``rounds`` is how many each plays."""
    for number in range(max(rounds.values())):
        for each in tours:
            if number < rounds[each.system.name]:
                bench.tell(f"round {number + 1} of {rounds[each.system.name]}: {each.system.name}")
                each.rounds.append(each.play(bench.lines[number]))
                pause()


def record(outcome: Outcome, tours: Sequence[Tour]) -> None:
    """Samples and figures of all tours; the first round is kept apart."""
    for each in tours:
        for number, turns in enumerate(each.rounds, start=1):
            outcome.add(turns, system=each.system.name, round=number)
        figures = outcome.sum_up(each.system.name, each.returns)
        figures["first_round_ttft_ms"] = summary([turn.ttft_ms for turn in each.rounds[0]])
        figures["ttft_p50_by_round"] = [summary([t.ttft_ms for t in turns])["p50"] for turns in each.rounds]


def room_for_all(bench: Bench) -> Outcome:
    """B1."""
    characters = range(bench.pick(8, 4))
    rounds = bench.pick(20, 3)
    outcome = Outcome()
    with ExitStack() as stack:
        daemon = stack.enter_context(bench.daemon(lanes=len(characters)))
        peer = stack.enter_context(bench.llama_server(characters, slots=len(characters)))
        direct = stack.enter_context(bench.direct(characters))
        systems: list[System] = [daemon, peer, direct]
        if bench.common.flash_attention != "auto":
            systems.append(
                stack.enter_context(bench.llama_server(characters, len(characters), bench.common.flash_attention))
            )
        tours = [tour(system, characters) for system in systems]
        play(bench, tours, {each.system.name: rounds for each in tours})
        record(outcome, tours)
        _unhurried(bench, outcome, tours, rounds)
    _mistralrs(bench, outcome, characters)
    _note_other_setting(bench, outcome)
    ours, theirs = outcome.figures[daemon.name], outcome.figures[peer.name]
    floor = outcome.figures[direct.name]["floor_ms"]["p50"]
    by_round = ours["ttft_p50_by_round"]
    ttft, whole = ours["ttft_ms"]["p50"], ours["turn_ms"]["p50"]
    versus = "{:.0f} ms, llama-server {:.0f} ms"
    outcome.ratio("TTFT ≤ 0.85 × llama-server", ttft, theirs["ttft_ms"]["p50"], 0.85, versus)
    outcome.ratio("whole turn ≤ 1.0 × llama-server", whole, theirs["turn_ms"]["p50"], 1.0, versus)
    last = f"TTFT of round {rounds} ≤ 1.15 × round 2"
    outcome.ratio(last, by_round[-1], by_round[1], 1.15, "{:.0f} ms, {:.0f} ms")
    outcome.ratio(
        "TTFT ≤ 1.1 × (prefill of the new tokens + one decode)", ttft, floor, 1.1, "{:.0f} ms, bare loop {:.0f} ms"
    )
    return outcome


def _unhurried(bench: Bench, outcome: Outcome, tours: Sequence[Tour], played: int) -> None:
    """More rounds with the same conversations, with a pause before every line as a player who reads makes it."""
    turns: dict[str, list[Turn]] = {}
    for number in range(played, played + bench.pick(4, 1)):
        for each in tours:
            bench.tell(f"with pauses: {each.system.name}")
            turns.setdefault(each.system.name, []).extend(each.play(bench.lines[number], READING_S))
    for name, taken in turns.items():
        outcome.add(taken, system=name, pause_s=READING_S)
        outcome.figures[name]["after_a_pause"] = {
            "ttft_ms": summary([turn.ttft_ms for turn in taken]),
            "turn_ms": summary([turn.total_ms for turn in taken]),
            "new_tokens": summary([turn.new_tokens for turn in taken]),
        }


def _note_other_setting(bench: Bench, outcome: Outcome) -> None:
    """The same ratios against llama-server with our setting of flash attention, which is not its default."""
    name = f"llama-server, flash attention {bench.common.flash_attention}"
    if name in outcome.figures:
        ours, theirs = outcome.figures[Daemon.name], outcome.figures[name]
        ttft, whole = (ours[key]["p50"] / theirs[key]["p50"] for key in ("ttft_ms", "turn_ms"))
        outcome.notes.append(
            f"The goals compare with llama-server as it comes. With flash attention {bench.common.flash_attention}, as "
            f"this runtime has it here: TTFT {ttft:.2f} ×, whole turn {whole:.2f} ×."
        )


def _mistralrs(bench: Bench, outcome: Outcome, characters: Sequence[int]) -> None:
    """mistral.rs on the same tour, alone: beside its threads nobody else could be measured."""
    rounds = bench.pick(5, 2)
    try:
        with MistralRs.running(bench.environments, bench.cast, bench.common, characters, bench.folder) as system:
            bench.versions[system.name] = system.about["version"]
            only = tour(system, characters)
            play(bench, [only], {system.name: rounds})
    except NotAvailable as reason:
        outcome.notes.append(f"mistral.rs: not run: {reason}")
        return
    record(outcome, [only])
    outcome.notes += system.notes


def room_for_a_third(bench: Bench) -> Outcome:
    """B1b."""
    characters = range(bench.pick(24, 6))
    room = bench.pick(8, 2)
    rounds = {"npc-runtime": bench.pick(4, 3), "llama-server": bench.pick(3, 2)}
    outcome = Outcome()
    with bench.daemon(lanes=room, ram_cache_mb=1024) as daemon, bench.llama_server(characters, slots=room) as peer:
        tours = [tour(system, characters) for system in (daemon, peer)]
        play(bench, tours, rounds)
    record(outcome, tours)
    ours, theirs = outcome.figures[daemon.name]["ttft_ms"], outcome.figures[peer.name]["ttft_ms"]
    versus = "{:.0f} ms, llama-server {:.0f} ms"
    outcome.ratio("TTFT p50 ≤ 0.1 × llama-server", ours["p50"], theirs["p50"], 0.1, versus)
    _against_b1(bench, outcome, ours["p95"])
    return outcome


def many_adapters(bench: Bench) -> Outcome:
    """B7."""
    characters = range(bench.pick(64, 8))
    room = bench.pick(8, 3)
    outcome = Outcome()
    with bench.daemon(lanes=room, max_loaded_adapters=room, ram_cache_mb=2048) as daemon:
        tours = [tour(daemon, characters)]
        play(bench, tours, {daemon.name: bench.pick(3, 2)})
    record(outcome, tours)
    _against_b1(bench, outcome, percentile([turn.ttft_ms for turn in tours[0].returns], 0.95))
    return outcome


def _against_b1(bench: Bench, outcome: Outcome, p95: float) -> None:
    b1 = bench.figure("B1", "npc-runtime", "ttft_ms", "p50")
    outcome.ratio("TTFT p95 ≤ 2 × B1 (its p50)", p95, b1, 2.0, "{:.0f} ms, B1 {:.0f} ms")
