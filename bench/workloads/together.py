"""B4 and B5: two turns at the same time, as equals and with a priority."""

from __future__ import annotations

import time
from contextlib import closing

from bench.bench import Bench
from bench.outcome import Check, Outcome
from bench.systems import Sampled
from bench.systems.daemon import Daemon, DaemonConversation
from bench.timing import Turn, summary

LONG = 96
AMBIENT = 600


def two_turns(bench: Bench) -> Outcome:
    """B4: the two turns one after the other, then both at once."""
    outcome = Outcome()
    apart: list[float] = []
    both: list[float] = []
    with bench.daemon(lanes=2, max_active_turns=2) as daemon:
        pair = [daemon.converse(number) for number in (0, 1)]
        for conversation in pair:
            conversation.say(bench.lines[0])
        for number in range(1, bench.pick(5, 2) + 1):
            bench.tell(f"pair {number}")
            apart.append(_rate(_one_by_one(pair, bench.lines[2 * number - 1], seed=2 * number)))
            both.append(_rate(_at_once(pair, bench.lines[2 * number], seed=2 * number + 1)))
    outcome.figures = {"one after the other": summary(apart), "both at once": summary(both)}
    alone, total = summary(apart)["p50"], summary(both)["p50"]
    detail = f"{total:.1f} tokens/s, one alone {alone:.1f}"
    outcome.checks = [Check("total rate ≥ 0.95 × one turn alone", total / alone, 0.95, detail, at_least=True)]
    return outcome


def _rate(played: tuple[int, float]) -> float:
    tokens, seconds = played
    return tokens / seconds


def _one_by_one(pair: list[DaemonConversation], line: str, seed: int) -> tuple[int, float]:
    start = time.perf_counter()
    turns = [conversation.say(line, LONG, Sampled(seed)) for conversation in pair]
    return sum(len(turn.tokens) for turn in turns), time.perf_counter() - start


def _at_once(pair: list[DaemonConversation], line: str, seed: int) -> tuple[int, float]:
    start = time.perf_counter()
    replies = [conversation.start(line, LONG, Sampled(seed)) for conversation in pair]
    turns = [conversation.read(reply, start) for conversation, reply in zip(pair, replies, strict=True)]
    seconds = time.perf_counter() - start
    for conversation, turn in zip(pair, turns, strict=True):
        conversation.note(line, LONG, Sampled(seed), turn)
    return sum(len(turn.tokens) for turn in turns), seconds


def preempt(bench: Bench) -> Outcome:
    """B5: the same player's turns, with nothing else going on and while somebody else tells a long story."""
    outcome = Outcome()
    idle: list[Turn] = []
    busy: list[Turn] = []
    with bench.daemon(lanes=2) as daemon:
        conversation = daemon.converse(0)
        conversation.say(bench.lines[0])
        for number in range(1, bench.pick(8, 2) + 1):
            bench.tell(f"pair {number}")
            idle.append(conversation.say(bench.lines[2 * number - 1], priority="player"))
            busy.append(_while_another_speaks(daemon, conversation, bench.lines[2 * number], seed=number))
    outcome.add(idle, system=daemon.name, ambient=False)
    outcome.add(busy, system=daemon.name, ambient=True)
    alone = outcome.sum_up("idle", idle)["ttft_ms"]["p50"]
    beside = outcome.sum_up("ambient reply running", busy)["ttft_ms"]["p50"]
    outcome.ratio("TTFT ≤ 1.2 × idle", beside, alone, 1.2, "{:.0f} ms, idle {:.0f} ms")
    return outcome


def _while_another_speaks(daemon: Daemon, conversation: DaemonConversation, line: str, seed: int) -> Turn:
    with closing(daemon.second_client()) as other:
        session = other.open_session(daemon.cast.characters[1].id, session_id="storyteller")
        teller = DaemonConversation(session, conversation.played)
        story = teller.start("Tell me everything about the flood.", AMBIENT, Sampled(seed), priority="ambient")
        pieces = iter(story)
        for _ in range(4):
            next(pieces)
        turn = conversation.say(line, priority="player")
        assert story.finished is None, "the long reply ended before the player's did"
        story.cancel()
        for _ in pieces:
            pass
    return turn
