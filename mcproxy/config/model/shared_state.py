"""`daemon.sharedState`: the engine that the replicas of the proxy share, for flow controls with `shared: true`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mcproxy.config.model.common import PEMFile, Secret
from mcproxy.config.model.keys import NOT_A_KEY, Key


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
