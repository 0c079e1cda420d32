"""Who goes first: priority, arrival, and a bound on waiting."""

import itertools
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc_runtime.daemon.schedule import Schedule
from npc_runtime.daemon.sessions import Session
from npc_runtime.daemon.turns import Turn, Turns
from npc_runtime.protocol.messages import StartTurn

STARVATION = 10.0


class Stage:
    """Turns, a schedule and a clock that is set by hand. Every session is a number."""

    def __init__(self, max_active: int = 1, lanes: int = 8) -> None:
        self.now = 0.0
        self.lanes = lanes
        self.turns = Turns(max_queued=1000, finished_kept=1000)
        self.schedule = Schedule(max_active=max_active, starvation_seconds=STARVATION, clock=lambda: self.now)
        self._ids = itertools.count()
        self._sessions: dict[int, Session] = {}

    def arrive(self, priority: str = "normal", session: int | None = None) -> Turn:
        number = next(self._ids)
        key = 10_000 + number if session is None else session
        owner = self._sessions.setdefault(key, Session(str(key), "p", "Player"))
        request = StartTurn(id=number, session_id=owner.id, turn_id=f"t{number}", text="Hello", priority=priority)
        turn = Turn(request, owner, [], self.now)
        self.turns.enqueue(turn)
        return turn

    def settle(self) -> list[Turn]:
        """Begin what may begin; who is computed then, the first one first."""
        for turn in self.schedule.in_order(self.turns.queue):
            if self.schedule.may_begin(turn, self.turns.active, self.turns.queue, self.lanes):
                self.turns.begin(turn, self.now)
        running = self.schedule.running(self.turns.active, self.turns.queue)
        for turn in self.turns.active:
            if turn in running:
                turn.waiting_since = None
            elif turn.waiting_since is None:
                turn.waiting_since = self.now
        return running

    def end(self, turn: Turn) -> None:
        self.turns.finish(turn)


def test_turns_of_one_priority_go_in_the_order_of_their_arrival():
    stage = Stage()
    turns = [stage.arrive() for _ in range(3)]
    for turn in turns:
        assert stage.settle() == [turn]
        stage.end(turn)


def test_a_higher_priority_goes_first_in_the_queue():
    stage = Stage()
    running = stage.arrive()
    stage.settle()
    ambient, normal, player = (stage.arrive(priority) for priority in ("ambient", "normal", "player"))
    stage.end(running)
    for turn in (player, normal, ambient):
        assert stage.settle() == [turn]
        stage.end(turn)


def test_a_higher_priority_takes_the_place_of_a_running_turn_which_goes_on_afterwards():
    stage = Stage()
    ambient = stage.arrive("ambient")
    assert stage.settle() == [ambient]
    player = stage.arrive("player")
    assert stage.settle() == [player]
    assert ambient.state == "running" and ambient.waiting_since == stage.now
    stage.end(player)
    assert stage.settle() == [ambient]


def test_the_same_priority_does_not_interrupt():
    stage = Stage()
    first = stage.arrive("player")
    stage.settle()
    stage.arrive("player")
    assert stage.settle() == [first]


def test_without_a_second_lane_nothing_is_interrupted():
    stage = Stage(lanes=1)
    ambient = stage.arrive("ambient")
    stage.settle()
    player = stage.arrive("player")
    assert stage.settle() == [ambient] and player.state == "queued"


def test_two_turns_of_one_conversation_never_run_side_by_side_and_others_pass_them():
    stage = Stage(max_active=2)
    first = stage.arrive(session=1)
    second = stage.arrive(session=1)
    third = stage.arrive(session=2)
    assert stage.settle() == [first, third] and second.state == "queued"


def test_what_a_players_turn_waits_for_in_its_own_conversation_goes_first_too():
    stage = Stage()
    ambient = stage.arrive("ambient", session=1)
    stage.settle()
    player = stage.arrive("player", session=1)
    normal = stage.arrive("normal")
    assert stage.settle() == [ambient], "else the player's own conversation would wait for others"
    stage.end(ambient)
    assert stage.settle() == [player]
    assert normal.state == "queued"


def test_at_most_as_many_turns_run_as_are_allowed():
    stage = Stage(max_active=2)
    turns = [stage.arrive() for _ in range(5)]
    assert stage.settle() == turns[:2]


@pytest.mark.parametrize("begun", [False, True])
def test_a_turn_that_has_waited_too_long_counts_as_the_players(begun):
    stage = Stage()
    if begun:
        ambient = stage.arrive("ambient")
        stage.settle()
        player = stage.arrive("player")
    else:
        player = stage.arrive("player")
        stage.settle()
        ambient = stage.arrive("ambient")
    stage.settle()
    stage.now = STARVATION - 0.1
    later = stage.arrive("player")
    stage.end(player)
    assert stage.settle() == [later]
    stage.now = STARVATION + 0.1
    latest = stage.arrive("player")
    stage.settle()
    stage.end(later)
    assert stage.settle() == [ambient]
    assert latest.state == "queued"


@given(
    st.lists(st.tuples(st.sampled_from(("player", "normal", "ambient")), st.floats(0, 2)), min_size=1, max_size=60),
    st.integers(1, 3),
)
def test_nothing_waits_longer_than_the_bound_and_what_was_there_before_it(arrivals, max_active):
    """Turns arrive at any times and take a second each; nobody starves."""
    stage = Stage(max_active=max_active)
    work: dict[str, float] = defaultdict(lambda: 1.0)
    began: dict[str, float] = {}
    pending = list(itertools.accumulate(arrivals, lambda one, other: (other[0], one[1] + other[1])))
    arrived: list[Turn] = []
    while pending or stage.turns.open_turns():
        while pending and pending[0][1] <= stage.now:
            arrived.append(stage.arrive(pending.pop(0)[0]))
        for turn in stage.settle():
            began.setdefault(turn.id, stage.now)
            work[turn.id] -= 0.5
            if work[turn.id] <= 0:
                stage.end(turn)
        stage.now += 0.5
    assert len(began) == len(arrived)
    for turn in arrived:
        before = sum(other.number < turn.number for other in arrived)
        assert began[turn.id] - turn.arrived <= STARVATION + 1.5 * (before + 1)
