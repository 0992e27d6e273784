"""SelfSubjectAccessReview: asks a cluster whether it grants the proxy a right. Source: authorization.k8s.io/v1."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IReactorTime

from mcproxy.identity.constrained_rights import NAMES_USERS
from mcproxy.identity.required_rights import Right
from mcproxy.identity.review_client import SUCCESS, create_review
from mcproxy.identity.reviewer_log import UnavailableError
from mcproxy.identity.strict_json import json_object
from mcproxy.kube.constrained_impersonation import VERB, is_impersonation

if TYPE_CHECKING:
    from mcproxy.upstream.cluster import Cluster

_GROUP = "authorization.k8s.io"
_TODO = "see what answers there: it must serve authorization.k8s.io/v1 SelfSubjectAccessReview"


async def is_granted(cluster: Cluster, right: Right, clock: IReactorTime) -> bool:
    """Return whether `cluster` grants the complete `right` to the user of the proxy's credential.

    Raises `UnavailableError` if the cluster does not answer the review.
    """
    response = await create_review(cluster, _GROUP, "SelfSubjectAccessReview", review_body(right), clock)
    try:
        if response.status not in SUCCESS:
            raise ValueError(f"answered {response.status}")
        status = json_object(response.body).get("status")
        allowed = status.get("allowed") if isinstance(status, dict) else None
        if not isinstance(allowed, bool):
            raise ValueError("has no status.allowed")
    except ValueError as error:
        raise UnavailableError("answer", f"the cluster's SelfSubjectAccessReview {error}", _TODO) from None
    return allowed


async def missing_rights(
    cluster: Cluster, rights: Iterable[Right], in_modes: Callable[[], Iterable[Right]], clock: IReactorTime
) -> tuple[tuple[Right, ...], bool]:
    """Return the `rights` that `cluster` does not grant, and whether it lets the proxy impersonate by modes.

    `in_modes` returns the rights for constrained impersonation (KEP-5284). It can take long, and is called only if the
    verb `impersonate` is not granted but NAMES_USERS is. Raises as `is_granted`.
    """
    missing = [right for right in rights if not await is_granted(cluster, right, clock)]
    if not any(right.verb == VERB for right in missing):
        return tuple(missing), False
    if not await is_granted(cluster, NAMES_USERS, clock):
        return tuple(missing), False
    modes = [right for right in in_modes() if right.verb != VERB and is_impersonation(right.verb)]
    if not modes:
        return tuple(missing), False
    lacking = [right for right in modes if right != NAMES_USERS and not await is_granted(cluster, right, clock)]
    return (*(right for right in missing if right.verb != VERB), *lacking), True


def review_body(right: Right) -> bytes:
    """Return the SelfSubjectAccessReview of `right`, as JSON."""
    spec: dict[str, Any]
    if right.path:
        spec = {"nonResourceAttributes": {"path": right.path, "verb": right.verb}}
    else:
        resource, _, subresource = right.resource.partition("/")
        attributes = {"verb": right.verb, "group": right.group, "version": "*", "resource": resource}
        if subresource:
            attributes["subresource"] = subresource
        if right.namespace:
            attributes["namespace"] = right.namespace
        if right.name:
            attributes["name"] = right.name
        spec = {"resourceAttributes": attributes}
    review = {"apiVersion": f"{_GROUP}/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
    return json.dumps(review).encode()
