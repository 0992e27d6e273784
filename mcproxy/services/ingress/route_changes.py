"""What the filters of a rule change: fields of heads, host and path, redirects. Made once for a Runtime; pure.

Gateway API, HTTPRoute: HTTPHeaderFilter, HTTPURLRewriteFilter, HTTPRequestRedirectFilter.
"""

from __future__ import annotations

import re

from mcproxy.config.model import HeaderEdits, Redirect
from mcproxy.services.ingress.request_paths import BadPath, canonical_path, canonical_rule, parse
from mcproxy.services.ingress.router import Route

_CAPTURE = re.compile(rb"\\([1-9])")
_NOT_IN_PATHS = re.compile(rb"[^!$&'()*+,/:;=@\w.~%-]", re.ASCII)
"""What is encoded in a path (RFC 3986 3.3); in a canonical path a percent sign is always that of an encoded byte."""
_LEADING = re.compile(rb"\A/+")
_PORT = re.compile(rb":([0-9]{1,5})\Z")
_OWN_PORTS = {b"http": 80, b"https": 443}


class FieldEdits:
    """Changes of a block of fields."""

    __slots__ = ("_added", "_gone")

    def __init__(self, edits: HeaderEdits, *, loosely: bool) -> None:
        """`loosely`: `_` in a name is a `-`, as many servers read it, so no client gets a field past what sets it."""
        names = [re.escape(name.encode()) for name in (*(name for name, _ in edits.set_), *edits.remove)]
        if loosely:
            names = [re.sub(rb"\\-|_", b"[-_]", name) for name in names]
        self._gone = re.compile(rb"^(?:%b):[^\r\n]*\r\n" % b"|".join(names), re.I | re.M) if names else None
        self._added = "".join(f"{name}: {value}\r\n" for name, value in (*edits.set_, *edits.add)).encode()

    def apply(self, block: bytes) -> bytes:
        """Return the changed block; each of its lines ends with CR LF."""
        if self._gone is not None:
            block = self._gone.sub(b"", block)
        return block + self._added


class _NewPath:
    """What takes the place of the path of a request that a route matches."""

    __slots__ = ("_elements", "_pattern", "_prefix", "_whole")

    def __init__(self, route: Route, whole: str | None, prefix: str | None) -> None:
        self._whole = None if whole is None else whole.encode()
        self._prefix = b"" if prefix is None else prefix.rstrip("/").encode()
        self._pattern = route.pattern
        self._elements = 0  # of the rule's prefix
        if self._pattern is None:
            self._elements = canonical_rule(route.path).rstrip(b"/").count(b"/")

    def of(self, target: bytes) -> bytes:
        """Return the new target, with the query of the old one. Raises BadPath if servers would read it differently."""
        raw, mark, query = target.partition(b"?")
        if self._whole is None:
            return self._behind_prefix(raw) + mark + query
        if self._pattern is None:
            return self._whole + mark + query
        path = canonical_path(raw)
        captured = self._pattern.captured(path)
        assert captured is not None  # the rule has matched it, and has as many groups
        new = _CAPTURE.sub(lambda match: _encoded(captured[int(match[1])]), self._whole)
        new = _LEADING.sub(b"/", new)
        if parse(new).sent != new:
            raise BadPath("a dot segment in the path")  # that two parts make together
        return new + mark + query

    def _behind_prefix(self, raw: bytes) -> bytes:
        parts = raw.split(b"/", self._elements + 1)
        rest = b"/" + parts[-1] if len(parts) > self._elements + 1 else b""
        return _LEADING.sub(b"/", self._prefix + rest) or b"/"


def _encoded(captured: bytes) -> bytes:
    return _NOT_IN_PATHS.sub(lambda match: b"%%%02X" % match[0][0], captured)


class RouteChanges:
    """The filters of one route that has any; None: it leaves that as it is."""

    __slots__ = ("_path", "host", "redirect", "request_fields", "response_fields", "timeout")

    def __init__(self, route: Route) -> None:
        filters = route.filters
        assert filters is not None
        self.request_fields = FieldEdits(filters.request_headers, loosely=True) if filters.request_headers else None
        self.response_fields = FieldEdits(filters.response_headers, loosely=False) if filters.response_headers else None
        self.host = None if filters.rewrite_host is None else _authority(filters.rewrite_host)
        self._path: _NewPath | None = None
        if filters.rewrite_path is not None or filters.rewrite_prefix is not None:
            self._path = _NewPath(route, filters.rewrite_path, filters.rewrite_prefix)
        self.redirect = None if filters.redirect is None else RouteRedirect(route, filters.redirect)
        self.timeout = filters.timeout

    def target(self, target: bytes) -> bytes:
        """Return the target that pods get. Raises BadPath."""
        return target if self._path is None else self._path.of(target)


class RouteRedirect:
    """The redirect that answers all requests of a route."""

    __slots__ = ("_host", "_path", "_port", "_scheme", "code")

    def __init__(self, route: Route, redirect: Redirect) -> None:
        self.code = redirect.code
        self._scheme = None if redirect.scheme is None else redirect.scheme.encode()
        self._host = None if redirect.host is None else _authority(redirect.host)
        self._port = redirect.port
        self._path: _NewPath | None = None
        if redirect.path is not None or redirect.prefix is not None:
            self._path = _NewPath(route, redirect.path, redirect.prefix)

    def location(self, authority: bytes, target: bytes, *, https: bool) -> bytes:
        """Return where a request leads; `authority` is its Host, b"" without one. Raises BadPath.

        The port that the client has used stays unless the scheme changes; that of the scheme itself is not written.
        """
        if self._path is not None:
            target = self._path.of(target)
        now = b"https" if https else b"http"
        scheme = self._scheme or now
        written = _PORT.search(authority)
        host = self._host or (authority if written is None else authority[: written.start()])
        if not host:
            return target  # HTTP/1.0: where the client is, for all that it has said
        port = self._port
        if port is None and written is not None and scheme == now:
            port = int(written[1])
        return b"%b://%b%b%b" % (scheme, host, b"" if port in (None, _OWN_PORTS[scheme]) else b":%d" % port, target)


def _authority(host: str) -> bytes:
    return f"[{host}]".encode() if ":" in host else host.encode()
