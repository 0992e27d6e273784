"""The section `daemon`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from mcproxy.config.model.keys import NOT_A_KEY, Seconds
from mcproxy.config.model.shared_state import SharedState

AUTO: Final = "Auto"
"""`workers`: one for each core that the daemon may run on."""

MAX_WORKERS: Final = 63
"""Shared memory has 64 columns, one for each process: the last is the keeper's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    control_socket: str | None = None
    control_socket_is_default: Annotated[bool, NOT_A_KEY] = field(default=False, compare=False)
    """Whether the file leaves the path of the control socket to the daemon, which then can run without one."""
    shutdown_delay: Seconds = 0.0
    drain_timeout: Seconds = 30.0
    workers: int | Literal["Auto"] = 1
    state_dir: str | None = None  # absolute; what survives a restart. None: nothing is kept on disk
    watch_files: bool = True  # the files of certificates with a key are read again when they change
    shared_state: SharedState | None = None  # None: no flow control is shared
