"""The child processes: what is told when one dies, and that none is left."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from npc_runtime.base_model import find_base_model
from npc_runtime.config import Settings
from npc_runtime.errors import ConfigError, EngineCrashed
from npc_runtime.tuning.jobs import Agreement, Inspect, ModelFacts, Perplexity
from npc_runtime.tuning.lab import Lab
from npc_runtime.tuning.machine import start_setup
from npc_runtime.tuning.prepared import inspect
from npc_runtime.tuning.prose import PROSE
from npc_runtime.tuning.search import ALL_FIGURES
from npc_runtime.tuning.worker import OutOfTime, Worker

SETTINGS = Settings(threads=1, context_tokens=512, spin_count=1000, adapters_dir="none")


def test_an_error_of_a_job_is_the_errors_own_and_the_child_goes_on(tmp_path):
    with Worker(1000) as worker:
        with pytest.raises(ConfigError, match="cannot be loaded"):
            worker.ask(Inspect(model=str(tmp_path / "none.gguf")), ModelFacts)
        assert worker.ask(Inspect(model=str(find_base_model("smollm2"))), ModelFacts).file_type == "q4_1"


def test_a_child_that_dies_is_told_with_how_it_died():
    worker = Worker(1000)
    os.kill(worker.pid, signal.SIGABRT)
    with pytest.raises(EngineCrashed, match="signal 6"):
        worker.ask(Inspect(model=""), ModelFacts)
    worker.close()


def test_a_job_that_takes_too_long_is_ended_with_its_process(tmp_path):
    worker = Worker(1000)
    # Reading from a pipe that nobody writes to never ends.
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    with pytest.raises(OutOfTime):
        worker.ask(Inspect(model=str(pipe)), ModelFacts, seconds=1.0)
    assert not worker.alive
    worker.close()


def test_when_the_command_is_killed_its_child_ends():
    program = (
        "from npc_runtime.tuning.worker import Worker\nimport time\n"
        "worker = Worker(1000)\nprint(worker.pid, flush=True)\ntime.sleep(100)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    with contextlib.suppress(psutil.NoSuchProcess):
        child.wait(20)
    assert not child.is_running()


def test_the_spin_count_is_in_the_childs_environment_whatever_is_in_ours(monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")
    with Worker(1234) as worker:
        environment = psutil.Process(worker.pid).environ()
    assert environment["GOMP_SPINCOUNT"] == "1234"
    assert environment["GGML_NO_BACKTRACE"] == "1"


@pytest.fixture(scope="module")
def lab(worker):
    base = find_base_model("smollm2")
    with Lab(SETTINGS, base, inspect(base, worker), None, 600, time.monotonic) as found:
        yield found


def test_only_what_is_asked_for_is_measured(lab):
    speed = lab.measure(start_setup(SETTINGS, "q4_1"), ("decode",))
    assert (speed.prefill, speed.line_ms) == (None, None)
    assert speed.decode > 0


@pytest.mark.parametrize("changed", [{"flash_attention": "on"}, {"kv_type": "q8_0"}, {"prefill_chunk_tokens": 32}])
def test_every_kind_of_context_can_be_measured_behind_a_history(lab, changed):
    speed = lab.measure(replace(start_setup(SETTINGS, "q4_1"), **changed), ALL_FIGURES)
    assert min(speed.prefill, speed.line_ms, speed.decode) > 0


def test_each_spin_count_has_a_process_of_its_own_that_ends_with_the_lab(lab):
    setup = start_setup(SETTINGS, "q4_1")
    for spin in (1000, 2000, 1000):
        speed = lab.measure(replace(setup, spin_count=spin), ALL_FIGURES)
        assert min(speed.prefill, speed.line_ms, speed.decode) > 0
    children = [psutil.Process(worker.pid) for worker in lab._workers.values()]
    assert sorted(child.environ()["GOMP_SPINCOUNT"] for child in children) == ["1000", "2000"]
    lab.close()
    assert not any(child.is_running() for child in children)


def test_when_time_is_up_nothing_is_measured_any_more(worker):
    base = find_base_model("smollm2")
    with Lab(SETTINGS, base, inspect(base, worker), None, 0, time.monotonic) as lab, pytest.raises(OutOfTime):
        lab.measure(start_setup(SETTINGS, "q4_1"), ALL_FIGURES)


def test_what_interrupts_a_job_ends_its_process_so_that_no_answer_is_taken_for_anothers(q4_0, original):
    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    worker = Worker(1000)
    job = Perplexity(source=str(original.path), prepared=str(q4_0), texts=(PROSE[:800],), threads=1)
    with pytest.raises(KeyboardInterrupt):
        worker.ask(job, Agreement, report=interrupted)
    assert not worker.alive
