"""Where an object is created: the first of the aggregate's `create` rules that matches. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.aggregate.cache.object import CLUSTER_LABEL
from mcproxy.config.model import TO_LABEL, TO_PRIMARY, Aggregate, CreateRule
from mcproxy.kube.errors import Cause, invalid, qualified
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.kube.status import StatusError

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
    """Whether the object says itself where it is to be created."""
    return rule.to == TO_LABEL


def member_of(rule: CreateRule, aggregate: Aggregate) -> str:
    """Return the cluster of a rule that does not follow the label. Raises StatusError (405) for a missing primary."""
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
        cause = Cause("FieldValueRequired", f"Required value: the cluster to create it in: {choice}", _FIELD)
    else:
        cause = Cause("FieldValueNotSupported", f'Unsupported value: "{label}": supported values: {choice}', _FIELD)
    raise invalid(resource.gvr.group, resource.kind, name, [cause])


def no_label_followed(gvr: GroupVersionResource) -> StatusError:
    """Return the refusal (405) where a rule follows the label of what is not cached, whose bodies are not read."""
    return StatusError(
        405,
        f"{qualified(gvr.group, gvr.resource)} are not created by label; create them in one cluster, through the path "
        "/clusters/NAME/",
        details={},
    )
