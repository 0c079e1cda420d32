"""The catalog as its clients see it: which version serves, and what is said about the one that does not."""

import pytest

from npc_runtime.errors import AdapterMissing, PersonaInvalid
from tests.support.daemon import persona_text, replace_file


def problems_of(client, file: str):
    return [problem for problem in client.status().problems if problem.file == file]


def test_a_missing_adapter_is_reported_with_file_line_and_the_nearest_name(daemon, client):
    daemon.folders.write_persona("c", {"aa": 1.0})
    with pytest.raises(AdapterMissing, match=r"c\.yaml, line \d+: adapters\[0\]: .*'aa\.gguf'.*Did you mean 'a\.gguf'"):
        client.open_session("c")


def test_an_edit_that_names_a_missing_adapter_leaves_the_good_version_in_service(daemon, client):
    daemon.folders.write_persona("edited", {"a": 1.0})
    session = client.open_session("edited")
    daemon.folders.write_persona("edited", {"nowhere": 1.0})
    assert session.say("Hello.", max_tokens=2).wait().adapters[0].name == "a"
    assert "nowhere.gguf" in problems_of(client, "edited.yaml")[0].message
    listed = next(info for info in client.personas() if info.id == "edited")
    assert listed.available and "nowhere.gguf" in listed.problem


def test_two_files_with_one_id_are_a_problem_that_names_both(daemon, client):
    replace_file(daemon.folders.personas / "z_copy.yaml", persona_text("A", name="Copy"))
    assert next(info.name for info in client.personas() if info.id == "a") == "A"
    problem = problems_of(client, "z_copy.yaml")[0]
    assert "a.yaml" in problem.message and "'A'" in problem.message
    (daemon.folders.personas / "z_copy.yaml").unlink()


def test_ids_are_compared_without_case_and_unicode_form(daemon, client):
    daemon.folders.write_persona("Zoe\u0308")
    assert client.open_session("zo\u00eb").persona == "Zoe\u0308"


def test_a_persona_over_the_wire_with_an_error_is_refused_with_its_line(client):
    with pytest.raises(PersonaInvalid, match="wire, line 4: unknown key 'adaptors'"):
        client.add_persona("schema: npc/1\nid: w\nname: W\nadaptors: []\n")
    with pytest.raises(AdapterMissing, match=r"wire, line 4: adapters\[0\]"):
        client.add_persona("schema: npc/1\nid: w\nname: W\nadapters: [{name: nowhere}]\n")
    assert "w" not in [info.id for info in client.personas()]


def test_hidden_files_drafts_and_other_endings_are_not_personas(daemon, client):
    for name in (".hidden.yaml", "_draft.yaml", "notes.txt", "a.yaml.bak", "a.yaml~"):
        (daemon.folders.personas / name).write_text(persona_text("ghost"), encoding="utf-8")
    assert "ghost" not in [info.id for info in client.personas()]
