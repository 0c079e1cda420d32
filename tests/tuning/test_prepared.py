"""Faster files of the same base, made by llama.cpp from SmolLM2: what they are, and what they are not."""

import ctypes
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from npc_runtime.base_model import SOURCE_DIGEST_KEY, file_digest, find_base_model
from npc_runtime.engine.core import EngineCore
from npc_runtime.errors import AdapterInvalid, ConfigError
from npc_runtime.llama import LlamaModel, importance
from npc_runtime.runtime import Runtime
from npc_runtime.training import train
from npc_runtime.training.cli import find_persona
from npc_runtime.tuning import prepared
from npc_runtime.tuning.jobs import Agreement, Perplexity
from npc_runtime.tuning.prepared import check_file_type, find_original, inspect, is_prepared, models_folder, prepare
from npc_runtime.tuning.prose import PROSE
from tests.engine.scene import GREEDY, Scene, engine_settings, source
from tests.support.daemon import Folders, running
from tests.support.random_adapter import write_random_adapter

ROOT = Path(__file__).parents[2]
LINE = "Where does the old ferryman live?"


def quiet(phase: str, done: int, total: int) -> None:
    pass


def test_the_file_is_kept_under_its_sources_content_and_says_what_it_is(q4_0, original, worker, cache):
    assert q4_0 == cache / "npc-runtime" / "models" / f"{file_digest(original.path)[:16]}-q4_0.gguf"
    facts = inspect(q4_0, worker)
    assert facts.file_type == "q4_0"
    assert facts.source_digest == original.digest
    assert facts.source_name == original.path.name
    assert is_prepared(q4_0, original, "q4_0", worker)
    assert not is_prepared(q4_0, original, "q8_0", worker)


def test_nothing_but_the_file_is_left(q4_0):
    assert list(models_folder().iterdir()) == [q4_0]


def test_progress_is_told_first_of_reading_then_in_bytes_and_ends_at_the_whole(made):
    path, told = made
    reading = [progress for phase, *progress in told if phase == "reading"]
    writing = [progress for phase, *progress in told if phase == "writing"]
    assert reading == [[piece, len(reading)] for piece in range(1, len(reading) + 1)]
    assert told[: len(reading)] == [("reading", *progress) for progress in reading]
    assert writing == sorted(writing)
    assert writing[-1][0] == writing[-1][1] == pytest.approx(path.stat().st_size, rel=0.02)


def test_types_that_are_exact_enough_are_made_without_reading(tmp_path, original, worker):
    told = []
    prepare(original, "q8_0", tmp_path / "q8_0.gguf", 1, worker, lambda *progress: told.append(progress))
    assert {phase for phase, _, _ in told} == {"writing"}


def test_a_file_that_is_damaged_or_of_another_source_is_not_taken_for_the_prepared_one(
    tmp_path, q4_0, original, worker
):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(q4_0.read_bytes()[:100_000])
    assert not is_prepared(cut, original, "q4_0", worker)
    assert not is_prepared(tmp_path / "none.gguf", original, "q4_0", worker)
    assert not is_prepared(original.path, original, "q4_0", worker)
    assert not is_prepared(q4_0, replace(original, digest="0" * 64), "q4_0", worker)


def test_a_run_that_was_killed_leaves_nothing_for_ever(tmp_path, original, worker):
    dead = tmp_path / ".b179-q4_0.gguf.999999999.draft"
    alive = tmp_path / ".b179-q4_0.gguf.1.draft"
    for draft in (dead, alive):
        draft.write_bytes(b"half")
    prepare(original, "q8_0", tmp_path / "new.gguf", 1, worker, quiet)
    assert sorted(tmp_path.iterdir()) == [alive, tmp_path / "new.gguf"]


def test_a_full_disk_is_told_before_anything_is_written(tmp_path, original, worker, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=100 << 20)
    monkeypatch.setattr(prepared.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ConfigError, match=r"needs 1\d\d MiB, and '.*' has 100 MiB left; make room"):
        prepare(original, "q8_0", tmp_path / "q8_0.gguf", 1, worker, quiet)


def test_a_folder_that_cannot_be_made_is_told(tmp_path, original, worker):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be written"):
        prepare(original, "q4_0", tmp_path / "file" / "models" / "x.gguf", 1, worker, quiet)


def test_what_the_quantiser_refuses_is_told_and_leaves_no_file(tmp_path, original, worker):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(original.path.read_bytes()[:200_000])
    with pytest.raises(ConfigError, match=r"'.*broken\.gguf' cannot be made into a q4_0 file"):
        prepare(replace(original, path=broken), "q4_0", tmp_path / "x.gguf", 1, worker, quiet)
    assert list(tmp_path.iterdir()) == [broken]


@pytest.mark.parametrize("name", ["Q4_0", "q8-0", "iq4_nl"])
def test_types_are_named_as_people_write_them(name):
    assert check_file_type(name) == name.lower().replace("-", "_")


def test_a_type_that_is_not_offered_is_told():
    with pytest.raises(
        ConfigError, match=r"file type 'q40' cannot be prepared. Did you mean 'q4_0'\? Allowed are: q4_0"
    ):
        check_file_type("q40")


def test_the_original_of_a_prepared_file_is_found_where_it_is_installed_or_beside_it(tmp_path, q4_0, original, worker):
    facts = inspect(q4_0, worker)
    assert find_original(q4_0, facts, worker) == original
    unknown = msgspec.structs.replace(facts, source_digest="1" * 64)
    assert find_original(q4_0, unknown, worker) is None
    beside = tmp_path / original.path.name
    shutil.copy(original.path, beside)
    found = find_original(tmp_path / "any.gguf", facts, worker)
    assert found is not None and found.path == beside


def test_a_source_digest_that_is_none_is_not_believed(tmp_path):
    model = LlamaModel(find_base_model("smollm2"), vocab_only=True)
    for value, expected in (("", ""), ("yes", ""), ("A" * 64, ""), ("ab" * 32, "ab" * 32)):
        model.metadata = lambda key, value=value: value if key == SOURCE_DIGEST_KEY else ""
        assert model.source_digest == expected
    model.close()


def test_adapters_of_the_source_are_accepted_and_the_loaded_file_is_named(tmp_path, q4_0, original):
    folders = Folders(tmp_path)
    shutil.copy(ROOT / "adapters" / "mira.gguf", folders.adapters / "mira.gguf")
    foreign = {"npc_runtime.base.sha256": "12" * 32}
    write_random_adapter(folders.adapters / "foreign.gguf", 3, metadata=foreign)
    folders.write_persona("mira", {"mira": 1.0})
    folders.write_persona("foreign", {"foreign": 1.0})
    with running(folders, base_model=q4_0) as daemon, daemon.client() as client:
        while client.status().state == "loading":
            pass
        assert "".join(client.open_session("mira").say(LINE))
        engine = client.status().engine
        assert engine.model_digest == file_digest(q4_0) != original.digest
        with pytest.raises(AdapterInvalid, match=r"was made for base model .* \(sha256 121212121212…\)"):
            client.open_session("foreign")


def test_the_runtime_in_this_process_accepts_them_too(tmp_path, q4_0):
    folders = Folders(tmp_path)
    shutil.copy(ROOT / "adapters" / "mira.gguf", folders.adapters / "mira.gguf")
    folders.write_persona("mira", {"mira": 1.0})
    where = {"personas_dir": str(folders.personas), "adapters_dir": str(folders.adapters)}
    with Runtime(base_model=str(q4_0), threads=1, lanes=1, context_tokens=512, **where) as runtime:
        assert [a.name for a in runtime.open_session("mira").say(LINE, max_tokens=2).wait().adapters] == ["mira"]


def test_an_adapter_that_is_trained_on_a_prepared_file_is_made_for_the_original(q4_0, original, monkeypatch):
    class Seen(Exception):
        pass

    def card(*arguments: object) -> None:
        raise Seen(arguments[-1])

    monkeypatch.setattr(train, "_card", card)
    paths = train.Paths(q4_0, ROOT / "personas", ROOT / "adapters")
    with pytest.raises(Seen, match=original.digest):
        train.train_adapter(find_persona(paths.personas, "mira"), "mira", paths)


def core(model: LlamaModel, digest: str, folder: Path) -> EngineCore:
    settings = engine_settings(lanes=1, threads=1, kv_dir=str(folder))
    return EngineCore(model, settings, base_digest=digest, build="test")


def first_turn(path: Path, digest: str, folder: Path, adapter: Path) -> tuple[str, str]:
    """What is said first, and where the KV came from."""
    model = LlamaModel(path)
    scene = Scene(core(model, digest, folder), sampling=GREEDY)
    done = scene.say("one", LINE, [source(adapter)], max_tokens=6)
    scene.core.persist_all(10)
    scene.close()
    model.close()
    return done.text, done.reused_from


def test_kv_is_never_shared_between_files_of_one_base(tmp_path, q4_0, original):
    """The adapters are the same, the tokens are the same, the weights are not."""
    adapter = ROOT / "adapters" / "mira.gguf"
    shared = tmp_path / "shared"
    first_turn(original.path, file_digest(original.path), shared, adapter)
    assert first_turn(original.path, file_digest(original.path), shared, adapter)[1] == "disk"
    cold = first_turn(q4_0, file_digest(q4_0), tmp_path / "own", adapter)
    assert cold[1] == ""
    assert first_turn(q4_0, file_digest(q4_0), shared, adapter) == cold
    # What would happen if the digest that adapters are compared with were the one that KV is known by:
    assert first_turn(q4_0, original.digest, shared, adapter)[1] == "disk"


def test_a_file_agrees_with_itself_and_one_that_was_made_with_care_more_than_one_without(
    tmp_path, q4_0, original, worker
):
    def compared(path: Path, chars: int = 700) -> Agreement:
        job = Perplexity(source=str(original.path), prepared=str(path), texts=(PROSE[:chars],), threads=1)
        return worker.ask(job, Agreement)

    same = compared(original.path, 400)
    assert (same.difference, same.same_choice) == (0, 1)
    careless = tmp_path / "careless.gguf"
    prepare(original, "q4_0", careless, 1, worker, quiet, careful=False)
    plain, careful = compared(careless), compared(q4_0)
    assert careful.source == plain.source
    assert 0 < careful.difference < plain.difference < 0.5
    assert careful.same_choice < 1


def test_nothing_is_found_where_tensors_are_laid_out_otherwise(original, monkeypatch):
    class Elsewhere(ctypes.Structure):
        _fields_ = (("more", ctypes.c_int64), *importance._Tensor._fields_)

    found = importance.read_importance(original.path, ["One line of text."], 1)
    assert {"blk.0.attn_q.weight", "blk.29.ffn_down.weight"} <= found.keys()
    assert len(found["blk.29.ffn_down.weight"]) == 1536
    monkeypatch.setattr(importance, "_Tensor", Elsewhere)
    assert importance.read_importance(original.path, ["One line of text."], 1) == {}
