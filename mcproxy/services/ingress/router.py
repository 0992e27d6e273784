"""Finds the rule for a request among the ingresses of a listener. Immutable, built once for a Runtime; pure.

IngressSpec (networking.k8s.io/v1): an exact host precedes a wildcard of one label, and both precede rules for every
host. Then an Exact path precedes the longest Prefix, which is compared element by element. As in nginx, the host
decides first: a host with rules of its own never uses the rules of a wildcard or of every host. If no path of the host
matches, the default backend of the ingresses with rules for the host is used. If no host matches, the default backend
of the other ingresses is used. Of several default backends, the first one in the configuration is used.

Conditions (Gateway API, HTTPRouteMatch): among rules with the same path, a rule with a method comes first, then one
with more header fields, then with more query parameters, then the first one in the configuration. If a request does not
meet the conditions of a rule, the next less specific rule is tried, down to the default backend. A path of type Regex
comes after the longest Prefix. With `wildcardLabels: Any` a wildcard matches several labels too; the longest wildcard
comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

from mcproxy.config.model import (
    HeaderEdits,
    Ingress,
    IngressBackend,
    IngressPath,
    PathType,
    Redirect,
    RouteFilters,
    WildcardLabels,
)
from mcproxy.http.messages import first_value
from mcproxy.kube.linear_regex import LinearRegex
from mcproxy.services.ingress.request_paths import BadPath, canonical_path, canonical_rule, parse, unusual

R = TypeVar("R")

_SLASH = ord("/")

#: Maximum of cached targets (path and query) of a host, and of bytes of a cached target.
_MAX_CACHED = 512
_MAX_CACHED_TARGET = 256

#: Maximum of bytes of a DNS name (RFC 1035 2.3.4).
_MAX_NAME = 255


class Route:
    """A rule's path in the configuration, or a default backend."""

    __slots__ = ("_pattern", "filters", "host", "ingress", "path", "path_type", "rule", "shares", "spill")

    def __init__(self, ingress: Ingress, host: str = "", rule: IngressPath | None = None) -> None:
        """`rule` is None for the default backend of the ingress."""
        self.ingress = ingress
        self.host = host
        self.rule = rule
        self.path = "" if rule is None else rule.path
        self.path_type = "" if rule is None else str(rule.path_type)
        self.filters: RouteFilters | None = None if rule is None else rule.filters
        default = ingress.default_backend
        self.shares: tuple[tuple[IngressBackend, int], ...] = ()
        if rule is not None:
            self.shares = rule.shares
        elif default is not None:
            self.shares = ((default, 1),)
        self.spill = rule is not None and rule.spill
        self._pattern: LinearRegex | None = None

    @property
    def pattern(self) -> LinearRegex | None:
        """The compiled path of type Regex, made on first use (status makes routes too); None for other types."""
        if self._pattern is None and self.path_type == PathType.REGEX:
            self._pattern = LinearRegex(self.path)
        return self._pattern

    @property
    def label(self) -> str:
        """The rule's name in logs and metrics: host, path and conditions; "default" for a default backend."""
        rule = self.rule
        if rule is None:
            return "default"
        conditions = [*rule.methods, *(f"{name}={value}" for name, value in (*rule.headers, *rule.query))]
        return " ".join([f"{self.host or '*'}{self.path}", *conditions])


def routes_of(ingresses: Iterable[Ingress]) -> list[Route]:
    """Return all routes in the order of the configuration."""
    found = []
    for ingress in ingresses:
        for rule in ingress.rules:
            found += [Route(ingress, rule.host, each) for each in rule.paths]
        if ingress.default_backend is not None:
            found.append(Route(ingress))
    return found


class _Entry(Generic[R]):
    """A live route, and the conditions that a request for its path must meet."""

    __slots__ = ("headers", "live", "methods", "order", "query", "unconditional")

    def __init__(self, rule: IngressPath | None, live: R, number: int) -> None:
        """`number` is the position in the configuration."""
        self.live = live
        self.methods: frozenset[bytes] = frozenset()
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.query: tuple[tuple[bytes, bytes], ...] = ()
        if rule is not None:
            self.methods = frozenset(method.encode() for method in rule.methods)
            self.headers = tuple((name.encode(), value.encode()) for name, value in rule.headers)
            self.query = tuple((name.encode(), value.encode()) for name, value in rule.query)
        self.unconditional = not (self.methods or self.headers or self.query)
        self.order = (not self.methods, -len(self.headers), -len(self.query), number)

    def is_for(self, method: bytes, fields: bytes, target: bytes) -> bool:
        if self.methods and method not in self.methods:
            return False
        if any(first_value(fields, name) != value for name, value in self.headers):
            return False
        if not self.query:
            return True
        given = _parameters(target.partition(b"?")[2])
        return all(given.get(name) == value for name, value in self.query)


def _parameters(query: bytes) -> dict[bytes, bytes]:
    """Return the decoded parameters of a query; of several with the same name, the first one."""
    found: dict[bytes, bytes] = {}
    for pair in query.split(b"&"):
        name, _, value = pair.replace(b"+", b" ").partition(b"=")
        found.setdefault(unquote_to_bytes(name), unquote_to_bytes(value))
    return found


class Router(Generic[R]):
    """The routes of one listener; `R` is the type of a live route."""

    __slots__ = ("_any", "_exact", "_several", "_wildcard")

    def __init__(self, routes: Iterable[tuple[Route, R]]) -> None:
        routes = tuple(routes)
        tables: dict[str, _PathTable[R]] = {}
        hosts_of: dict[int, set[str]] = {}
        several: set[str] = set()
        for number, (route, live) in enumerate(routes):
            if route.rule is not None:
                entry = _Entry(route.rule, live, number)
                tables.setdefault(route.host, _PathTable()).add(route, entry)
                hosts_of.setdefault(id(route.ingress), set()).add(route.host)
                if route.ingress.wildcard_labels is WildcardLabels.ANY:
                    several.add(route.host)
        everywhere = tables.setdefault("", _PathTable())
        for number, (route, live) in enumerate(routes):
            if route.rule is None:
                default = _Entry(None, live, number)
                own = hosts_of.get(id(route.ingress), ())
                for host in own:
                    tables[host].set_default(default)
                everywhere.set_default(default)
        for table in tables.values():
            table.complete()
        self._any = everywhere
        self._exact = {host.encode(): each for host, each in tables.items() if host and not host.startswith("*.")}
        self._wildcard = {host[1:].encode(): each for host, each in tables.items() if host.startswith("*.")}
        self._several = {
            host[1:].encode(): each for host, each in tables.items() if host in several and host.startswith("*.")
        }
        """The tables of wildcards that match several labels."""

    def table(self, host: bytes) -> _PathTable[R]:
        """Return the routes for a host name (lower case, without port and final dot)."""
        found = self._exact.get(host)
        if found is None:
            if self._wildcard:
                dot = host.find(b".")
                if dot > 0:
                    found = self._wildcard.get(host[dot:])
                    while found is None and self._several and dot >= 0 and len(host) <= _MAX_NAME:
                        dot = host.find(b".", dot + 1)
                        found = self._several.get(host[dot:]) if dot >= 0 else None
            if found is None:
                return self._any
        return found

    def knows(self, host: bytes) -> bool:
        """Whether a rule names the host, exactly or by a wildcard."""
        return self.table(host) is not self._any

    def find(self, host: bytes, target: bytes, method: bytes = b"GET", fields: bytes = b"") -> tuple[R, bytes] | None:
        """Return the route for a host name and a request, and the target to send; None if there is no route.

        `fields`: the fields that the pod will get. Raises BadPath for a path whose readings match different rules.
        """
        return self.table(host).find(target, method, fields)


class _PathTable(Generic[R]):
    """The routes of one host."""

    __slots__ = ("_cached", "_default", "_exact", "_lengths", "_longest", "_patterns", "_prefixes", "_root")

    def __init__(self) -> None:
        #: Cache of results by target.
        self._cached: dict[bytes, tuple[tuple[_Entry[R], ...], bytes]] = {}
        self._exact: dict[bytes, list[_Entry[R]]] = {}
        self._prefixes: dict[bytes, list[_Entry[R]]] = {}  # by Prefix without final slash, except the Prefix /
        self._root: list[_Entry[R]] = []  # entries of the Prefix /
        #: Patterns by their literal beginning, so that a path is compared only with patterns that can match.
        self._patterns: dict[bytes, list[tuple[LinearRegex, _Entry[R]]]] = {}
        self._lengths: tuple[int, ...] = ()  # lengths of these beginnings
        self._default: _Entry[R] | None = None
        self._longest = 0  # number of elements of the longest prefix

    def add(self, route: Route, entry: _Entry[R]) -> None:
        if route.pattern is not None:
            self._patterns.setdefault(route.pattern.beginning, []).append((route.pattern, entry))
            return
        try:
            path = canonical_rule(route.path)
        except BadPath:
            return  # no request can match such a path; `check` warns of it
        if route.path_type == PathType.EXACT:
            self._exact.setdefault(path, []).append(entry)
            return
        path = path.rstrip(b"/")
        if not path:
            self._root.append(entry)
        else:
            self._prefixes.setdefault(path, []).append(entry)
            self._longest = max(self._longest, path.count(b"/"))

    def set_default(self, entry: _Entry[R]) -> None:
        if self._default is None:
            self._default = entry

    def complete(self) -> None:
        """Sort the entries of each path, after all are added."""
        for entries in (*self._exact.values(), *self._prefixes.values(), self._root):
            entries.sort(key=lambda entry: entry.order)
        self._lengths = tuple(sorted({len(each) for each in self._patterns}))

    def find(self, target: bytes, method: bytes = b"GET", fields: bytes = b"") -> tuple[R, bytes] | None:
        """Return the result of `Router.find` for this host."""
        known = self._cached.get(target)
        if known is None:
            known = self._find(target)
            if known is None:
                return None
            if len(target) <= _MAX_CACHED_TARGET:
                if len(self._cached) >= _MAX_CACHED:
                    self._cached.clear()
                self._cached[target] = known
        entries, sent = known
        for entry in entries:
            if entry.unconditional or entry.is_for(method, fields, target):
                return entry.live, sent
        return None

    def _find(self, target: bytes) -> tuple[tuple[_Entry[R], ...], bytes] | None:
        """Return the candidates for a request with this target, the most specific first, and the target to send."""
        raw, mark, query = target.partition(b"?")
        if raw[0] != _SLASH:
            return None  # OPTIONS *
        if not unusual(raw):  # most paths
            found = self._match(raw)
            return (found, target) if found else None
        path = parse(raw)
        found = self._match(path.canonical)
        if not found:
            return None
        if any(self._match(each) != found for each in path.readings):
            raise BadPath("different rules match different readings of the path")
        return found, (target if path.sent is raw else path.sent + mark + query)

    def _match(self, path: bytes) -> tuple[_Entry[R], ...]:
        """Return the entries of a path, the most specific first, up to the first one without conditions."""
        found: list[_Entry[R]] = []
        if _add_candidates(found, self._exact.get(path)):
            return tuple(found)
        prefixes = self._prefixes
        if prefixes:
            end = len(path)
            over = path.count(b"/") - self._longest
            if over > 0:  # the path has more elements than any prefix: begin with the longest prefix
                end = len(b"/".join(path.split(b"/", self._longest + 1)[: self._longest + 1]))
            while end > 0:
                if _add_candidates(found, prefixes.get(path[:end])):
                    return tuple(found)
                end = path.rfind(b"/", 0, end)
        if _add_candidates(found, self._root):
            return tuple(found)
        for pattern, entry in self._candidates(path):
            if pattern.matches(path):
                found.append(entry)
                if entry.unconditional:
                    return tuple(found)
        if self._default is not None:
            found.append(self._default)
        return tuple(found)

    def _candidates(self, path: bytes) -> list[tuple[LinearRegex, _Entry[R]]]:
        """Return the patterns whose literal beginning the path has, in order; `check` bounds their number."""
        found: list[tuple[LinearRegex, _Entry[R]]] = []
        for length in self._lengths:
            if length > len(path):
                break
            found += self._patterns.get(path[:length], ())
        found.sort(key=lambda each: each[1].order)
        return found


def _add_candidates(found: list[_Entry[R]], entries: list[_Entry[R]] | None) -> bool:
    """Add entries up to the first one without conditions; return whether there is such an entry."""
    for entry in entries or ():
        found.append(entry)
        if entry.unconditional:
            return True
    return False


# -- filters --------------------------------------------------------------------------------------------------
#
# The filters of a rule: changes of header fields, host and path, and redirects. Made once for a Runtime; pure.
#
# Gateway API, HTTPRoute: HTTPHeaderFilter, HTTPURLRewriteFilter, HTTPRequestRedirectFilter.


_CAPTURE = re.compile(rb"\\([1-9])")
_NOT_IN_PATHS = re.compile(rb"[^!$&'()*+,/:;=@\w.~%-]", re.ASCII)
"""Characters to encode in a path (RFC 3986 3.3); in a canonical path every percent sign belongs to an encoded byte."""
_LEADING = re.compile(rb"\A/+")
_PORT = re.compile(rb":([0-9]{1,5})\Z")
_OWN_PORTS = {b"http": 80, b"https": 443}


class FieldEdits:
    """Changes of a block of fields."""

    __slots__ = ("_added", "_gone")

    def __init__(self, edits: HeaderEdits, *, loosely: bool) -> None:
        """`loosely`: `_` in a name equals `-`, as many servers read it, so that a client cannot evade a set field."""
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
    """The replacement of the path of a request."""

    __slots__ = ("_elements", "_pattern", "_prefix", "_whole")

    def __init__(self, route: Route, whole: str | None, prefix: str | None) -> None:
        self._whole = None if whole is None else whole.encode()
        self._prefix = b"" if prefix is None else prefix.rstrip("/").encode()
        self._pattern = route.pattern
        self._elements = 0  # number of elements of the rule's prefix
        if self._pattern is None:
            self._elements = canonical_rule(route.path).rstrip(b"/").count(b"/")

    def of(self, target: bytes) -> bytes:
        """Return the new target, with the old query. Raises BadPath if servers would interpret it differently."""
        raw, mark, query = target.partition(b"?")
        if self._whole is None:
            return self._behind_prefix(raw) + mark + query
        if self._pattern is None:
            return self._whole + mark + query
        path = canonical_path(raw)
        captured = self._pattern.captured(path)
        assert captured is not None  # the rule has matched, and has these groups
        new = _CAPTURE.sub(lambda match: _encoded(captured[int(match[1])]), self._whole)
        new = _LEADING.sub(b"/", new)
        if parse(new).sent != new:
            raise BadPath("a dot segment in the path")  # the two joined parts form it
        return new + mark + query

    def _behind_prefix(self, raw: bytes) -> bytes:
        parts = raw.split(b"/", self._elements + 1)
        rest = b"/" + parts[-1] if len(parts) > self._elements + 1 else b""
        return _LEADING.sub(b"/", self._prefix + rest) or b"/"


def _encoded(captured: bytes) -> bytes:
    return _NOT_IN_PATHS.sub(lambda match: b"%%%02X" % match[0][0], captured)


class RouteChanges:
    """The filters of one route; an attribute that is None changes nothing."""

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
        """Return the target for pods. Raises BadPath."""
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
        """Return the Location for a request; `authority` is its Host, b"" without one. Raises BadPath.

        The client's port stays unless the scheme changes; the default port of a scheme is omitted.
        """
        if self._path is not None:
            target = self._path.of(target)
        now = b"https" if https else b"http"
        scheme = self._scheme or now
        written = _PORT.search(authority)
        host = self._host or (authority if written is None else authority[: written.start()])
        if not host:
            return target  # HTTP/1.0 without Host: a Location relative to the client's URL
        port = self._port
        if port is None and written is not None and scheme == now:
            port = int(written[1])
        return b"%b://%b%b%b" % (scheme, host, b"" if port in (None, _OWN_PORTS[scheme]) else b":%d" % port, target)


def _authority(host: str) -> bytes:
    return f"[{host}]".encode() if ":" in host else host.encode()
