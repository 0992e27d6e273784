"""A process of a simulated container, as its commands see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from mcproxy.demo.container.filesystem import FileSystem
from mcproxy.demo.container.shell_io import Input, Output


@dataclass
class Process:
    """What a command reads and writes. `now` returns Unix time; `size` is the terminal's [columns, rows]."""

    files: FileSystem
    stdin: Input
    stdout: Output
    stderr: Output
    environment: dict[str, str]
    now: Callable[[], float]
    size: list[int] = field(default_factory=lambda: [80, 24])
    cwd: str = "/"
    tty: bool = False
    status: int = 0
    resized: asyncio.Event = field(default_factory=asyncio.Event)

    def path(self, name: str) -> str:
        return self.files.resolve(self.cwd, name)
