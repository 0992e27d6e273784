"""A clock for all processes of a daemon that a test can set while they run."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

_SHIM = Path(__file__).parent / "clock"


class JumpingClock:
    """The difference between the daemon's time of day and the machine's. `environ` is what its processes need."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / "clock"
        self._file.write_bytes(struct.pack("d", 0.0))

    @property
    def environ(self) -> Mapping[str, str]:
        path = os.pathsep.join(filter(None, (str(_SHIM), os.environ.get("PYTHONPATH", ""))))
        return {"SOAK_CLOCK": str(self._file), "PYTHONPATH": path}

    def set(self, seconds: float) -> None:
        """Set the daemon's clock this many seconds ahead of the machine's (negative: behind)."""
        with self._file.open("r+b") as file:  # in place: the processes have it mapped
            file.write(struct.pack("d", seconds))
