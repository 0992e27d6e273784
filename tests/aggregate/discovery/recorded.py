"""Recorded discovery documents of two clusters, and scopes, for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from mcproxy.aggregate.discovery.merge import MemberDocuments
from mcproxy.kube.discovery import (
    APIGroupDiscovery,
    APIResourceDiscovery,
    APIVersionDiscovery,
    GroupVersionKind,
    ObjectMeta,
    api_resources,
    read_aggregated,
)
from mcproxy.kube.resource import APIResource, GroupVersionResource
from tests.support.stub import Stub

GOLDEN = Path(__file__).parents[2] / "golden"


def body(name: str) -> bytes:
    """The body of a recorded response."""
    text: str = json.loads((GOLDEN / f"{name}.json").read_text())["response"]["body"]
    return text.encode()


def documents(name: str, groups: Iterable[APIGroupDiscovery], *, fresh: bool = True) -> MemberDocuments:
    kept = tuple(groups)
    return MemberDocuments(name, kept, api_resources(kept), fresh)


def east(*, fresh: bool = True) -> MemberDocuments:
    """A recorded cluster, with Widgets (example.com v1, v1alpha1) and Gadgets (east.example.com/v1beta1)."""
    groups = read_aggregated(body("discovery/api-aggregated-v2")) + read_aggregated(
        body("discovery/apis-aggregated-v2")
    )
    return documents("east", groups, fresh=fresh)


def west(*, fresh: bool = True) -> MemberDocuments:
    """The other one, with Widgets, too, and Gizmos (west.example.com/v1beta1)."""
    core = read_aggregated(body("discovery/api-aggregated-v2"))
    return documents("west", core + read_aggregated(body("discovery/apis-aggregated-v2-west")), fresh=fresh)


def group(name: str, version: str, *resources: APIResourceDiscovery, freshness: str = "Current") -> APIGroupDiscovery:
    return APIGroupDiscovery(ObjectMeta(name), (APIVersionDiscovery(version, resources, freshness),))


ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


def resource(
    name: str, kind: str, *, scope: str = "Namespaced", verbs: tuple[str, ...] = ALL_VERBS
) -> APIResourceDiscovery:
    return APIResourceDiscovery(name, GroupVersionKind("", "", kind), scope, kind.lower(), verbs)


class FakeScope(Stub):  # type: ignore[misc]
    """A scope of (group, resource) pairs, "*" for all; members other than `members` are outside."""

    def __init__(
        self, *pairs: tuple[str, str], members: tuple[str, ...] = (), targets: Sequence[str] | None = None
    ) -> None:
        self.pairs = pairs
        self.members = members
        self._targets = targets

    def covers(self, member: str, resource: APIResource) -> bool:
        if self.members and member not in self.members:
            return False
        return any(
            group in ("*", resource.gvr.group) and name in ("*", resource.gvr.resource) for group, name in self.pairs
        )

    def create_targets(self, gvr: GroupVersionResource) -> Sequence[str] | None:
        return self._targets


EVERYTHING = FakeScope(("*", "*"))
NOTHING = FakeScope()
