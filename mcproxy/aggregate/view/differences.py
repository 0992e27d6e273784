"""Members that have a resource otherwise than an aggregate serves it: in other versions, or as another kind or scope.

A definition is upgraded cluster by cluster; meanwhile the objects of clusters that do not serve a version are missing
there. That is said in a Warning with reads, in words with writes, and in the status document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mcproxy.kube.discovery import version_order
from mcproxy.kube.status import qualified

if TYPE_CHECKING:
    from mcproxy.aggregate.reflector.member_discovery import MemberDiscovery
    from mcproxy.kube.resource import APIResource, GroupVersionResource


class Difference(NamedTuple):
    """What a member has instead."""

    why: str
    """In words for the client and the operator, after "its objects are left out: "."""
    other_version: GroupVersionResource | None
    """The resource in the version in which the member has it; None where kind or scope differ."""


def agree(one: APIResource, other: APIResource) -> bool:
    """Whether two clusters have the same kind and scope for a resource, so that it can be served as one."""
    return one.kind == other.kind and one.namespaced == other.namespaced


def described(resource: APIResource) -> str:
    """Return scope and kind: "namespaced Widget"."""
    return f"{'namespaced' if resource.namespaced else 'cluster-scoped'} {resource.kind}"


def difference(resource: APIResource, discovery: MemberDiscovery) -> Difference | None:
    """Return what a member has instead of a resource as it is served; None if it has that, or nothing of the name."""
    gvr = resource.gvr
    name = qualified(gvr.group, gvr.resource)
    found = discovery.resources.get(gvr)
    if found is not None:
        if agree(found, resource):
            return None
        return Difference(f"there {name} is a {described(found)}, not a {described(resource)}", None)
    others = [
        other
        for other in discovery.resources.values()
        if other.gvr[::2] == gvr[::2] and agree(other, resource) and other.listable
    ]
    if not others:
        return None
    other = min(others, key=lambda other: version_order(other.gvr.version)).gvr
    return Difference(f"it serves {name} in version {other.version}, not in {gvr.version}", other)
