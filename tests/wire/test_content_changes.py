"""Must show 3 and 4: content changes while a reply is being spoken; the reply is not touched, the next turn is new."""

import shutil
import time

import pytest

from npc_runtime.client import Client
from npc_runtime.errors import AdapterInvalid, AdapterMissing, PersonaConflict, PersonaInvalid, UnknownPersona
from tests.support.daemon import Daemon, persona_text, replace_file, running
from tests.support.random_adapter import write_random_adapter

LINE = "Tell me of the old road, and do not stop."
TOKENS = 200


def long_reply(client: Client, session: str):
    """A reply of 200 tokens in the making, and its first piece."""
    reply = client.open_session("a", session_id=session).say(
        LINE, max_tokens=TOKENS, min_tokens=TOKENS, include_tokens=True
    )
    pieces = iter(reply)
    return reply, pieces, next(pieces)


@pytest.fixture(scope="module")
def untouched(daemon: Daemon) -> str:
    """What ``a`` says to LINE when nothing else happens."""
    with daemon.client() as client:
        reply, pieces, first = long_reply(client, "untouched")
        text = first + "".join(pieces)
    assert reply.finished is not None
    assert reply.finished.usage.generated_tokens == TOKENS
    assert reply.finished.finish_reason == "length"
    return text


def other_turn(daemon: Daemon, client: Client):
    queued = client.open_session("b").say("Who are you?")
    return lambda: queued.wait().adapters[0].name == "b"


def scale_change(daemon: Daemon, client: Client):
    client.set_adapter_scales({"a": 0.25}, persona="a")

    def shows() -> bool:
        changed = client.open_session("a").say("Hello.", max_tokens=4).wait().adapters[0].scale == 0.25
        client.set_adapter_scales(None, persona="a")
        return changed

    return shows


def edited_file(daemon: Daemon, client: Client):
    daemon.folders.write_persona("a", {"a": 0.5}, name="Edited")

    def shows() -> bool:
        session = client.open_session("a")
        reply = session.say("Hello.", max_tokens=4)
        finished = reply.wait()
        daemon.folders.write_persona("a", {"a": 1.0})
        return session.name == reply.started.name == "Edited" and finished.adapters[0].scale == 0.5

    return shows


def replaced_adapter(daemon: Daemon, client: Client):
    target = daemon.folders.adapters / "a.gguf"
    original = target.read_bytes()
    before = client.open_session("a", session_id="untouched").say("Hm.", max_tokens=2)
    draft = write_random_adapter(daemon.folders.root / "other.gguf", 77)
    draft.replace(target)

    def shows() -> bool:
        old = before.wait().adapters[0].digest
        new = client.open_session("a").say("Hello.", max_tokens=4).wait().adapters[0].digest
        replace_file(target, original)
        return old == new != ""

    return shows


def removed_persona(daemon: Daemon, client: Client):
    client.remove_persona("a")

    def shows() -> bool:
        with pytest.raises(UnknownPersona):
            client.open_session("a")
        daemon.folders.write_persona("a", {"a": 1.0}, extra="notes: back again\n")
        return client.open_session("a").say("Hello.", max_tokens=4).wait().adapters[0].name == "a"

    return shows


@pytest.mark.parametrize("change", [other_turn, scale_change, edited_file, replaced_adapter, removed_persona])
def test_a_running_reply_is_not_touched_and_the_next_turn_shows_the_change(daemon, client, untouched, change):
    reply, pieces, text = long_reply(client, change.__name__)
    shows = change(daemon, client)
    text += "".join(pieces)
    assert text == untouched
    assert reply.finished is not None and reply.finished.text == untouched
    assert shows()


def test_a_persona_dropped_in_can_be_talked_to_while_a_reply_runs_untouched(daemon, client, untouched, record_property):
    _reply, pieces, text = long_reply(client, "hot-add")
    write_random_adapter(daemon.folders.adapters / "late.gguf", 5)
    start = time.perf_counter()
    daemon.folders.write_persona("late", {"late": 1.0})
    session = client.open_session("late")
    ready_ms = (time.perf_counter() - start) * 1e3
    text += "".join(pieces)
    assert text == untouched
    finished = session.say("Hello.").wait()
    assert finished.adapters[0].name == "late"
    record_property("rename_to_first_possible_turn_ms", round(ready_ms, 1))
    print(f"\nfrom the rename of the persona file to the first possible turn: {ready_ms:.0f} ms")


def test_a_persona_sent_over_the_wire_can_be_talked_to_and_taken_away(client):
    info = client.add_persona(persona_text("wired", {"a": 0.5}))
    assert (info.source, info.available) == ("wire", True)
    session = client.open_session("wired")
    assert session.say("Hello.").wait().adapters[0].scale == 0.5
    with pytest.raises(PersonaConflict, match="replace"):
        client.add_persona(persona_text("WIRED"))
    assert client.add_persona(persona_text("wired"), replace=True).adapters == ()
    client.remove_persona("wired")
    with pytest.raises(UnknownPersona):
        session.say("Still there?").wait()


def test_an_adapter_deleted_before_its_first_use_is_an_error_and_never_the_base_model(folders):
    with running(folders) as daemon, daemon.client() as client:
        session = client.open_session("a")
        (folders.adapters / "a.gguf").unlink()
        with pytest.raises(AdapterMissing, match=r"a\.gguf"):
            session.say("Hello.").wait()
        assert client.open_session("b").say("Hello.").wait().adapters[0].name == "b"
        write_random_adapter(folders.adapters / "a.gguf", 1)
        assert session.say("Hello.").wait().adapters[0].name == "a"


def test_a_persona_that_names_a_missing_adapter_is_not_available_and_the_others_are(folders):
    folders.write_persona("c", {"nowhere": 1.0})
    with running(folders) as daemon, daemon.client() as client:
        infos = {info.id: info for info in client.personas()}
        assert not infos["c"].available and "nowhere.gguf" in infos["c"].problem
        with pytest.raises(AdapterMissing):
            client.open_session("c")
        assert client.open_session("a").say("Hello.").wait().text


def test_a_broken_save_leaves_the_last_good_version_in_service_and_is_reported(daemon, client):
    daemon.folders.write_persona("draft", {"a": 0.75})
    session = client.open_session("draft")
    replace_file(daemon.folders.personas / "draft.yaml", "schema: npc/1\nid: draft\nname: [\n")
    assert session.say("Hello.").wait().adapters[0].scale == 0.75
    problem = next(p for p in client.status().problems if p.file == "draft.yaml")
    assert problem.line >= 3 and "draft.yaml, line" in problem.message
    daemon.folders.write_persona("draft", {"a": 0.5})
    assert session.say("Hello.").wait().adapters[0].scale == 0.5
    assert not [p for p in client.status().problems if p.file == "draft.yaml"]


def test_a_persona_file_that_never_was_good_says_why_when_it_is_asked_for(daemon, client):
    replace_file(daemon.folders.personas / "odd.yaml", "schema: npc/1\nid: odd\nname: Odd\nadaptors: []\n")
    with pytest.raises(PersonaInvalid, match=r"odd\.yaml, line 4: unknown key 'adaptors'. Did you mean 'adapters'"):
        client.open_session("odd")


def test_a_deleted_persona_file_takes_the_persona_away(daemon, client):
    daemon.folders.write_persona("brief")
    assert client.open_session("brief").say("Hello.", max_tokens=2).wait().text
    (daemon.folders.personas / "brief.yaml").unlink()
    with pytest.raises(UnknownPersona):
        client.open_session("brief")


def junk(path, good):
    path.write_bytes(b"BAD!")


def empty(path, good):
    path.write_bytes(b"")


def truncated(path, good):
    path.write_bytes(good[: len(good) * 9 // 10])


def other_architecture(path, good):
    write_random_adapter(path, 1, architecture="gemma3", blocks=2)


def other_shape(path, good):
    write_random_adapter(path, 1, shapes={"attn_q": (640, 640)}, blocks=2)


def too_many_blocks(path, good):
    write_random_adapter(path, 1, blocks=31)


def wrong_type(path, good):
    path.write_bytes(good.replace(b"adapter.lora.alpha\x06\x00\x00\x00", b"adapter.lora.alpha\x04\x00\x00\x00"))


def folder(path, good):
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [junk, empty, truncated, other_architecture, other_shape, too_many_blocks, wrong_type, folder],
)
def test_a_bad_adapter_is_a_clear_error_and_nobody_else_notices(daemon, client, damage):
    name = f"bad_{damage.__name__}"
    path = daemon.folders.adapters / f"{name}.gguf"
    damage(path, (daemon.folders.adapters / "b.gguf").read_bytes())
    engine = client.status().engine.pid
    daemon.folders.write_persona(name, {name: 1.0})
    with pytest.raises(AdapterInvalid, match=name):
        client.open_session(name).say("Hello.").wait()
    assert client.open_session("b").say("Hello.").wait().adapters[0].name == "b"
    assert client.status().engine.pid == engine
    (daemon.folders.personas / f"{name}.yaml").unlink()
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_an_adapter_of_another_base_model_is_refused(daemon, client):
    write_random_adapter(
        daemon.folders.adapters / "foreign.gguf", 9, metadata={"npc_runtime.base.sha256": "0" * 64}, blocks=2
    )
    daemon.folders.write_persona("foreign", {"foreign": 1.0})
    with pytest.raises(AdapterInvalid, match="allow_base_mismatch"):
        client.open_session("foreign").say("Hello.").wait()
