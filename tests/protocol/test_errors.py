"""The error tree: one code for each class, and what a client may conclude from it."""

from pathlib import Path

import pytest

from npc_runtime.errors import NpcError, all_codes, from_code
from npc_runtime.protocol import decode_answer, encode, error_answer

PAGE = (Path(__file__).parent.parent.parent / "docs/protocol.md").read_text(encoding="utf-8")


def tree(cls: type[NpcError]) -> list[type[NpcError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in tree(sub))]


CLASSES = [cls for cls in tree(NpcError)[1:] if cls.__module__ == "npc_runtime.errors"]


def test_every_error_class_has_a_code_of_its_own():
    codes = [vars(cls).get("code") for cls in CLASSES]
    assert None not in codes
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_goes_through_the_wire_and_comes_back_as_its_class(cls):
    answer = decode_answer(encode(error_answer(cls("what happened"), 7, "t-1")))
    assert (answer.reply_to, answer.turn_id, answer.message) == (7, "t-1", "what happened")
    assert (answer.code, answer.fault, answer.retryable) == (cls.code, cls.fault, cls.retryable)
    back = from_code(answer.code, answer.message)
    assert back.code == cls.code
    assert back.message == "what happened"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_code_says_whose_fault_it_is_and_is_documented(cls):
    assert cls.fault in ("request", "content", "runtime")
    assert f"| `{cls.code}` | {cls.fault} | {'yes' if cls.retryable else 'no'} |" in PAGE


def test_a_code_of_a_newer_daemon_is_an_error_too():
    error = from_code("not_invented_yet", "words")
    assert isinstance(error, NpcError)
    assert error.message == "words"


def test_codes_and_classes_are_the_same_list():
    assert set(all_codes()) == {cls.code for cls in tree(NpcError)}
