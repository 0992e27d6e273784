"""`daemon.sharedState`: the engine that the replicas of the proxy share, for flow controls with `shared: true`."""

from __future__ import annotations

from dataclasses import dataclass

from mcproxy.config.model.common import PEMFile, Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Redis:
    """How to reach and enter a Redis or Valkey; its files as they were when the configuration was loaded."""

    url: str  # as it is written; it holds no secret
    host: str = ""  # of redis:// and rediss://
    port: int = 0
    socket: str | None = None  # absolute; of unix://
    database: int = 0
    ca: PEMFile | None = None  # rediss:// alone, and always there
    certificate: PEMFile | None = None  # rediss://: the client's own
    key: PEMFile | None = None
    username: str | None = None  # None: Redis' user "default"
    password: Secret | None = None
    password_file: str | None = None  # absolute; what `password` was read from
    prefix: str = "mcproxy"  # of all keys


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedState:
    redis: Redis
