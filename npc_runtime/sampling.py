"""How the next token is drawn: one frozen set of parameters, shared by persona files, messages and the engine.

The sampler chain is llama.cpp's own, in its default order: repeat penalty, top-k, top-p, min-p, temperature, draw.
A parameter at its neutral value leaves the distribution as it is.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

Temperature = Annotated[float, Meta(ge=0, le=5, description="0 = greedy: always the likeliest token; neutral: 1")]
TopK = Annotated[int, Meta(ge=0, le=1_000_000, description="keep the k likeliest tokens; neutral: 0 (off)")]
TopP = Annotated[float, Meta(gt=0, le=1, description="keep the likeliest tokens of this total probability; neutral: 1")]
MinP = Annotated[float, Meta(ge=0, lt=1, description="drop tokens below this share of the best one; neutral: 0")]
RepeatPenalty = Annotated[float, Meta(ge=0.5, le=3, description="divide the logit of recent reply tokens; neutral: 1")]
RepeatLastN = Annotated[int, Meta(ge=0, le=4096, description="how many recent reply tokens the penalty looks at")]
Seed = Annotated[
    int, Meta(ge=0, le=2**32 - 1, description="same seed, same conversation: same text; unset: drawn anew")
]


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Complete sampling parameters. ``seed`` None means that a seed is drawn for each turn and reported with it."""

    temperature: Temperature = 0.7
    top_k: TopK = 40
    top_p: TopP = 0.95
    min_p: MinP = 0.05
    repeat_penalty: RepeatPenalty = 1.1
    repeat_last_n: RepeatLastN = 64
    seed: Seed | None = None


class SamplingOverrides(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling parameters of one turn; what is absent stays as the persona has it."""

    temperature: Temperature | UnsetType = UNSET
    top_k: TopK | UnsetType = UNSET
    top_p: TopP | UnsetType = UNSET
    min_p: MinP | UnsetType = UNSET
    repeat_penalty: RepeatPenalty | UnsetType = UNSET
    repeat_last_n: RepeatLastN | UnsetType = UNSET
    seed: Seed | UnsetType | None = UNSET

    def over(self, base: Sampling) -> Sampling:
        """``base`` with every parameter that is set here replaced."""
        given = {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not UNSET}
        return msgspec.structs.replace(base, **given)
