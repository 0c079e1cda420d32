"""``npc-runtime adapter``: mistakes are told with the value, what is allowed and what to do."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from npc_runtime.errors import UnknownAdapter, UnknownPersona
from npc_runtime.training.cli import app, find_persona, trainable_adapters

SHIPPED = Path(__file__).parents[2] / "personas"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config file in an own folder, with a persona that has one adapter with lines and one without."""
    personas = tmp_path / "personas"
    (personas / "dialogue").mkdir(parents=True)
    shutil.copy(SHIPPED / "pim.yaml", personas)
    lines = [
        {"player": "Hello.", "reply": "One, two, three.", "split": "train"},
        {"player": "Where is the smith?", "reply": "Left at the well.", "split": "held_out"},
    ]
    (personas / "dialogue" / "pim.jsonl").write_text("\n".join(map(json.dumps, lines)))
    path = tmp_path / "npc.yaml"
    path.write_text("personas_dir: personas\nadapters_dir: adapters\n")
    return path


def told(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 1, result.output
    return result.output


def test_an_unknown_persona_is_told_with_the_nearest_name(config):
    assert "no persona 'pin'" in told("train", "pin", "--config", str(config))
    assert "Did you mean 'pim'?" in told("train", "pin", "--config", str(config))


def test_an_adapter_that_the_persona_does_not_list_is_told(config):
    output = told("train", "pim", "--adapter", "march", "--config", str(config))
    assert "persona 'pim' lists no adapter 'march'. Did you mean 'marsh'? It lists: marsh, pim" in output


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--epochs", "0", "'epochs' is '0'; allowed is 1 to 1000"),
        ("--rank", "900", "'rank' is '900'; allowed is 1 to 64"),
        ("--lr", "2.5", "'lr' is '2.5'; allowed is above 0, at most 1"),
    ],
)
def test_a_setting_out_of_range_is_told(config, option, value, allowed):
    assert allowed in told("train", "pim", option, value, "--config", str(config))


@pytest.mark.train
def test_an_adapter_below_that_was_never_trained_is_told(config):
    pytest.importorskip("torch", reason="needs the extra [train]")
    output = told("train", "pim", "--config", str(config))
    assert "adapter 'marsh' comes before the one to be trained" in output
    assert "train it first" in output


def test_evaluating_without_adapter_files_says_how_to_make_them(config):
    output = told("eval", "--config", str(config))
    assert "adapter file 'marsh.gguf' is not in" in output
    assert "npc-runtime adapter train" in output


def test_a_persona_is_found_by_its_id_whatever_its_file_is_called(tmp_path):
    shutil.copy(SHIPPED / "pim.yaml", tmp_path / "eel_man.yaml")
    assert find_persona(tmp_path, "pim").name == "Pim Sedgely"
    with pytest.raises(UnknownPersona):
        find_persona(tmp_path, "eel_man")


def test_adapters_are_trained_in_the_order_in_which_the_persona_lists_them(tmp_path):
    pim = find_persona(SHIPPED, "pim")
    assert trainable_adapters(pim, SHIPPED, None) == ["marsh", "pim"]
    assert trainable_adapters(pim, SHIPPED, "pim") == ["pim"]
    with pytest.raises(UnknownAdapter, match="there are lines for none of them"):
        trainable_adapters(pim, tmp_path, None)
