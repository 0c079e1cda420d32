"""Adapter files: a sound one is read, a damaged one is refused with one line that names it, whatever the damage."""

import hashlib
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npc_runtime.adapter import read_adapter
from npc_runtime.adapter.check import check_adapter
from npc_runtime.base_model import find_base_model
from npc_runtime.errors import AdapterInvalid
from tests.support.random_adapter import write_random_adapter

MAX_BYTES = 1 << 30
SHAPES = {"attn_q": (32, 32), "ffn_up": (32, 48)}
NAME = Path("voice.gguf")


@pytest.fixture(scope="session")
def sound(tmp_path_factory) -> bytes:
    """A valid adapter of two blocks."""
    path = tmp_path_factory.mktemp("sound") / "voice.gguf"
    metadata = {"npc_runtime.base.sha256": "ab" * 32, "npc_runtime.persona": "mira", "general.license": "MIT"}
    return write_random_adapter(path, 1, shapes=SHAPES, blocks=2, metadata=metadata).read_bytes()


def written(
    path: Path,
    *,
    strings: dict[str, str | None] | None = None,
    alpha: str = "f32",
    tensors: dict[str, np.ndarray] | None = None,
    more=lambda writer: None,
) -> bytes:
    """An adapter file in which single things are different; a string that is None is left out."""
    writer = gguf.GGUFWriter(path, "llama")
    texts = {"general.type": "adapter", "adapter.type": "lora", **(strings or {})}
    for key, text in texts.items():
        if text is not None:
            writer.add_string(key, text)
    match alpha:
        case "f32":
            writer.add_float32("adapter.lora.alpha", 4.0)
        case "u32":
            writer.add_uint32("adapter.lora.alpha", 4)
        case "f64":
            writer.add_float64("adapter.lora.alpha", 4.0)
        case "nan":
            writer.add_float32("adapter.lora.alpha", float("nan"))
        case "text":
            writer.add_string("adapter.lora.alpha", "4")
    more(writer)
    for name, values in (pair() if tensors is None else tensors).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def pair(
    name="blk.0.attn_q.weight", *, n_in=32, n_out=32, rank_a=4, rank_b=4, dtype=np.float16
) -> dict[str, np.ndarray]:
    return {
        f"{name}.lora_a": np.ones((rank_a, n_in), dtype=dtype),
        f"{name}.lora_b": np.ones((n_out, rank_b), dtype=dtype),
    }


def filled(name: str, value: float) -> dict[str, np.ndarray]:
    tensors = pair()
    tensors[name].flat[7] = value
    return tensors


def refused(data: bytes) -> str:
    """The reason why ``data`` is refused: one line that names the file."""
    with pytest.raises(AdapterInvalid) as caught:
        check_adapter(data, NAME)
    reason = caught.value.message
    assert reason.startswith("adapter 'voice.gguf' cannot be used: ")
    assert "\n" not in reason
    return reason


# Sound files


def test_a_sound_file_gives_its_header(sound, tmp_path):
    path = tmp_path / "voice.gguf"
    path.write_bytes(sound)
    header = read_adapter(path, MAX_BYTES)
    assert header.digest == hashlib.sha256(sound).hexdigest()
    assert (header.size, header.architecture, header.alpha) == (len(sound), "llama", 4.0)
    assert header.tensors == {f"blk.{block}.{weight}.weight": 4 for block in (0, 1) for weight in SHAPES}
    assert (header.base_digest, header.base_name, header.persona, header.license) == ("ab" * 32, "", "mira", "MIT")


def test_a_file_without_our_own_metadata_is_sound_too(tmp_path):
    header = check_adapter(written(tmp_path / "x.gguf"), NAME)
    assert (header.base_digest, header.persona, header.tensors) == ("", "", {"blk.0.attn_q.weight": 4})


def test_the_ranks_of_a_token_embedding_are_read_the_other_way_round(tmp_path):
    tensors = {
        "token_embd.weight.lora_a": np.ones((64, 4), dtype=np.float32),
        "token_embd.weight.lora_b": np.ones((32, 4), dtype=np.float32),
    }
    assert check_adapter(written(tmp_path / "x.gguf", tensors=tensors), NAME).tensors == {"token_embd.weight": 4}


def test_our_own_metadata_of_another_type_counts_as_not_there(tmp_path):
    data = written(tmp_path / "x.gguf", more=lambda writer: writer.add_uint32("npc_runtime.persona", 7))
    assert check_adapter(data, NAME).persona == ""


def test_reading_leaves_no_handle_on_the_file(sound, tmp_path):
    path = tmp_path / "voice.gguf"
    path.write_bytes(sound)
    read_adapter(path, MAX_BYTES)
    open_files = [link.resolve() for link in Path("/proc/self/fd").glob("*")] if Path("/proc/self/fd").exists() else []
    assert path not in open_files


# Files that are something else


@pytest.mark.parametrize(
    ("data", "saying"),
    [
        (b"", "it is empty"),
        (b"BAD!", "does not start with 'GGUF' but with b'BAD!'"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"PK\x03\x04" + bytes(60), "PyTorch"),
        (b"\x80\x02}q\x00.", "PyTorch"),
        (struct.pack("<Q", 2) + b"{}", "safetensors"),
        (b"GGUF", "damaged or incomplete"),
        (b"GGUF" + bytes(20), "damaged or incomplete"),
        (b"GGUF" + b"\xff" * 200, "damaged or incomplete"),
    ],
)
def test_a_file_of_another_kind_is_named_for_what_it_is(data, saying):
    assert saying in refused(data)


def test_a_folder_is_refused(tmp_path):
    folder = tmp_path / "voice.gguf"
    folder.mkdir()
    with pytest.raises(AdapterInvalid, match=r"'voice\.gguf' cannot be used: it is a folder"):
        read_adapter(folder, MAX_BYTES)


def test_a_file_over_the_limit_is_refused_with_both_numbers(sound, tmp_path):
    path = tmp_path / "voice.gguf"
    path.write_bytes(sound)
    with pytest.raises(AdapterInvalid, match=rf"it has {len(sound)} bytes; allowed are 100 \(max_adapter_bytes\)"):
        read_adapter(path, 100)
    assert read_adapter(path, len(sound)).size == len(sound)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_adapter(tmp_path / "voice.gguf", MAX_BYTES)


def test_a_base_model_is_refused_before_its_vocabulary_is_read(monkeypatch):
    fields = []
    real = gguf.GGUFReader._push_field

    def counted(self, field, skip_sum=False):
        fields.append(field.name)
        return real(self, field, skip_sum)

    monkeypatch.setattr(gguf.GGUFReader, "_push_field", counted)
    data = find_base_model("smollm2").read_bytes()
    with pytest.raises(AdapterInvalid, match=r"smollm2\.gguf"):
        check_adapter(data, Path("smollm2.gguf"))
    assert not any("tokens" in name for name in fields)


# Damage


def test_every_truncation_is_refused(sound):
    cuts = {len(sound) * 9 // 10, len(sound) - 1, *range(0, len(sound), 1000), *range(0, 400, 7)}
    assert len(cuts) > 60
    for cut in cuts:
        assert refused(sound[:cut])


def test_an_empty_metadata_key_is_refused(tmp_path):
    data = written(tmp_path / "x.gguf", more=lambda writer: writer.add_string("", "x"))
    assert "a metadata key is empty" in refused(data)


@pytest.mark.parametrize("alpha", ["u32", "f64", "nan", "text", "missing"])
def test_an_alpha_that_is_not_a_finite_float32_is_refused(tmp_path, alpha):
    assert "'adapter.lora.alpha' must be a finite 32-bit float" in refused(written(tmp_path / "x.gguf", alpha=alpha))


@pytest.mark.parametrize("key", ["general.type", "adapter.type"])
def test_a_missing_string_is_refused(tmp_path, key):
    assert f"metadata '{key}' is missing or not a string" in refused(written(tmp_path / "x.gguf", strings={key: None}))


def test_a_general_type_that_is_a_number_is_refused(tmp_path):
    data = written(tmp_path / "x.gguf", strings={"general.type": None}, more=lambda w: w.add_uint32("general.type", 1))
    assert "general.type is 1; it must be 'adapter'" in refused(data)


def test_an_adapter_type_that_is_a_number_is_refused(tmp_path):
    data = written(tmp_path / "x.gguf", strings={"adapter.type": None}, more=lambda w: w.add_uint32("adapter.type", 1))
    assert "metadata 'adapter.type' is missing or not a string" in refused(data)


@pytest.mark.parametrize(
    ("strings", "saying"),
    [
        ({"general.type": "model"}, "must be 'adapter'"),
        ({"adapter.type": "control_vector"}, "only 'lora' is supported"),
    ],
)
def test_a_file_for_another_purpose_is_refused(tmp_path, strings, saying):
    assert saying in refused(written(tmp_path / "x.gguf", strings=strings))


def test_an_activated_lora_is_refused(tmp_path):
    def alora(writer: gguf.GGUFWriter) -> None:
        writer.add_array("adapter.alora.invocation_tokens", [1, 2, 3])

    assert "activated LoRA" in refused(written(tmp_path / "x.gguf", more=alora))


def test_a_metadata_array_that_no_adapter_has_is_refused(tmp_path):
    data = written(tmp_path / "x.gguf", more=lambda writer: writer.add_array("a.list", [1] * 65_537))
    assert "more than 65536 items" in refused(data)


NORM = {"blk.0.attn_norm.weight": np.ones(32, dtype=np.float32)}
LONE_B = {"blk.0.attn_q.weight.lora_b": np.ones((32, 4), dtype=np.float16)}


@pytest.mark.parametrize(
    ("tensors", "saying"),
    [
        ({}, "it holds no tensors"),
        (LONE_B, "has only one of lora_a and lora_b"),
        ({**pair(), "blk.1.ffn_up.weight.lora_a": np.ones((4, 32), dtype=np.float16)}, "blk.1.ffn_up.weight"),
        (pair(rank_a=4, rank_b=8), "rank 4 in lora_a and 8 in lora_b"),
        ({**pair(), **NORM}, "'blk.0.attn_norm.weight' is not a LoRA pair"),
        ({**pair(), "blk.0.attn_q.weight.lora_c": np.ones((4, 32), dtype=np.float16)}, "is not a LoRA pair"),
        (pair(dtype=np.int8), "is I8; allowed are F32, F16, BF16, Q8_0"),
        (pair(dtype=np.float64), "is F64"),
        (
            {**pair(), "b.lora_a": np.ones(4, dtype=np.float16), "b.lora_b": np.ones(4, dtype=np.float16)},
            "two dimensions",
        ),
        (filled("blk.0.attn_q.weight.lora_a", np.nan), "NaN or infinite"),
        (filled("blk.0.attn_q.weight.lora_b", np.inf), "NaN or infinite"),
    ],
)
def test_tensors_that_llama_would_misread_ignore_or_die_of_are_refused(tmp_path, tensors, saying):
    assert saying in refused(written(tmp_path / "x.gguf", tensors=tensors))


def test_text_that_is_not_utf8_is_refused_or_counts_as_not_there(sound):
    assert "general.architecture" in refused(sound.replace(b"llama", b"\xffllam"))
    assert check_adapter(sound.replace(b"mira", b"\xff\xfe\xfd\xfc"), NAME).persona == ""


def checked(data: bytes) -> None:
    """Nothing but AdapterInvalid may come out of damaged bytes, and what passes has a header that makes sense."""
    try:
        header = check_adapter(data, NAME)
    except AdapterInvalid as error:
        assert "\n" not in error.message and "voice.gguf" in error.message
        return
    assert header.tensors and header.digest == hashlib.sha256(data).hexdigest()
    assert np.isfinite(header.alpha)


@settings(max_examples=150)
@given(
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=6), head=st.booleans()
)
def test_flipped_bytes_never_raise_anything_but_a_refusal(sound, flips, head):
    data = bytearray(sound)
    for place, mask in flips:  # most flips go where the structure is
        data[place % (1200 if head else len(data))] ^= mask
    checked(bytes(data))


@settings(max_examples=60)
@given(start=st.integers(0, 1200), length=st.integers(1, 64), filling=st.binary(max_size=64))
def test_bytes_that_are_cut_out_or_put_in_never_raise_anything_but_a_refusal(sound, start, length, filling):
    checked(sound[:start] + filling + sound[start + length :])


@settings(max_examples=40)
@given(
    place=st.integers(4, 1200), width=st.sampled_from([4, 8]), number=st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**60])
)
def test_counts_and_lengths_of_any_size_never_raise_anything_but_a_refusal(sound, place, width, number):
    patch = (number % (1 << (8 * width))).to_bytes(width, "little")
    checked(sound[:place] + patch + sound[place + width :])


def test_a_file_whose_tensors_were_not_copied_yet_is_refused(sound):
    half = sound[: len(sound) // 2] + bytes(len(sound) - len(sound) // 2)
    reason = refused(half)
    assert "only zeros" in reason and "copied completely" in reason


def test_an_adapter_that_does_nothing_is_refused(tmp_path):
    tensors = {
        "blk.0.attn_q.weight.lora_a": np.ones((4, 64), dtype=np.float32),
        "blk.0.attn_q.weight.lora_b": np.zeros((64, 4), dtype=np.float32),
    }
    reason = refused(written(tmp_path / "x.gguf", tensors=tensors))
    assert "every lora_b" in reason and "would do nothing" in reason
