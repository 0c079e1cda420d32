"""Training in torch and serving in llama.cpp agree; frozen adapters and packing mean what they should."""

from pathlib import Path

import numpy as np
import pytest

from npc_runtime.base_model import find_base_model
from npc_runtime.llama import LlamaModel
from npc_runtime.training.gguf_adapter import Heads, Lora, read_lora, write_adapter
from npc_runtime.training.lora import FrozenAdapter, TokenizedExchange, load_base, merge_frozen, train_lora
from npc_runtime.training.scoring import ReplyScorer
from npc_runtime.training.settings import TrainingSettings
from tests.training.test_gguf_adapter import CARD, random_lora

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch", reason="needs the extra [train]")
pytest.importorskip("peft", reason="needs the extra [train]")
pytest.importorskip("transformers", reason="needs the extra [train]")

TEXT = (
    "The ferry leaves at dusk. She pulled the rope, looked at the grey water and said: no coin, no crossing. The old "
    "man opened his purse, counted three small coins into her hand and sat down between the sheep and the barrels."
)
SHORT = TrainingSettings(
    rank=2, alpha=4.0, epochs=6, batch=2, learning_rate=5e-3, targets=("q_proj", "k_proj", "v_proj")
)

STRENGTH = 1.0


@pytest.fixture(scope="module")
def model():
    loaded = LlamaModel(find_base_model("smollm2"))
    yield loaded
    loaded.close()


def exchanges(model: LlamaModel) -> list[TokenizedExchange]:
    said = {"Hello.": " Pole's waiting, pole's waiting.", "Goodbye.": " Off you go, pole's waiting."}
    return [
        TokenizedExchange(
            (*model.tokenize(f"Player: {line} Mira:", special=False),),
            (*model.tokenize(reply, special=False), 2),
        )
        for line, reply in said.items()
    ]


def torch_logits(base, ids: list[int]) -> np.ndarray:
    base.model.eval()
    with torch.no_grad():
        return base.model(torch.tensor([ids])).logits[0].numpy()


def llama_logits(model: LlamaModel, ids: list[int], path: Path) -> np.ndarray:
    adapter = model.load_adapter(path)
    scorer = ReplyScorer(model, threads=2)
    scorer.use([(adapter, 1.0)])
    rows = [scorer.logits_after(ids[: count + 1]) for count in range(len(ids))]
    scorer.close()
    model.free_adapter(adapter)
    return np.stack(rows)


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The mean absolute difference of two logit tables, each row centred (a constant shift means nothing)."""
    centred = [table - table.mean(axis=1, keepdims=True) for table in (one, other)]
    return float(np.abs(centred[0] - centred[1]).mean())


def agreement(one: np.ndarray, other: np.ndarray) -> float:
    """The share of positions at which both tables have the same likeliest token."""
    return float(np.mean(one.argmax(axis=1) == other.argmax(axis=1)))


def test_a_trained_adapter_says_in_llama_cpp_what_it_says_in_torch(model, tmp_path: Path):
    lines = exchanges(model)
    base = load_base(find_base_model("smollm2"))
    losses: list[float] = []
    trained = train_lora(base, [], lines, lines, SHORT, lambda progress: losses.append(progress.loss))
    assert len(losses) == SHORT.epochs
    assert trained.held_out_loss < losses[0] - 1.0, "the adapter did not learn its two lines"

    path = tmp_path / "trained.gguf"
    write_adapter(path, trained.lora, CARD, trained.heads)
    ids = model.tokenize(TEXT, special=False)
    expected = torch_logits(base, ids)
    served = llama_logits(model, ids, path)
    assert agreement(served, expected) >= 0.85
    # llama.cpp rounds activations to 8 bits: the rest of the difference.
    assert difference(served, expected) < 0.15

    # Read back and merged into a fresh base, it is what a second adapter would be trained on top of.
    fresh = load_base(find_base_model("smollm2"))
    merge_frozen(fresh, FrozenAdapter(read_lora(path, fresh.heads), 1.0))
    np.testing.assert_allclose(torch_logits(fresh, ids), expected, atol=0.2)


def test_query_and_key_updates_reach_the_right_rows_in_llama_cpp(model, tmp_path: Path):
    base = load_base(find_base_model("smollm2"))
    ids = model.tokenize(TEXT, special=False)
    everything = random_lora(seed=3, layers=base.model.config.num_hidden_layers, strength=STRENGTH)
    pairs = {name: pair for name, pair in everything.pairs.items() if name.split(".")[2] in ("attn_q", "attn_k")}
    lora = Lora(everything.alpha, pairs)
    write_adapter(tmp_path / "right.gguf", lora, CARD, base.heads)
    # Heads of two rows: the permutation does nothing, the rows stay in transformers' order.
    write_adapter(tmp_path / "wrong.gguf", lora, CARD, Heads(query=288, key=96))
    right, wrong = (llama_logits(model, ids, tmp_path / name) for name in ("right.gguf", "wrong.gguf"))

    plain = torch_logits(base, ids)
    merge_frozen(base, FrozenAdapter(lora, 1.0))
    expected = torch_logits(base, ids)
    assert difference(right, expected) < 0.3 * difference(wrong, expected)
    assert difference(right, expected) < 0.3 * difference(plain, expected)
    assert agreement(right, expected) >= 0.8


def test_equal_settings_give_equal_adapters(model):
    lines = exchanges(model)
    runs = [
        train_lora(load_base(find_base_model("smollm2")), [], lines, lines, TrainingSettings(rank=1, epochs=1, batch=2))
        for _ in range(2)
    ]
    for name, pair in runs[0].lora.pairs.items():
        np.testing.assert_array_equal(pair.a, runs[1].lora.pairs[name].a)
        np.testing.assert_array_equal(pair.b, runs[1].lora.pairs[name].b)
