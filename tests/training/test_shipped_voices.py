"""The shipped adapters keep what docs/voices.md says of them: measured here again, on the shipped files."""

from pathlib import Path

import gguf
import pytest

from npc_runtime.adapter import read_adapter
from npc_runtime.base_model import file_digest, find_base_model
from npc_runtime.config import default_threads
from npc_runtime.training.dialogue import dialogue_path, load_dialogue, normalised
from npc_runtime.training.evaluate import BASE, MIN_OVER_BASE, MIN_OVER_OTHERS, evaluate, load_voices
from npc_runtime.training.train import Paths
from npc_runtime.training.voices_page import read_facts, read_matrix

ROOT = Path(__file__).parents[2]
PATHS = Paths(find_base_model("smollm2"), ROOT / "personas", ROOT / "adapters")
VOICES = load_voices(PATHS.personas)
ADAPTERS = {ref.alias: (voice.persona, PATHS.adapters / ref.path) for voice in VOICES for ref in voice.persona.adapters}
MAX_BYTES = 3_000_000


@pytest.fixture(scope="module")
def evaluation():
    return evaluate(VOICES, PATHS, default_threads())


def test_there_are_three_characters_and_one_has_two_adapters():
    assert len(VOICES) == 3
    assert sorted(len(voice.persona.adapters) for voice in VOICES) == [1, 1, 2]


def test_each_own_set_beats_the_base_and_every_other_set_on_its_held_out_lines(evaluation):
    for row in evaluation.rows:
        own = row.means[row.persona_id]
        for title, mean in row.means.items():
            if title != row.persona_id:
                needed = MIN_OVER_BASE if title == BASE else MIN_OVER_OTHERS
                assert own - mean >= needed, f"{row.persona_id}'s lines: own {own:.2f}, {title} {mean:.2f}"


def test_the_page_says_what_is_measured(evaluation):
    page = read_matrix((ROOT / "docs" / "voices.md").read_text(encoding="utf-8"))
    measured = {(row.persona_id, title): mean for row in evaluation.rows for title, mean in row.means.items()}
    assert page.keys() == measured.keys()
    for cell, mean in measured.items():
        assert page[cell] == pytest.approx(mean, abs=0.02), f"{cell}: run 'npc-runtime adapter eval --write-docs'"
    assert (ROOT / "docs" / "img" / "voices.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("voice", VOICES, ids=lambda voice: voice.persona.id)
def test_the_held_out_lines_were_not_trained_on(voice):
    assert len(voice.dialogue.train) + len(voice.dialogue.held_out) >= 60
    assert len(voice.dialogue.held_out) >= 12
    trained = [
        exchange
        for ref in voice.persona.adapters
        for exchange in load_dialogue(dialogue_path(PATHS.personas, ref.alias)).train
    ]
    replies = {normalised(exchange.reply) for exchange in trained}
    assert not [ex.reply for ex in voice.dialogue.held_out if normalised(ex.reply) in replies]
    lines = {normalised(exchange.player) for exchange in voice.dialogue.train}
    assert not [ex.player for ex in voice.dialogue.held_out if normalised(ex.player) in lines]


@pytest.mark.parametrize("name", ADAPTERS)
def test_each_adapter_file_is_small_and_says_where_it_comes_from(name):
    persona, path = ADAPTERS[name]
    header = read_adapter(path, MAX_BYTES)
    assert header.size <= MAX_BYTES
    assert header.architecture == "llama"
    assert header.base_digest == file_digest(PATHS.base_model)
    assert header.base_name == PATHS.base_model.stem
    assert header.persona == persona.id
    assert header.license == "MIT"
    reader = gguf.GGUFReader(path)
    assert reader.get_field("general.name").contents() == name
    assert reader.get_field("npc_runtime.created_with").contents().startswith("npc-runtime ")


@pytest.mark.parametrize("name", ADAPTERS)
def test_each_adapter_file_records_how_it_was_trained(name):
    persona, path = ADAPTERS[name]
    record = read_facts(path).training
    assert record["dialogue_sha256"] == load_dialogue(dialogue_path(PATHS.personas, name)).digest
    assert {"rank", "alpha", "epochs", "learning_rate", "seed", "targets"} <= record["settings"].keys()
    assert {"torch", "transformers", "peft", "gguf", "llama-cpp-python"} == record["packages"].keys()
    before = persona.adapters[: [ref.alias for ref in persona.adapters].index(name)]
    assert record["on_top_of"] == [{"name": ref.alias, "scale": ref.scale} for ref in before]
