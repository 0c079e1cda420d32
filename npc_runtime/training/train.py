"""``train_adapter``: a persona and its dialogue lines in, one adapter file out, made for the GGUF that will serve it.

Three rules:

* The prompt's token ids are those of the runtime: same prompt builder, same llama.cpp tokenizer, the first turn of a
  conversation with the greeting in it.
* Only the reply's tokens and the end-of-turn token carry loss.
* Adapters that the persona lists before the one being trained are in effect at their scales and stay as they are: the
  new adapter learns what is still missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import npc_runtime
from npc_runtime.base_model import file_digest
from npc_runtime.errors import AdapterMissing, ConfigError, UnknownAdapter, suggest
from npc_runtime.llama import LlamaModel
from npc_runtime.persona import AdapterRef, Persona
from npc_runtime.training.dialogue import Dialogue, Exchange, dialogue_path, load_dialogue
from npc_runtime.training.gguf_adapter import AdapterCard, read_lora, write_adapter
from npc_runtime.training.lora import FrozenAdapter, Progress, TokenizedExchange, TrainableBase, load_base, train_lora
from npc_runtime.training.settings import TrainingSettings
from npc_runtime.training.tokens import ServingTokens

LICENSE = "MIT"
_PACKAGES = ("torch", "transformers", "peft", "gguf", "llama-cpp-python")


@dataclass(frozen=True)
class Paths:
    """Where everything is: the base model's GGUF, the persona folder (dialogue beside it), the adapter folder."""

    base_model: Path
    personas: Path
    adapters: Path


@dataclass(frozen=True)
class AdapterReport:
    """What one training run made. Losses are nat per token; ``seconds`` is the training alone."""

    path: Path
    size: int
    train_loss: float
    held_out_loss: float
    seconds: float


def train_adapter(
    persona: Persona,
    adapter_name: str,
    paths: Paths,
    settings: TrainingSettings | None = None,
    *,
    out: Path | None = None,
    report: Callable[[Progress], None] = lambda _progress: None,
) -> AdapterReport:
    """Train the adapter that ``persona`` lists as ``adapter_name`` and write it to ``out`` (``adapters/NAME.gguf``).

    Raises UnknownAdapter, AdapterMissing (one listed before it is not there), DialogueInvalid, ConfigError.
    """
    settings = (settings or TrainingSettings()).checked()
    before = adapters_before(persona, adapter_name)
    dialogue = load_dialogue(dialogue_path(paths.personas, adapter_name))
    model = LlamaModel(paths.base_model, vocab_only=True)
    try:
        base_digest = model.source_digest or file_digest(paths.base_model)
        card = _card(persona, adapter_name, dialogue, before, paths, settings, _architecture(model), base_digest)
        tokens = ServingTokens(model)
        train = _tokenized(tokens, persona, dialogue.train)
        held_out = _tokenized(tokens, persona, dialogue.held_out)
    finally:
        model.close()
    base = load_base(paths.base_model)
    trained = train_lora(base, _frozen(before, paths.adapters, base), train, held_out, settings, report)
    path = out or paths.adapters / f"{adapter_name}.gguf"
    write_adapter(path, trained.lora, card, trained.heads)
    return AdapterReport(path, path.stat().st_size, trained.train_loss, trained.held_out_loss, trained.seconds)


def adapters_before(persona: Persona, adapter_name: str) -> tuple[AdapterRef, ...]:
    """The adapters that ``persona`` lists before ``adapter_name``. Raises UnknownAdapter."""
    names = [ref.alias for ref in persona.adapters]
    if adapter_name not in names:
        listed = ", ".join(names) or "none"
        raise UnknownAdapter(
            f"persona '{persona.id}' lists no adapter '{adapter_name}'.{suggest(adapter_name, names)} "
            f"It lists: {listed}. Add it under 'adapters:' in its file first"
        )
    return persona.adapters[: names.index(adapter_name)]


def _architecture(model: LlamaModel) -> str:
    architecture = model.architecture
    if architecture != "llama":
        raise ConfigError(
            f"base model architecture '{architecture}' cannot be trained here; allowed is 'llama' (as SmolLM2): "
            "the row order of other architectures' query and key weights is not known to this program"
        )
    return architecture


def _tokenized(tokens: ServingTokens, persona: Persona, exchanges: Iterable[Exchange]) -> list[TokenizedExchange]:
    return [TokenizedExchange(*tokens.exchange(persona, ex.player, ex.reply)) for ex in exchanges]


def _frozen(before: Iterable[AdapterRef], folder: Path, base: TrainableBase) -> list[FrozenAdapter]:
    frozen = []
    for ref in before:
        path = folder / ref.path
        if not path.is_file():
            raise AdapterMissing(
                f"adapter '{ref.alias}' comes before the one to be trained, but '{path}' is not there; train it first"
            )
        frozen.append(FrozenAdapter(read_lora(path, base.heads), ref.scale))
    return frozen


def _card(
    persona: Persona,
    adapter_name: str,
    dialogue: Dialogue,
    before: Iterable[AdapterRef],
    paths: Paths,
    settings: TrainingSettings,
    architecture: str,
    base_digest: str,
) -> AdapterCard:
    training: Mapping[str, Any] = {
        "settings": dataclasses.asdict(settings),
        "dialogue_sha256": dialogue.digest,
        "exchanges": {"train": len(dialogue.train), "held_out": len(dialogue.held_out)},
        "on_top_of": [{"name": ref.alias, "scale": ref.scale} for ref in before],
        "packages": {name: metadata.version(name) for name in _PACKAGES},
    }
    return AdapterCard(
        name=adapter_name,
        persona=persona.id,
        license=LICENSE,
        base_name=paths.base_model.stem,
        base_sha256=base_digest,
        base_architecture=architecture,
        created_with=f"npc-runtime {npc_runtime.__version__}",
        training=training,
    )
