"""Fixtures that every test may use: the real models (loaded once) and adapters with random weights for them."""

import os

# Idle OpenMP threads that spin would take the processor from whatever else runs on this machine.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from npc_runtime.base_model import find_base_model
from npc_runtime.errors import ConfigError
from npc_runtime.llama import LlamaModel
from tests.support.random_adapter import GEMMA3_SHAPES, write_random_adapter

# A model call may take long on a busy machine; a failure prints how to reproduce it.
hypothesis.settings.register_profile("npc", deadline=None, print_blob=True)
hypothesis.settings.load_profile("npc")


@pytest.fixture(scope="session")
def smollm2() -> Iterator[LlamaModel]:
    """SmolLM2-135M-Instruct, loaded."""
    model = LlamaModel(find_base_model("smollm2"))
    yield model
    model.close()


@pytest.fixture(scope="session")
def gemma3() -> Iterator[LlamaModel]:
    """Gemma 3 270M, loaded; skips where the [gemma3] extra is not installed."""
    try:
        path = find_base_model("gemma3")
    except ConfigError as error:
        pytest.skip(str(error))
    model = LlamaModel(path)
    yield model
    model.close()


@pytest.fixture(scope="session")
def smollm2_adapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two adapters with random weights that fit SmolLM2-135M."""
    folder = tmp_path_factory.mktemp("smollm2_adapters")
    one, other = (
        write_random_adapter(folder / f"{name}.gguf", seed, blocks=10, strength=0.5) for seed, name in enumerate("ab")
    )
    return one, other


@pytest.fixture(scope="session")
def gemma3_adapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two adapters with random weights that fit Gemma 3 270M."""
    folder = tmp_path_factory.mktemp("gemma3_adapters")
    one, other = (
        write_random_adapter(folder / f"{name}.gguf", seed, architecture="gemma3", shapes=GEMMA3_SHAPES, blocks=8)
        for seed, name in enumerate("ab")
    )
    return one, other
