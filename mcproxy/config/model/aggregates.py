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
    """The objects that lists and watches contain of a name that several members have."""

    ALL = "All"
    ONE = "One"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadsConfig:
    authorize: ReadAuthorization = ReadAuthorization.MEMBERS
    """Members: each member is asked (SubjectAccessReview) whether the user may read the same there; members that deny
    it are left out, and if all do the answer is 403. Server: the server's authorization alone decides."""
    cache_allowed: Seconds = 300.0
    """How long a member that allowed a read is not asked again."""
    cache_denied: Seconds = 30.0
    """How long a member that denied a read is not asked again."""
    stale_decisions: Seconds = 86400.0
    """How long the last decision of a member holds while it cannot be asked; 0: it is left out at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedResource:
    """One entry of the scope; entries for the same resource add up."""

    group: str
    """The API group; "" is the core group."""
    version: str
    """The version of the group."""
    resource: str
    """The resource, in the plural as in URLs. "*": every resource of the group-version that can be listed and watched,
    as members come to have them; but never secrets, which must be named."""
    namespaces: tuple[str, ...] = ()
    """Only objects in these namespaces. Empty: all."""
    clusters: tuple[ClusterName, ...] = ()
    """Only of these members. Empty: of all."""

    def names(self, group: str, resource: str) -> bool:
        """Return whether the entry includes a resource, in its version; "*" never includes core secrets."""
        if self.group != group:
            return False
        return self.resource == resource or (self.resource == "*" and (group, resource) != _SECRETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    resources: Annotated[tuple[CachedResource, ...], Key(required=True)] = ()
    """The resources of the members that are kept in memory and served as one. Several entries for one resource add up.
    What no entry has goes to the primary."""
    max_staleness: Seconds = 0.0
    """How old the cached state may be for a read that asks for the most recent one; within it the member is not asked
    for its present version."""
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
    to: str  # TO_PRIMARY and TO_LABEL are no names of clusters: those have no capitals
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
    """Only objects in these namespaces, so none of a resource that has no namespaces. Empty: all."""
    to: str
    """The name of a member; or Primary, which must be a member then."""
    show: Show = Show.ALL
    """What lists and watches have of such a name. All: the object of each member. One: the chosen member's alone, and
    where that has none the first member's; for informers and other clients that know objects by namespace and name."""

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
    get answers with. Resource versions contain a position for each member: add members at the end, and name those that
    leave in formerMembers."""
    primary: ClusterName | None = None
    """The cluster that answers what is not aggregated; need not be a member. Left out: that is 404."""
    resource_versions: ResourceVersions = ResourceVersions.NUMBER
    """How resource versions of several members are written. Number: as one number, so that versions can be compared, as
    Kubernetes promises since 1.35; of 128 bits for two and three members. Karmada: as base64 of JSON, as Karmada does;
    shorter where there are many members. Both are read whatever is written here, and an aggregate of one member has
    that cluster's own."""
    unavailable: UnavailableMembers = UnavailableMembers.STALE
    """What is served while a member is down. Stale: its last known objects, too. Partial: only the objects of the
    others. Both with a Warning header. Fail: get, list and new watches are answered by 503."""
    reads: ReadsConfig = ReadsConfig()
    """Who may read from the cache."""
    cache: Annotated[Cache, Key(required=True)] = Cache()
    """What is read from the cache, and how."""
    create: tuple[CreateRule, ...] = ()
    """Where new objects go: the first rule that matches decides. What none matches is refused with 405."""
    conflicts: tuple[ConflictRule, ...] = ()
    """Which member's object is meant by a name that several members have: the first rule that matches decides, for a
    user who may do the request there. Without one, a get takes the first member's, with a Warning (not of namespaces),
    and a write is refused with 409, unless it is a PUT or a server-side apply whose label mcproxy.io/cluster
    chooses."""
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
