"""LoRA on a CPU: token ids in, trained pairs out. torch, transformers and peft are used here and nowhere else.

Only the tokens of :attr:`TokenizedExchange.reply` carry loss. Frozen adapters are merged into the base's weights.

A persona's prompt is much longer than an exchange. So the exchanges of a batch share one copy of it: they are laid out
one after another behind it, each sees the prompt and itself (attention mask) and has the positions it would have
alone. Loss and gradients are those of separate sequences, at a quarter of the cost.
"""

from __future__ import annotations

import contextlib
import io
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npc_runtime.training.gguf_adapter import GGUF_LAYERS, Heads, Lora, LoraPair, gguf_weight_name, update_of
from npc_runtime.training.settings import TrainingSettings

if TYPE_CHECKING:
    import torch

WARM_UP = 0.1
"""Share of the steps over which the learning rate rises."""


@dataclass(frozen=True)
class TokenizedExchange:
    """``prompt``: ids up to where the reply begins; ``reply``: the ids that carry loss, with the end-of-turn id."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]


@dataclass(frozen=True)
class Progress:
    """After a step: ``step`` of ``steps`` (from 1), the step's loss in nat per token, ``epoch`` from 1."""

    step: int
    steps: int
    epoch: int
    loss: float


@dataclass(frozen=True)
class Trained:
    """A finished run: the adapter, its final losses (nat per token) and the seconds it took."""

    lora: Lora
    heads: Heads
    train_loss: float
    held_out_loss: float
    seconds: float


@dataclass(frozen=True)
class FrozenAdapter:
    """An adapter that is part of the base while another one is trained."""

    lora: Lora
    scale: float


@dataclass(frozen=True)
class TrainableBase:
    """The base model in torch, float32, dequantised from the GGUF."""

    model: Any
    heads: Heads


def load_base(gguf_path: Path) -> TrainableBase:
    """The GGUF at ``gguf_path`` as a transformers model on the CPU (a few seconds)."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    # transformers shows the dequantisation with a progress bar that has no switch (4.57).
    with contextlib.redirect_stderr(io.StringIO()):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf_path.parent, gguf_file=gguf_path.name, dtype=torch.float32
        )
    config = model.config
    return TrainableBase(model, Heads(config.num_attention_heads, config.num_key_value_heads))


def train_lora(
    base: TrainableBase,
    frozen: Sequence[FrozenAdapter],
    train: Sequence[TokenizedExchange],
    held_out: Sequence[TokenizedExchange],
    settings: TrainingSettings,
    report: Callable[[Progress], None] = lambda _progress: None,
) -> Trained:
    """Train one adapter on ``train``; ``base`` is used up (frozen adapters are merged into it, layers are wrapped)."""
    import torch

    started = time.monotonic()
    torch.manual_seed(settings.seed)
    for adapter in frozen:
        merge_frozen(base, adapter)
    _wrap(base, settings)
    last = _optimise(base, train, settings, report)
    held_out_loss = _mean_loss(base, held_out, settings.batch)
    lora = Lora(settings.alpha, _pairs(base))
    return Trained(lora, base.heads, last, held_out_loss, time.monotonic() - started)


def merge_frozen(base: TrainableBase, adapter: FrozenAdapter) -> None:
    """Add the adapter's update at its scale to the base's weights, for good."""
    import torch

    weights = dict(base.model.named_parameters())
    with torch.no_grad():
        for layer in range(base.model.config.num_hidden_layers):
            for target in GGUF_LAYERS:
                name = gguf_weight_name(layer, target)
                if name in adapter.lora.pairs:
                    part = "self_attn" if name.split(".")[2].startswith("attn") else "mlp"
                    weight = weights[f"model.layers.{layer}.{part}.{target}.weight"]
                    weight += torch.from_numpy(update_of(adapter.lora, name, adapter.scale))


def _wrap(base: TrainableBase, settings: TrainingSettings) -> None:
    import peft

    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.targets),
        task_type="CAUSAL_LM",
    )
    # The wrapper replaces the linear layers in place, so base.model itself now runs with the adapter.
    peft.get_peft_model(base.model, config)


def _optimise(
    base: TrainableBase,
    train: Sequence[TokenizedExchange],
    settings: TrainingSettings,
    report: Callable[[Progress], None],
) -> float:
    """Run all steps; returns the mean loss of the last epoch."""
    import torch

    trainable = [parameter for parameter in base.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    per_epoch = math.ceil(len(train) / settings.batch)
    steps = per_epoch * settings.epochs
    losses: list[float] = []
    base.model.train()
    for epoch in range(settings.epochs):
        order = list(train)
        random.Random(settings.seed * 1000 + epoch).shuffle(order)
        for start in range(0, len(order), settings.batch):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * _share_of_peak(len(losses), steps)
            loss = _loss(base, order[start : start + settings.batch])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trainable, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            report(Progress(len(losses), steps, epoch + 1, losses[-1]))
    return sum(losses[-per_epoch:]) / per_epoch


def _share_of_peak(step: int, steps: int) -> float:
    """The learning rate of ``step`` (from 0) as a share of its peak."""
    rise = max(1, round(WARM_UP * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def _mean_loss(base: TrainableBase, exchanges: Sequence[TokenizedExchange], batch: int) -> float:
    """Nat per reply token over all ``exchanges``."""
    import torch

    base.model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(exchanges), batch):
            group = exchanges[start : start + batch]
            tokens = sum(len(exchange.reply) for exchange in group)
            total += _loss(base, group).item() * tokens
            count += tokens
    return total / max(1, count)


def _loss(base: TrainableBase, exchanges: Sequence[TokenizedExchange]) -> torch.Tensor:
    """Mean loss in nat per reply token, of exchanges that share one copy of their common prompt."""
    import torch

    packed = pack(exchanges)
    hidden = base.model.model(
        input_ids=torch.tensor([packed.ids]),
        position_ids=torch.tensor([packed.positions]),
        attention_mask=_mask(packed),
        use_cache=False,
    ).last_hidden_state
    logits = base.model.lm_head(hidden[0, packed.sources])
    return torch.nn.functional.cross_entropy(logits, torch.tensor(packed.targets))


@dataclass(frozen=True)
class Packed:
    """Several exchanges as one sequence.

    ``branches`` says for each token which exchange it belongs to (-1: the shared beginning); ``targets[i]`` is what
    the token at index ``sources[i]`` has to predict.
    """

    ids: list[int]
    positions: list[int]
    branches: list[int]
    sources: list[int]
    targets: list[int]


def pack(exchanges: Sequence[TokenizedExchange]) -> Packed:
    """Lay ``exchanges`` out behind the longest beginning that all prompts share."""
    shared = _shared_length([exchange.prompt for exchange in exchanges])
    packed = Packed(list(exchanges[0].prompt[:shared]), list(range(shared)), [-1] * shared, [], [])
    for branch, exchange in enumerate(exchanges):
        # The last reply token is only ever predicted, so it is not an input.
        tail = [*exchange.prompt[shared:], *exchange.reply[:-1]]
        first_source = len(packed.ids) + len(exchange.prompt) - shared - 1
        packed.ids.extend(tail)
        packed.positions.extend(range(shared, shared + len(tail)))
        packed.branches.extend([branch] * len(tail))
        packed.sources.extend(range(first_source, first_source + len(exchange.reply)))
        packed.targets.extend(exchange.reply)
    return packed


def _shared_length(prompts: Sequence[tuple[int, ...]]) -> int:
    # One token of every prompt stays with its exchange: it is the one that predicts the reply's first token.
    limit = min(len(prompt) for prompt in prompts) - 1
    first = prompts[0]
    for length in range(limit):
        if any(prompt[length] != first[length] for prompt in prompts):
            return length
    return limit


def _mask(packed: Packed) -> torch.Tensor:
    """True where the row's token sees the column's; shape ``(1, 1, n, n)``."""
    import torch

    branches = torch.tensor(packed.branches)
    same = (branches[:, None] == branches[None, :]) | (branches[None, :] == -1)
    causal = torch.ones(len(packed.ids), len(packed.ids), dtype=torch.bool).tril()
    return (same & causal)[None, None]


def _pairs(base: TrainableBase) -> dict[str, LoraPair]:
    pairs: dict[str, LoraPair] = {}
    for name, module in base.model.named_modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            parts = name.split(".")
            layer, target = int(parts[parts.index("layers") + 1]), parts[-1]
            pairs[gguf_weight_name(layer, target)] = LoraPair(
                module.lora_A["default"].weight.detach().float().numpy().copy(),
                module.lora_B["default"].weight.detach().float().numpy().copy(),
            )
    return pairs
