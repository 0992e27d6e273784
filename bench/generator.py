"""A load generator (wrk, h2load) while it runs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from bench.processes import Failed

Report = TypeVar("Report")

_SLACK = 20.0  # seconds beyond what it was told to run


class Generator(Generic[Report]):
    """A load generator that runs: `report` waits for its end. A context, which ends it in any case."""

    def __init__(self, name: str, popen: subprocess.Popen[str], seconds: float, parse: Callable[[str], Report]) -> None:
        """`seconds` is how long it is to run, `parse` reads what it prints."""
        self._name = name
        self._popen = popen
        self._seconds = seconds + _SLACK
        self._parse = parse

    def report(self) -> Report:
        """Wait for the end and return what it found; Failed when it failed or hangs."""
        try:
            output, errors = self._popen.communicate(timeout=self._seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self._name} did not end within {self._seconds:.0f} s") from None
        if self._popen.returncode:
            said = f"{output}{errors or ''}"[-500:]
            raise Failed(f"{self._name} ended with status {self._popen.returncode}: {said}")
        return self._parse(output)

    def __enter__(self) -> Generator[Report]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.communicate()
