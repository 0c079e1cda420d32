"""A child process that is spoken to in JSON lines."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.systems.system import NotAvailable

PROGRAMS = Path(__file__).parents[1] / "programs"
ENVIRONMENT = {"GOMP_SPINCOUNT": "1000000", "GGML_NO_BACKTRACE": "1"}
"""The same for every system: how long OpenMP's threads spin before they sleep; no debugger at an abort."""


def environment() -> dict[str, str]:
    """The environment of every system's process."""
    return {**os.environ, **ENVIRONMENT}


class Program:
    """One of ``bench/programs``. ``about`` is the first line that it printed."""

    def __init__(
        self, python: Path, name: str, argument: dict[str, Any], variables: Mapping[str, str] | None = None
    ) -> None:
        if not python.exists():
            raise NotAvailable(f"{name} is not installed; scripts/bench installs it")
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [str(python), str(PROGRAMS / name), json.dumps(argument)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment() | dict(variables or {}),
            text=True,
        )
        self._name = name
        self.about: dict[str, Any] = self._read()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one line, read one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        code = self._process.wait()
        self._log.seek(0)
        last = self._log.read().strip().splitlines()[-1:]
        raise NotAvailable(f"{self._name} ended with exit code {code}: {''.join(last)[-300:]}")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
