"""The attributes of a request for authorizers, and the 403 with Kubernetes' message.

The attributes are a SubjectAccessReview's spec without the user. Source: k8s.io/apiserver
`pkg/endpoints/filters/authorization.go` (attributes) and `pkg/endpoints/request` (selectors).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mcproxy.kube.requestinfo import RequestInfo, selector_parameters
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo

_PERCENT = ord("%")
_SELECTING_VERBS = frozenset({"list", "watch", "deletecollection"})


class Attributes(NamedTuple):
    """The attributes of a request. Fields that do not apply are ""; equal attributes have the same decision for the
    same user.

    `path` is set only for non-resource requests, since with the paths below a `proxy` subresource every review would be
    new. The selectors are as sent by the client.
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

    Most requests have one item. Exec, attach and portforward by WebSocket have `get` and `create` (kube-apiserver since
    1.35, AuthorizePodWebsocketUpgradeCreatePermission), except for a kubelet's, which a cluster checks only as `get` of
    `nodes/proxy`. Methods other than GET and POST are only a `create`; a cluster has no route for them.
    """
    attributes = attributes_of(info, target)
    if info.verb != info.request_verb == "get":
        return attributes._replace(verb="get"), attributes
    return (attributes,)


def attributes_of(info: RequestInfo, target: bytes) -> Attributes:
    """Return the attributes of a request; `info` was computed from `target`, which is in origin-form."""
    if not info.is_resource:
        return Attributes(info.verb, path=info.path, is_resource=False)
    field_selector = label_selector = ""
    # Very few queries have a percent sign in a name, so this check is sufficient for most requests.
    if info.verb in _SELECTING_VERBS and (_PERCENT in target or target.find(b"Selector=") >= 0) and not _by_path(info):
        field_selector, label_selector = selector_parameters(target)
    name = "" if info.verb == "deletecollection" else info.name  # as in Kubernetes, without a selector's name
    named = (info.verb, info.group, info.version, info.resource, info.subresource, info.namespace, name)
    # This bypasses the class's own __new__ with its arguments, which halves the time for every request.
    return tuple.__new__(Attributes, (*named, "", True, field_selector, label_selector))


def _by_path(info: RequestInfo) -> bool:
    """Whether the verb comes from the deprecated path /api/v1/watch/…, where servers do not always apply selectors."""
    place = 4 if info.group else 3
    return info.verb == "watch" and info.path.split("/", place + 1)[place] == "watch"


# The message of a 403 in the form of Kubernetes, so that clients get the same from the proxy and from a cluster.
#
# Source: k8s.io/apiserver `responsewriters.Forbidden` and apimachinery `errors.NewForbidden`. The response has the
# header nosniff, as that of a kube-apiserver.

_NAMED = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    '"': r"\"",
    "\\": r"\\",
}


def forbidden(user: UserInfo, attributes: Attributes, reason: str = "") -> StatusError:
    """Return the 403 for `user`; `reason` is the authorizer's, appended as Kubernetes does."""
    tail = f": {reason}" if reason else ""
    if not attributes.is_resource:
        sentence = f"User {go_quote(user.name)} cannot {attributes.verb} path {go_quote(attributes.path)}"
        return StatusError(403, f"forbidden: {sentence}{tail}", details={})
    group, name = attributes.group, attributes.name
    resource = f"{attributes.resource}/{attributes.subresource}" if attributes.subresource else attributes.resource
    scope = f"in the namespace {go_quote(attributes.namespace)}" if attributes.namespace else "at the cluster scope"
    what = f"{attributes.resource}.{group}" if group else attributes.resource
    if name:
        what += f" {go_quote(name)}"
    message = (
        f"{what} is forbidden: User {go_quote(user.name)} cannot {attributes.verb} resource {go_quote(resource)} "
        f"in API group {go_quote(group)} {scope}{tail}"
    )
    details: dict[str, Any] = {"name": name} if name else {}
    if group:
        details["group"] = group
    details["kind"] = attributes.resource
    return StatusError(403, message, details=details)


def go_quote(text: str) -> str:
    """Return `text` as Go's %q writes it."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    # This is by far the fastest way, since a client can send a name with many thousands of such characters.
    text = text.translate(_ESCAPES)
    if not text.isprintable():
        text = "".join([char if char.isprintable() else _escaped(char) for char in text])
    return f'"{text}"'


def _escaped(char: str) -> str:
    code = ord(char)
    if code < 0x80:
        return _NAMED.get(char) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


#: The escapes of unprintable characters and quotes, up to U+00FF.
_ESCAPES = {code: _escaped(chr(code)) for code in range(0x100) if chr(code) in _NAMED or not chr(code).isprintable()}
