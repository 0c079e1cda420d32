"""KV files: they come back as they were or not at all."""

import errno
import logging
import os
import stat
import struct
import sys
import threading
from pathlib import Path

import pytest

from npc_runtime.engine import disk_tier
from npc_runtime.engine.disk_tier import MAGIC, MAX_PENDING, DiskTier
from npc_runtime.engine.snapshot import Snapshot

CALLS = ((1, 2, 3), (4,), (5,))
DATA = bytes(range(256)) * 40
KEY = "key"
BUDGET = 1 << 20


def copy(session: str = "s", calls=CALLS, data: bytes = DATA, *, key: str = KEY, persona: str = "mira") -> Snapshot:
    return Snapshot(key, session, persona, tuple(calls), data)


def kept(folder: Path, *snapshots: Snapshot, budget: int = BUDGET) -> DiskTier:
    """A tier in which the snapshots were written."""
    tier = DiskTier(folder, budget)
    for snapshot in snapshots:
        assert tier.put(snapshot)
        assert tier.flush(30)
    return tier


def read(tier: DiskTier, calls=CALLS, *, key: str = KEY) -> Snapshot | None:
    entry, _ = tier.best(key, calls, cuttable=True)
    return None if entry is None else tier.load(entry)


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


# What is kept comes back


def test_a_snapshot_comes_back_from_disk_in_another_process_as_it_was(tmp_path):
    kept(tmp_path / "kv", copy(), copy("", ((1, 2, 3),), b"the fixed part"))
    later = DiskTier(tmp_path / "kv", BUDGET)
    assert len(later) == 2
    assert read(later) == copy()
    assert read(later, ((1, 2, 3), (9,))) in (copy(), copy("", ((1, 2, 3),), b"the fixed part"))
    assert (later.dropped, later.holds(KEY, "s", CALLS), later.holds(KEY, "t", CALLS)) == (0, True, False)


def test_a_newer_snapshot_of_a_session_takes_the_place_of_the_older_one(tmp_path):
    longer = copy(calls=(*CALLS, (6,)), data=b"longer")
    tier = kept(tmp_path, copy(), longer)
    assert len(tier) == 1
    assert read(tier, longer.calls) == longer
    assert read(DiskTier(tmp_path, BUDGET), longer.calls) == longer


def test_kv_of_another_key_is_never_found(tmp_path):
    tier = kept(tmp_path, copy(key="another model, adapter, context size or KV type"))
    assert tier.best(KEY, CALLS, cuttable=True) == (None, 0)


def test_what_cannot_be_cut_is_used_whole_or_not_at_all(tmp_path):
    tier = kept(tmp_path, copy())
    assert tier.best(KEY, (*CALLS[:2], (9,)), cuttable=True)[1] == 2
    assert tier.best(KEY, (*CALLS[:2], (9,)), cuttable=False) == (None, 0)
    assert tier.best(KEY, (*CALLS, (9,)), cuttable=False)[1] == 3


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of another kind")
def test_files_and_the_folder_are_their_owners_only(tmp_path):
    kept(tmp_path / "kv", copy())
    assert stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o700
    assert stat.S_IMODE(only_file(tmp_path / "kv").stat().st_mode) == 0o600


# Damage


@pytest.mark.parametrize("size", range(0, len(DATA), 1000))
def test_a_file_that_was_cut_short_is_dropped_with_a_log_line(tmp_path, size, caplog):
    kept(tmp_path, copy())
    path = only_file(tmp_path)
    os.truncate(path, size)
    later = DiskTier(tmp_path, BUDGET)
    assert (len(later), later.dropped, path.exists()) == (0, 1, False)
    assert read(later) is None
    assert path.name in caplog.text and "computed again" in caplog.text


@pytest.mark.parametrize("size", range(0, len(DATA), 1000))
def test_a_file_that_is_cut_short_while_the_engine_runs_is_dropped_when_it_is_wanted(tmp_path, size):
    tier = kept(tmp_path, copy())
    os.truncate(only_file(tmp_path), size)
    assert read(tier) is None
    assert (len(tier), tier.dropped, list(tmp_path.iterdir())) == (0, 1, [])


def test_one_changed_byte_anywhere_is_noticed(tmp_path):
    kept(tmp_path, copy(data=DATA[:200]))
    path = only_file(tmp_path)
    content = path.read_bytes()
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x41
        path.write_bytes(damaged)
        later = DiskTier(tmp_path, BUDGET)
        assert all(later.load(entry) is None for entry in [*later._entries.values()]), f"byte {at}"
        assert (len(later), later.dropped) == (0, 1), f"byte {at}"
        later.close()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"NPCKV000" + b"\0" * 100,
        MAGIC,
        MAGIC + struct.pack("<I", 0xFFFFFFFF) + b"x" * 100,
        MAGIC + struct.pack("<I", 5) + b"\xc1\xc1\xc1\xc1\xc1",
        MAGIC + struct.pack("<I", 1) + b"\x80",
        MAGIC + struct.pack("<I", 4) + b"\x81\xa1k\x01",
        b"\x7fELF" + os.urandom(500),
    ],
)
def test_a_file_of_our_name_with_something_else_in_it_is_dropped(tmp_path, content, caplog):
    name = "0123456789" * 4 + ".kv"
    (tmp_path / name).write_bytes(content)
    tier = DiskTier(tmp_path, BUDGET)
    assert (len(tier), tier.dropped, list(tmp_path.iterdir())) == (0, 1, [])
    assert name in caplog.text


def test_other_programs_files_in_the_folder_are_left_alone(tmp_path):
    names = ["screen.kv", "letter.draft", "0123.kv.draft", "0123456789" * 4 + ".txt"]
    for name in names:
        (tmp_path / name).write_bytes(b"mine")
    tier = DiskTier(tmp_path, BUDGET)
    tier.close()
    assert (len(tier), tier.dropped) == (0, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_file_that_somebody_removes_is_a_miss(tmp_path):
    tier = kept(tmp_path, copy())
    only_file(tmp_path).unlink()
    assert read(tier) is None
    assert len(tier) == 0


def test_a_file_under_another_files_name_is_still_what_it_says_of_itself(tmp_path):
    kept(tmp_path / "a", copy("s"))
    kept(tmp_path / "b", copy("t", data=b"other"), copy("s", ((9,),), b"mine"))
    (source,) = [path for path in (tmp_path / "b").iterdir() if b"other" in path.read_bytes()]
    source.replace(only_file(tmp_path / "a"))
    assert read(DiskTier(tmp_path / "a", BUDGET)) == copy("t", data=b"other")


def test_a_file_that_is_replaced_by_a_newer_one_before_it_is_read_is_left_alone(tmp_path):
    tier = kept(tmp_path, copy())
    entry, _ = tier.best(KEY, CALLS, cuttable=True)
    newer = copy(calls=(*CALLS, (6,)), data=b"newer")
    tier.put(newer)
    tier.flush(30)
    assert tier.load(entry) is None
    tier.forget(entry)
    assert (read(tier), tier.dropped) == (newer, 0)


def test_drafts_of_a_process_that_was_killed_are_removed_at_the_start(tmp_path):
    kept(tmp_path, copy())
    (tmp_path / f"{only_file(tmp_path).name}.draft").write_bytes(MAGIC + b"half")
    later = DiskTier(tmp_path, BUDGET)
    assert (len(later), later.dropped) == (1, 0)
    assert [path.suffix for path in tmp_path.iterdir()] == [".kv"]


# Folders and disks that fail


def test_a_folder_that_cannot_be_made_is_said_and_nothing_is_kept(tmp_path, caplog):
    (tmp_path / "file").write_bytes(b"")
    check_unusable(tmp_path / "file", caplog)
    check_unusable(tmp_path / "file" / "kv", caplog)


def test_a_folder_in_which_nothing_can_be_written_is_said_and_nothing_is_kept(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(Path, "write_bytes", lambda *args: (_ for _ in ()).throw(OSError(errno.EROFS, "read-only")))
    check_unusable(tmp_path, caplog)


def check_unusable(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tier = DiskTier(folder, BUDGET)
    assert not tier.usable
    assert "cannot be used" in caplog.text and str(folder) in caplog.text
    assert not tier.put(copy())
    assert tier.flush(0)
    assert (read(tier), len(tier), tier.bytes, tier.full) == (None, 0, 0, False)


def test_a_folder_that_somebody_removed_is_made_again(tmp_path):
    tier = DiskTier(tmp_path / "kv", BUDGET)
    (tmp_path / "kv").rmdir()
    assert tier.put(copy()) and tier.flush(30)
    assert read(tier) == copy()


def test_a_full_disk_costs_the_copy_and_leaves_no_draft(tmp_path, caplog, monkeypatch):
    tier = kept(tmp_path, copy("s"))

    real_fdopen = os.fdopen

    def fdopen_on_a_full_disk(*args):
        file = real_fdopen(*args)
        return _Full(file)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(disk_tier.os, "fdopen", fdopen_on_a_full_disk)
        assert tier.put(copy("t", ((7,),)))
        assert tier.flush(30)
    assert "No space left" in caplog.text
    assert [path.suffix for path in tmp_path.iterdir()] == [".kv"]
    assert (len(tier), read(tier)) == (1, copy("s"))
    tier.put(copy("t", ((7,),)))
    assert tier.flush(30)
    assert read(tier, ((7,),)) == copy("t", ((7,),)), "the tier goes on when there is room again"


class _Full:
    """A file that takes no bytes."""

    def __init__(self, file) -> None:
        self._file = file

    def __enter__(self):
        return self

    def __exit__(self, *args: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


# Budget


def test_the_file_that_was_used_the_longest_time_ago_makes_room(tmp_path):
    size = kept(tmp_path / "one", copy("s")).bytes
    tier = kept(tmp_path / "kv", copy("s", ((1,),)), copy("t", ((2,),)), budget=int(size * 2.5))
    read(tier, ((1,),))
    tier.put(copy("u", ((3,),)))
    tier.flush(30)
    tier.close(30)
    assert {header.session_id for header in tier} == {"s", "u"}
    assert tier.bytes <= size * 2.5
    assert len(list((tmp_path / "kv").iterdir())) == 2


def test_a_budget_that_was_lowered_holds_from_the_start(tmp_path):
    size = kept(tmp_path, *(copy(session) for session in "stuv")).bytes
    assert len(DiskTier(tmp_path, size // 2)) == 2


# Writing and dropping


@pytest.fixture
def held_up(monkeypatch):
    """While this is not set, the writing thread waits inside its write, before the file is in place."""
    go_on, writing = threading.Event(), threading.Event()
    real_open = os.open

    def waiting_open(*args, **kwargs):
        writing.set()
        assert go_on.wait(30)
        return real_open(*args, **kwargs)

    monkeypatch.setattr(disk_tier.os, "open", waiting_open)
    yield writing, go_on
    go_on.set()


def test_no_more_than_a_few_snapshots_wait_to_be_written(tmp_path, held_up):
    _, go_on = held_up
    tier = DiskTier(tmp_path, BUDGET)
    taken = [tier.put(copy(str(number))) for number in range(MAX_PENDING + 2)]
    assert taken == [True] * MAX_PENDING + [False] * 2
    assert tier.full
    assert tier.put(copy("0", data=b"newer")), "what waits already may be replaced"
    assert not tier.flush(0)
    go_on.set()
    assert tier.flush(30)
    assert (len(tier), tier.full) == (MAX_PENDING, False)


def test_what_is_dropped_while_it_is_being_written_is_not_kept(tmp_path, held_up):
    writing, go_on = held_up
    tier = DiskTier(tmp_path, BUDGET)
    tier.put(copy("s"))
    tier.put(copy("t"))
    assert writing.wait(30)
    tier.drop(lambda what: what.session_id == "s")
    go_on.set()
    assert tier.flush(30)
    assert [header.session_id for header in tier] == ["t"]
    tier.close(30)
    assert len(list(tmp_path.iterdir())) == 1


def test_what_is_put_again_while_it_is_being_written_is_written_again(tmp_path, held_up):
    writing, go_on = held_up
    tier = DiskTier(tmp_path, BUDGET)
    tier.put(copy())
    assert writing.wait(30)
    newer = copy(calls=(*CALLS, (6,)), data=b"newer")
    tier.put(newer)
    go_on.set()
    assert tier.flush(30)
    assert read(tier, newer.calls) == newer


def test_dropping_removes_the_files_that_match_and_no_others(tmp_path):
    tier = kept(tmp_path, copy("s"), copy("t", persona="bram"), copy("", ((1, 2, 3),)))
    tier.drop(lambda what: what.persona_id == "mira")
    assert [header.session_id for header in tier] == ["t"]
    assert len(list(tmp_path.iterdir())) == 1
    assert len(DiskTier(tmp_path, BUDGET)) == 1


def test_the_writing_thread_writes_what_waits_and_ends_when_the_tier_is_closed(tmp_path, held_up):
    _, go_on = held_up
    tier = DiskTier(tmp_path, BUDGET)
    tier.put(copy())
    go_on.set()
    tier.close(30)
    assert len(DiskTier(tmp_path, BUDGET)) == 1
