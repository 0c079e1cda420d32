"""The system text of a persona, and macros in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc_runtime.persona import Example, Persona
from npc_runtime.prompt import greeting_text, system_text
from npc_runtime.prompt.persona_text import expand

MIRA = Persona(
    schema="npc/1",
    id="mira",
    name="Mira",
    summary="keeper of the ferry",
    background="{{char}} has known the river all her life.",
    personality="Calm.",
    speech_style="Short sentences.",
    scenario="{{user}} stands on the jetty.",
    greeting=" Well met, {{user}}. \n",
    examples=(Example("Is it far?", "Not for {{char}}.\n"), Example("{{user}} is my name.", "I know.")),
)


def test_the_sections_stand_in_one_fixed_order_with_what_never_changes_first():
    assert system_text(MIRA, "Anna") == (
        "You are Mira. keeper of the ferry\n"
        "Mira has known the river all her life.\n"
        "Calm.\n"
        "How you speak: Short sentences.\n"
        "Now: Anna stands on the jetty.\n"
        "For example, this is how you would answer:\n"
        "Anna: Is it far?\nMira: Not for Mira.\n"
        "Anna: Anna is my name.\nMira: I know."
    )


def test_empty_sections_leave_no_trace():
    bare = Persona(schema="npc/1", id="x", name="X", background=" \n", speech_style="")
    assert system_text(bare, "Anna") == "You are X."


def test_the_greeting_is_expanded_and_trimmed():
    assert greeting_text(MIRA, "Anna") == "Well met, Anna."


@pytest.mark.parametrize("macro", ["{{char}}", "{{Char}}", "{{ char }}", "{{CHAR}}", "{{\tchar\n}}"])
def test_known_macros_are_expanded_in_any_case_and_with_blanks(macro):
    assert expand(f"I am {macro}!", "Mira", "Anna") == "I am Mira!"


@pytest.mark.parametrize(
    "text", ["{{unknown}}", "{{char", "char}}", "{char}", "{{char}", "{{ch ar}}", "{{}}", "<USER>"]
)
def test_what_is_no_known_macro_stays_as_it_is(text):
    assert expand(text, "Mira", "Anna") == text


@pytest.mark.parametrize("name", [r"$& \1 {{char}}", "A.*B", "", "{{user}}", r"\g<0>", "x" * 10_000])
def test_names_are_put_in_literally_and_not_looked_at_again(name):
    assert expand("Hello {{user}}, I am {{char}}.", "Mira", name) == f"Hello {name}, I am Mira."
    assert expand("{{user}} and {{char}}", name, "Anna") == f"Anna and {name}"


def test_a_players_name_that_is_a_macro_stays_one_in_examples_too():
    text = system_text(MIRA, "{{char}}")
    assert "Now: {{char}} stands on the jetty." in text


@given(st.text(), st.text(), st.text())
def test_a_text_without_braces_is_never_changed(text, character, player):
    text = text.replace("{", "")
    assert expand(text, character, player) == text
