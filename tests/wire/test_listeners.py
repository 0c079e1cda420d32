"""A turn may have several listeners: every request gets its own answers and its own end."""

import pytest

from npc_runtime.client import AdapterScale
from npc_runtime.errors import TurnConflict
from npc_runtime.protocol.messages import StartTurn, TurnDelta, TurnFinished


def listen(client, session_id: str, turn_id: str, number: int) -> tuple[str, TurnFinished]:
    """Read a posted request to its end: its deltas and the end."""
    text = ""
    while True:
        answer = client.next_answer(number, 60)
        assert answer.reply_to == number
        if isinstance(answer, TurnDelta):
            text += answer.text
        if isinstance(answer, TurnFinished):
            return text, answer


def post(client, session_id: str, text: str = "Who are you?") -> int:
    return client.post(StartTurn(id=client.new_id(), session_id=session_id, turn_id="shared", text=text))


def test_two_clients_hear_the_same_turn_and_each_gets_an_end(daemon, client):
    session = client.open_session("a")
    first = post(client, session.id)
    with daemon.client() as other:
        second = post(other, session.id)
        heard = listen(other, session.id, "shared", second)
        same = listen(client, session.id, "shared", first)
        late = listen(other, session.id, "shared", post(other, session.id))
        with pytest.raises(TurnConflict):
            listen(other, session.id, "shared", post(other, session.id, "Another line."))
    assert heard[0] == same[0] == late[0] == heard[1].text
    assert client.open_session("a", session_id=session.id).turns == 1


def test_when_one_of_two_listeners_leaves_the_turn_goes_on_for_the_other(daemon, client):
    session = client.open_session("a")
    leaving = daemon.client()
    reply = leaving.open_session("a", session_id=session.id).say(
        "Speak.", turn_id="stays", max_tokens=60, min_tokens=60
    )
    next(iter(reply))
    mine = session.say("Speak.", turn_id="stays", max_tokens=60, min_tokens=60)
    next(iter(mine))
    leaving.close()
    assert mine.wait().finish_reason == "length"


def test_adapters_of_a_turn_must_exist_and_be_named_once(client):
    from npc_runtime.errors import InvalidField, UnknownAdapter

    session = client.open_session("a")
    with pytest.raises(UnknownAdapter, match="'zz'"):
        session.say("Hello.", adapters=[AdapterScale("zz")]).wait()
    with pytest.raises(InvalidField, match="twice"):
        session.say("Hello.", adapters=[AdapterScale("a"), AdapterScale("a", 0.5)]).wait()
