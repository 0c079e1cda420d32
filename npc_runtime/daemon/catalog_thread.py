"""Files to catalogs, beside the daemon: one thread reads files when it is asked to, one listens to the file system.

What the system says about changes is a hint only: every hint (and every second without one) leads to a scan, and a scan
reads what really changed. So a storm of events is one catalog change, and a missed event costs a second.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import watchfiles

from npc_runtime.catalog import BaseIdentity, Catalog, CatalogBuilder
from npc_runtime.errors import InternalError, NpcError
from npc_runtime.persona import Persona

log = logging.getLogger("npc_runtime.catalog")

POLL_SECONDS = 1.0
DEBOUNCE_MS = 40
PATIENCE_S = 0.6
"""How long a waiting request waits for files that are being written; a slow copy is not waited for."""
PATIENCE_STEP_S = 0.05


@dataclass(frozen=True)
class AddText:
    """Add a persona from YAML text."""

    text: str
    replace_existing: bool


@dataclass(frozen=True)
class RemoveId:
    """Take a persona out."""

    persona_id: str


@dataclass(frozen=True)
class UseBase:
    """The base model is known from now on."""

    base: BaseIdentity


@dataclass(frozen=True)
class Scan:
    """Look at the folders again."""


Job = AddText | RemoveId | UseBase | Scan


@dataclass(frozen=True)
class CatalogResult:
    """A job is done: the catalog as it is now, and what an AddText gave (or its error)."""

    token: object
    catalog: Catalog
    added: tuple[Persona, bool] | None = None
    removed: bool = False
    error: NpcError | None = None


class CatalogThread:
    """Runs a builder. ``on_result`` is called from the thread, for every job and for every change that it finds."""

    def __init__(self, builder: CatalogBuilder, on_result: Callable[[CatalogResult], None]) -> None:
        self._builder = builder
        self._on_result = on_result
        self._jobs: queue.Queue[tuple[Job, object] | None] = queue.Queue()
        self._stopped = threading.Event()
        self._last = Catalog()
        self._threads = [
            threading.Thread(target=self._work, name="catalog", daemon=True),
            threading.Thread(target=self._listen, name="file events", daemon=True),
        ]

    def start(self) -> None:
        """Start; the first catalog comes as a result without a token."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask both threads to end."""
        self._stopped.set()
        self._jobs.put(None)

    def submit(self, job: Job, token: object) -> None:
        """Queue a job; its result carries ``token``."""
        self._jobs.put((job, token))

    def _work(self) -> None:
        self._run(Scan(), None, always=True)
        while not self._stopped.is_set():
            wait = DEBOUNCE_MS / 1e3 if self._builder.unsettled else POLL_SECONDS
            try:
                item = self._jobs.get(timeout=wait)
            except queue.Empty:
                item = (Scan(), None)
            if item is None:
                return
            job, token = item
            self._run(job, token, always=token is not None)

    def _run(self, job: Job, token: object, *, always: bool) -> None:
        added: tuple[Persona, bool] | None = None
        error: NpcError | None = None
        try:
            match job:
                case AddText(text, replace_existing):
                    added = self._builder.add(text, replace_existing=replace_existing)
                case RemoveId(persona_id):
                    self._builder.remove(persona_id)
                case UseBase(base):
                    self._builder.set_base(base)
            catalog = self._scan(patient=token is not None)
        except NpcError as known:
            error, catalog = known, self._last
        except Exception:
            # Whatever a file or the file system did, watching goes on with what was good.
            log.exception("catalog job failed")
            error, catalog = InternalError("the catalog could not be read; see the daemon's log"), self._last
        if always or catalog != self._last:
            self._last = catalog
            self._on_result(CatalogResult(token, catalog, added, removed=isinstance(job, RemoveId), error=error))

    def _scan(self, *, patient: bool) -> Catalog:
        """A catalog. Somebody who waits for it (``patient``) shall see files that were put in place just now."""
        catalog = self._builder.scan()
        deadline = time.monotonic() + (PATIENCE_S if patient else 0)
        while self._builder.unsettled and time.monotonic() < deadline and not self._stopped.wait(PATIENCE_STEP_S):
            catalog = self._builder.scan()
        return catalog

    def _listen(self) -> None:
        folders = self._builder.personas_dir, self._builder.adapters_dir
        while not self._stopped.is_set():
            present = [folder for folder in folders if folder.is_dir()]
            if not present:
                self._stopped.wait(POLL_SECONDS)
                continue
            try:
                self._watch(present)
            except Exception as error:
                log.warning("file events are not available (%s); looking every %s s instead", error, POLL_SECONDS)
                self._stopped.wait(10 * POLL_SECONDS)

    def _watch(self, folders: list[Path]) -> None:
        events = watchfiles.watch(
            *folders,
            watch_filter=None,
            debounce=4 * DEBOUNCE_MS,
            step=DEBOUNCE_MS,
            stop_event=self._stopped,
            rust_timeout=int(POLL_SECONDS * 1e3),
            yield_on_timeout=True,
            raise_interrupt=False,
        )
        for changes in events:
            if changes:
                self._jobs.put((Scan(), None))
            if any(not folder.is_dir() for folder in folders):
                return  # a folder was taken away: watch anew when it is back
