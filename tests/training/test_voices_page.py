"""The evaluation's own arithmetic, and the page that is made of it."""

import dataclasses
from pathlib import Path

import pytest

from npc_runtime.persona import AdapterRef, Persona
from npc_runtime.training.evaluate import AdapterSet, Evaluation, Row, adapter_sets
from npc_runtime.training.gguf_adapter import write_adapter
from npc_runtime.training.train import Paths
from npc_runtime.training.voices_page import draw_heat_map, read_matrix, render
from tests.training.test_gguf_adapter import CARD, HEADS, random_lora

EVALUATION = Evaluation(
    (
        AdapterSet("ann", (AdapterRef("ann"),)),
        AdapterSet("bob", (AdapterRef("hill", scale=0.5), AdapterRef("bob"))),
        AdapterSet("base", ()),
    ),
    (
        Row("ann", 12, 200, {"ann": -1.234, "bob": -2.5, "base": -2.0}),
        Row("bob", 14, 300, {"ann": -3.0, "bob": -1.75, "base": -1.875}),
    ),
)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    for name in ("ann", "bob", "hill"):
        record = {
            "settings": {"rank": 2, "epochs": 3, "targets": ["q_proj"]},
            "exchanges": {"train": 60, "held_out": 12},
            "on_top_of": [{"name": "hill", "scale": 0.5}] if name == "bob" else [],
            "packages": {"torch": "2"},
        }
        card = dataclasses.replace(CARD, name=name, training=record)
        write_adapter(tmp_path / f"{name}.gguf", random_lora(layers=1), card, HEADS)
    return Paths(tmp_path / "model.gguf", tmp_path, tmp_path)


def test_a_set_must_beat_the_base_by_more_than_other_sets():
    ann, bob = EVALUATION.rows
    assert ann.over_base == pytest.approx(0.766)
    assert ann.over_best_other == pytest.approx(1.266)
    assert ann.holds
    assert bob.over_base == pytest.approx(0.125)
    assert not bob.holds


def test_a_set_of_several_adapters_is_also_measured_without_its_last_ones():
    ann = Persona(schema="npc/1", id="ann", name="Ann", adapters=(AdapterRef("ann"),))
    bob = Persona(schema="npc/1", id="bob", name="Bob", adapters=(AdapterRef("hill", scale=0.5), AdapterRef("bob")))
    sets = adapter_sets([ann, bob])
    assert [s.title for s in sets] == ["ann", "bob", "hill × 0.5", "base"]
    assert sets[2].refs == bob.adapters[:1]


def test_the_numbers_of_the_page_can_be_read_back(paths):
    matrix = read_matrix(render(EVALUATION, paths))
    assert matrix == {
        ("ann", "ann"): -1.23,
        ("ann", "bob"): -2.5,
        ("ann", "base"): -2.0,
        ("bob", "ann"): -3.0,
        ("bob", "bob"): -1.75,
        ("bob", "base"): -1.88,
    }


def test_the_page_tells_margins_sets_adapters_and_settings(paths):
    page = render(EVALUATION, paths)
    assert "| `ann` | 12 | 200 | +0.77 | +1.27 |" in page
    assert "| `bob` | hill × 0.5, bob × 1 |" in page
    assert "| `bob` | `somebody` | hill × 0.5 | 60 | 12 | 0.0" in page
    assert "* `ann`, `bob`, `hill`: epochs 3, rank 2; targets q_proj" in page
    assert "base model: `model.gguf`" in page


@pytest.mark.train
def test_the_heat_map_is_a_png(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra [train]")
    target = tmp_path / "img" / "voices.png"
    draw_heat_map(EVALUATION, target)
    assert target.read_bytes()[:4] == b"\x89PNG"
