"""Label selectors that name the virtual label of clusters, for members, whose objects do not have it. Pure."""

from __future__ import annotations

from mcproxy.aggregate.cache.object import CLUSTER_LABEL
from mcproxy.kube.selectors import Requirement, parse_label_selector

_SYMBOLS = {"in": "in", "notin": "notin"}


def selector_for(selector: str, member: str) -> str | None:
    """Return a label selector as `member` must get it; None if it selects no object of that member.

    Raises StatusError (400) for what is no selector.
    """
    requirements = parse_label_selector(selector)
    if all(requirement.key != CLUSTER_LABEL for requirement in requirements):
        return selector
    labels = {CLUSTER_LABEL: member}
    if not all(each.matcher()(labels) for each in requirements if each.key == CLUSTER_LABEL):
        return None
    return ",".join(_text(each) for each in requirements if each.key != CLUSTER_LABEL)


def _text(requirement: Requirement) -> str:
    key, operator, values = requirement
    if operator == "exists":
        return key
    if operator == "!":
        return f"!{key}"
    if operator in _SYMBOLS:
        return f"{key} {operator} ({','.join(values)})"
    return f"{key}{operator}{values[0]}"
