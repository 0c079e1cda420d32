"""Persona files as writers type them: text stays text, nothing is cut in silence, no file kills the reader."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from npc_runtime.errors import PersonaInvalid
from npc_runtime.persona import Persona, decode_text, load_persona
from npc_runtime.persona.yaml_text import MAX_DEPTH, MAX_NODES, read_yaml

HEAD = "schema: npc/1\nid: mira\nname: Mira\n"
"""Three lines; what a test adds begins in line 4."""

LOOKS_LIKE_SOMETHING_ELSE = [
    "No",
    "on",
    "Off",
    "y",
    "yes",
    "true",
    "null",
    "~",
    "007",
    "08",
    "0555567",
    "1_000",
    "12:30",
    "12:30:45",
    "3:16",
    "0x1F",
    "1.10",
    ".inf",
    "NaN",
    "1e3",
    "2024-01-02",
    "2024-01-02T03:04:05Z",
    "=",
    "<<",
    "N/A",
    "-7",
]


def loaded(more: str, head: str = HEAD) -> Persona:
    return load_persona(head + more, "mira.yaml")


def refused(more: str, *, line: int, head: str = HEAD) -> str:
    """The message with which the file is refused, for that line of it."""
    with pytest.raises(PersonaInvalid) as caught:
        load_persona(head + more, "mira.yaml")
    error = caught.value
    assert (error.source, error.line) == ("mira.yaml", line), error.message
    assert error.message.startswith(f"mira.yaml, line {line}: ")
    return error.message


# Text stays text


@pytest.mark.parametrize("text", LOOKS_LIKE_SOMETHING_ELSE)
def test_text_that_yaml_takes_for_something_else_stays_as_it_was_typed(text):
    persona = loaded(
        f"greeting: {text}\nstop:\n  - {text}\nfallback: [{text}]\nexamples:\n  - player: {text}\n    reply: {text}\n"
    )
    assert (persona.greeting, persona.stop, persona.fallback) == (text, (text,), (text,))
    assert (persona.examples[0].player, persona.examples[0].reply) == (text, text)


@pytest.mark.parametrize("text", [t for t in LOOKS_LIKE_SOMETHING_ELSE if "/" not in t and ":" not in t])
def test_ids_names_and_adapter_names_stay_as_they_were_typed(text):
    persona = loaded(f"adapters:\n  - name: {text}\n", head=f"schema: npc/1\nid: {text}\nname: {text}\n")
    assert (persona.id, persona.name, persona.adapters[0].name) == (text, text, text)


def test_keys_that_yaml_takes_for_something_else_are_named_as_they_were_typed():
    assert "unknown key 'on'" in refused("on: x\n", line=4)
    assert "unknown key '007'" in refused("007: x\n", line=4)
    assert "unknown key '~'" in refused("~: x\n", line=4)


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp", "Cn"]), min_size=1, max_size=40)
)
def test_any_text_in_quotes_is_read_back_exactly(text):
    written = yaml.safe_dump({"greeting": text}, allow_unicode=True, default_style='"', width=10_000)
    assert loaded(written).greeting == text


def test_blocks_keep_their_lines_and_their_punctuation():
    persona = loaded("greeting: |\n  *waves* Listen: #1 in town!\n    [sighs] {{char}}\nnotes: >-\n  one\n  two\n")
    assert persona.greeting == "*waves* Listen: #1 in town!\n  [sighs] {{char}}\n"
    assert persona.notes == "one two"


def test_a_text_over_several_lines_is_one_text():
    assert loaded("greeting: Good day,\n  *stranger*\n").greeting == "Good day, *stranger*"


def test_a_key_without_a_value_is_an_error_that_names_the_line():
    # An empty `adapters:` taken for "none" would let the base model speak.
    assert "key 'greeting' has no value" in refused("greeting:\n", line=4)
    assert "key 'adapters' has no value" in refused("adapters:\n", line=4)


def test_half_a_character_written_as_an_escape_is_refused():
    assert "Unicode" in refused('summary: "odd \\ud800 text"\n', line=4)


# Punctuation


PUNCTUATION = [
    "*waves*",
    "Listen: run!",
    "[sighs] Hi",
    "{{char}} smiles",
    '"Hello," she said.',
    "'Tis done",
    "!stop",
    "@home",
    "%x",
    "- hm",
    "> ok",
    "| x",
    "? what",
    "`x`",
    ", x",
    "He is #1 in town",
    "#️⃣ tag",
    "#hashtag",
]


@pytest.mark.parametrize("text", PUNCTUATION)
def test_punctuation_that_yaml_trips_over_is_an_error_that_names_the_line(text):
    message = refused(f"greeting: {text}\n", line=4)
    assert "quotes" in message
    if not text.startswith("!"):
        assert text.split("#")[-1][:20].strip() in message, "the writer must see what is meant"


@pytest.mark.parametrize("text", PUNCTUATION)
def test_punctuation_in_a_list_item_is_an_error_that_names_the_line(text):
    assert "quotes" in refused(f"stop:\n  - fine\n  - {text}\n", line=6)


@pytest.mark.parametrize("text", ["He is #1 in town", "#️⃣ tag", "#hashtag", "Listen: run!"])
def test_punctuation_in_the_second_line_of_a_text_is_an_error_as_well(text):
    with pytest.raises(PersonaInvalid, match="quotes"):
        loaded(f"greeting: Good day,\n  {text}\n")
    with pytest.raises(PersonaInvalid, match="quotes"):
        loaded(f"stop:\n  - Good day,\n    {text}\n")


@pytest.mark.parametrize("text", [t for t in PUNCTUATION if t[0] not in "#L" and " #" not in t])
def test_punctuation_in_the_second_line_of_a_text_that_yaml_takes_as_text_is_text(text):
    assert loaded(f"greeting: Good day,\n  {text}\n").greeting == f"Good day, {text}"


@pytest.mark.parametrize("text", PUNCTUATION)
def test_the_advice_helps(text):
    doubled = text.replace("'", "''")
    assert loaded(f"greeting: '{doubled}'\n").greeting == text
    assert loaded(f"greeting: |\n  {text}\n").greeting == text + "\n"


@pytest.mark.parametrize(
    "more",
    [
        "greeting: Good day # said kindly\n",
        "# a comment\ngreeting: Good day\n",
        "greeting: Good day\n#notes: left out\n",
        "#greeting: Hello\ngreeting: Good day\n#\n",
        "greeting: 'Good day' #said kindly\n",
        "greeting: Good day\nadapters:\n  - name: a\n    #scale: 0.5\n  #- name: b\n",
    ],
)
def test_comments_are_comments(more):
    assert loaded(more).greeting == "Good day"


# Duplicates and merge keys


def test_a_key_that_stands_twice_is_an_error_that_names_both_lines():
    message = refused("greeting: one\nnotes: x\ngreeting: two\n", line=6)
    assert "key 'greeting' stands twice" in message and "line 4" in message
    message = refused("id: other\n", line=4)
    assert "key 'id' stands twice" in message and "line 2" in message


def test_a_key_that_stands_twice_inside_a_list_or_map_is_an_error():
    assert "key 'seed' stands twice (first in line 5)" in refused("sampling:\n  seed: 1\n  seed: 2\n", line=6)
    assert "first in line 5" in refused("examples:\n  - player: a\n    reply: b\n    player: c\n", line=7)


def test_the_same_key_in_two_items_of_a_list_is_no_duplicate():
    persona = loaded("examples:\n  - player: a\n    reply: b\n  - player: c\n    reply: d\n")
    assert [example.reply for example in persona.examples] == ["b", "d"]


def test_merge_keys_work_and_a_maps_own_keys_win():
    persona = loaded("examples:\n  - &one\n    player: a\n    reply: b\n  - <<: *one\n    reply: c\n")
    assert [(example.player, example.reply) for example in persona.examples] == [("a", "b"), ("a", "c")]
    persona = loaded("sampling:\n  <<: [{seed: 1, top_k: 2}, {seed: 3, top_p: 0.5}]\n  top_k: 7\n")
    assert (persona.sampling.seed, persona.sampling.top_k, persona.sampling.top_p) == (1, 7, 0.5)


def test_a_merge_of_something_else_than_a_map_is_an_error():
    assert "'<<' takes over the keys of a map" in refused("sampling:\n  <<: hello\n", line=5)


def test_a_merged_key_is_checked_like_any_other():
    message = refused("sampling:\n  <<: {sead: 1}\n", line=5)
    assert "unknown key" in message and "sead" in message


def test_an_alias_repeats_a_value():
    assert loaded("greeting: &hi Good day\nfallback: [*hi]\n").fallback == ("Good day",)


# Bombs


def test_aliases_that_multiply_are_stopped_by_a_count():
    levels = "".join(f"    {chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8))
    assert f"more than {MAX_NODES} values" in refused(
        "notes:\n    a: &a [x, x, x, x, x, x, x, x, x]\n" + levels, line=5
    )


@pytest.mark.parametrize("more", ["notes: &a [*a]\n", "notes: &a\n  x: *a\n", "notes: &a [[[*a]]]\n"])
def test_a_value_that_contains_itself_is_an_error(more):
    with pytest.raises(PersonaInvalid, match="a part of"):
        loaded(more)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 400, 900, 30_000])
@pytest.mark.parametrize("shape", ["[", "{a: ", "- "])
def test_deep_nesting_is_an_error_and_never_a_crash(depth, shape):
    end = {"[": "]", "{a: ": "}", "- ": ""}[shape]
    with pytest.raises(PersonaInvalid):
        read_yaml(shape * depth + "x" + end * depth, "deep.yaml")
    with pytest.raises(PersonaInvalid):
        read_yaml(shape * depth, "deep.yaml")


def test_nesting_within_the_bound_is_read():
    assert read_yaml("[" * MAX_DEPTH + "x" + "]" * MAX_DEPTH, "deep.yaml").value[0] is not None


def test_many_values_are_an_error():
    assert f"more than {MAX_NODES} values" in refused("stop: [" + "x," * (MAX_NODES + 1) + "]\n", line=4)


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['true']",
        "!!python/name:os.system",
        "!!python/tuple [a]",
        "!!python/object:builtins.dict {a: b}",
        "!!binary aGk=",
        "!!set {a}",
        "!foo bar",
        "!foo [bar]",
        "!foo {bar: x}",
    ],
)
def test_tags_are_refused_and_nothing_is_constructed(value):
    assert "starts a YAML tag, which is not allowed" in refused(f"stop: {value}\n", line=4)


# Bytes


def test_utf8_with_and_without_a_byte_order_mark_is_read():
    text = HEAD + "greeting: Grüß Gott 👋\n"
    for encoding in ("utf-8", "utf-8-sig"):
        assert decode_text(text.encode(encoding), "mira.yaml") == text
    assert loaded("", head="\ufeff" + HEAD).name == "Mira"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_refused_with_what_to_do(encoding):
    mark = "" if encoding == "utf-16" else "\ufeff"
    with pytest.raises(PersonaInvalid, match="UTF-16; save it as UTF-8"):
        decode_text((mark + HEAD).encode(encoding), "mira.yaml")


def test_a_byte_that_is_not_utf8_is_named_with_its_line():
    with pytest.raises(PersonaInvalid, match=r"mira\.yaml, line 4: byte 0xe9 is not UTF-8") as caught:
        decode_text(HEAD.encode() + b"greeting: caf\xe9\n", "mira.yaml")
    assert caught.value.line == 4


@pytest.mark.parametrize("data", [b"", b"  \n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf \n"])
def test_an_empty_file_is_called_empty(data):
    with pytest.raises(PersonaInvalid, match="the file is empty"):
        decode_text(data, "mira.yaml")


@pytest.mark.parametrize("character", ["\x00", "\x07", "\x1b", "\ud800"])
def test_a_character_that_no_yaml_file_may_hold_is_an_error_for_its_line(character):
    assert "not readable as YAML" in refused(f"greeting: ünïcödé\nnotes: a{character}b\n", line=5)


def test_line_ends_of_other_systems_are_read():
    assert loaded("greeting: Good day\r\n", head=HEAD.replace("\n", "\r\n")) == loaded("greeting: Good day\n")
    assert refused("\r\ngreeting: a: b\r\n", line=5, head=HEAD.replace("\n", "\r\n"))


# Documents


@pytest.mark.parametrize("text", ["- a\n- b\n", "hello\n", "'quoted'\n", "---\n"])
def test_a_file_that_is_no_map_is_told_what_it_must_be(text):
    assert "map of 'key: value' lines" in refused("", head=text, line=1)


@pytest.mark.parametrize("text", ["# only a comment\n", HEAD + "---\n" + HEAD, HEAD + "...\n---\nx\n"])
def test_a_file_holds_exactly_one_document(text):
    assert "a persona file holds exactly one map" in refused("", head=text, line=1)


def test_a_key_that_is_not_a_word_is_an_error():
    assert "a key must be one word" in refused("? [a]\n: b\n", line=4)


@given(st.text(max_size=80))
def test_no_text_raises_anything_but_a_refusal(text):
    try:
        loaded(text)
    except PersonaInvalid as error:
        assert error.line >= 1


@given(st.text(alphabet="ab:-# \n\t[]{}'\"&*!|>%@`?,~<", max_size=30))
def test_no_punctuation_raises_anything_but_a_refusal(text):
    try:
        loaded(f"greeting: {text}\n")
    except PersonaInvalid as error:
        assert error.line >= 4
