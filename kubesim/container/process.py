"""A process of a simulated container, from the view of its commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kubesim.container.filesystem import FileSystem
from kubesim.container.shell_io import Input, Output


@dataclass
class Process:
    """The input, output and environment of a command.

    `now` returns Unix time; `size` is the terminal's [columns, rows].
    `ask_service` returns the answer of a pod of a service to /hostname: "" if none answers, None for no such service.
    """

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
    ask_service: Callable[[str], Awaitable[str | None]] | None = None
    resized: asyncio.Event = field(default_factory=asyncio.Event)

    def path(self, name: str) -> str:
        return self.files.resolve(self.cwd, name)
