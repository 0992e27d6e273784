"""Request info: verb, resource and name of a request, derived from method and target as in kube-apiserver.

Source: k8s.io/apiserver `pkg/endpoints/request` (RequestInfoFactory) and `pkg/server/filters` (long-running check).
That code decodes and splits a path without checks. This module refuses paths that two parsers could interpret
differently: dot segments anywhere, and names that are empty or contain an encoded slash.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from mcproxy.kube.selectors import parse_field_selector
from mcproxy.kube.status import StatusError

STREAM_SUBRESOURCES = frozenset({"exec", "attach", "portforward"})
"""Subresources of pods that a client opens as a tunnel (WebSocket or SPDY)."""
_VERBS = {b"POST": "create", b"GET": "get", b"HEAD": "get", b"PUT": "update", b"PATCH": "patch", b"DELETE": "delete"}
_NAMESPACE_SUBRESOURCES = ("status", "finalize")
# A search for an integer byte costs an eighth of a search for bytes.
_PERCENT, _BACKSLASH, _SLASH = ord("%"), ord("\\"), ord("/")
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_LONG_RUNNING_SUBRESOURCES = STREAM_SUBRESOURCES | {"proxy"}
#: The paths of a kubelet that run a process in a container or reach its ports (pkg/kubelet/server), in lower case.
_KUBELET_STREAMS = frozenset({b"exec", b"attach", b"portforward", b"run", b"cri"})


class RequestInfo:
    """The attributes of a request. Fields that do not apply are ""; `verb` of a non-resource request is its method.

    `verb` is the verb for rules, policies and reviews. For exec, attach and portforward of pods it is `create` with any
    method, because GET opens a WebSocket, and a user who may only read must not get a shell. The same applies to the
    `_KUBELET_STREAMS` below `nodes/NAME/proxy`. `request_verb` is the verb in a kube-apiserver's own RequestInfo and
    audit log (`get` for a WebSocket); authorization requires it in addition.
    """

    __slots__ = (
        "group",
        "is_resource",
        "label",
        "long_running",
        "name",
        "namespace",
        "path",
        "request_verb",
        "resource",
        "subresource",
        "verb",
        "version",
    )

    def __init__(self, path: str, verb: str) -> None:
        self.path = path  # decoded, without the query
        self.verb = self.request_verb = verb
        self.is_resource = False
        self.group = self.version = self.resource = self.subresource = self.namespace = self.name = ""
        #: True for watch, log with follow, exec, attach, portforward, proxy: no time limit, own budgets
        self.long_running = False
        #: the resource with group and subresource, in the form of logs and metrics (deployments.apps/scale)
        self.label = ""

    def __repr__(self) -> str:
        return f"<RequestInfo {self.verb} {self.path}: {self.label or 'no resource'} {self.namespace}/{self.name}>"


def is_document(path: str) -> bool:
    """Return whether a path is that of a discovery or OpenAPI document about several group-versions.

    These are /api, /apis, /apis/GROUP, and paths below /openapi.
    """
    segments = path.removesuffix("/").split("/")
    if len(segments) == 2:
        return segments[1] in ("api", "apis")
    return len(segments) > 2 and (segments[1] == "openapi" or (segments[1] == "apis" and len(segments) == 3))


def parse(method: bytes, target: bytes) -> RequestInfo:
    """Return the attributes of a request; `target` is in origin-form.

    Raises StatusError (400) for a path that two parsers could interpret differently, or that Go cannot parse.
    """
    raw_path, _, query = target.partition(b"?")
    odd = _PERCENT in raw_path or _BACKSLASH in raw_path
    if odd or raw_path.find(b"/.") >= 0:
        _refuse_bad_escapes(raw_path)
        _refuse_dot_segments(raw_path)
    segments = raw_path.split(b"/")[1:]
    if segments and not segments[-1]:
        segments.pop()  # a slash at the end changes nothing
    path = unquote_to_bytes(raw_path).decode("utf-8", "replace") if _PERCENT in raw_path else raw_path.decode("latin-1")
    info = RequestInfo(path, method.decode("latin-1").lower())
    if len(segments) < 3 or segments[0] not in (b"api", b"apis"):
        _refuse_ambiguous_path(segments)
        return info
    rest = segments[1:]
    if segments[0] == b"apis":
        if len(rest) < 3:
            for segment in rest:
                _plain(segment, odd)
            return info
        info.group = _plain(rest.pop(0), odd)
    info.is_resource = True
    info.version = _plain(rest.pop(0), odd)
    _fill_resource(info, rest, method, query, odd)
    group = f".{info.group}" if info.group else ""
    info.label = f"{info.resource}{group}/{info.subresource}" if info.subresource else info.resource + group
    return info


def _fill_resource(info: RequestInfo, rest: list[bytes], method: bytes, query: bytes, odd: bool) -> None:
    info.verb = _VERBS.get(method, "")
    first = _plain(rest[0], odd)  # decoded before the comparison, as servers do
    if first in ("watch", "proxy"):  # deprecated forms that servers still accept
        if len(rest) < 2:
            raise StatusError(400, "unable to determine kind and namespace from the path")
        info.verb = first
        rest.pop(0)
        first = _plain(rest[0], odd)
    if first == "namespaces" and len(rest) > 1:
        info.namespace = _plain(rest[1], odd)
        if len(rest) > 2 and _plain(rest[2], odd) not in _NAMESPACE_SUBRESOURCES:
            rest = rest[2:]
    info.resource = _plain(rest[0], odd)
    if len(rest) > 1:
        info.name = _plain(rest[1], odd)
    if len(rest) > 2 and info.verb != "proxy":
        info.subresource = _plain(rest[2], odd)
    if info.subresource != "proxy" and info.verb != "proxy":
        for segment in rest[3:]:  # the rest of the path, below `proxy`, is for another server
            _plain(segment, odd)
    if not info.name:
        _fill_collection(info, query)
    info.long_running = (
        info.verb in ("watch", "proxy")
        or info.subresource in _LONG_RUNNING_SUBRESOURCES
        or (info.subresource == "log" and _is_true(_parameter(query, "follow")))
    )
    info.request_verb = info.verb
    if not info.group and (
        (info.resource == "pods" and info.subresource in STREAM_SUBRESOURCES)
        or (info.resource == "nodes" and info.subresource == "proxy" and _is_kubelet_stream(rest[3:]))
    ):
        info.verb = "create"


def _is_kubelet_stream(segments: list[bytes]) -> bool:
    """Return whether a path below `nodes/NAME/proxy` is in `_KUBELET_STREAMS`, after cleaning it as a kubelet does."""
    names = unquote_to_bytes(b"/".join(segments)).split(b"/")
    return next((name for name in names if name), b"").lower() in _KUBELET_STREAMS


def _fill_collection(info: RequestInfo, query: bytes) -> None:
    """Set verb and name of a request without a name in its path: a collection, or the object of a field selector."""
    if info.verb == "get":
        info.verb = "watch" if _is_true(_parameter(query, "watch")) else "list"
        info.name = _selected_name(_parameter(query, "fieldSelector") or "")
    elif info.verb == "delete":
        # A kube-apiserver sets no name here. But rules about one object must also match its deletion by a selector.
        info.verb = "deletecollection"
        info.name = _selected_name(_parameter(query, "fieldSelector") or "")


def _is_true(value: str | None) -> bool:
    """Read a boolean parameter as apimachinery does: only "false" and "0" are false."""
    return value is not None and value.lower() not in ("0", "false")


def _selected_name(selector: str) -> str:
    """Return the name that a field selector requires, "" if it requires none.

    The selector is parsed as when it is applied: a comma after a backslash is part of a value and begins no new term.
    """
    if "metadata.name" not in selector:
        return ""
    try:
        terms = parse_field_selector(selector)
    except StatusError:
        return ""  # as in kube-apiserver; the code that applies the selector responds with 400
    name = next((term.value for term in terms if term.field == "metadata.name" and not term.negated), "")
    return "" if name in (".", "..") or "/" in name or "%" in name else name


def _parameter(query: bytes, name: str) -> str | None:
    """Return the first value of a query parameter as Go's net/url parses it, None if there is none.

    Go drops a pair with a semicolon or a malformed escape; other servers do not.
    """
    wanted = name.encode()
    if wanted not in query and _PERCENT not in query:
        return None
    for pair in query.split(b"&"):
        key, _, value = pair.partition(b"=")
        # The cheap test comes first, because a client can send thousands of pairs at no cost.
        if key != wanted and (_PERCENT not in key or unquote_to_bytes(key) != wanted):
            continue
        if b";" not in pair and not _BAD_ESCAPE.search(pair):
            return _unescape(value)
    return None


def _unescape(text: bytes) -> str:
    return unquote_to_bytes(text.replace(b"+", b" ")).decode("utf-8", "replace")


def timeout_parameter(target: bytes) -> str | None:
    """Return the value of `timeout` in a target's query, if there is one."""
    if target.find(b"timeout=") < 0:  # for bytes, `in` costs an exception in CPython
        return None
    return _parameter(target.partition(b"?")[2], "timeout")


def selector_parameters(target: bytes) -> tuple[str, str]:
    """Return the values of `fieldSelector` and `labelSelector` in a target's query; "" for a missing one."""
    query = target.partition(b"?")[2]
    return _parameter(query, "fieldSelector") or "", _parameter(query, "labelSelector") or ""


def _plain(segment: bytes, odd: bool) -> str:
    """Return a decoded segment that is a name; refuse segments that another parser could split or skip.

    `odd`: whether the path has a percent sign or a backslash anywhere.
    """
    if odd and _PERCENT in segment:
        segment = unquote_to_bytes(segment)
        if _SLASH in segment or _BACKSLASH in segment or 0 in segment or _PERCENT in segment:
            raise StatusError(400, "the path holds an encoded slash or percent sign where a name should stand")
    if not segment or (odd and _BACKSLASH in segment):
        raise StatusError(400, "the path holds an empty segment, or a backslash where a name should stand")
    return segment.decode("utf-8", "replace")


def _refuse_ambiguous_path(segments: list[bytes]) -> None:
    """Refuse a path that is no resource path, but could be one for a parser that decodes or cleans it first."""
    if any(not segment or _PERCENT in segment or _BACKSLASH in segment for segment in segments):
        path = unquote_to_bytes(b"/".join(segments)).replace(b"\\", b"/")
        cleaned = [part for part in path.split(b"/") if part]
        if cleaned != segments and cleaned and cleaned[0] in (b"api", b"apis", b"clusters"):
            raise StatusError(400, "the path can be read in more than one way")


def _refuse_bad_escapes(path: bytes) -> None:
    """Refuse invalid percent-encoding (RFC 3986 2.1).

    A kube-apiserver responds with 400 over HTTP/1.1, but resets the stream over HTTP/2, which does not show that the
    client is at fault.
    """
    if _BAD_ESCAPE.search(path):
        raise StatusError(400, "the path holds a percent sign that begins no percent-encoding")


def _refuse_dot_segments(path: bytes) -> None:
    for segment in unquote_to_bytes(path).replace(b"\\", b"/").split(b"/"):
        if segment.partition(b";")[0] in (b".", b".."):  # some servers cut off parameters after a semicolon
            raise StatusError(400, "the path holds a dot segment")
