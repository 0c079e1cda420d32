"""The engine without a process: commands in, events out, one step at a time.

The backend (model) and the clock are passed in, so this runs in a test, in a tool or in the engine process alike. All
methods must be called from one thread, the one that owns the model. Which turns are computed is said by ``SetRunning``
(the first that came, where nothing was said); of those, the one that has had the least time goes next. What is computed
in advance, and copies of KV, wait until no turn can go on.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from npc_runtime.engine.adapters import LoadedAdapters
from npc_runtime.engine.backend import ActiveSet, Backend
from npc_runtime.engine.commands import (
    AdapterLoaded,
    AdapterLoading,
    Alive,
    AnyCommand,
    AnyEvent,
    DropKv,
    EngineReady,
    EngineSettings,
    EngineStats,
    KeepAdapters,
    Leave,
    MeasurePersona,
    Prepare,
    Probe,
    RunTurn,
    SetRunning,
    Spoken,
    StopTurn,
    TurnDone,
    TurnFailed,
)
from npc_runtime.engine.disk_tier import DiskTier, Header
from npc_runtime.engine.failure import typed_error
from npc_runtime.engine.identity import kv_key
from npc_runtime.engine.idle_work import IdleWork
from npc_runtime.engine.kv_cache import KvCache
from npc_runtime.engine.lanes import Lane, LanePool
from npc_runtime.engine.plan import Plan, make_plan
from npc_runtime.engine.snapshot import Snapshot
from npc_runtime.engine.turn import Steps, TurnRun
from npc_runtime.errors import ConfigError, InvalidField, NpcError
from npc_runtime.llama import ContextOptions
from npc_runtime.prompt import Call, Conversation, JinjaTemplate, PromptTemplate, TranscriptTemplate

log = logging.getLogger("npc_runtime.engine")


class EngineCore:
    """Owns the model, its lanes and its loaded adapters.

    ``notify`` gets events that must be out before the call that follows them (a file is about to be loaded).
    """

    def __init__(
        self,
        backend: Backend,
        settings: EngineSettings,
        *,
        base_digest: str,
        build: str,
        clock: Callable[[], float] = time.perf_counter,
        notify: Callable[[AnyEvent], None] = lambda event: None,
    ) -> None:
        self.backend = backend
        self.settings = settings
        self.base_digest = base_digest
        self.template = choose_template(backend)
        wants_bos = backend.adds_bos or (isinstance(self.template, JinjaTemplate) and self.template.wants_bos)
        self.bos = backend.bos if wants_bos else None
        self.adapters = LoadedAdapters(
            backend,
            lambda digest, done: notify(AdapterLoaded(digest) if done else AdapterLoading(digest)),
            settings.max_loaded_adapters,
        )
        self.lanes = LanePool(
            [backend.new_context(options(settings)) for _ in range(affordable_lanes(backend, settings))]
        )
        disk = DiskTier(Path(settings.kv_dir), settings.disk_bytes) if settings.kv_dir else None
        self.kv = KvCache(self.lanes, settings.ram_bytes, disk)
        self.context_tokens = self.lanes.lanes[0].context.context_tokens
        self.layout = self._layout(build)
        self.adapter_switches = 0
        self.left = False
        self._clock = clock
        self._runs: dict[str, tuple[TurnRun, Steps]] = {}
        self._running: tuple[str, ...] | None = None
        self._events: list[AnyEvent] = []
        self._idle = IdleWork(self, clock, self._events.append)
        self._keep: frozenset[str] | None = None
        self._next_token_at = 0.0

    def _layout(self, build: str) -> str:
        s = self.settings
        template = hashlib.sha256(self.backend.chat_template.encode()).hexdigest()
        return (
            f"ctx {self.context_tokens}; chunk {s.chunk_tokens}; kv {s.kv_type}; flash {options(s).flash}; "
            f"threads {s.threads}/{s.prefill_threads}; gpu {s.gpu_layers} {s.gpu_device} {s.gpu_split}; {build}; "
            f"template {template}"
        )

    # Commands

    def submit(self, command: AnyCommand) -> None:
        """Take a command. Turns and preparations wait for their time; the others work at once."""
        match command:
            case RunTurn():
                self._idle.give_up(command.session_id)
                run = TurnRun(command, self, self._clock)
                run.go_on_beside(self._side_by_side(self._running or ()))
                self._runs[command.turn_id] = run, run.steps()
            case StopTurn(turn_id):
                if turn_id in self._runs:
                    self._runs[turn_id][0].cancelled = True
            case SetRunning(turn_ids):
                ran = self._side_by_side(self._running or ())
                went_on = [run for run in ran if run.turn.turn_id in turn_ids]
                for run in self._side_by_side(turn_ids):
                    if run not in ran:
                        run.go_on_beside(went_on)
                self._running = turn_ids
            case Prepare():
                self._idle.prepare(command)
            case MeasurePersona():
                self._idle.measure(command)
            case DropKv():
                self._drop(command)
            case KeepAdapters(digests):
                self._keep = frozenset(digests)
                self._free_adapters()
            case Probe(number):
                self._events.append(Alive(number, self.stats()))
            case Leave():
                self.left = True

    def _drop(self, command: DropKv) -> None:
        def matches(what: Lane | Snapshot | Header | RunTurn) -> bool:
            return command.session_id in ("", what.session_id) and command.persona_id in ("", what.persona_id)

        self._idle.give_up(command.session_id)
        for run, _ in self._runs.values():
            run.forgotten = run.forgotten or matches(run.turn)
        self.kv.drop(matches)

    def _free_adapters(self) -> None:
        if self._keep is not None:
            self.adapters.release(self._keep | self._leased(), self.lanes.unbind)

    def _leased(self) -> frozenset[str]:
        """The adapters of the turns that have begun."""
        return frozenset(source.digest for run, _ in self._runs.values() for source in run.turn.adapters)

    # Steps

    @property
    def busy(self) -> bool:
        """Whether there is a turn."""
        return bool(self._runs)

    def wait_seconds(self) -> float | None:
        """How long until ``step`` has something to do: 0 now; None: not before another command."""
        if self._events or self._ending() is not None:
            return 0.0
        if (run := self._next_run()) is not None:
            return max(0.0, self._next_token_at - self._clock()) if run.wants_token else 0.0
        if self._runs:
            lefts = [max(0.0, left) for run, _ in self._runs.values() if (left := run.seconds_left()) is not None]
            return min(lefts, default=None)
        return self._idle.wait_seconds()

    def step(self) -> list[AnyEvent]:
        """Do the next piece of work: events that wait, a step of a turn, or something for which there is idle time."""
        if self._events:
            events = self._events[:]
            self._events.clear()
            return events
        run = self._ending() or self._next_run()
        if run is not None:
            return self._step_turn(run)
        return [] if self._runs else self._idle.step()

    def _ending(self) -> TurnRun | None:
        return next((run for run, _ in self._runs.values() if run.must_end), None)

    def _next_run(self) -> TurnRun | None:
        """Of the turns that are to run, the one that has had the least time."""
        if self._running is None:
            return next((run for run, _ in self._runs.values()), None)
        runs = self._side_by_side(self._running)
        if self._clock() < self._next_token_at:  # no token may be drawn yet, but prompts can be read
            runs = [run for run in runs if not run.wants_token] or runs
        return min(runs, key=lambda run: run.share, default=None)

    def _side_by_side(self, turn_ids: Sequence[str]) -> list[TurnRun]:
        return [self._runs[turn_id][0] for turn_id in turn_ids if turn_id in self._runs]

    def _step_turn(self, run: TurnRun) -> list[AnyEvent]:
        began = self._clock()
        try:
            events = next(self._runs[run.turn.turn_id][1])
            if events and isinstance(events[-1], TurnDone):
                self._end(run)
            return events
        except Exception as error:
            return self._fail(run, typed_error(error, "a turn", run.turn.adapters))
        finally:
            took = self._clock() - began
            run.used += took
            for other, _ in self._runs.values():
                other.waited += took if other is not run else 0.0
            if run.wants_token and self.settings.max_tokens_per_second:
                self._next_token_at = max(self._next_token_at, began) + 1 / self.settings.max_tokens_per_second

    def _fail(self, run: TurnRun, error: NpcError) -> list[AnyEvent]:
        if run.lane is not None:
            run.lane.release()
        self._end(run)
        return [TurnFailed(turn_id=run.turn.turn_id, code=error.code, message=error.message, stats=self.stats())]

    def _end(self, run: TurnRun) -> None:
        del self._runs[run.turn.turn_id]
        if run.lane is not None:
            run.lane.held = False
            if run.forgotten:
                run.lane.release()
        self._free_adapters()
        self._idle.begin_pause()

    def persist_all(self, timeout_s: float) -> None:
        """Write to disk what is not there yet; gives up after ``timeout_s``."""
        until = self._clock() + timeout_s
        while self.kv.disk is not None and (left := until - self._clock()) > 0:
            # A False of ``persist`` may mean that too many wait; once they are written, that all are.
            if not self.kv.persist() and self.kv.disk.flush(left) and not self.kv.persist():
                return

    def close(self, timeout_s: float = 10.0) -> None:
        """Keep on disk what is to be kept and free everything."""
        self.persist_all(timeout_s)
        if self.kv.disk is not None:
            self.kv.disk.close()
        self.adapters.release(frozenset(), self.lanes.unbind)
        for lane in self.lanes:
            lane.context.close()
        self.backend.close()

    # What turns and preparations use

    def plan(self, conversation: Conversation) -> Plan:
        """The decode calls of a conversation's prompt. Raises InvalidField for tokens that the model does not have."""
        strange = [token for e in conversation.exchanges for token in e.tokens if not 0 <= token < self.backend.n_vocab]
        if strange:
            raise InvalidField(
                f"history: token {strange[0]} is none of this model's {self.backend.n_vocab}, it is another model's; "
                "close the session and open it without tokens and cuts"
            )
        segments = self.template.render(conversation)
        return make_plan(segments, self.backend, bos=self.bos, chunk_tokens=self.settings.chunk_tokens)

    def chunks(self, tokens: Call) -> list[Call]:
        """Tokens as calls of the usual size."""
        size = self.settings.chunk_tokens
        return [tokens[start : start + size] for start in range(0, len(tokens), size)]

    def has_lane(self, spoken: Spoken) -> bool:
        """Whether the conversation is in a lane."""
        return self.lanes.find(spoken.session_id, self._key(spoken)) is not None

    def _key(self, spoken: Spoken) -> str:
        return kv_key(self.base_digest, spoken.adapters, self.layout)

    def place(self, spoken: Spoken) -> tuple[Lane, str, ActiveSet]:
        """A lane for the conversation, bound to its adapters; and its KV key."""
        adapters = self.adapters.active_set(spoken.adapters, self._leased(), self.lanes.unbind)
        key = self._key(spoken)
        lane = self.kv.place(spoken.session_id, spoken.persona_id, key, adapters, pinned=spoken.pinned)
        if lane.bind(adapters):
            self.adapter_switches += 1
        return lane, key, adapters

    def compute(self, lane: Lane, plan: Plan, call: Call, adapters: ActiveSet, *, want_logits: bool) -> None:
        """Decode the plan's next call in the lane. Of a persona's fixed part, once it is complete, a copy is kept."""
        if len(lane.calls) in plan.joints:
            lane.pass_joint()
        lane.decode(call, adapters, want_logits=want_logits)
        if len(lane.calls) == plan.persona:
            lane.pass_joint()
            self.kv.keep_prefix(lane)

    def stats(self) -> EngineStats:
        """The counters now."""
        contexts = [lane.context for lane in self.lanes]
        ram, disk, per_token = self.kv.ram, self.kv.disk, self.backend.kv_bytes_per_token(self.settings.kv_type)
        return EngineStats(
            lanes=len(contexts),
            lanes_bound=self.lanes.bound,
            context_tokens=self.context_tokens,
            kv_bytes=len(contexts) * self.context_tokens * per_token,
            kv_bytes_per_token=per_token,
            ram_bytes=ram.bytes,
            ram_snapshots=len(ram),
            disk_bytes=disk.bytes if disk else 0,
            disk_snapshots=len(disk) if disk else 0,
            kv_files_dropped=disk.dropped if disk else 0,
            evictions=self.kv.evictions,
            restored_resident=self.kv.restored["resident"],
            restored_ram=self.kv.restored["ram"],
            restored_disk=self.kv.restored["disk"],
            adapters_loaded=len(self.adapters),
            adapter_loads=self.adapters.loads,
            adapter_switches=self.adapter_switches,
            decode_calls=sum(context.decode_calls for context in contexts),
            decoded_tokens=sum(context.decoded_tokens for context in contexts),
        )

    def ready(self, name: str) -> EngineReady:
        """The event that tells of this engine; ``name`` is the model file's name."""
        return EngineReady(
            architecture=self.backend.architecture,
            digest=self.base_digest,
            source_digest=self.backend.source_digest,
            name=name,
            template=type(self.template).__name__,
            stats=self.stats(),
        )


def options(settings: EngineSettings) -> ContextOptions:
    """The part of the settings that concerns a context."""
    return ContextOptions(
        context_tokens=settings.context_tokens,
        chunk_tokens=settings.chunk_tokens,
        threads=settings.threads,
        prefill_threads=settings.prefill_threads,
        kv_type=settings.kv_type,
        flash_attention=settings.flash_attention,
        on_gpu=settings.gpu_layers != 0,
    )


def affordable_lanes(backend: Backend, settings: EngineSettings) -> int:
    """As many lanes as the settings ask for and the KV memory allows. Raises ConfigError where it allows none."""
    one = settings.context_tokens * backend.kv_bytes_per_token(settings.kv_type)
    count = min(settings.lanes, settings.kv_bytes // max(1, one))
    if count < 1:
        raise ConfigError(
            f"a lane of {settings.context_tokens} tokens takes {one / 2**20:.0f} MiB of KV; kv_memory_mb allows "
            f"{settings.kv_bytes / 2**20:.0f}; raise it, lower context_tokens, or set kv_type to q8_0"
        )
    if count < settings.lanes:
        log.warning("kv_memory_mb allows %d lanes of the %d that are configured", count, settings.lanes)
    return count


def choose_template(backend: Backend) -> PromptTemplate:
    """The model's own chat template; a plain transcript where it has none or one that cannot be used."""
    if backend.chat_template:
        try:
            return JinjaTemplate(backend.chat_template, backend.eos_text)
        except ValueError as error:
            log.warning("%s; a plain transcript is used instead", error)
    return TranscriptTemplate()
