"""The documentation and the vectors are what the definitions say."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
COMMAND = "scripts/generate-docs"
GENERATED = [
    "docs/protocol.md",
    "docs/configuration.md",
    "tests/vectors/requests.json",
    "tests/vectors/answers.json",
    "tests/vectors/accepted.json",
    "tests/vectors/malformed.json",
]


def generate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / COMMAND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The generated files in a folder of their own."""
    for name in GENERATED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_nothing_generated_is_stale():
    done = generate("--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("page", "old", "new"),
    [
        ("docs/protocol.md", "| `hello_required` |", "| `greet_me` |"),
        ("docs/protocol.md", "| setting `max_sessions` |", "| setting `max_talks` |"),
        ("docs/protocol.md", "#### `turn_delta`", "#### `turn_piece`"),
        ("docs/configuration.md", "`NPC_RUNTIME_PORT`", "`PORT`"),
        ("tests/vectors/requests.json", '"hex": "8', '"hex": "9'),
        ("tests/vectors/answers.json", '"type": "pong"', '"type": "gnop"'),
        ("tests/vectors/accepted.json", '"id": 3', '"id": 4'),
        ("tests/vectors/malformed.json", "unknown_type", "odd_type"),
    ],
)
def test_a_stale_file_is_named_with_the_command_that_mends_it(copy: Path, page: str, old: str, new: str):
    fresh = (copy / page).read_text(encoding="utf-8")
    assert old in fresh
    stale = fresh.replace(old, new)
    (copy / page).write_text(stale, encoding="utf-8")
    done = generate("--check", "--root", copy)
    assert (done.returncode, done.stderr) == (1, f"{page} is stale; run: {COMMAND}\n")
    assert (copy / page).read_text(encoding="utf-8") == stale
    assert generate("--root", copy).returncode == 0
    assert (copy / page).read_text(encoding="utf-8") == fresh


def test_a_vector_file_that_is_missing_is_written(copy: Path):
    (copy / "tests/vectors/requests.json").unlink()
    assert generate("--check", "--root", copy).returncode == 1
    assert generate("--root", copy).returncode == 0
    assert generate("--check", "--root", copy).returncode == 0


def test_writing_twice_changes_nothing(copy: Path):
    done = generate("--root", copy)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_written_by_hand_stays(copy: Path):
    page = copy / "docs/configuration.md"
    page.write_text("A line by hand.\n" + page.read_text(encoding="utf-8") + "The last word.\n", encoding="utf-8")
    before = page.read_bytes()
    assert generate("--check", "--root", copy).returncode == 0
    assert generate("--root", copy).returncode == 0
    assert page.read_bytes() == before


def test_a_page_that_lost_a_block_is_an_error(copy: Path):
    (copy / "docs/configuration.md").write_text("nothing here\n", encoding="utf-8")
    done = generate("--check", "--root", copy)
    assert done.returncode == 1
    assert "docs/configuration.md" in done.stderr
    assert "settings" in done.stderr


def test_links_between_headings_lead_somewhere():
    page = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    headings = {
        line.lstrip("# ").replace("`", "").lower().replace(" ", "-") for line in page.splitlines() if line[:1] == "#"
    }
    linked = {part.split(")")[0] for part in page.split("](#")[1:]}
    assert linked
    assert linked <= headings
