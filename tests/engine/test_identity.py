"""The key of KV: everything that its content depends on changes it, and nothing else does."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc_runtime.engine.commands import AdapterSource
from npc_runtime.engine.identity import exact_scale, kv_key
from tests.engine.scene import scripted_core
from tests.engine.scripted_backend import ScriptedBackend

ONE = AdapterSource("one", "11" * 32, "/one.gguf", 0.8)
TWO = AdapterSource("two", "22" * 32, "/two.gguf", 0.8)
KEY = kv_key("base", [ONE, TWO], "layout")


def scaled(scale: float) -> AdapterSource:
    return msgspec.structs.replace(ONE, scale=scale)


@pytest.mark.parametrize(
    "other",
    [
        kv_key("other base", [ONE, TWO], "layout"),
        kv_key("base", [ONE, TWO], "other layout"),
        kv_key("base", [TWO, ONE], "layout"),
        kv_key("base", [ONE], "layout"),
        kv_key("base", [], "layout"),
        kv_key("base", [ONE, TWO, TWO], "layout"),
        kv_key("base", [scaled(0.80001), TWO], "layout"),
        kv_key("base", [scaled(-0.8), TWO], "layout"),
        kv_key("base", [msgspec.structs.replace(ONE, digest="33" * 32), TWO], "layout"),
        kv_key("baselayout", [ONE, TWO], ""),
    ],
)
def test_another_base_layout_adapter_order_or_scale_is_another_key(other):
    assert other != KEY


def test_near_scales_are_not_equal():
    near = [0.8, 0.80001, 0.80004, math.nextafter(0.8, 1) + 6e-8, -0.80001]
    assert len({kv_key("base", [scaled(scale)], "layout") for scale in near}) == len(near)


def test_scales_that_are_one_number_to_llama_are_one_key():
    assert kv_key("base", [scaled(0.1)], "l") == kv_key("base", [scaled(0.1 + 1e-12)], "l")


def test_a_files_name_and_place_are_not_part_of_the_key():
    moved = msgspec.structs.replace(ONE, name="renamed", path="/elsewhere.gguf")
    assert kv_key("base", [moved, TWO], "layout") == KEY


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
def test_two_scales_have_the_same_key_exactly_when_their_bits_are_the_same(one, other):
    same_key = kv_key("b", [scaled(one)], "l") == kv_key("b", [scaled(other)], "l")
    assert same_key == (exact_scale(one) == exact_scale(other))


def test_context_size_chunking_and_template_are_part_of_the_layout():
    layouts = {
        scripted_core().layout,
        scripted_core(context_tokens=256).layout,
        scripted_core(chunk_tokens=32).layout,
        scripted_core(ScriptedBackend(chat_template="")).layout,
    }
    assert len(layouts) == 4
    assert scripted_core().layout == scripted_core(lanes=7).layout
