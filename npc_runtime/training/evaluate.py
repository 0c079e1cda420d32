"""Does every adapter set speak like its own character, and like no other? Measured on lines it was not trained on.

One row per persona, one column per adapter set and one for the base model alone. A cell is the mean natural
log-likelihood per token of that persona's held-out replies under that set. Every cell of a row has the same system
prompt, greeting and player lines; only the tokens of the replies are scored. llama.cpp computes it, as it serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npc_runtime.errors import AdapterMissing, ContentFault, PersonaConflict
from npc_runtime.llama import LlamaAdapter, LlamaModel
from npc_runtime.persona import AdapterRef, Persona, decode_text, load_persona, persona_key
from npc_runtime.training.dialogue import Dialogue, dialogue_path, load_dialogue
from npc_runtime.training.scoring import ReplyScorer
from npc_runtime.training.tokens import ServingTokens
from npc_runtime.training.train import Paths

BASE = "base"
MIN_OVER_BASE = 0.3
"""Nat per token by which a persona's own set must beat the base model on its lines."""
MIN_OVER_OTHERS = 0.1
"""Nat per token by which it must beat every other set."""


@dataclass(frozen=True)
class AdapterSet:
    """A column: ``title`` is a persona's id, :data:`BASE`, or names the adapters of a part of a persona's set."""

    title: str
    refs: tuple[AdapterRef, ...]

    @property
    def adapters(self) -> str:
        """The adapters with their scales, as people read them."""
        return ", ".join(f"{ref.alias} × {ref.scale:g}" for ref in self.refs) or "none"


@dataclass(frozen=True)
class Voice:
    """A row: a persona, and the dialogue file of the last adapter it lists (the one that makes it this character)."""

    persona: Persona
    dialogue: Dialogue


@dataclass(frozen=True)
class Row:
    """A persona's scores by column title (nat per token) over ``exchanges`` held-out replies of ``tokens`` tokens."""

    persona_id: str
    exchanges: int
    tokens: int
    means: Mapping[str, float]

    @property
    def over_base(self) -> float:
        """By how much the own set beats the base model, in nat per token."""
        return self.means[self.persona_id] - self.means[BASE]

    @property
    def over_best_other(self) -> float:
        """By how much the own set beats the best other set, in nat per token; infinite where there is no other."""
        others = [mean for title, mean in self.means.items() if title not in (self.persona_id, BASE)]
        return self.means[self.persona_id] - max(others, default=float("-inf"))

    @property
    def holds(self) -> bool:
        """Whether both margins are kept."""
        return self.over_base >= MIN_OVER_BASE and self.over_best_other >= MIN_OVER_OTHERS


@dataclass(frozen=True)
class Evaluation:
    """The whole matrix: rows are personas, columns are ``sets``."""

    sets: tuple[AdapterSet, ...]
    rows: tuple[Row, ...]


def load_voices(personas_dir: Path) -> list[Voice]:
    """Every persona of the folder that lists adapters. Raises PersonaInvalid, DialogueInvalid."""
    voices = []
    for path in sorted(personas_dir.glob("*.yaml")):
        persona = load_persona(decode_text(path.read_bytes(), str(path)), str(path))
        if persona.adapters:
            voices.append(Voice(persona, load_dialogue(dialogue_path(personas_dir, persona.adapters[-1].alias))))
    if not voices:
        raise ContentFault(f"no persona in '{personas_dir}' lists an adapter; there is nothing to evaluate")
    _check_unique(voices)
    return voices


def adapter_sets(personas: Sequence[Persona]) -> tuple[AdapterSet, ...]:
    """The columns: each persona's set, the first parts of those with several adapters, and the base model."""
    sets = [AdapterSet(persona.id, persona.adapters) for persona in personas]
    for persona in personas:
        for count in range(1, len(persona.adapters)):
            part = AdapterSet("", persona.adapters[:count])
            if all(part.refs != known.refs for known in sets):
                sets.append(AdapterSet(part.adapters, part.refs))
    return (*sets, AdapterSet(BASE, ()))


def evaluate(
    voices: Sequence[Voice],
    paths: Paths,
    threads: int,
    report: Callable[[int, int], None] = lambda _done, _all: None,
) -> Evaluation:
    """Score every voice under every set; ``report`` gets the replies scored so far and their number in all.

    Raises AdapterMissing, AdapterInvalid.
    """
    sets = adapter_sets([voice.persona for voice in voices])
    files = _adapter_files(sets, paths.adapters)
    model = LlamaModel(paths.base_model)
    try:
        loaded = {name: model.load_adapter(path) for name, path in files.items()}
        scorer = ReplyScorer(model, threads)
        try:
            matrix = _matrix(voices, sets, scorer, ServingTokens(model), loaded, report)
        finally:
            scorer.close()
        for adapter in loaded.values():
            model.free_adapter(adapter)
    finally:
        model.close()
    return Evaluation(sets, matrix)


def _matrix(
    voices: Sequence[Voice],
    sets: Sequence[AdapterSet],
    scorer: ReplyScorer,
    tokens: ServingTokens,
    loaded: Mapping[str, LlamaAdapter],
    report: Callable[[int, int], None],
) -> tuple[Row, ...]:
    replies = [
        [(tokens.prompt(voice.persona, ex.player), tokens.reply(ex.reply)) for ex in voice.dialogue.held_out]
        for voice in voices
    ]
    todo, done = len(sets) * sum(map(len, replies)), 0
    means: list[dict[str, float]] = [{} for _ in voices]
    counts = [sum(len(reply) for _, reply in lines) for lines in replies]
    for adapter_set in sets:
        # Scale 0 means "without this adapter"; llama.cpp wants such a one not to be named.
        scorer.use([(loaded[ref.path], ref.scale) for ref in adapter_set.refs if ref.scale])
        for row, lines in enumerate(replies):
            total = 0.0
            for prompt, reply in lines:
                total += float(scorer.log_likelihoods(prompt, reply).sum())
                done += 1
                report(done, todo)
            means[row][adapter_set.title] = total / counts[row]
    return tuple(
        Row(voice.persona.id, len(lines), count, mean)
        for voice, lines, count, mean in zip(voices, replies, counts, means, strict=True)
    )


def _adapter_files(sets: Sequence[AdapterSet], folder: Path) -> dict[str, Path]:
    files = {ref.path: folder / ref.path for adapter_set in sets for ref in adapter_set.refs}
    for name, path in files.items():
        if not path.is_file():
            raise AdapterMissing(
                f"adapter file '{name}' is not in '{folder}'; train it with 'npc-runtime adapter train PERSONA'"
            )
    return files


def _check_unique(voices: Sequence[Voice]) -> None:
    seen: set[str] = set()
    for voice in voices:
        key = persona_key(voice.persona.id)
        if key in seen or key == BASE:
            raise PersonaConflict(
                f"persona id '{voice.persona.id}' stands twice, or is '{BASE}', which names the column of the base "
                "model; give each persona an id of its own"
            )
        seen.add(key)
