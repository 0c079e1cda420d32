"""The settings of one training run, all in one place."""

from __future__ import annotations

from dataclasses import dataclass

from npc_runtime.errors import ConfigError

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Every linear layer of a llama-architecture block, by its name in transformers."""


@dataclass(frozen=True)
class TrainingSettings:
    """How an adapter is trained. Equal settings, lines and package versions on one machine give equal files.

    rank            inner dimension of every LoRA pair; the file grows with it (SmolLM2-135M: 0.6 MB each)
    alpha           the update is applied times ``alpha / rank``
    epochs          passes over the training lines
    learning_rate   AdamW's peak; warmed up over the first tenth, then lowered along a cosine to 0
    weight_decay    AdamW's, on the LoRA matrices only
    dropout         share of the LoRA inputs that is zeroed in training
    batch           exchanges per optimizer step; they share one copy of the persona's prompt
    seed            of the LoRA initialisation, the order of the lines and dropout
    targets         which layers get a pair
    """

    rank: int = 4
    alpha: float = 8.0
    epochs: int = 4
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    dropout: float = 0.05
    batch: int = 8
    seed: int = 20
    targets: tuple[str, ...] = TARGETS

    def checked(self) -> TrainingSettings:
        """These settings, if every value is in its range. Raises ConfigError."""
        _require("rank", self.rank, 1 <= self.rank <= 64, "1 to 64")
        _require("alpha", self.alpha, 0 < self.alpha <= 1024, "above 0, at most 1024")
        _require("epochs", self.epochs, 1 <= self.epochs <= 1000, "1 to 1000")
        _require("lr", self.learning_rate, 0 < self.learning_rate <= 1, "above 0, at most 1")
        _require("weight_decay", self.weight_decay, 0 <= self.weight_decay < 1, "0 to below 1")
        _require("dropout", self.dropout, 0 <= self.dropout < 1, "0 to below 1")
        _require("batch", self.batch, 1 <= self.batch <= 256, "1 to 256")
        _require("seed", self.seed, 0 <= self.seed < 2**32, "0 to 4294967295")
        unknown = [name for name in self.targets if name not in TARGETS]
        _require("targets", unknown, bool(self.targets) and not unknown, f"one or more of {', '.join(TARGETS)}")
        return self


def _require(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"training setting '{name}' is '{value}'; allowed is {allowed}")
