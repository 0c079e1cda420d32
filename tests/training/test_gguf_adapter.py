"""Adapter files: what is written is what is read, llama.cpp loads it, and it changes what the model says."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from npc_runtime.adapter import read_adapter
from npc_runtime.base_model import file_digest, find_base_model
from npc_runtime.errors import AdapterInvalid
from npc_runtime.llama import LlamaModel
from npc_runtime.training.gguf_adapter import (
    AdapterCard,
    Heads,
    Lora,
    LoraPair,
    gguf_weight_name,
    read_lora,
    update_of,
    write_adapter,
)
from npc_runtime.training.scoring import ReplyScorer
from npc_runtime.training.settings import TARGETS
from tests.support.random_adapter import SMOLLM2_SHAPES

HEADS = Heads(query=9, key=3)
CARD = AdapterCard(
    name="test",
    persona="somebody",
    license="MIT",
    base_name="a model",
    base_sha256="0" * 64,
    base_architecture="llama",
    created_with="npc-runtime test",
    training={"settings": {"rank": 2}},
)


def random_lora(seed: int = 0, layers: int = 2, rank: int = 2, strength: float = 0.05) -> Lora:
    """A LoRA in transformers' row order that fits SmolLM2-135M."""
    random = np.random.default_rng(seed)
    pairs = {}
    for layer in range(layers):
        for target in TARGETS:
            name = gguf_weight_name(layer, target)
            n_in, n_out = SMOLLM2_SHAPES[name.split(".")[2]]
            pairs[name] = LoraPair(
                (random.standard_normal((rank, n_in)) / np.sqrt(n_in)).astype(np.float16).astype(np.float32),
                (random.standard_normal((n_out, rank)) * strength).astype(np.float16).astype(np.float32),
            )
    return Lora(2.0 * rank, pairs)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    path = tmp_path / "adapters" / "test.gguf"
    write_adapter(path, random_lora(), CARD, HEADS)
    return path


def test_what_is_written_is_read_back(adapter):
    lora, back = random_lora(), read_lora(adapter, HEADS)
    assert back.alpha == lora.alpha
    assert back.pairs.keys() == lora.pairs.keys()
    for name, pair in lora.pairs.items():
        np.testing.assert_array_equal(back.pairs[name].a, pair.a)
        np.testing.assert_array_equal(back.pairs[name].b, pair.b)


def test_query_and_key_rows_are_stored_in_llama_cpp_order_and_no_others(adapter):
    stored = {tensor.name: np.array(tensor.data, dtype=np.float32) for tensor in gguf.GGUFReader(adapter).tensors}
    for name, pair in random_lora().pairs.items():
        rows = stored[f"{name}.lora_b"]
        heads = {"attn_q": HEADS.query, "attn_k": HEADS.key}.get(name.split(".")[2])
        if heads is None:
            np.testing.assert_array_equal(rows, pair.b)
            continue
        size = len(rows) // heads
        # Dimension i of a head's first half and its partner in the second half become neighbours.
        np.testing.assert_array_equal(rows[0], pair.b[0])
        np.testing.assert_array_equal(rows[1], pair.b[size // 2])
        np.testing.assert_array_equal(rows[size + 2], pair.b[size + 1])


def test_the_metadata_names_base_persona_licence_and_settings(adapter):
    header = read_adapter(adapter, 1 << 20)
    assert (header.base_name, header.base_digest, header.persona) == ("a model", "0" * 64, "somebody")
    assert (header.license, header.architecture, header.alpha) == ("MIT", "llama", 4.0)
    reader = gguf.GGUFReader(adapter)
    assert reader.get_field("adapter.lora.alpha").types == [gguf.GGUFValueType.FLOAT32]
    assert reader.get_field("general.name").contents() == "test"
    assert reader.get_field("npc_runtime.created_with").contents() == "npc-runtime test"
    assert reader.get_field("npc_runtime.base.architecture").contents() == "llama"
    assert json.loads(reader.get_field("npc_runtime.training").contents()) == {"settings": {"rank": 2}}
    assert {tensor.tensor_type.name for tensor in reader.tensors} == {"F16"}


def test_equal_input_gives_equal_files(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        write_adapter(tmp_path / name, random_lora(), CARD, HEADS)
    assert file_digest(tmp_path / "a.gguf") == file_digest(tmp_path / "b.gguf")


def test_weights_that_do_not_fit_16_bits_leave_the_old_file_alone(adapter):
    before = adapter.read_bytes()
    lora = random_lora()
    huge = Lora(lora.alpha, {name: LoraPair(pair.a, pair.b * 1e9) for name, pair in lora.pairs.items()})
    with pytest.raises(AdapterInvalid, match=r"does not fit 16-bit floats; lower the learning rate"):
        write_adapter(adapter, huge, CARD, HEADS)
    assert adapter.read_bytes() == before
    assert [path.name for path in adapter.parent.iterdir()] == ["test.gguf"]


def test_the_update_grows_with_scale_and_alpha_over_rank():
    lora = random_lora()
    name = gguf_weight_name(0, "q_proj")
    pair = lora.pairs[name]
    np.testing.assert_allclose(update_of(lora, name, 0.5), 0.5 * 2.0 * (pair.b @ pair.a), rtol=1e-6)


def test_a_file_that_is_no_adapter_is_told(tmp_path):
    path = tmp_path / "junk.gguf"
    path.write_bytes(b"junk" * 100)
    with pytest.raises(AdapterInvalid, match=r"junk\.gguf' cannot be read"):
        read_lora(path, HEADS)


def test_llama_cpp_loads_it_and_speaks_differently(adapter):
    model = LlamaModel(find_base_model("smollm2"))
    scorer = ReplyScorer(model, threads=2)
    prompt = model.tokenize("The ferry leaves at dusk, and", special=False)
    plain = scorer.logits_after(prompt)
    loaded = model.load_adapter(adapter)
    scorer.use([(loaded, 1.0)])
    adapted = scorer.logits_after(prompt)
    scorer.use([])
    again = scorer.logits_after(prompt)
    scorer.close()
    model.free_adapter(loaded)
    model.close()
    assert np.abs(adapted - plain).max() > 0.1
    np.testing.assert_array_equal(again, plain)
