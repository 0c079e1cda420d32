"""Two curves: the first token against the number of characters, and against the length of the history."""

from __future__ import annotations

from contextlib import ExitStack

from bench.bench import Bench, pause
from bench.cast import PERSONA_TOKENS, filler
from bench.outcome import Outcome
from bench.systems import Conversation
from bench.timing import Turn, summary
from bench.workloads.returning import play, tour

COUNTS = (1, 2, 4, 8, 12, 16, 24)
LENGTHS = (350, 500, 750, 1000, 1250, 1500, 1750)
FILLER_REPLY = 8


def characters(bench: Bench) -> Outcome:
    """Room for eight on both sides; new conversations for every number of characters."""
    outcome = Outcome()
    counts: tuple[int, ...] = (1, 3) if bench.quick else COUNTS
    room = bench.pick(8, 2)
    curves: dict[str, list[list[float]]] = {}
    with (
        bench.daemon(lanes=room, ram_cache_mb=1024) as daemon,
        bench.llama_server(range(max(counts)), slots=room) as peer,
    ):
        for count in counts:
            bench.tell(f"{count} characters")
            tours = [tour(system, range(count)) for system in (daemon, peer)]
            play(bench, tours, {each.system.name: bench.pick(3, 2) for each in tours})
            for each in tours:
                outcome.add(each.returns, system=each.system.name, characters=count)
                ttft = summary([turn.ttft_ms for turn in each.returns])
                curves.setdefault(each.system.name, []).append([count, ttft["p50"], ttft["p95"]])
    outcome.figures = {"room": room, "curves": curves}
    return outcome


def history(bench: Bench) -> Outcome:
    """One conversation on every system, filled up to each length; three turns of equal size are timed there."""
    outcome = Outcome()
    lengths: tuple[int, ...] = (350, 500) if bench.quick else LENGTHS
    curves: dict[str, list[list[float]]] = {}
    with ExitStack() as stack:
        daemon = stack.enter_context(bench.daemon(lanes=1))
        peer = stack.enter_context(bench.llama_server([0], slots=1))
        direct = stack.enter_context(bench.direct([0]))
        conversations = [(system.name, system.converse(0)) for system in (daemon, peer, direct)]
        held = {name: PERSONA_TOKENS for name, _ in conversations}
        for length in lengths:
            bench.tell(f"{length} tokens")
            for name, conversation in conversations:
                turns = _at_length(bench, conversation, length - held[name])
                held[name] = turns[-1].prompt_tokens + len(turns[-1].tokens)
                outcome.add(turns, system=name, length=length)
                point = summary([turn.ttft_ms for turn in turns])
                curves.setdefault(name, []).append([turns[1].prompt_tokens, point["p50"], point["max"]])
                pause()
    outcome.figures = {"curves": curves}
    return outcome


def _at_length(bench: Bench, conversation: Conversation, missing: int) -> list[Turn]:
    """Say something long, so that ``missing`` tokens more are held; then three ordinary turns."""
    scaffold = FILLER_REPLY + 12
    conversation.say(filler(bench.cast.prompts, max(4, missing - scaffold)), FILLER_REPLY)
    return [conversation.say(bench.lines[number]) for number in range(3)]
