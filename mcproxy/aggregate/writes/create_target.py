"""Finds the member in which to create an object, by the aggregate's `create` rules, and checks that it can do so.

A member may lack the resource, or have it in another version or as another kind. The member's own answer would be a 404
that names neither the cluster nor the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcproxy.aggregate.cache.cached_object import CLUSTER_LABEL
from mcproxy.aggregate.freshness import not_known, subject
from mcproxy.aggregate.reflector.member import rediscover
from mcproxy.aggregate.view.scope import agree, described
from mcproxy.aggregate.writes.member_requests import ask_all, code_of, is_success, message_of, object_path
from mcproxy.aggregate.writes.owner_lookup import ACCEPT, LOOKUP_TIMEOUT
from mcproxy.config.model import TO_LABEL, TO_PRIMARY, Aggregate, CreateRule
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.kube.status import StatusCause, StatusError, invalid, qualified

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.aggregate.reflector.member import Member
    from mcproxy.aggregate.request import AggregatedRequest, MemberResponse
    from mcproxy.aggregate.view.view import View

_FIELD = f"metadata.labels[{CLUSTER_LABEL}]"


def find_rule(aggregate: Aggregate, gvr: GroupVersionResource) -> CreateRule:
    """Return the rule for a resource. Raises StatusError (405) if there is none."""
    for rule in aggregate.create:
        if rule.matches(gvr.group, gvr.resource):
            return rule
    raise StatusError(
        405,
        f'aggregate "{aggregate.name}" has no create rule for {qualified(gvr.group, gvr.resource)}; create it in one '
        "cluster, through the path /clusters/NAME/",
        details={},
    )


def follows_label(rule: CreateRule) -> bool:
    """Whether the object's label decides where it is created."""
    return rule.to == TO_LABEL


def member_of(rule: CreateRule, aggregate: Aggregate) -> str:
    """Return the cluster that a rule names. Raises StatusError (405) if it names the primary and there is none."""
    if rule.to != TO_PRIMARY:
        return rule.to
    if aggregate.primary is None:
        raise StatusError(405, f'aggregate "{aggregate.name}" has no primary to create in', details={})
    return aggregate.primary


def labelled_member(label: str | None, members: Sequence[str], resource: APIResource, name: str) -> str:
    """Return the member that an object's label names. Raises StatusError (422) if it names none of `members`."""
    if label is not None and label in members:
        return label
    choice = ", ".join(f'"{member}"' for member in members)
    if label is None:
        cause = StatusCause("FieldValueRequired", f"Required value: the cluster to create it in: {choice}", _FIELD)
    else:
        cause = StatusCause(
            "FieldValueNotSupported", f'Unsupported value: "{label}": supported values: {choice}', _FIELD
        )
    raise invalid(resource.gvr.group, resource.kind, name, [cause])


def no_label_followed(gvr: GroupVersionResource) -> StatusError:
    """Return the refusal (405) for a rule that follows the label, if the resource is uncached: the proxy does not read
    the bodies of such requests.
    """
    return StatusError(
        405,
        f"{qualified(gvr.group, gvr.resource)} are not created by label; create them in one cluster, through the path "
        "/clusters/NAME/",
        details={},
    )


async def check_target(
    member: Member | None, rule: CreateRule, aggregate: Aggregate, resource: APIResource, clock: IReactorTime
) -> None:
    """Raise StatusError (405) if the cluster of a create rule cannot create the resource with its served definition.

    The cluster's discovery is read again first. If the read fails, nothing is raised, since the cluster will not answer
    the request either. `member` is None for a cluster whose discovery is not followed.
    """
    if member is None or _can_create(member, resource) or await rediscover([member], clock):
        return
    if not _can_create(member, resource):
        gvr, number = resource.gvr, aggregate.create.index(rule) + 1
        by = f" (the label {CLUSTER_LABEL} names it)" if follows_label(rule) else ""
        raise StatusError(
            405,
            f'create rule {number} of aggregate "{aggregate.name}" (to: {rule.to}) leads to cluster {member.name}{by}, '
            f"which cannot create {qualified(gvr.group, gvr.resource)} in version {gvr.version} as a "
            f"{described(resource)}",
            details={},
        )


def _can_create(member: Member, resource: APIResource) -> bool:
    found = member.discovery.resources.get(resource.gvr)
    return found is not None and "create" in found.verbs and agree(found, resource)


async def check_other_versions(request: AggregatedRequest, view: View, namespace: str, name: str) -> None:
    """Raise StatusError (405) if no member has the object in this version, but a member that serves another version has
    the object.

    The members are asked with the user's identity, so the error reveals only what they would reveal. Raises StatusError
    (503) if one of them does not answer.
    """
    versions = {
        member: found.other_version
        for member, found in view.differing(namespace)
        if found.other_version is not None and member in request.members
    }
    if not versions:
        return

    async def send(member: str) -> MemberResponse:
        path = object_path(versions[member].path(namespace), name)
        return await request.send(member, b"GET", path, fields=[ACCEPT], timeout=LOOKUP_TIMEOUT)

    answers = await ask_all(list(versions), send)
    for member, answer in zip(versions, answers, strict=True):
        if is_success(answer):
            gvr, other = view.resource.gvr, versions[member]
            raise StatusError(
                405,
                f'{qualified(gvr.group, gvr.resource)} "{name}" is in cluster {member}, which serves it in version '
                f"{other.version} and not in {gvr.version}; use version {other.version}",
                details={"name": name, "kind": gvr.resource, **({"group": gvr.group} if gvr.group else {})},
            )
    for member, answer in zip(versions, answers, strict=True):
        if code_of(answer) not in (401, 403, 404):
            raise not_known(subject(view, name), member, message_of(answer))
