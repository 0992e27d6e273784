"""The attributes of a request that an authorizer decides about: a SubjectAccessReview's spec without the user.

Source: k8s.io/apiserver `pkg/endpoints/filters/authorization.go` (attributes) and `pkg/endpoints/request` (selectors).
"""

from __future__ import annotations

from typing import NamedTuple

from mcproxy.kube.requestinfo import RequestInfo, selector_parameters

_PERCENT = ord("%")
_SELECTING_VERBS = frozenset({"list", "watch", "deletecollection"})


class Attributes(NamedTuple):
    """Attributes. Fields that do not apply are ""; equal ones have the same decision, for the same user.

    `path` is set for non-resource requests only: below a `proxy` subresource it would make every review a new one.
    The selectors are as the client wrote them.
    """

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    is_resource: bool = True
    field_selector: str = ""
    label_selector: str = ""


def required_attributes(info: RequestInfo, target: bytes) -> tuple[Attributes, ...]:
    """Return all attributes that must be allowed for a request, in the order in which a kube-apiserver checks them.

    That is one, except for exec, attach and portforward over WebSocket: `get` and `create` (kube-apiserver since
    1.35, AuthorizePodWebsocketUpgradeCreatePermission), and for those of a kubelet, which a cluster checks as `get` of
    `nodes/proxy` alone. Another method than GET and POST is a `create` alone; a cluster has no route for it.
    """
    attributes = attributes_of(info, target)
    if info.verb != info.request_verb == "get":
        return attributes._replace(verb="get"), attributes
    return (attributes,)


def attributes_of(info: RequestInfo, target: bytes) -> Attributes:
    """Return the attributes of a request; `target` is the one that `info` was made of, in origin-form."""
    if not info.is_resource:
        return Attributes(info.verb, path=info.path, is_resource=False)
    field_selector = label_selector = ""
    # Nearly every query has no percent sign in a name, so this check suffices for most requests.
    if info.verb in _SELECTING_VERBS and (_PERCENT in target or b"Selector=" in target) and not _by_path(info):
        field_selector, label_selector = selector_parameters(target)
    name = "" if info.verb == "deletecollection" else info.name  # a selector's name is not in Kubernetes' attributes
    named = (info.verb, info.group, info.version, info.resource, info.subresource, info.namespace, name)
    # Without the arguments of the class's own __new__: half the time, and this is made for every request.
    return tuple.__new__(Attributes, (*named, "", True, field_selector, label_selector))


def _by_path(info: RequestInfo) -> bool:
    """Whether the verb is that of the deprecated form /api/v1/watch/…, whose selectors servers do not always apply."""
    place = 4 if info.group else 3
    return info.verb == "watch" and info.path.split("/", place + 1)[place] == "watch"
