"""What there is to choose from, and how much is computed to choose."""

from dataclasses import replace

import pytest

from npc_runtime.config import Settings
from npc_runtime.tuning import machine
from npc_runtime.tuning.choices import overruled, settings_to_write
from npc_runtime.tuning.jobs import ModelFacts, Speed
from npc_runtime.tuning.lab import sized_work
from npc_runtime.tuning.machine import Load, attention, factors, file_types, load_now, start_setup, thread_counts


def facts(**changed):
    return ModelFacts(
        **(
            {"architecture": "llama", "file_type": "q4_1", "source_digest": "", "source_name": "", "width": 576}
            | changed
        )
    )


@pytest.mark.parametrize(
    ("most", "counts"),
    [(1, (1,)), (2, (1, 2)), (4, (1, 2, 3, 4)), (7, (1, 2, 3, 5, 7)), (16, (1, 2, 4, 8, 12, 16))],
)
def test_few_thread_counts_are_tried_and_never_more_than_the_game_leaves(most, counts):
    assert thread_counts(most) == counts


def test_the_default_leaves_a_core_to_the_game(monkeypatch):
    monkeypatch.setattr(machine, "default_threads", lambda: 7)
    setup = start_setup(Settings(), "q4_1")
    assert (setup.threads, setup.prefill_threads) == (7, 7)
    found = factors(setup, (), prefill_tokens=256, context_tokens=2048, on_gpu=False)
    assert max(value["threads"] for factor in found if factor.name == "threads" for value in factor.values) == 7


def test_a_machine_with_one_core_has_no_spin_to_choose(monkeypatch):
    monkeypatch.setattr(machine, "default_threads", lambda: 1)
    found = factors(start_setup(Settings(), ""), (), prefill_tokens=64, context_tokens=2048, on_gpu=False)
    assert "spin_count" not in [factor.name for factor in found]


def test_types_with_rows_of_256_are_for_models_that_have_such():
    assert file_types(facts(), 1) == ("q4_1", "q4_0", "q8_0", "iq4_nl")
    assert "q4_k_m" in file_types(facts(width=2048), 1)


def test_a_large_base_is_not_made_into_other_types_for_a_try():
    assert file_types(facts(), 3 << 30) == ()


@pytest.mark.parametrize(
    ("settings", "on_gpu", "others"),
    [
        (Settings(), False, [("on", "f16"), ("auto", "q8_0")]),
        (Settings(flash_attention="off"), False, [("on", "f16"), ("auto", "q8_0")]),
        (Settings(flash_attention="on"), False, [("auto", "f16"), ("auto", "q8_0")]),
        (Settings(kv_type="q8_0"), False, [("auto", "f16"), ("on", "f16")]),
        (Settings(), True, [("off", "f16"), ("auto", "q8_0")]),
    ],
)
def test_flash_attention_and_kv_type_are_chosen_together_and_what_is_set_is_not_tried_twice(settings, on_gpu, others):
    found = attention(start_setup(settings, ""), on_gpu=on_gpu)
    assert [(kind["flash_attention"], kind["kv_type"]) for kind in found] == others


def test_a_slow_machine_computes_less_for_each_measurement():
    fast, slow = (sized_work(Speed(prefill=rate, line_ms=1, decode=1), 90, 2048) for rate in (2000, 60))
    assert (fast.prefill, fast.history) == (256, 768)
    assert (slow.prefill, slow.history) == (64, 128)


def test_a_small_context_is_not_overrun():
    work = sized_work(Speed(prefill=5000, line_ms=1, decode=1), 90, 256)
    assert max(work.prefill, work.history + work.line + work.reply) <= 256


@pytest.mark.parametrize(
    ("average", "in_use", "busy"),
    [(0.1, 0.02, False), (0.6, 0.2, False), (0.1, 0.6, True), (4.0, 0.5, True), (0.9, 0.3, True), (4.0, 0.02, False)],
)
def test_a_busy_machine_is_noticed_and_one_that_was_busy_is_forgiven(average, in_use, busy):
    assert Load(average, 2, in_use).busy is busy


def test_the_load_of_this_machine_can_be_read():
    load = load_now()
    assert load.cores >= 1
    assert load.average >= 0
    assert 0 <= load.in_use <= 1


def setup(settings=None, **changed):
    return replace(start_setup(settings or Settings(threads=2), "q4_1"), **changed)


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        ({}, {}),
        ({"file_type": "q4_0"}, {}),
        ({"threads": 1}, {"threads": 1, "prefill_threads": 2}),
        ({"threads": 1, "prefill_threads": 1}, {"threads": 1}),
        ({"prefill_threads": 1}, {"prefill_threads": 1}),
        ({"kv_type": "q8_0", "spin_count": 1000}, {"kv_type": "q8_0", "spin_count": 1000}),
    ],
)
def test_what_is_written_is_what_changes(best, expected):
    settings = Settings(threads=2)
    assert settings_to_write(settings, setup(), setup(**best)) == expected


def test_prefill_threads_that_are_set_stay_set():
    settings = Settings(threads=2, prefill_threads=1)
    before = setup(settings)
    assert settings_to_write(settings, before, setup(settings, threads=1)) == {"threads": 1}
    assert settings_to_write(settings, before, setup(settings, prefill_threads=2)) == {"prefill_threads": 2}


def test_variables_that_win_over_the_file_are_named():
    environ = {"NPC_RUNTIME_THREADS": "1", "GOMP_SPINCOUNT": "1", "NPC_RUNTIME_PORT": "1"}
    assert overruled(["threads", "spin_count"], environ) == ["NPC_RUNTIME_THREADS", "GOMP_SPINCOUNT"]
    assert overruled(["kv_type"], environ) == []
