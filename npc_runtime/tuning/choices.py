"""From a search's outcome to settings: what is to be written, and nothing that stays as it is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from npc_runtime.config import ENV_PREFIX, Settings
from npc_runtime.tuning.search import Setup, differences


def settings_to_write(settings: Settings, start: Setup, best: Setup) -> dict[str, object]:
    """The settings that make ``best`` out of ``start``; the file type is another file, not a setting."""
    changed = differences(start, best)
    changed.pop("file_type", None)
    changed.pop("prefill_threads", None)
    # Prefill threads follow the decode threads where they are not set: what counts is what they come to.
    set_to = settings.prefill_threads or best.threads
    if set_to != best.prefill_threads:
        changed["prefill_threads"] = best.prefill_threads
    return changed


def overruled(names: Iterable[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Environment variables that win over a file's settings of these names."""
    variables = [ENV_PREFIX + name.upper() for name in names]
    variables += ["GOMP_SPINCOUNT"] if "spin_count" in names else []
    return [variable for variable in variables if variable in environ]
