"""This runtime as a system: a real daemon in processes of its own, spoken to over its socket."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cast import PLAYER, Cast
from bench.systems.process import environment
from bench.systems.system import REPLY_TOKENS, Common, NotAvailable, Sampled
from bench.timing import Turn
from npc_runtime.client import Client, Reply, Session, TurnFinished
from npc_runtime.config import ENV_PREFIX
from npc_runtime.sampling import SamplingOverrides

START_TIMEOUT_S = 60.0
SETTLE_S = 10.0
KV_BYTES_PER_TOKEN = 23_040
"""SmolLM2-135M in f16."""


@dataclass(frozen=True)
class Step:
    """One thing that was done in a conversation: the player typed ``text`` (``count`` 0; ``complete``: to its end) or
    said it."""

    text: str
    count: int
    sampled: Sampled | None = None
    reply: tuple[int, ...] = ()
    complete: bool = False


@dataclass
class Played:
    """A conversation as it was played, to be played again on a daemon that knows nothing."""

    character: int
    steps: list[Step] = field(default_factory=list)


class Daemon:
    """``npc-runtime serve`` on the cast's folders. ``played`` collects every conversation."""

    name = "npc-runtime"

    def __init__(self, cast: Cast, common: Common, *, lanes: int = 8, **settings: Any) -> None:
        self.cast = cast
        self.played: list[Played] = []
        self._folder = tempfile.TemporaryDirectory()
        self._log = (Path(self._folder.name) / "log").open("w+")
        self.ready_file = Path(self._folder.name) / "ready.json"
        wanted = {
            "base_model": cast.model,
            "personas_dir": cast.personas,
            "adapters_dir": cast.adapters,
            "ready_file": self.ready_file,
            "lanes": lanes,
            "threads": common.threads,
            "prefill_threads": common.prefill_threads,
            "prefill_chunk_tokens": common.ubatch,
            "flash_attention": common.flash_attention,
            "stuck_engine_seconds": 120,  # a machine that is busy with other things is no stuck engine
            "context_tokens": common.context_tokens,
            "kv_memory_mb": -(-lanes * common.context_tokens * KV_BYTES_PER_TOKEN // 2**20) + 1,
            **settings,
        }
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "npc_runtime", "serve", "--log-level", "warning"],
            env=environment() | _variables(wanted),
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )
        try:
            self.client = self._connect()
            self.greeted = time.perf_counter()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> Client:
        while not self.ready_file.exists():
            if self.process.poll() is not None:
                raise NotAvailable(f"the daemon ended with exit code {self.process.returncode}: {self.last_words()}")
            if time.perf_counter() - self.started > START_TIMEOUT_S:
                raise NotAvailable(f"the daemon did not start within {START_TIMEOUT_S:g} s")
            time.sleep(0.002)
        return Client.from_ready_file(self.ready_file, timeout_s=START_TIMEOUT_S)

    def last_words(self) -> str:
        """The end of its log."""
        self._log.seek(0)
        return " ".join(self._log.read().split())[-300:]

    def wait_ready(self) -> Daemon:
        """Wait for the model."""
        while (status := self.client.status()).state == "loading":
            time.sleep(0.02)
        if status.state != "ready":
            raise NotAvailable(f"the daemon is {status.state}: {status.engine.last_error}")
        return self

    def settle(self) -> None:
        """Wait until the disk tier has stopped growing: a player who leaves a game leaves it idle first."""
        deadline = time.monotonic() + SETTLE_S
        before = -1
        while time.monotonic() < deadline:
            now = self.client.status().engine.disk_bytes
            if now == before > 0:
                return
            before = now
            time.sleep(1)

    def second_client(self) -> Client:
        """Another connection."""
        return Client.from_ready_file(self.ready_file)

    def converse(self, character: int, *, history: Any = None, played: Played | None = None) -> DaemonConversation:
        """Begin a conversation, or go on with one whose ``history`` was kept and which was ``played`` so far."""
        more = {} if history is None else {"history": history}
        session = self.client.open_session(self.cast.characters[character].id, player=PLAYER, **more)
        if played is None:
            played = Played(character)
            self.played.append(played)
        return DaemonConversation(session, played)

    def close(self) -> None:
        """Stop the daemon and wait for its end."""
        if hasattr(self, "client"):
            self.client.close()
        self.process.terminate()
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()
        self._folder.cleanup()


class DaemonConversation:
    """A session. Only what is new goes over the wire."""

    def __init__(self, session: Session, played: Played) -> None:
        self.session = session
        self.played = played

    def say(self, line: str, count: int = REPLY_TOKENS, sampled: Sampled | None = None, **options: Any) -> Turn:
        """See :class:`bench.systems.Conversation`."""
        started = time.perf_counter()
        turn = self.read(self.start(line, count, sampled, **options), started)
        self.note(line, count, sampled, turn)
        return turn

    def start(self, line: str, count: int, sampled: Sampled | None = None, **options: Any) -> Reply:
        """Send the line without reading the reply."""
        return self.session.say(
            line, min_tokens=count, max_tokens=count, include_tokens=True, sampling=_overrides(sampled), **options
        )

    @staticmethod
    def read(reply: Reply, start: float) -> Turn:
        """Read a reply to its end; ``start`` is when its line was sent."""
        first = last = 0.0
        for _ in reply:
            last = time.perf_counter()
            first = first or last
        total = time.perf_counter() - start
        assert reply.finished is not None
        return _turn(reply.finished, (first - start) * 1e3, total * 1e3, (last - first) * 1e3)

    def note(self, line: str, count: int, sampled: Sampled | None, turn: Turn) -> None:
        """Remember what was said, for the replay."""
        self.played.steps.append(Step(line, count, sampled, turn.tokens))

    def history(self) -> Any:
        """What was said so far, to be given to another daemon."""
        return self.session.history()

    def prime(self, text: str, *, complete: bool) -> None:
        """The player has typed ``text`` so far; returns when the daemon has read it."""
        self.session.prime(text, complete=complete)
        self.played.steps.append(Step(text, 0, complete=complete))


def _variables(wanted: dict[str, Any]) -> dict[str, str]:
    return {f"{ENV_PREFIX}{name.upper()}": str(value) for name, value in wanted.items()}


def _overrides(sampled: Sampled | None) -> SamplingOverrides | None:
    if sampled is None:
        return None
    return SamplingOverrides(temperature=sampled.temperature, top_k=sampled.top_k, seed=sampled.seed)


def _turn(finished: TurnFinished, ttft_ms: float, total_ms: float, text_ms: float) -> Turn:
    timings, usage = finished.timings, finished.usage
    reported = {name: float(getattr(timings, name)) for name in timings.__struct_fields__}
    reused = {name: float(getattr(usage, name)) for name in usage.__struct_fields__ if name.startswith("reused")}
    return Turn(
        ttft_ms=ttft_ms,
        total_ms=total_ms,
        text_ms=text_ms,
        prompt_tokens=usage.prompt_tokens,
        new_tokens=usage.new_tokens,
        tokens=tuple(finished.tokens or ()),
        extra=reported | reused,
    )
