"""The section `aggregates`: several clusters served as one."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

from mcproxy.config.model.keys import NOT_A_KEY, Seconds

_SECRETS = ("", "secrets")
TO_PRIMARY = "Primary"
"""`CreateRule.to` and `ConflictRule.to`: the aggregate's primary."""
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
    """The authorizer of reads of cached objects."""

    MEMBERS = "Members"
    SERVER = "Server"


class Show(enum.StrEnum):
    """The objects that lists and watches contain of a name that several members have."""

    ALL = "All"
    ONE = "One"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    authorize: ReadAuthorization = ReadAuthorization.MEMBERS
    cache_allowed: Seconds = 300.0
    cache_denied: Seconds = 30.0
    stale_decisions: Seconds = 86400.0  # how long a decision holds while its member cannot be asked


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedResource:
    """One entry of the scope; entries for the same resource add up."""

    group: str  # "": the core group
    version: str
    resource: str  # plural; "*": all of the group-version that can be listed and watched, but never core secrets
    namespaces: tuple[str, ...] = ()  # empty: all
    clusters: tuple[str, ...] = ()  # members; empty: all

    def names(self, group: str, resource: str) -> bool:
        """Return whether the entry includes a resource, in its version; "*" never includes core secrets."""
        if self.group != group:
            return False
        return self.resource == resource or (self.resource == "*" and (group, resource) != _SECRETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    resources: tuple[CachedResource, ...] = ()
    max_staleness: Seconds = 0.0
    initial_sync_timeout: Seconds = 10.0
    drop_managed_fields: bool = False
    persist_secrets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRule:
    """The member for new objects; the first rule whose two lists match decides. Items are plain, or "*" for all."""

    api_groups: tuple[str, ...]
    resources: tuple[str, ...]  # without subresources: those go to the object's owner
    to: str  # the name of a member, TO_PRIMARY or TO_LABEL (which are no names of clusters: those have no capitals)

    def matches(self, group: str, resource: str) -> bool:
        """Return whether the rule applies to new objects of a resource."""
        return not {"*", group}.isdisjoint(self.api_groups) and not {"*", resource}.isdisjoint(self.resources)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictRule:
    """Which member's object is used where several members have the name; the first rule that matches decides."""

    api_groups: tuple[str, ...]
    resources: tuple[str, ...]
    namespaces: tuple[str, ...] = ()  # empty: all, and resources that have none
    to: str  # the name of a member, or TO_PRIMARY
    show: Show = Show.ALL

    def matches(self, group: str, resource: str) -> bool:
        """Return whether the rule applies to a resource, to all objects or to those in its namespaces."""
        return not {"*", group}.isdisjoint(self.api_groups) and not {"*", resource}.isdisjoint(self.resources)

    def matches_namespace(self, namespace: str) -> bool:
        """Return whether the rule applies to the objects in a namespace; "" for a cluster-scoped resource."""
        return not self.namespaces or namespace in self.namespaces


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
    conflicts: tuple[ConflictRule, ...] = ()
    #: Members and former ones, in order; empty: there are no former ones.
    listed: Annotated[tuple[str, ...], NOT_A_KEY] = ()

    @property
    def layout(self) -> tuple[str, ...]:
        """The names whose places resource versions have, in order."""
        return self.listed or self.clusters

    @property
    def former_members(self) -> tuple[str, ...]:
        """Names that only keep their place: their objects are not served, and the clusters may no longer exist."""
        return tuple(name for name in self.listed if name not in self.clusters)
