"""Encodes the values of an audit event as JSON, with the keys of Kubernetes in their order. Pure.

Each function returns text of JSON in ASCII. Values that clients choose are limited in length; credentials in a query
are masked. A member with its key begins with a comma, and is "" if the event has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as quote
from typing import Any, Final

from mcproxy.kube.requestinfo import RequestInfo
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.observe.log_values import LONGEST, THREE_DIGITS, Seconds, bounded, json_members, json_string, masked

_MAX_USER_AGENT = 1024  # characters, as in a kube-apiserver, whose suffix is also added
_TRUNCATED = "...TRUNCATED"
_MAX_MESSAGE = 4096
_MOST = 1000
"""Limit of the groups and the values of extra keys of one user, and of the addresses of one request."""

CLOSED_EARLY: Final = (
    ',"responseStatus":{"metadata":{},"status":"Success","message":"Connection closed early","code":200}'
)
"""The status of a request whose client disconnected before a response began, as in a kube-apiserver."""
PANICKED: Final = (
    ',"responseStatus":'
    '{"metadata":{},"status":"Failure","message":"internal error","reason":"InternalError","code":500}'
)
"""The status of the stage Panic."""


def uri_of(target: bytes) -> str:
    """Return the value of requestURI: the target as sent, limited in length, with credentials in its query masked."""
    uri = target.decode("latin-1")
    return json_string(masked(uri) if "?" in uri or len(uri) > LONGEST else uri)


def user_agent_of(value: str) -> str:
    """Return the member userAgent."""
    if not value:
        return ""
    value = value if len(value) <= _MAX_USER_AGENT else value[:_MAX_USER_AGENT] + _TRUNCATED
    return f',"userAgent":{quote(value)}'


def user_of(user: UserInfo | None) -> str:
    """Return the object of a user (authentication.k8s.io/v1 UserInfo); empty without a user."""
    if user is None:
        return "{}"
    document: dict[str, Any] = {}
    if user.name:
        document["username"] = bounded(user.name)
    if user.uid:
        document["uid"] = bounded(user.uid)
    if user.groups:
        document["groups"] = [bounded(group) for group in user.groups[:_MOST]]
    if user.extra:
        document["extra"] = {
            bounded(key): [bounded(value) for value in values[:_MOST]] for key, values in user.extra[:_MOST]
        }
    return json_object(document)


class ObjectReferences:
    """Makes the member objectRef. Its texts before and after the name are kept: many requests share them."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, str, str, str], tuple[str, str]] = {}

    def member(self, info: RequestInfo) -> str:
        """Return the member of a request; "" for a non-resource request.

        Unlike a kube-apiserver, the proxy does not read the name of a created object from the body.
        """
        if not info.is_resource:
            return ""
        key = (info.resource, info.namespace, info.group, info.version, info.subresource)
        kept = self._kept.get(key)
        if kept is None:
            before = json_members(("resource", "namespace"), (info.resource, info.namespace))
            after = json_members(
                ("apiGroup", "apiVersion", "subresource"), (info.group, info.version, info.subresource)
            )
            kept = f',"objectRef":{{{before[1:]}', after + "}"
            if len(self._kept) >= _MOST:
                self._kept.clear()
            if len(info.path) <= LONGEST:
                self._kept[key] = kept
        # The name of a deletecollection comes from a field selector.
        name = "" if info.request_verb == "deletecollection" else info.name
        before, after = kept
        return f'{before},"name":{json_string(name)}{after}' if name else before + after


def source_ips_of(addresses: tuple[str, ...]) -> str:
    """Return the member sourceIPs; "" for a client without an address (unix socket)."""
    return f',"sourceIPs":[{",".join([quote(address) for address in addresses[-_MOST:]])}]' if addresses else ""


def status_of(code: int, refusal: StatusError | None) -> str:
    """Return the member responseStatus: the whole Status of a refusal by the proxy, else only the code.

    A kube-apiserver does the same for requests that it relays to an aggregated API server.
    """
    if refusal is None:
        return f',"responseStatus":{{"metadata":{{}},"code":{code}}}'
    document: dict[str, Any] = {"metadata": {}, "status": "Failure", "message": refusal.message[:_MAX_MESSAGE]}
    if refusal.reason:
        document["reason"] = refusal.reason
    if refusal.details:
        document["details"] = _bounded(refusal.details)
    document["code"] = refusal.code
    return f',"responseStatus":{json_object(document)}'


def _bounded(details: Mapping[str, Any]) -> dict[str, Any]:
    return {key: bounded(value) if isinstance(value, str) else value for key, value in details.items()}


def json_object(document: Mapping[str, Any]) -> str:
    """Return a document as JSON in ASCII."""
    return json.dumps(document, separators=(",", ":"))


class MicroTime:
    """Formats times as Kubernetes' MicroTime: RFC 3339 in UTC with six digits of a second."""

    __slots__ = ("_second", "_seconds", "_text")

    def __init__(self) -> None:
        self._seconds = Seconds("%Y-%m-%dT%H:%M:%S")
        self._second = -1
        self._text = ""

    def text(self, when: float) -> str:
        """Return the text for a time in seconds since the epoch."""
        second = int(when)
        if second != self._second:  # cached, because each request calls this three times
            self._second, self._text = second, self._seconds.text(second)
        micros = int((when - second) * 1e6)
        return f"{self._text}.{THREE_DIGITS[micros // 1000]}{THREE_DIGITS[micros % 1000]}Z"
