"""The characters of the benchmark, and what the player says to them.

Every character has a persona of its own whose prompt is exactly ``PERSONA_TOKENS`` long, and one adapter with random
weights (rank 8, made from the character's number). Every player line has the same number of tokens. So any two turns
of the same round are the same work, for every character and every system.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from bench.prompts import Prompts
from npc_runtime.persona.loader import load_persona
from npc_runtime.prompt import Conversation
from npc_runtime.prompt.persona_text import system_text
from tests.support.random_adapter import write_random_adapter

PERSONA_TOKENS = 300
RANK = 8
STRENGTH = 0.02
"""Strong enough to change what is said, weak enough that it stays text."""

PLAYER = "Player"

_FIRST = ("Brannoc", "Ysolde", "Tamsin", "Corvin", "Maelis", "Hedric", "Orla", "Wystan")
_LAST = ("Ashdown", "Pell", "Thornby", "Quarles", "Sedge", "Marrow", "Vance", "Holloway")
_TRADE = (
    "mends nets and ropes for the boats",
    "keeps the bees behind the old chapel",
    "bakes the bread that the whole town eats",
    "carves spoons and bowls from pear wood",
    "reads the weather for the farmers",
    "guards the north gate after sunset",
    "sells lamp oil and candles at the market",
    "copies letters for people who cannot write",
)
_WISH = (
    "to see the sea once before winter comes",
    "to find the brother who left for the mines",
    "to buy back the house with the blue door",
    "to hear the great bell ring again",
    "to learn who opened the mill gate that night",
    "to teach a child everything about the work",
    "to be left alone when the fair is in town",
    "to pay the last debt and owe nobody",
)

_BACKGROUND = """\
{name} {trade}, and has done so for longer than most people here can remember. The workshop stands in the lower \
street, between the well and the wall, and its one window looks out on the bridge. Eleven years ago the river rose in \
a single night and took the mill, the ferry and nine people with it; {name} pulled two of them out and does not like \
to be thanked for it. The miller's widow still brings eggs on Fridays. The dearest wish: {wish}. The mayor is not to \
be trusted, the miller's widow is, and the stranger in the grey coat has paid too well for too little since spring."""
_PERSONALITY = """\
Patient with tools and short with fools. Notices hands, shoes and weather before faces. Never lies outright, but \
leaves out what is nobody's business, and changes the subject when the flood is mentioned."""
_STYLE = (
    "Plain short sentences, now and then a saying about work. Answers first and asks afterwards. Never explains a joke."
)
_SCENARIO = "Late afternoon in the lower street; the player has stopped at the open window of the workshop."
_SHELF = ("river", "stone", "bread", "salt", "lamp", "iron", "rain", "paper", "wood", "glass", "wool", "honey")
_TOPICS = (
    *("bridge", "river", "market", "weather", "mayor", "church", "harbor", "forest", "castle", "winter", "harvest"),
    *("road", "village", "king", "garden", "tower", "island", "valley", "storm", "school", "music", "train", "horse"),
    *("wolf", "ship", "mountain"),
)


@dataclass(frozen=True)
class Character:
    """One of the cast. ``system`` is the persona's text as the model reads it."""

    number: int
    id: str
    name: str
    persona_yaml: str
    system: str
    adapter: Path


@dataclass(frozen=True)
class Cast:
    """The characters, the folders that hold their files, and the model that all of it is made for."""

    model: Path
    personas: Path
    adapters: Path
    characters: tuple[Character, ...]
    prompts: Prompts

    def conversation(self, number: int) -> Conversation:
        """A conversation with that character in which nothing was said yet."""
        character = self.characters[number]
        return Conversation(
            system=character.system, greeting="", exchanges=(), line="", player=PLAYER, character=character.name
        )


def make_cast(folder: Path, model: Path, count: int) -> Cast:
    """Write ``count`` personas and adapters into ``folder``."""
    prompts = Prompts(model)
    personas, adapters = folder / "personas", folder / "adapters"
    personas.mkdir(parents=True)
    adapters.mkdir()
    characters = tuple(_character(number, prompts, adapters) for number in range(count))
    for character in characters:
        (personas / f"{character.id}.yaml").write_text(character.persona_yaml, encoding="utf-8")
        write_random_adapter(character.adapter, character.number, rank=RANK, strength=STRENGTH)
    return Cast(model, personas, adapters, characters, prompts)


def lines(prompts: Prompts, count: int) -> list[str]:
    """``count`` player lines, each of the same number of tokens."""
    made = [_line(number) for number in range(count)]
    lengths = {prompts.count(line) for line in made}
    if len(lengths) != 1:
        raise ValueError(f"player lines of {sorted(lengths)} tokens; this vocabulary needs other topics")
    return made


def _line(number: int) -> str:
    opening = ("Tell me", "Say now")[number // len(_TOPICS) % 2]
    return f"{opening}, what do people here think about the {_TOPICS[number % len(_TOPICS)]} these days?"


def filler(prompts: Prompts, tokens: int) -> str:
    """A player line of exactly ``tokens`` tokens."""
    words = ["Listen"]
    while prompts.count(" ".join(words)) < tokens:
        words.append(_SHELF[len(words) % len(_SHELF)])
    return " ".join(words)


def _character(number: int, prompts: Prompts, adapters: Path) -> Character:
    names = [f"{first} {last}" for last, first in product(_LAST, _FIRST)]
    name, persona_id = names[number], f"c{number:02d}"
    texts = {
        "summary": f"Someone who {_TRADE[number % 8]} in the river town of Ember Vale.",
        "background": _BACKGROUND.format(name=name, trade=_TRADE[number % 8], wish=_WISH[(number // 8 + number) % 8]),
        "personality": _PERSONALITY,
        "speech_style": _STYLE,
        "scenario": _SCENARIO,
    }
    system = _fill_up(prompts, persona_id, name, texts)
    return Character(number, persona_id, name, _yaml(persona_id, name, texts), system, adapters / f"{persona_id}.gguf")


def _fill_up(prompts: Prompts, persona_id: str, name: str, texts: dict[str, str]) -> str:
    """Bring a persona to its length by what stands on its shelf; the system text that comes of it."""
    shelf = ["On the shelf:"]
    while True:
        texts["scenario"] = " ".join([_SCENARIO, *shelf])
        system = _system(persona_id, name, texts)
        length = prompts.opening_tokens(system)
        if length == PERSONA_TOKENS:
            return system
        if length > PERSONA_TOKENS:
            raise ValueError(f"the persona of {name} has {length} tokens, not {PERSONA_TOKENS}")
        shelf.append(_SHELF[len(shelf) % len(_SHELF)])


def _system(persona_id: str, name: str, texts: dict[str, str]) -> str:
    return system_text(load_persona(_yaml(persona_id, name, texts), "bench"), PLAYER)


def _yaml(persona_id: str, name: str, texts: dict[str, str]) -> str:
    said = "".join(f"{key}: |\n  {text}\n" for key, text in texts.items())
    return (
        f"schema: npc/1\nid: {persona_id}\nname: {name}\n{said}adapters: [{{name: {persona_id}}}]\n"
        "sampling: {temperature: 0, top_k: 0, top_p: 1, min_p: 0, repeat_penalty: 1}\nmax_tokens: 24\n"
    )
