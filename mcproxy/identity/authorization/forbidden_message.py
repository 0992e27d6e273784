"""The message of a 403 in the form of Kubernetes, so that clients get the same from the proxy and from a cluster.

Source: k8s.io/apiserver `responsewriters.Forbidden` and apimachinery `errors.NewForbidden`. The response has the
header nosniff, as that of a kube-apiserver.
"""

from __future__ import annotations

from typing import Any

from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo

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
    # By far the fastest way: a client may send a name of many thousand such characters.
    text = text.translate(_ESCAPES)
    if not text.isprintable():
        text = "".join([char if char.isprintable() else _escaped(char) for char in text])
    return f'"{text}"'


def _escaped(char: str) -> str:
    code = ord(char)
    if code < 0x80:
        return _NAMED.get(char) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


#: For what is not printable and for quotes, up to U+00FF.
_ESCAPES = {code: _escaped(chr(code)) for code in range(0x100) if chr(code) in _NAMED or not chr(code).isprintable()}
