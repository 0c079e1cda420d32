"""Writing settings into a YAML file that a person wrote: what else is in it stays, comments too where that can be."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from npc_runtime.config import load_settings
from npc_runtime.errors import ConfigError

HEAD = "# Settings of npc-runtime; all of them are in docs/configuration.md\n"


def as_yaml(values: Mapping[str, object]) -> str:
    """The settings as YAML text, one a line."""
    return "".join(_line(name, value) for name, value in values.items())


def write_settings(path: Path, values: Mapping[str, object]) -> bool:
    """Set ``values`` in the file (it is made where there is none). False where its comments could not be kept.

    Raises ConfigError where the file is not a map of settings, the result would not be a sound one, or it cannot be
    written; then it is as it was.
    """
    old = _read(path)
    wanted = {**_parsed(old, path), **values}
    text = _edited(old, values)
    kept = _is(text, wanted)
    if not kept:
        text = HEAD + yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True)
    _replace(path, text)
    return kept


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return HEAD
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file '{path}' cannot be read: {error}") from None


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"config file '{path}' cannot be read: {error}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"config file '{path}' must be a map of settings, like 'port: 5710'")
    return loaded


def _edited(text: str, values: Mapping[str, object]) -> str:
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    for name, value in values.items():
        place = re.compile(rf"{name}\s*:[^#\n]*?(?P<rest>\s+#.*)?\n?$")
        found = [index for index, line in enumerate(lines) if place.match(line)]
        if not found:
            lines.append(_line(name, value))
        for index in found:
            match = place.match(lines[index])
            assert match is not None
            lines[index] = _line(name, value).rstrip("\n") + (match["rest"] or "") + "\n"
    return "".join(lines)


def _is(text: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return bool(yaml.safe_load(text) == wanted)
    except yaml.YAMLError:
        return False


def _line(name: str, value: object) -> str:
    return yaml.safe_dump({name: value}, allow_unicode=True, width=1 << 20)


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        if path.exists():
            draft.chmod(path.stat().st_mode & 0o777)
        load_settings(draft, {})
        draft.replace(path.resolve())
    except OSError as error:
        raise ConfigError(
            f"config file '{path}' cannot be written: {error.strerror}; choose another --config"
        ) from None
    except ConfigError as error:
        text = error.message.replace(str(draft), str(path))
        raise ConfigError(f"nothing was written: with these settings, {text}") from None
    finally:
        draft.unlink(missing_ok=True)
