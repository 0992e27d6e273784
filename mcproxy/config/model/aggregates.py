"""The section `aggregates`: several clusters served as one."""

from __future__ import annotations

import enum
from dataclasses import dataclass

_SECRETS = ("", "secrets")
TO_PRIMARY = "Primary"
"""`CreateRule.to`: the aggregate's primary."""
TO_LABEL = "Label"
"""`CreateRule.to`: the member that the object's mcproxy.io/cluster label names."""


class ResourceVersions(enum.StrEnum):
    """The form in which an aggregate of several members writes resource versions; both are read."""

    NUMBER = "Number"
    KARMADA = "Karmada"


class Unavailable(enum.StrEnum):
    """What is served while a member is down."""

    STALE = "Stale"
    PARTIAL = "Partial"
    FAIL = "Fail"


class ReadAuthorization(enum.StrEnum):
    """Who decides whether a cached object may be read."""

    MEMBERS = "Members"
    SERVER = "Server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    authorize: ReadAuthorization = ReadAuthorization.MEMBERS
    cache_allowed: float = 300.0
    cache_denied: float = 30.0
    stale_decisions: float = 86400.0  # how long a decision holds while its member cannot be asked


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedResource:
    """One entry of the scope; entries for the same resource add up."""

    group: str  # "": the core group
    version: str
    resource: str  # plural; "*": all of the group-version that can be listed and watched, but never core secrets
    namespaces: tuple[str, ...] = ()  # empty: all
    clusters: tuple[str, ...] = ()  # members; empty: all

    def names(self, group: str, resource: str) -> bool:
        """Whether it is for a resource, in its version; "*" never is for core secrets."""
        if self.group != group:
            return False
        return self.resource == resource or (self.resource == "*" and (group, resource) != _SECRETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    resources: tuple[CachedResource, ...] = ()
    max_staleness: float = 0.0
    initial_sync_timeout: float = 10.0
    drop_managed_fields: bool = False
    persist_secrets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRule:
    """Where new objects go; the first rule whose lists both match decides. Items are plain, or "*" for all."""

    api_groups: tuple[str, ...]
    resources: tuple[str, ...]  # without subresources: those go to the object's owner
    to: str  # the name of a member, TO_PRIMARY or TO_LABEL (which are no names of clusters: those have no capitals)

    def matches(self, group: str, resource: str) -> bool:
        """Whether it says where new objects of a resource go."""
        return not {"*", group}.isdisjoint(self.api_groups) and not {"*", resource}.isdisjoint(self.resources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    name: str
    clusters: tuple[str, ...]  # members, in order; a clusterSelector is already resolved
    primary: str | None = None  # answers what is not aggregated; maybe not a member. None: that is 404
    resource_versions: ResourceVersions = ResourceVersions.NUMBER
    unavailable: Unavailable = Unavailable.STALE
    reads: Reads = Reads()
    cache: Cache = Cache()
    create: tuple[CreateRule, ...] = ()
