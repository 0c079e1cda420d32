"""What is said of what was generated: whole characters, no stops, no player's line, no own name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc_runtime.engine.reply_text import ReplyText


def pieces_of(text: str | bytes, size: int = 1) -> list[bytes]:
    data = text if isinstance(text, bytes) else text.encode()
    return [data[at : at + size] for at in range(0, len(data), size)]


def assemble(pieces: list[bytes], *, stops=(), player="Anna", character="Mira") -> tuple[ReplyText, list[str], int]:
    """The reply, its deltas and how many pieces were fed, as the engine does it."""
    reply = ReplyText(stops, player, character)
    deltas = []
    fed = 0
    for piece in pieces:
        deltas.append(reply.feed(piece))
        fed += 1
        if reply.stopped:
            break
    deltas.append(reply.finish())
    return reply, deltas, fed


def said(text: str | bytes, *, size: int = 1, **how) -> str:
    reply, deltas, _ = assemble(pieces_of(text, size), **how)
    assert "".join(deltas) == reply.text
    return reply.text


# Characters


EMOJI = "Brr ❄️, 👨‍👩‍👧‍👦 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🇯🇵 ไทย 旅人 e\u0301 ﷽ a"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_characters_split_over_tokens_come_out_whole(size):
    reply, deltas, _ = assemble(pieces_of(EMOJI, size))
    assert "".join(deltas) == reply.text == EMOJI
    for delta in deltas:
        assert "\ufffd" not in delta
        delta.encode()


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_an_incomplete_character_at_the_end_is_dropped(cut):
    assert said("Hi 👋".encode()[:-cut]) == "Hi"


def test_a_lone_byte_and_nothing_else_is_the_empty_text():
    reply, deltas, _ = assemble([b"\xf0"])
    assert (reply.text, "".join(deltas)) == ("", "")


def test_an_impossible_byte_becomes_one_replacement_character():
    assert said(b"a\xffb") == "a\ufffdb"


@given(st.text(), st.integers(1, 7))
def test_deltas_are_the_reply_however_it_is_cut_into_tokens(text, size):
    reply, deltas, _ = assemble(pieces_of(text, size))
    assert "".join(deltas) == reply.text
    assert reply.text == reply.text.strip()
    assert reply.text == said(text, size=10_000)


@given(st.binary(max_size=40), st.integers(1, 5))
def test_any_bytes_give_valid_text(data, size):
    reply, deltas, _ = assemble(pieces_of(data, size))
    assert "".join(deltas) == reply.text
    reply.text.encode()


# Stops


def test_a_stop_ends_the_reply_and_is_not_said():
    reply, _, fed = assemble(pieces_of("Good day.###more"), stops=["###"])
    assert (reply.text, reply.stopped, fed) == ("Good day.", True, len("Good day.###"))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_a_stop_that_is_split_over_tokens_is_never_half_said(size):
    _, deltas, _ = assemble(pieces_of("Good day. <END> more", size), stops=["<END>"])
    assert "".join(deltas) == "Good day."


def test_the_begin_of_a_stop_that_turns_out_otherwise_is_said():
    reply, deltas, _ = assemble([b"a <E", b"NTER> b"], stops=["<END>"])
    assert deltas[0] == "a"
    assert "".join(deltas) == reply.text == "a <ENTER> b"
    assert not reply.stopped


def test_the_begin_of_a_stop_at_the_very_end_is_said():
    assert said("a <EN", stops=["<END>"]) == "a <EN"


def test_a_stop_at_the_start_leaves_nothing():
    reply, deltas, _ = assemble(pieces_of("###hello"), stops=["###"])
    assert ("".join(deltas), reply.stopped) == ("", True)


def test_the_first_of_several_stops_counts():
    assert said("one two three four", stops=["four", "two"]) == "one"


def test_a_longer_stop_that_begins_earlier_does_not_hide_a_shorter_one():
    assert said("say abcdx", stops=["abcdef", "cd"]) == "say ab"


def test_stops_are_plain_text_and_not_patterns():
    assert said("What? (yes) a.b axb", stops=["a.b"]) == "What? (yes)"
    assert said("a+b", stops=["+"]) == "a"


def test_a_stop_of_many_bytes_may_be_split_inside_a_character():
    assert said("Gut 終わり mehr", stops=["終わり"]) == "Gut"


@given(st.text(alphabet="ab<END> \n", max_size=30), st.integers(1, 4))
def test_a_stop_is_found_however_the_text_is_cut_into_tokens(text, size):
    expected = text.split("<END>")[0].strip()
    assert said(text, size=size, stops=["<END>"]) == expected


# The player's own line


@pytest.mark.parametrize(
    "continuation",
    [
        "\nPlayer: I run.\nGuard: Stop!",
        "\nAnna: I run.",
        "\n\nAnna: hi",
        "\nANNA：hi",
        "\nanna : hi",
        "\n**Anna:** hi",
        "\n**Anna**: hi",
        "\n*Anna*: hi",
        "\n[Anna]: hi",
        '\n"Anna": hi',
        "\n> Anna: hi",
        "\n- Anna: hi",
        "\n### Anna: hi",
        "\n_User_: hi",
        "\nAnna draws a sword",
        "\nAnna\nI run.",
        "\n**Anna** draws a sword",
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_reply_is_cut_where_the_players_line_begins(continuation, size):
    reply, deltas, _ = assemble(pieces_of("Halt!" + continuation, size))
    assert (reply.text, "".join(deltas), reply.stopped) == ("Halt!", "Halt!", True)


@pytest.mark.parametrize("text", ["Player: hi", "Anna: hi", "**ANNA：** hi", " User: hi"])
def test_a_reply_that_begins_as_the_player_is_empty(text):
    reply, _, _ = assemble(pieces_of(text))
    assert (reply.text, reply.stopped) == ("", True)


@pytest.mark.parametrize(
    ("player", "text"),
    [
        ("Al", "Halt!\nAlso, who are you?\nAl, come here!"),
        ("Al", "Halt!\nAl is the name of a dog."),
        ("I", "Halt!\nI see.\nI am here: look."),
        ("Anna", "Halt!\nAnna, come here!"),
        ("Anna", "Halt!\nAnnabelle: that was her name."),
        ("Anna", "Halt! Anna: what a name."),
        ("Anna", "Tell Anna: I am here."),
        ("Anna", "Halt!\nSusanna: that was her name."),
        ("Anna", "Anna draws well, they say."),
        ("Anna", "Halt!\nPlayers gather: we begin."),
        ("Anna", "Three things:\nAnna's ring: gold."),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 100])
def test_what_only_looks_like_the_players_line_is_said(player, text, size):
    assert said(text, size=size, player=player) == text


@pytest.mark.parametrize("player", ["I", "Al", "A.*B", "$&", "(Anna", "A|B", "ÄSKIL"])
def test_a_players_name_is_plain_text_and_not_a_pattern(player):
    assert said(f"Halt!\n{player}: I run.", player=player) == "Halt!"
    assert said("Halt!\nAxxB: no", player=player) == "Halt!\nAxxB: no"


@pytest.mark.parametrize("player", ["", "  "])
def test_a_player_without_a_name_is_still_called_player(player):
    assert said("Halt!\n: hm\nPlayer: hi", player=player) == "Halt!\n: hm"


def test_a_name_at_the_end_that_may_still_become_the_players_line_is_held_back():
    _, deltas, _ = assemble(pieces_of("Halt!\nAnna"))
    assert "".join(deltas[:-1]) == "Halt!"


# The own name


@pytest.mark.parametrize("lead", ["Mira: ", "Mira:", "**Mira:** ", "MIRA： ", " \n*Mira*: ", "Mira:\n"])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_characters_own_name_in_front_is_not_said(lead, size):
    assert said(lead + "Good day.", size=size) == "Good day."


@pytest.mark.parametrize("text", ["Mira is my name.", "Miracles happen: here.", "*Mira smiles* Hello.", "Mi", "Mira"])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_reply_that_speaks_of_the_character_is_said_whole(text, size):
    assert said(text, size=size) == text


def test_the_own_name_alone_is_the_empty_text():
    assert said("Mira: ") == ""


@pytest.mark.parametrize("text", ["  Good day. \n ", "\n\nGood day.", "Good day.\t"])
def test_white_space_at_both_ends_is_not_said(text):
    assert said(text) == "Good day."


def test_white_space_inside_is_said():
    assert said("One.\n\n  Two.") == "One.\n\n  Two."


# What the next prompt repeats


ALPHABET = st.sampled_from(["a", " ", "\n", "é", "👋", "Anna", "Mira", ":", "###", "*", b"\xf0\x9f", b"\xc3"])
PIECES = st.lists(ALPHABET.map(lambda part: part if isinstance(part, bytes) else part.encode()), max_size=14)


@given(PIECES, st.integers(1, 6))
def test_the_kept_tokens_and_the_rest_are_exactly_what_was_kept(parts, size):
    pieces = pieces_of(b"".join(parts), size)
    reply, _, fed = assemble(pieces, stops=["###"])
    tokens = list(range(100, 100 + fed))

    kept, rest = reply.settle(tokens, pieces[:fed])

    assert list(kept) == tokens[: len(kept)], "the kept tokens are the leading ones"
    repeated = b"".join(pieces[: len(kept)]).decode() + rest
    assert repeated.strip().endswith(reply.text)
    if not reply.text:
        assert repeated == ""
    elif reply.stopped:
        assert repeated.rstrip().endswith(reply.text) and "###" not in repeated
    if kept:
        assert repeated.encode().startswith(b"".join(pieces[: len(kept)]))


def test_all_tokens_of_an_ordinary_reply_are_kept():
    reply, _, _ = assemble(pieces_of("Good day."))
    assert reply.settle(range(9), pieces_of("Good day.")) == (tuple(range(9)), "")


def test_a_stop_inside_a_token_leaves_its_first_part_as_rest():
    pieces = [b"Good", b" day.#", b"##"]
    reply, _, _ = assemble(pieces, stops=["###"])
    assert reply.text == "Good day."
    assert reply.settle([1, 2, 3], pieces) == ((1,), " day.")


def test_tokens_of_an_incomplete_character_are_not_kept():
    pieces = [b"Hi", b" ", b"\xf0\x9f", b"\x91"]
    reply, _, _ = assemble(pieces)
    assert reply.settle([1, 2, 3, 4], pieces) == ((1, 2), "")


def test_a_character_that_is_whole_only_after_several_tokens_is_kept_with_all_of_them():
    pieces = [b"Hi ", b"\xf0\x9f", b"\x91\x8b", b"!"]
    reply, _, _ = assemble(pieces)
    assert reply.settle([1, 2, 3, 4], pieces) == ((1, 2, 3, 4), "")


def test_a_reply_that_began_with_the_own_name_is_repeated_as_text_without_it():
    pieces = [b"Mira: ", b"Hello."]
    reply, _, _ = assemble(pieces)
    assert reply.settle([1, 2], pieces) == ((), "Hello.")


def test_an_empty_reply_repeats_nothing():
    pieces = [b" ", b"\n"]
    reply, _, _ = assemble(pieces)
    assert reply.settle([1, 2], pieces) == ((), "")
