"""The section `servers`."""

from __future__ import annotations

from dataclasses import dataclass

from mcproxy.config.model.dispatch import ClusterBackend, Policy


@dataclass(frozen=True, slots=True)
class ClustersBackend:
    """No API at the root; each cluster under /clusters/NAME/… (`"*"` is already resolved)."""

    clusters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AggregateBackend:
    """Several clusters as one API at the root, and each member's own under /clusters/NAME/…."""

    aggregate: str
    members: tuple[str, ...]  # in the order of the aggregate
    primary: str | None = None

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters that requests can be for: the members, and the primary last where it is none of them."""
        return tuple(dict.fromkeys((*self.members, *([self.primary] if self.primary is not None else ()))))


Backend = ClusterBackend | ClustersBackend | AggregateBackend


@dataclass(frozen=True, slots=True)
class CORS:
    allowed_origins: tuple[str, ...]  # scheme://host[:port], lower case, no default port; the first label may be "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """How long watches and tunnels may last."""

    max_age: float = 0.0  # 0: no limit
    end_with_credential: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    name: str
    listeners: tuple[str, ...]  # names; already resolved where the file leaves them out
    server_names: tuple[str, ...] = ()  # lower case; exact or one-label wildcard
    default: bool = False
    backend: Backend
    authentication: str | None = None  # the name of a set; None: no authentication
    authorization: str | None = None  # None: the clusters themselves decide
    dispatch: tuple[Policy, ...] | None = None  # None: everything passes
    access_log: bool = True
    cors: CORS | None = None
    sessions: Sessions = Sessions()

    @property
    def clusters(self) -> tuple[str, ...]:
        """The names of the clusters that requests can be for."""
        return (self.backend.cluster,) if isinstance(self.backend, ClusterBackend) else self.backend.clusters
