"""The sections `daemon` and `logging`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from mcproxy.config.model.keys import NOT_A_KEY, Key, PEMFile, Seconds, Secret

# -- `daemon.sharedState`: the engine that the replicas of the proxy share, for flow controls with `shared: true` ------


@dataclass(frozen=True, slots=True, kw_only=True)
class Redis:
    """How to reach and enter a Redis or Valkey; its files as they were when the configuration was loaded."""

    url: str  # as it is written; it holds no secret
    host: Annotated[str, NOT_A_KEY] = ""  # of redis:// and rediss://
    port: Annotated[int, NOT_A_KEY] = 0
    socket: Annotated[str | None, NOT_A_KEY] = None  # absolute; of unix://
    database: Annotated[int, NOT_A_KEY] = 0
    #: rediss:// alone, and always there.
    ca: Annotated[PEMFile | None, Key("caFile")] = None
    #: rediss://: the client's own.
    certificate: Annotated[PEMFile | None, Key("certFile")] = None
    key: Annotated[PEMFile | None, Key("keyFile")] = None
    username: str | None = None  # None: Redis' user "default"
    password: Annotated[Secret | None, NOT_A_KEY] = None
    password_file: str | None = None  # absolute; what `password` was read from
    prefix: str = "mcproxy"  # of all keys


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedState:
    redis: Redis


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


# -- The section `logging` ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLog:
    file: str = "-"  # absolute path, or "-" for stdout
    format: str = "json"  # "json" | "combined"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLog:
    file: str = "-"  # absolute path, or "-" for stdout
    level: str = "Metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class Logging:
    level: str = "info"  # debug | info | warn | error
    format: str = "text"  # "text" | "json"
    access: AccessLog | None = None
    audit: AuditLog | None = None
