"""The engine without a process: commands in, events out, one step at a time.

The backend (model) and the clock are passed in, so this runs in a test, in a tool or in the engine process alike. All
methods must be called from one thread, the one that owns the model.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable

from npc_runtime.engine.adapters import LoadedAdapters
from npc_runtime.engine.backend import Backend, Context
from npc_runtime.engine.commands import (
    AdapterLoaded,
    AdapterLoading,
    AnyCommand,
    AnyEvent,
    EngineReady,
    EngineSettings,
    EngineStats,
    ForgetSession,
    KeepAdapters,
    RunTurn,
    StopTurn,
    TurnFailed,
)
from npc_runtime.engine.lanes import LanePool
from npc_runtime.engine.turn import Steps, TurnRun
from npc_runtime.errors import DecodeError, InternalError, NpcError
from npc_runtime.llama import DecodeFailed
from npc_runtime.prompt import JinjaTemplate, PromptTemplate, TranscriptTemplate

log = logging.getLogger("npc_runtime.engine")


class EngineCore:
    """Owns the model, its lanes and its loaded adapters; runs one turn at a time.

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
            backend, lambda digest, done: notify(AdapterLoaded(digest) if done else AdapterLoading(digest))
        )
        self.lanes = LanePool([self._new_context() for _ in range(settings.lanes)])
        self.context_tokens = self.lanes.lanes[0].context.context_tokens
        self.layout = self._layout(build)
        self.adapter_switches = 0
        self._clock = clock
        self._queue: deque[RunTurn] = deque()
        self._stopped_early: set[str] = set()
        self._run: TurnRun | None = None
        self._steps: Steps = iter(())
        self._keep: frozenset[str] | None = None

    def _new_context(self) -> Context:
        s = self.settings
        return self.backend.new_context(context_tokens=s.context_tokens, chunk_tokens=s.chunk_tokens, threads=s.threads)

    def _layout(self, build: str) -> str:
        template = hashlib.sha256(self.backend.chat_template.encode()).hexdigest()
        return f"ctx {self.context_tokens}; chunk {self.settings.chunk_tokens}; kv f16; {build}; template {template}"

    @property
    def busy(self) -> bool:
        """Whether there is a turn to step."""
        return self._run is not None or bool(self._queue)

    def submit(self, command: AnyCommand) -> None:
        """Take a command. Turns wait for their time; the others work at once (they never wait for a model call)."""
        match command:
            case RunTurn():
                self._queue.append(command)
            case StopTurn(turn_id):
                self._stop(turn_id)
            case ForgetSession(session_id):
                if self._run is not None and self._run.turn.session_id == session_id:
                    self._run.forgotten = True
                else:
                    self.lanes.forget(session_id)
            case KeepAdapters(digests):
                self._keep = frozenset(digests)
                self._free_adapters()

    def _stop(self, turn_id: str) -> None:
        if self._run is not None and self._run.turn.turn_id == turn_id:
            self._run.cancelled = True
        elif any(turn.turn_id == turn_id for turn in self._queue):
            self._stopped_early.add(turn_id)

    def _free_adapters(self) -> None:
        if not self.busy and self._keep is not None:
            self.adapters.release(self._keep, self.lanes.unbind)
            self._keep = None

    def step(self) -> list[AnyEvent]:
        """Advance the running turn by one step (starting the next one where none runs)."""
        if self._run is None:
            if not self._queue:
                return []
            self._begin(self._queue.popleft())
        try:
            return next(self._steps)
        except StopIteration:
            self._end()
            return []
        except NpcError as error:
            return self._fail(error)
        except DecodeFailed as error:
            return self._fail(DecodeError(f"{error}; the conversation is computed anew at its next turn"))
        except Exception as error:
            log.exception("turn failed")
            return self._fail(InternalError(f"the engine failed inside a turn ({type(error).__name__}); see its log"))

    def _begin(self, turn: RunTurn) -> None:
        self._run = TurnRun(turn, self, self._clock)
        self._run.cancelled = turn.turn_id in self._stopped_early
        self._stopped_early.discard(turn.turn_id)
        self._steps = self._run.steps()

    def _fail(self, error: NpcError) -> list[AnyEvent]:
        run = self._run
        assert run is not None
        if run.lane is not None:
            run.lane.release()
        self._end()
        return [TurnFailed(turn_id=run.turn.turn_id, code=error.code, message=error.message, stats=self.stats())]

    def _end(self) -> None:
        run, self._run, self._steps = self._run, None, iter(())
        if run is not None and run.forgotten:
            self.lanes.forget(run.turn.session_id)
        self._free_adapters()

    def stats(self) -> EngineStats:
        """The counters now."""
        contexts = [lane.context for lane in self.lanes.lanes]
        return EngineStats(
            lanes=len(contexts),
            lanes_bound=self.lanes.bound,
            adapters_loaded=len(self.adapters),
            decode_calls=sum(context.decode_calls for context in contexts),
            decoded_tokens=sum(context.decoded_tokens for context in contexts),
            adapter_switches=self.adapter_switches,
            context_tokens=self.context_tokens,
        )

    def ready(self, name: str) -> EngineReady:
        """The event that tells of this engine; ``name`` is the model file's name."""
        return EngineReady(
            architecture=self.backend.architecture,
            digest=self.base_digest,
            name=name,
            template=type(self.template).__name__,
            stats=self.stats(),
        )


def choose_template(backend: Backend) -> PromptTemplate:
    """The model's own chat template; a plain transcript where it has none or one that cannot be used."""
    if backend.chat_template:
        try:
            return JinjaTemplate(backend.chat_template, backend.eos_text)
        except ValueError as error:
            log.warning("%s; a plain transcript is used instead", error)
    return TranscriptTemplate()
