"""Reads the conditions and filters of an ingress path: header fields, patterns, rewritten paths, redirects."""

from __future__ import annotations

import re

from mcproxy.config.model import HeaderEdits, PathType, Redirect, RouteFilters
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.model_reader import read
from mcproxy.config.server_names import is_ip, is_server_name
from mcproxy.kube.linear_regex import LinearRegex, PatternError

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?")
_CAPTURE = re.compile(r"\\(.?)")
_OURS = {
    "host": "rewriteHost is for it",
    "connection": "each connection has its own",
    "proxy-connection": "each connection has its own",
    "keep-alive": "each connection has its own",
    "te": "each connection has its own",
    "trailer": "each connection has its own",
    "transfer-encoding": "the proxy frames bodies",
    "content-length": "the proxy frames bodies",
    "upgrade": "the proxy opens tunnels",
    "expect": "the proxy answers it",
}
"""Header fields that no filter may change, in lower case, with the reason."""


def header_conditions(context: Context, place: Place | None) -> tuple[tuple[str, str], ...]:
    """Return the header fields that a request must have, with names in lower case."""
    found: dict[str, str] = {}
    for name, value in place.entries() if place is not None else ():
        if name.lower() == "host":
            context.error(value, "is no condition on a field", "write host in the rule")
        elif _field(context, name, value):
            if name.lower() in found:
                context.error(value, f"{name} is there already, and a field has one value", "keep one of the two")
            found[name.lower()] = value.string or ""
    return tuple(found.items())


def pattern(context: Context, place: Place) -> LinearRegex | None:
    """Return the compiled pattern of a path; None if it is invalid (reported)."""
    try:
        return LinearRegex(place.string or "")
    except PatternError as error:
        context.error(place, f"{place.shown} is not a pattern: {error}", "write a regular expression as RE2 has them")
        return None


def route_filters(context: Context, place: Place | None, kind: PathType | None, groups: int) -> RouteFilters | None:
    """Return the filters at `place`; `groups` is the number of groups in the pattern of a Regex path."""
    if place is None:
        return None
    redirect = place.get("redirect")
    made = read(
        context,
        place,
        RouteFilters,
        request_headers=_edits(context, place.get("requestHeaders")),
        response_headers=_edits(context, place.get("responseHeaders")),
        rewrite_host=_host(context, place.get("rewriteHost")),
        rewrite_path=_path(context, place.get("rewritePath"), kind, groups),
        rewrite_prefix=_prefix(context, place.get("rewritePrefix"), kind),
        redirect=_redirect(context, redirect, kind, groups) if redirect is not None else None,
    )
    both = place.get("rewritePrefix")
    if both is not None and place.has("rewritePath"):
        context.error(both, "conflicts with rewritePath", "keep one of the two")
    if redirect is not None:
        for key in ("requestHeaders", "responseHeaders", "rewriteHost", "rewritePath", "rewritePrefix", "timeout"):
            written = place.get(key)
            if written is not None:
                what = "is for requests that a service gets, and redirect answers them all"
                context.error(written, what, "take it out, or write it as a key of redirect")
    return made


def _redirect(context: Context, place: Place, kind: PathType | None, groups: int) -> Redirect:
    made = read(
        context,
        place,
        Redirect,
        host=_host(context, place.get("host")),
        path=_path(context, place.get("path"), kind, groups),
        prefix=_prefix(context, place.get("prefix"), kind),
    )
    both = place.get("prefix")
    if both is not None and place.has("path"):
        context.error(both, "conflicts with path", "keep one of the two")
    if not any(place.has(key) for key in ("scheme", "host", "port", "path", "prefix")):
        context.error(place, "leads where the client is already", "write scheme, host, port, path or prefix")
    return made


def _edits(context: Context, place: Place | None) -> HeaderEdits:
    if place is None:
        return HeaderEdits()
    seen: dict[str, str] = {}
    for key in ("set", "add"):
        written = place.get(key)
        for name, value in written.entries() if written is not None else ():
            if _field(context, name, value, changed=True):
                _once(context, seen, key, name, value)
    for item in place.children("remove"):
        if _field(context, item.string or "", item, changed=True, with_value=False):
            _once(context, seen, "remove", item.string or "", item)
    return read(context, place, HeaderEdits)


def _once(context: Context, seen: dict[str, str], key: str, name: str, place: Place) -> None:
    before = seen.get(name.lower())
    seen[name.lower()] = key
    if before is not None:
        context.error(place, f"{name} is in {before} already", "keep one of the two")


def _field(context: Context, name: str, place: Place, *, changed: bool = False, with_value: bool = True) -> bool:
    """Report an invalid name of a field, a field that must not be changed, or a value that cannot be sent."""
    if not _NAME.fullmatch(name):
        context.error(place, f"{name!r} is not the name of a header field", "write a name such as X-Team")
    elif changed and name.lower() in _OURS:
        context.error(place, f"{name} is not changed here: {_OURS[name.lower()]}", "take it out")
    elif with_value and not _VALUE.fullmatch(place.string or ""):
        right = "write printable ASCII characters, without a space at either end"
        context.error(place, f"{place.shown} is not the value of a header field", right)
    else:
        return True
    return False


def _host(context: Context, place: Place | None) -> str | None:
    if place is None:
        return None
    name = (place.string or "").lower().rstrip(".")
    if name.startswith("*") or not (is_server_name(name) or is_ip(name)):
        context.error(place, f"{place.shown} is not a host", "write a DNS name or an address, without a port")
        return None
    return name


def _path(context: Context, place: Place | None, kind: PathType | None, groups: int) -> str | None:
    if place is None:
        return None
    path = place.string or ""
    for match in _CAPTURE.finditer(path) if kind is PathType.REGEX else ():
        number = int(match[1]) if match[1] in "123456789" and match[1] else 0
        if not 1 <= number <= groups:
            what = f"{place.shown} has {match[0]}, of a pattern with {groups or 'no'} group{'' if groups == 1 else 's'}"
            context.error(place, what, "write \\1 for what the first group has captured")
            return None
    return path if _sendable(context, place, _CAPTURE.sub("x", path) if kind is PathType.REGEX else path) else None


def _prefix(context: Context, place: Place | None, kind: PathType | None) -> str | None:
    if place is None or not _sendable(context, place, place.string or ""):
        return None
    if kind is not None and kind is not PathType.PREFIX:
        context.error(place, f"is for pathType: Prefix, and this path is {kind}", "write a path for the whole")
    return place.string


def _sendable(context: Context, place: Place, path: str) -> bool:
    if "//" in path or "/./" in f"{path}/" or "/../" in f"{path}/" or "?" in path or "#" in path:
        right = "write a plain path, without query: no // and no dots between slashes"
        context.error(place, f"{place.shown} is not a path to send", right)
        return False
    if not path.isascii() or not path.isprintable() or set(path) & set(' "<>\\^`{|}'):
        context.error(place, f"{place.shown} has characters that no request line has", "write them percent-encoded")
        return False
    return True
