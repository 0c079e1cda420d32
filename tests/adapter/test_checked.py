"""What was found good once is not parsed again; what is not, is."""

from pathlib import Path

import pytest

from npc_runtime.adapter import AdapterHeader, CheckedAdapters, read_adapter
from npc_runtime.errors import AdapterInvalid
from tests.support.random_adapter import write_random_adapter


@pytest.fixture
def header(tmp_path: Path) -> AdapterHeader:
    return read_adapter(write_random_adapter(tmp_path / "a.gguf", seed=1), 1 << 28)


def kept(file: Path, *headers: AdapterHeader) -> CheckedAdapters:
    checked = CheckedAdapters(file)
    for header in headers:
        checked.keep(header)
    checked.save()
    return CheckedAdapters(file)


def test_a_header_comes_back_as_it_was(tmp_path, header):
    assert kept(tmp_path / "new" / "file", header).find(header.digest) == header
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


def test_a_known_content_is_not_parsed_again_under_any_name(tmp_path, header, monkeypatch):
    checked = kept(tmp_path / "file", header)
    monkeypatch.setattr("npc_runtime.adapter.check.check_adapter", lambda *args: 1 / 0)
    (tmp_path / "b.gguf").write_bytes((tmp_path / "a.gguf").read_bytes())
    assert read_adapter(tmp_path / "b.gguf", 1 << 28, checked.find) == header
    (tmp_path / "b.gguf").write_bytes((tmp_path / "a.gguf").read_bytes() + b"x")
    with pytest.raises(ZeroDivisionError):
        read_adapter(tmp_path / "b.gguf", 1 << 28, checked.find)


def test_the_limit_holds_for_a_known_content_too(tmp_path, header):
    with pytest.raises(AdapterInvalid, match="max_adapter_bytes"):
        read_adapter(tmp_path / "a.gguf", 100, kept(tmp_path / "file", header).find)


def test_other_checks_make_it_empty(tmp_path, header, monkeypatch):
    kept(tmp_path / "file", header)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "another")
    assert CheckedAdapters(tmp_path / "file").find(header.digest) is None


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x80", b"junk" * 100])
def test_a_damaged_file_counts_as_empty_and_is_written_anew(tmp_path, header, damage):
    (tmp_path / "file").write_bytes(damage)
    assert CheckedAdapters(tmp_path / "file").find(header.digest) is None
    assert kept(tmp_path / "file", header).find(header.digest) == header


def test_where_nothing_can_be_written_all_is_checked_again(tmp_path, header):
    (tmp_path / "blocked").write_bytes(b"")
    assert kept(tmp_path / "blocked" / "file", header).find(header.digest) is None


def test_without_a_file_nothing_is_kept(header):
    checked = CheckedAdapters(None)
    checked.keep(header)
    checked.save()
    assert checked.find(header.digest) == header
