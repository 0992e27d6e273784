"""The section `aggregates`: several clusters served as one."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

from mcproxy.config.model.keys import NOT_A_KEY, ClusterName, Key, Name, Seconds

_SECRETS = ("", "secrets")
TO_PRIMARY = "Primary"
"""`CreateRule.to` and `ConflictRule.to`: the aggregate's primary."""
TO_LABEL = "Label"
"""`CreateRule.to`: the member that the object's mcproxy.io/cluster label names."""


class ResourceVersions(enum.StrEnum):
    """The form in which an aggregate of several members writes resource versions; both are read."""

    NUMBER = "Number"
    KARMADA = "Karmada"


class UnavailableMembers(enum.StrEnum):
    """What is served while a member is down."""

    STALE = "Stale"
    PARTIAL = "Partial"
    FAIL = "Fail"


class ReadAuthorization(enum.StrEnum):
    """The authorizer of reads of cached objects."""

    MEMBERS = "Members"
    SERVER = "Server"


class Show(enum.StrEnum):
    """What lists and watches contain for a name that several members have."""

    ALL = "All"
    ONE = "One"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadsConfig:
    authorize: ReadAuthorization = ReadAuthorization.MEMBERS
    """Members: each member is asked (SubjectAccessReview) whether the user may read the same there; members that deny
    it are left out, and if all do the answer is 403. Server: the server's authorization alone decides."""
    cache_allowed: Seconds = 300.0
    """How long a member's decision to allow a read is cached."""
    cache_denied: Seconds = 30.0
    """How long a member's decision to deny a read is cached."""
    stale_decisions: Seconds = 86400.0
    """How long a member's last decision holds while the member cannot be asked; 0: the member is left out at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedResource:
    """One entry of the scope; entries for the same resource add up."""

    group: str
    """The API group; "" is the core group."""
    version: str
    """The version of the group."""
    resource: str
    """The resource, in the plural as in URLs. "*": every resource of the group-version that can be listed and watched,
    including those that members add later; but never secrets, which must be named."""
    namespaces: tuple[str, ...] = ()
    """Only objects in these namespaces. Empty: all."""
    clusters: tuple[ClusterName, ...] = ()
    """Only the objects of these members. Empty: of all."""

    def names(self, group: str, resource: str) -> bool:
        """Return whether the entry includes a resource, in its version; "*" never includes core secrets."""
        if self.group != group:
            return False
        return self.resource == resource or (self.resource == "*" and (group, resource) != _SECRETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    resources: Annotated[tuple[CachedResource, ...], Key(required=True)] = ()
    """The resources of the members that are kept in memory and served as one. Several entries for one resource add up.
    Requests for other resources go to the primary."""
    max_staleness: Seconds = 0.0
    """How old the cached state may be for a read that requests the most recent one; only if it is older is the member
    asked for its current version."""
    initial_sync_timeout: Seconds = 10.0
    """How long after the start reads wait for a member that has never been read completely; then it counts as
    unavailable."""
    drop_managed_fields: bool = False
    """Leave out metadata.managedFields, which saves memory; some clients need it."""
    persist_secrets: bool = False
    """Save cached secrets under daemon.stateDir, as all other objects are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRule:
    """The member for new objects; the first rule whose two lists match decides. Items are plain, or "*" for all."""

    api_groups: tuple[str, ...]
    """API groups; "" is the core group, "*" all."""
    resources: tuple[str, ...]
    """Resources; "*" is all. Subresources are not created by these rules: they go to the object's cluster."""
    to: str  # differs from TO_PRIMARY and TO_LABEL, because cluster names have no capitals
    """The name of a member; Primary; or Label: the member that the object's label mcproxy.io/cluster names."""

    def matches(self, group: str, resource: str) -> bool:
        """Return whether the rule applies to new objects of a resource."""
        return not {"*", group}.isdisjoint(self.api_groups) and not {"*", resource}.isdisjoint(self.resources)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictRule:
    """Which member's object is used where several members have the name; the first rule that matches decides."""

    api_groups: tuple[str, ...]
    """API groups; "" is the core group, "*" all."""
    resources: tuple[str, ...]
    """Resources, with their subresources; "*" is all."""
    namespaces: tuple[str, ...] = ()
    """Only objects in these namespaces, and no cluster-scoped ones. Empty: all."""
    to: str
    """The name of a member; or Primary, if the primary is a member."""
    show: Show = Show.ALL
    """What lists and watches contain for such a name. All: the object of each member. One: only the chosen member's, or
    the first member's where that has none; for informers and other clients that know objects by namespace and name."""

    def matches(self, group: str, resource: str) -> bool:
        """Return whether the rule applies to a resource, to all objects or to those in its namespaces."""
        return not {"*", group}.isdisjoint(self.api_groups) and not {"*", resource}.isdisjoint(self.resources)

    def matches_namespace(self, namespace: str) -> bool:
        """Return whether the rule applies to the objects in a namespace; "" for a cluster-scoped resource."""
        return not self.namespaces or namespace in self.namespaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    name: Name
    """The name that servers refer to the aggregate by."""
    clusters: Annotated[tuple[ClusterName, ...], Key(required=False)]  # a clusterSelector is already resolved
    """Names of the member clusters. Their order is that of lists, and decides which of several objects of one name a
    get returns. Resource versions contain a position for each member: add members at the end, and name removed ones in
    formerMembers."""
    primary: ClusterName | None = None
    """The cluster that serves what is not aggregated; it need not be a member. Left out: such requests get 404."""
    resource_versions: ResourceVersions = ResourceVersions.NUMBER
    """The form of the resource versions of several members. Number: as one number, so that versions can be compared, as
    Kubernetes promises since 1.35; of 128 bits for two and three members. Karmada: as base64 of JSON, as Karmada does;
    shorter where there are many members. Both forms are always accepted, and an aggregate of one member has that
    cluster's own."""
    unavailable: UnavailableMembers = UnavailableMembers.STALE
    """What is served while a member is down. Stale: its last known objects, too. Partial: only the objects of the
    others. Both with a Warning header. Fail: get, list and new watches get 503."""
    reads: ReadsConfig = ReadsConfig()
    """Who may read from the cache."""
    cache: Annotated[Cache, Key(required=True)] = Cache()
    """What is read from the cache, and how."""
    create: tuple[CreateRule, ...] = ()
    """Where new objects go: the first rule that matches decides. A create that no rule matches is refused with 405."""
    conflicts: tuple[ConflictRule, ...] = ()
    """Which member's object is meant by a name that several members have: the first rule that matches decides, if the
    user may make the request there. Without one, a get returns the first member's, with a Warning (except for
    namespaces), and a write is refused with 409, unless it is a PUT or a server-side apply whose label
    mcproxy.io/cluster chooses."""
    #: Members and former members, in order; empty without former members.
    listed: Annotated[tuple[str, ...], NOT_A_KEY] = ()

    @property
    def layout(self) -> tuple[str, ...]:
        """The names with a position in resource versions, in order."""
        return self.listed or self.clusters

    @property
    def former_members(self) -> tuple[str, ...]:
        """Names that only keep their position. Their objects are not served, and the clusters need not exist."""
        return tuple(name for name in self.listed if name not in self.clusters)
