"""Must show 2: every character speaks as it would alone, token for token, whatever happens around it."""

import pytest

from npc_runtime.client import AdapterScale, Client, TurnFinished
from tests.support.daemon import Folders, running

LINES = ("Who are you?", "What do you sell?", "Farewell, then.")
LONG = "The gate of the vale was built by the river people, stone upon stone, before the first king came. " * 9


def said(turn: TurnFinished) -> tuple[str, tuple[int, ...]]:
    assert turn.tokens is not None
    return turn.text, turn.tokens


def say(client: Client, session: str, persona: str, line: str) -> tuple[str, tuple[int, ...]]:
    opened = client.open_session(persona, session_id=session)
    return said(opened.say(line, include_tokens=True).wait())


_alone: dict[str, list[tuple[str, tuple[int, ...]]]] = {}


def alone(folders: Folders, persona: str) -> list[tuple[str, tuple[int, ...]]]:
    """What the persona says in a freshly started daemon that has nobody else to serve (kept by its file's text)."""
    text = (folders.personas / f"{persona}.yaml").read_text(encoding="utf-8")
    if text not in _alone:
        with running(folders) as daemon, daemon.client() as client:
            _alone[text] = [say(client, "s", persona, line) for line in LINES]
    return _alone[text]


@pytest.fixture(params=["short persona", "long shared prefix"])
def cast(request, folders):
    """The folders with a, b, base; with the long prefix their prompts share more than 200 tokens."""
    if request.param == "long shared prefix":
        for persona, adapters in (("a", {"a": 1.0}), ("b", {"b": 1.0}), ("base", {})):
            folders.write_persona(persona, adapters, name="Smith", extra=f"background: {LONG}\n")
    return folders


def test_going_back_and_forth_between_characters_changes_nothing(cast):
    expected = {persona: alone(cast, persona) for persona in ("a", "b", "base")}
    with running(cast) as daemon, daemon.client() as client:
        count = {"a": 0, "b": 0, "base": 0}
        for persona in ("a", "b", "a", "base", "a", "b", "base"):
            turn = count[persona]
            count[persona] += 1
            assert say(client, persona, persona, LINES[turn]) == expected[persona][turn], (persona, turn)


def test_with_fewer_lanes_than_conversations_nothing_changes_either(folders):
    expected = {persona: alone(folders, persona) for persona in ("a", "b", "base")}
    with running(folders, lanes=1) as daemon, daemon.client() as client:
        for turn, line in enumerate(LINES):
            for persona in ("a", "b", "base"):
                assert say(client, persona, persona, line) == expected[persona][turn], (persona, turn)


def test_characters_and_the_base_model_differ_pairwise(client):
    spoken = [say(client, f"differ-{persona}", persona, LINES[0])[0] for persona in ("a", "b", "base")]
    assert len(set(spoken)) == 3


def test_a_scale_that_goes_away_and_comes_back_leaves_no_trace(folders):
    expected = alone(folders, "a")
    with running(folders) as daemon, daemon.client() as client:
        assert say(client, "one", "a", LINES[0]) == expected[0]
        client.set_adapter_scales({"a": 0.4}, persona="a")
        softer = say(client, "two", "a", LINES[0])
        client.set_adapter_scales({"a": 1.0}, persona="a")
        assert [say(client, "one", "a", line) for line in LINES[1:]] == expected[1:]
        assert [say(client, "three", "a", line) for line in LINES] == expected
    assert softer != expected[0]


def test_scale_zero_is_exactly_the_base_model(folders):
    folders.write_persona("plain", {}, name="A")
    expected = alone(folders, "plain")
    with running(folders) as daemon, daemon.client() as client:
        client.set_adapter_scales({"a": 0}, persona="a")
        assert [say(client, "s", "a", line) for line in LINES] == expected


def test_a_turn_with_its_own_adapters_uses_exactly_those(client):
    session = client.open_session("base")
    plain = session.say(LINES[0], include_tokens=True).wait()
    other = client.open_session("base").say(
        LINES[0], adapters=[AdapterScale("a", 1.0), AdapterScale("b", 0.5)], include_tokens=True
    )
    finished = other.wait()
    assert [(use.name, use.scale) for use in finished.adapters] == [("a", 1.0), ("b", 0.5)]
    assert plain.adapters == ()
    assert said(finished) != said(plain)


def test_the_same_session_under_other_adapters_reuses_no_kv(client):
    session = client.open_session("base")
    session.say(LINES[0]).wait()
    under_a = session.say(LINES[1], adapters=[AdapterScale("a", 1.0)]).wait()
    assert under_a.usage.reused_tokens == 0
    assert under_a.rebuilt
    back = session.say(LINES[2]).wait()
    assert back.usage.reused_tokens > 0


@pytest.mark.parametrize("scales", [(0.80001, 0.80004), (-0.5, 0.5)])
def test_scales_that_differ_a_little_are_different_sets(client, scales):
    session = client.open_session("a")
    for scale in scales:
        turn = session.say("Speak.", adapters=[AdapterScale("a", scale)]).wait()
        assert turn.usage.reused_tokens == 0


SCAFFOLD = "<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"


def test_coming_back_costs_only_the_new_tokens_counted_where_they_are_decoded(client, smollm2):
    template = sum(len(smollm2.tokenize(part, special=True)) for part in SCAFFOLD)
    session = client.open_session("a")
    client.flush()
    assert session.warm().ready_tokens
    before = client.status().engine.decoded_tokens - session.warm().ready_tokens
    prompt_so_far = 0
    for turn, line in enumerate(LINES):
        finished = session.say(line).wait()
        usage = finished.usage
        assert usage.prompt_tokens == usage.reused_tokens + usage.new_tokens
        if turn:
            assert usage.reused_tokens >= prompt_so_far
            assert usage.new_tokens <= len(smollm2.tokenize(line, special=False)) + template
            assert not finished.rebuilt
        prompt_so_far = usage.prompt_tokens + usage.generated_tokens
        assert finished.finish_reason in ("end", "length"), "a reply that is cut leaves tokens that are decoded in vain"
    ready = session.warm().ready_tokens
    assert client.status().engine.decoded_tokens - before == ready, "a token was computed more than once"
