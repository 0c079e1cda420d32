"""The persona schema: what is allowed, and errors that a writer can act on."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc_runtime.persona import AdapterRef, Persona, decode_text, load_persona, persona_key
from npc_runtime.sampling import Sampling
from tests.persona.test_yaml_text import HEAD, loaded, refused

FULL = (
    HEAD
    + """\
summary: keeper of the ferry
background: Born by the river.
personality: Calm.
speech_style: Short sentences.
scenario: On the jetty.
greeting: Well met.
examples:
  - player: Is it far?
    reply: No.
adapters:
  - name: mira
  - file: more/marsh.gguf
    scale: -0.25
sampling:
  temperature: 0.5
  top_k: 20
  top_p: 0.9
  min_p: 0.1
  repeat_penalty: 1.2
  repeat_last_n: 32
  seed: 7
stop: ["###"]
max_tokens: 80
pinned: true
fallback: [Hm.]
notes: none
"""
)


def test_every_field_is_read():
    persona = load_persona(FULL, "mira.yaml")
    assert all(getattr(persona, field) for field in Persona.__struct_fields__)
    assert persona.adapters == (AdapterRef(name="mira"), AdapterRef(file="more/marsh.gguf", scale=-0.25))
    assert [(ref.alias, ref.path) for ref in persona.adapters] == [
        ("mira", "mira.gguf"),
        ("more/marsh", "more/marsh.gguf"),
    ]
    assert persona.sampling == Sampling(
        temperature=0.5, top_k=20, top_p=0.9, min_p=0.1, repeat_penalty=1.2, repeat_last_n=32, seed=7
    )


def test_three_keys_are_enough_and_the_rest_has_defaults():
    persona = load_persona(HEAD, "mira.yaml")
    assert (persona.id, persona.name, persona.adapters, persona.sampling) == ("mira", "Mira", (), Sampling())
    assert persona.max_tokens == 160


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "personas").glob("*.yaml")), ids=lambda p: p.stem)
def test_the_shipped_personas_follow_the_schema(path):
    assert load_persona(decode_text(path.read_bytes(), path.name), path.name).id == path.stem


# Unknown and missing keys


@pytest.mark.parametrize(
    ("more", "key", "meant", "line"),
    [
        ("greting: Hi\n", "greting", "greeting", 4),
        ("adaptors:\n  - name: a\n", "adaptors", "adapters", 4),
        ("Notes: x\n", "Notes", "notes", 4),
        ("examples:\n  - player: a\n    replay: b\n", "replay", "reply", 6),
        ("adapters:\n  - name: a\n    scal: 1\n", "scal", "scale", 6),
        ("sampling:\n  temprature: 1\n", "temprature", "temperature", 5),
    ],
)
def test_an_unknown_key_is_named_with_its_line_the_nearest_name_and_what_is_allowed(more, key, meant, line):
    message = refused(more, line=line)
    assert f"unknown key '{key}'" in message and f"Did you mean '{meant}'?" in message and "Allowed are: " in message


def test_an_unknown_key_that_resembles_nothing_gets_no_suggestion():
    message = refused("qqqq: 1\n", line=4)
    assert "unknown key 'qqqq'" in message and "Did you mean" not in message


@pytest.mark.parametrize("field", ["schema", "id", "name"])
def test_a_missing_field_is_named(field):
    head = "".join(row for row in HEAD.splitlines(keepends=True) if not row.startswith(field))
    assert f"missing required field `{field}`" in refused("", head=head, line=1)


@pytest.mark.parametrize(
    ("more", "field"), [("examples:\n  - player: a\n", "reply"), ("examples:\n  - reply: a\n", "player")]
)
def test_a_missing_field_of_an_item_is_named_with_the_items_line(more, field):
    message = refused(more, line=5)
    assert f"missing required field `{field}`" in message and "examples[0]" in message


def test_another_schema_is_refused_with_what_to_write():
    message = refused("", head=HEAD.replace("npc/1", "npc/2"), line=1)
    assert "npc/2" in message and "write 'schema: npc/1'" in message


# Wrong types and ranges


@pytest.mark.parametrize(
    ("more", "saying", "line"),
    [
        ("max_tokens: lots\n", "allowed is a whole number from 1 to 8192", 4),
        ("max_tokens: 0\n", "allowed is a whole number from 1 to 8192", 4),
        ("max_tokens: 1.5\n", "allowed is a whole number from 1 to 8192", 4),
        ("sampling:\n  temperature: hot\n", "allowed is a number from 0 to 5", 5),
        ("sampling:\n  temperature: nan\n", "allowed is a number from 0 to 5", 5),
        ("sampling:\n  temperature: -1\n", "allowed is a number from 0 to 5", 5),
        ("sampling:\n  top_p: 0\n", "allowed is a number above 0 to 1", 5),
        ("sampling:\n  min_p: 1\n", "allowed is a number from 0 below 1", 5),
        ("sampling:\n  seed: -1\n", "allowed is a whole number from 0", 5),
        ("sampling: warm\n", "allowed is a map with the keys temperature, top_k", 4),
        ("adapters: mira\n", "allowed is a list", 4),
        ("adapters:\n  - mira\n", "adapters[0]", 5),
        ("adapters:\n  - name: a\n    scale: 9\n", "allowed is a number from -8 to 8", 6),
        ("adapters:\n  - name: a\n    scale: nan\n", "allowed is a number from -8 to 8", 6),
        ("adapters:\n  - name: a\n    scale: inf\n", "allowed is a number from -8 to 8", 6),
        ("adapters:\n  - name: a\n    scale: strong\n", "found 'strong'", 6),
        ("greeting: [a, b]\n", "put quotes around the text", 4),
        ("greeting:\n  a: b\n", "put quotes around the text", 5),
        ("stop: '###'\n", "allowed is a list", 4),
        ("stop: ['']\n", "stop[0]", 4),
        ("stop: [" + "a, " * 33 + "]\n", "length <= 32", 4),
        ("examples: none\n", "allowed is a list", 4),
        ("examples:\n  - a: b\n", "unknown key 'a' in 'examples'", 5),
        ("fallback: Hm.\n", "allowed is a list", 4),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_what_is_allowed(more, saying, line):
    assert saying in refused(more, line=line)


@pytest.mark.parametrize("wrong", ["a/b", "a\\b", "/a", "' a'", '"a\\n"', '"a\\tb"', '"\\n"', "x" * 65, "''", '"a\\0"'])
def test_an_id_that_could_be_a_path_or_cannot_be_read_is_refused(wrong):
    assert "id: " in refused("", head=HEAD.replace("id: mira", f"id: {wrong}"), line=2)


@pytest.mark.parametrize("right", ["a", "Mira the Ferrywoman", "ö", "a.b", "..", "007", "x" * 64, "旅人"])
def test_an_id_may_be_any_short_name(right):
    assert loaded("", head=HEAD.replace("id: mira", f"id: {right}")).id == right


@pytest.mark.parametrize("number", ["40", "4e1", "40.0"])
def test_numbers_may_be_written_in_any_way(number):
    assert loaded(f"max_tokens: {number}\n").max_tokens == 40


# Adapters


@pytest.mark.parametrize("more", ["  - scale: 1\n", "  - name: a\n    file: a.gguf\n"])
def test_an_adapter_has_a_name_or_a_file_and_not_both(more):
    assert "either 'name' or 'file', exactly one of them" in refused("adapters:\n" + more, line=5)


@pytest.mark.parametrize(
    "again",
    ["name: a", "file: a.gguf", "file: ./a.gguf", "file: b/../a.gguf", "name: ./a"],
)
def test_an_adapter_that_is_listed_twice_is_an_error_that_names_both_lines(again):
    if ".." in again:
        assert "inside the adapters folder" in refused(f"adapters:\n  - name: a\n  - {again}\n", line=6)
    else:
        assert "is listed twice (first in line 5)" in refused(f"adapters:\n  - name: a\n  - {again}\n", line=6)


@pytest.mark.parametrize(
    "path",
    [
        "../a.gguf",
        "a/../../b.gguf",
        "/etc/a.gguf",
        "..\\a.gguf",
        "\\\\host\\a.gguf",
        "'C:\\a.gguf'",
        "C:a.gguf",
        '"a\\0.gguf"',
    ],
)
def test_an_adapter_file_outside_the_adapters_folder_is_refused(path):
    assert "must be a file inside the adapters folder" in refused(f"adapters:\n  - file: {path}\n", line=5)


@pytest.mark.parametrize("name", ["../a", "a/../../b", "/a", "..\\a"])
def test_an_adapter_name_outside_the_adapters_folder_is_refused(name):
    assert "must be a file inside the adapters folder" in refused(f"adapters:\n  - name: {name}\n", line=5)


@pytest.mark.parametrize("name", ["a", "villagers/a", "a..b", "Željko", "田中　太郎", "my voice"])
def test_an_adapter_may_have_any_name_inside_the_folder(name):
    assert loaded(f"adapters:\n  - name: {name}\n").adapters[0].path == f"{name}.gguf"


# Ids are compared, not spelled


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Mira", "mira"),
        ("MIRA", "mira"),
        ("Jos\u00e9", "Jose\u0301"),
        ("STRASSE", "straße"),
        ("Ångström", "\u212bngström"),
    ],
)
def test_ids_that_differ_in_case_or_unicode_form_only_are_the_same(one, other):
    assert persona_key(one) == persona_key(other)


@pytest.mark.parametrize(("one", "other"), [("mira", "mina"), ("a b", "ab"), ("007", "7"), ("é", "e")])
def test_ids_that_read_differently_are_different(one, other):
    assert persona_key(one) != persona_key(other)


@given(st.text())
def test_all_spellings_of_an_id_have_one_key(text):
    key = persona_key(text)
    for form in ("NFC", "NFD"):
        assert persona_key(unicodedata.normalize(form, text)) == key
    assert persona_key(key) == key
