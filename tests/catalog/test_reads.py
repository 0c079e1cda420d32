"""When a file is read again: with real files and a clock of our own."""

import os

import pytest

from npc_runtime.catalog.reads import DOUBT_SECONDS, Reads
from npc_runtime.errors import PersonaInvalid

SETTLE = 0.1


class Clock:
    """The time that the reads see; files are given times relative to it."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def load(path, _sign):
    text = path.read_text(encoding="utf-8")
    if text == "bad":
        raise PersonaInvalid("bad text")
    return text


def refuse(path, reason):
    return PersonaInvalid(f"{path.name}: {reason}")


def make(clock, *, load=load, **options) -> Reads[str]:
    options = {"settle_seconds": SETTLE, "new_at_once": False, **options}
    return Reads(load, refuse, now=clock, monotonic=clock, **options)


def write(path, text: str, clock: Clock, *, age: float) -> None:
    """Write in place; the file's time is ``age`` seconds ago."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (clock.now - age, clock.now - age))


def value(reads: Reads[str], path):
    read = reads.get(path)
    return None if read is None else read.value


def test_a_new_file_is_read_when_it_is_at_rest(tmp_path, clock):
    reads, path = make(clock), tmp_path / "x"
    assert reads.get(path) is None
    write(path, "one", clock, age=0)
    assert value(reads, path) is None and reads.unsettled
    clock.now += 2 * SETTLE
    reads.begin()
    assert value(reads, path) == "one" and not reads.unsettled


def test_a_new_file_whose_checks_find_out_is_read_at_once(tmp_path, clock):
    reads, path = make(clock, new_at_once=True), tmp_path / "x"
    write(path, "one", clock, age=0)
    assert value(reads, path) == "one"


def test_what_is_known_serves_while_the_file_is_written(tmp_path, clock):
    reads, path = make(clock), tmp_path / "x"
    write(path, "one", clock, age=1)
    assert value(reads, path) == "one"
    write(path, "two, ha", clock, age=0)
    assert value(reads, path) == "one" and reads.unsettled
    clock.now += 2 * SETTLE
    assert value(reads, path) == "two, ha"


def test_an_error_takes_the_place_of_the_value(tmp_path, clock):
    reads, path = make(clock), tmp_path / "x"
    write(path, "one", clock, age=1)
    reads.get(path)
    write(path, "bad", clock, age=1)
    read = reads.get(path)
    assert read.value is None and read.error.message == "bad text"


def shorter(known: str, new: str) -> bool:
    return len(new) < len(known)


def test_content_that_looks_like_half_of_the_old_must_be_seen_for_longer(tmp_path, clock):
    reads, path = make(clock, is_doubtful=shorter), tmp_path / "x"
    write(path, "all of it", clock, age=1)
    reads.get(path)
    write(path, "all", clock, age=2 * SETTLE)
    assert value(reads, path) == "all of it" and reads.unsettled
    clock.now += 0.9 * DOUBT_SECONDS
    assert value(reads, path) == "all of it"
    clock.now += 0.2 * DOUBT_SECONDS
    assert value(reads, path) == "all"


def test_a_file_time_of_long_ago_does_not_end_the_doubt(tmp_path, clock):
    reads, path = make(clock, is_doubtful=shorter), tmp_path / "x"
    write(path, "all of it", clock, age=1)
    reads.get(path)
    write(path, "all", clock, age=3600)
    assert value(reads, path) == "all of it" and reads.unsettled


def test_more_of_a_file_begins_the_doubt_anew(tmp_path, clock):
    reads, path = make(clock, is_doubtful=shorter), tmp_path / "x"
    write(path, "all of it", clock, age=1)
    for text in ("a", "al", "all"):
        reads.get(path)
        clock.now += 0.9 * DOUBT_SECONDS
        write(path, text, clock, age=2 * SETTLE)
        assert value(reads, path) == "all of it"


def test_an_error_in_between_does_not_hide_that_half_is_missing(tmp_path, clock):
    reads, path = make(clock, is_doubtful=shorter), tmp_path / "x"
    write(path, "all of it", clock, age=1)
    reads.get(path)
    write(path, "bad", clock, age=1)
    assert reads.get(path).error.message == "bad text"
    write(path, "all", clock, age=1)
    assert reads.get(path).value is None and reads.unsettled
    write(path, "all of it!", clock, age=1)
    assert value(reads, path) == "all of it!"


def test_the_same_size_and_time_do_not_hide_other_content(tmp_path, clock):
    reads, path = make(clock), tmp_path / "x"
    write(path, "one", clock, age=5)
    assert value(reads, path) == "one"
    write(path, "two", clock, age=5)
    assert value(reads, path) == "two"


def test_an_error_of_the_system_is_not_remembered(tmp_path, clock):
    answers = iter([PermissionError(13, "Permission denied"), MemoryError(), None])

    def flaky(path, sign):
        if (error := next(answers)) is not None:
            raise error
        return load(path, sign)

    reads, path = make(clock, load=flaky), tmp_path / "x"
    write(path, "one", clock, age=1)
    assert reads.get(path).error.message == "x: it cannot be read: Permission denied"
    assert reads.get(path).error.message == "x: it cannot be read: not enough memory"
    assert value(reads, path) == "one"


def test_files_that_a_scan_did_not_ask_for_are_forgotten(tmp_path, clock):
    reads, path = make(clock), tmp_path / "x"
    write(path, "one", clock, age=1)
    reads.get(path)
    reads.end()
    assert reads.values() == ["one"]
    reads.begin()
    reads.end()
    assert reads.values() == []
