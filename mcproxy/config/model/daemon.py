"""The sections `daemon` and `logging`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from mcproxy.config.model.keys import NOT_A_KEY, FileName, Key, PEMFile, Seconds, Secret, one_of

# -- `daemon.sharedState`: the engine that the replicas of the proxy share, for flow controls with `shared: true` ------


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisConfig:
    """How to reach and enter a Redis or Valkey; its files as they were when the configuration was loaded."""

    url: str  # as written; it contains no secret
    """rediss://HOST:PORT/DATABASE (TLS), redis://HOST:PORT/DATABASE or unix:///PATH?db=DATABASE; port and database may
    be left out. Of a cluster, any node."""
    host: Annotated[str, NOT_A_KEY] = ""  # of redis:// and rediss://
    port: Annotated[int, NOT_A_KEY] = 0
    socket: Annotated[str | None, NOT_A_KEY] = None  # absolute; of unix://
    database: Annotated[int, NOT_A_KEY] = 0
    ca: Annotated[PEMFile | None, Key("caFile")] = None  # required with rediss://, not allowed otherwise
    """PEM file with the authorities of the server's certificate. Required with rediss."""
    certificate: Annotated[PEMFile | None, Key("certFile")] = None
    """PEM file with the client certificate."""
    key: Annotated[PEMFile | None, Key("keyFile")] = None
    """PEM file with the client certificate's key."""
    username: str | None = None
    """The user of Redis' ACL; it needs ~{PREFIX* +eval +evalsha +time +@hash +@sortedset +pexpire +client|setname
    +select, and with a cluster +cluster. Left out: its user default."""
    password: Annotated[Secret | None, NOT_A_KEY] = None
    password_file: FileName | None = None  # absolute; the source of `password`
    """File with the password. A changed file is read at the next reload."""
    prefix: str = "mcproxy"
    """The prefix of all keys; sets of replicas that share a Redis but no limits need different ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedState:
    redis: RedisConfig
    """A Redis, version 5 or later, or a Valkey: one server, or a cluster. Replicas with the same url and prefix share
    their limits; what is kept there expires by itself and needs no persistence."""


AUTO: Final = "Auto"
"""`workers`: one for each core that the daemon may run on."""

MAX_WORKERS: Final = 63
"""Limit of the workers: shared memory has 64 columns, one for each process, and the last is the keeper's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    control_socket: FileName | None = None
    """Unix socket for reload, upgrade and status, accessible to the owner and root only. Left out: in
    $RUNTIME_DIRECTORY or /run/mcproxy where the daemon may write there, else beside the file; the commands look in
    these places. mcproxy dump shows it. If it cannot be opened there, the daemon logs a warning and runs without it."""
    control_socket_is_default: Annotated[bool, NOT_A_KEY] = field(default=False, compare=False)
    """Whether the daemon chooses the path of the control socket, so that it can also run without one."""
    shutdown_delay: Seconds = 0.0
    """How long the daemon goes on serving after SIGTERM, while it reports that it is not ready."""
    drain_timeout: Seconds = 30.0
    """How long tunnels (exec, attach, port-forward) and followed logs have to end by themselves at a shutdown, while
    everything else is served; and after a reload, requests that use what it removed. 0 ends them at once."""
    workers: int | Literal["Auto"] = 1
    """Processes that share the listeners: a number, at most 63, or Auto, one for each core that the daemon may run on.
    With more than one, a supervisor starts and replaces them, and the caches of aggregates have a process of their own.
    A reload changes the number without refusing a connection; between 1 and more, open connections end as after an
    upgrade."""
    state_dir: FileName | None = None  # absolute
    """The folder for what survives a restart: the caches of aggregates, and the decisions of their members on who may
    read. It is created with the permissions 0700; only the daemon's user may have access to it. Left out: nothing is
    kept on disk."""
    watch_files: bool = True
    """Whether certificates and keys that are replaced on disk are used without a reload, within a second or two: those
    of listeners, and the proxy's own for clusters (kubeconfigs too), front proxies, webhooks and Redis. New connections
    use the new ones; connections that used the old ones take no new requests. If a pair does not match or cannot be
    read, the former one stays in use. Nothing else of the configuration is read again."""
    shared_state: SharedState | None = None
    """Where the replicas of the proxy count what is limited over all of them: flow controls with shared: true. No
    request waits for it."""


# -- The section `logging` ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLogConfig:
    file: FileName = "-"  # absolute, or "-"
    """The file that lines are appended to; "-" is stdout."""
    format: Annotated[str, one_of("json", "combined")] = "json"
    """The format of a line: json, or combined as nginx and Apache write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLogConfig:
    file: FileName = "-"  # absolute, or "-"
    """The file that events are appended to, one a line; "-" is stdout."""
    level: Annotated[str, one_of("Metadata")] = "Metadata"
    """What an event has: Metadata is everything but the bodies of requests and responses, which are never read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logging:
    level: Annotated[str, one_of("debug", "info", "warn", "error")] = "info"
    """The lowest level of events that are logged."""
    format: Annotated[str, one_of("text", "json")] = "text"
    """The form of a line of events. text: key=value, with a priority in front for the journal, and a form for people on
    a terminal. json: an object with the same names."""
    access: AccessLogConfig | None = None
    """The access log: one line for each request. Left out: none."""
    audit: AuditLogConfig | None = None
    """The audit log: who did what, as events in the form of a kube-apiserver's (audit.k8s.io/v1). Left out: none."""
