"""Dialogue files: what is accepted, and that every mistake is told with file, line and field."""

import json
from pathlib import Path

import pytest

from npc_runtime.training.dialogue import DialogueInvalid, load_dialogue, normalised

GOOD = [
    {"player": "Hello.", "reply": "Morning. Dry feet?", "split": "train"},
    {"player": "Where does the road go?", "reply": "North. Two days.", "split": "held_out"},
]


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "mira.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_a_good_file_is_split_as_it_says(tmp_path):
    dialogue = load_dialogue(written(tmp_path, *GOOD))
    assert [ex.reply for ex in dialogue.train] == ["Morning. Dry feet?"]
    assert [ex.reply for ex in dialogue.held_out] == ["North. Two days."]
    assert len(dialogue.digest) == 64


def test_blank_lines_and_a_byte_order_mark_do_no_harm(tmp_path):
    path = written(tmp_path, GOOD[0], "", GOOD[1])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(load_dialogue(path).train) == 1


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"player": "Hi", "reply": "Aye"', "the line is not JSON"),
        ('["Hi", "Aye"]', "found list"),
        ({"player": "Hi", "split": "train"}, "field 'reply' is missing"),
        ({"player": "Hi", "reply": 7, "split": "train"}, "field 'reply' is 7; it must be a text"),
        ({"player": "Hi", "reply": "  ", "split": "train"}, "field 'reply' is empty"),
        (
            {"player": "Hi", "reply": "Aye", "split": "test"},
            "field 'split' is 'test'; allowed is 'train' or 'held_out'",
        ),
        ({"player": "Hi", "repyl": "Aye", "split": "train"}, "unknown field 'repyl'. Did you mean 'reply'?"),
    ],
)
def test_a_wrong_line_is_named_with_file_line_and_field(tmp_path, line, told):
    path = written(tmp_path, *GOOD, line)
    with pytest.raises(DialogueInvalid) as caught:
        load_dialogue(path)
    assert f"{path}, line 3: " in caught.value.message
    assert told in caught.value.message


def test_a_line_that_is_not_utf_8_is_named(tmp_path):
    path = written(tmp_path, *GOOD)
    path.write_bytes(path.read_bytes() + '{"player": "Hi", "reply": "\xe9"}\n'.encode("latin-1"))
    with pytest.raises(DialogueInvalid, match="line 3: the line is not UTF-8"):
        load_dialogue(path)


@pytest.mark.parametrize(
    ("held_out", "field"),
    [
        ({"player": "hello", "reply": "Something else entirely.", "split": "held_out"}, "player"),
        ({"player": "A new question?", "reply": "  MORNING -- dry feet", "split": "held_out"}, "reply"),
    ],
)
def test_a_held_out_text_that_was_trained_on_is_refused(tmp_path, held_out, field):
    with pytest.raises(DialogueInvalid, match=f"line 3: held-out field '{field}' says nearly the same as .* line 1"):
        load_dialogue(written(tmp_path, *GOOD, held_out))


def test_a_held_out_text_that_differs_in_one_word_of_many_is_refused(tmp_path):
    long = "the fog comes up the river every night and nobody rings the bell"
    train = {"player": "What is new?", "reply": long, "split": "train"}
    held_out = {"player": "Any rumours?", "reply": long.replace("every", "each"), "split": "held_out"}
    with pytest.raises(DialogueInvalid, match="line 4: held-out field 'reply' says nearly the same"):
        load_dialogue(written(tmp_path, *GOOD, train, held_out))


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_a_file_without_one_of_the_splits_is_refused(tmp_path, split):
    with pytest.raises(DialogueInvalid, match=f"no exchange has the split '{split}'"):
        load_dialogue(written(tmp_path, *[line for line in GOOD if line["split"] != split]))


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(DialogueInvalid, match=r"nobody\.jsonl' cannot be read"):
        load_dialogue(tmp_path / "nobody.jsonl")


def test_normalisation_keeps_words_only():
    assert normalised("  Pole’s   WAITING -- now! ") == "poles waiting now"
