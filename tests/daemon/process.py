"""Starts a daemon as a real process and waits for what it prints."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

PATIENCE = 120.0
"""Seconds to wait for something that takes milliseconds, on a machine that may be busy."""


class Process:
    """A fake daemon with its configuration file; use it in a `with` statement."""

    def __init__(self, directory: Path, *, environ: dict[str, str] | None = None, **settings: Any) -> None:
        self.file = directory / "fake.json"
        self.configure(**settings)
        self.lines: list[str] = []
        self._arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.daemon.fake_daemon", str(self.file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environ or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def configure(self, **settings: Any) -> None:
        """Write the configuration file."""
        self.file.write_text(json.dumps(settings), encoding="utf-8")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._arrived.put(line.rstrip("\n"))
        self._arrived.put(None)

    def wait_for(self, text: str) -> str:
        """Return the next line that contains `text`."""
        while True:
            line = self._arrived.get(timeout=PATIENCE)
            if line is None:
                raise AssertionError(f"{text!r} did not come; the process printed: {self.lines}")
            self.lines.append(line)
            if text in line:
                return line

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for the end and return the exit status."""
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        while (line := self._arrived.get(timeout=PATIENCE)) is not None:
            self.lines.append(line)
        return status

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
