"""Which rule of the ingresses on a listener a request is for. Immutable, built once for a Runtime; pure.

IngressSpec (networking.k8s.io/v1): an exact host comes before a wildcard of one label, that before rules for every
host; then an Exact path comes before the longest Prefix, which is compared element by element. As in nginx, the host
decides first: a request for a host that has rules never gets to those of a wildcard or of every host. What none of the
host's paths matches is for the default backend of the ingresses that have rules for this host, and what no host matches
for that of the others; of several the first in the order of the file.

Two rules with the same host and path: the first in the order of the file (`check` reports the other one).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from mcproxy.config.model import Ingress, IngressBackend, PathType
from mcproxy.services.ingress.request_paths import BadPath, canonical_rule, parse, unusual

R = TypeVar("R")

_SLASH = ord("/")

#: Targets of a host whose routes are remembered, and how long one may be (bytes).
_MAX_KNOWN = 512
_MAX_KNOWN_TARGET = 256


class Route:
    """A rule's path with its backend, as the configuration has it."""

    __slots__ = ("backend", "host", "ingress", "path", "path_type")

    def __init__(
        self, ingress: Ingress, backend: IngressBackend, host: str = "", path: str = "", path_type: str = ""
    ) -> None:
        """The last three are empty for a default backend."""
        self.ingress = ingress
        self.backend = backend
        self.host = host
        self.path = path
        self.path_type = path_type

    @property
    def label(self) -> str:
        """The rule's name in logs and metrics: host and path; "default" for a default backend."""
        return f"{self.host or '*'}{self.path}" if self.path else "default"


def routes_of(ingresses: Iterable[Ingress]) -> list[Route]:
    """Return all routes, in the order of the file."""
    found = []
    for ingress in ingresses:
        for rule in ingress.rules:
            found += [Route(ingress, each.backend, rule.host, each.path, each.path_type) for each in rule.paths]
        if ingress.default_backend is not None:
            found.append(Route(ingress, ingress.default_backend))
    return found


class Router(Generic[R]):
    """The routes of one listener; `R` is what is live of each."""

    __slots__ = ("_any", "_exact", "_wildcard")

    def __init__(self, routes: Iterable[tuple[Route, R]]) -> None:
        routes = tuple(routes)
        tables: dict[str, _PathTable[R]] = {}
        hosts_of: dict[int, set[str]] = {}
        for route, live in routes:
            if route.path:
                tables.setdefault(route.host, _PathTable()).add(route, live)
                hosts_of.setdefault(id(route.ingress), set()).add(route.host)
        everywhere = tables.setdefault("", _PathTable())
        for route, live in routes:
            if not route.path:
                own = hosts_of.get(id(route.ingress), ())
                for host in own:
                    tables[host].set_default(live)
                everywhere.set_default(live)
        self._any = everywhere
        self._exact = {host.encode(): each for host, each in tables.items() if host and not host.startswith("*.")}
        self._wildcard = {host[1:].encode(): each for host, each in tables.items() if host.startswith("*.")}

    def table(self, host: bytes) -> _PathTable[R]:
        """Return the routes for a host name (lower case, without port and final dot)."""
        found = self._exact.get(host)
        if found is None:
            if self._wildcard:
                dot = host.find(b".")
                if dot > 0:
                    found = self._wildcard.get(host[dot:])
            if found is None:
                return self._any
        return found

    def knows(self, host: bytes) -> bool:
        """Whether a rule names the host, by itself or by a wildcard."""
        return self.table(host) is not self._any

    def find(self, host: bytes, target: bytes) -> tuple[R, bytes] | None:
        """Return the route for a host name and a request target, and the target to send; None: there is none.

        Raises BadPath for a path that servers read differently, where that matters.
        """
        return self.table(host).find(target)


class _PathTable(Generic[R]):
    """The routes of one host."""

    __slots__ = ("_default", "_exact", "_known", "_longest", "_prefixes", "_root")

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[R, bytes]] = {}  # what was found for targets that may be asked again
        self._exact: dict[bytes, R] = {}
        self._prefixes: dict[bytes, R] = {}  # without final slash; never the root
        self._root: R | None = None  # the Prefix /
        self._default: R | None = None
        self._longest = 0  # elements of the longest prefix

    def add(self, route: Route, live: R) -> None:
        try:
            path = canonical_rule(route.path)
        except BadPath:
            return  # no request has such a path; `check` says so
        if route.path_type == PathType.EXACT:
            self._exact.setdefault(path, live)
            return
        path = path.rstrip(b"/")
        if not path:
            self._root = live if self._root is None else self._root
        else:
            self._prefixes.setdefault(path, live)
            self._longest = max(self._longest, path.count(b"/"))

    def set_default(self, live: R) -> None:
        if self._default is None:
            self._default = live

    def find(self, target: bytes) -> tuple[R, bytes] | None:
        """As `Router.find`."""
        known = self._known.get(target)
        if known is not None:
            return known
        result = self._find(target)
        if result is not None and len(target) <= _MAX_KNOWN_TARGET:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[target] = result
        return result

    def _find(self, target: bytes) -> tuple[R, bytes] | None:
        raw, mark, query = target.partition(b"?")
        if raw[0] != _SLASH:
            return None  # OPTIONS *
        if not unusual(raw):  # the usual case
            found = self._match(raw)
            return None if found is None else (found, target)
        path = parse(raw)
        found = self._match(path.canonical)
        if found is None:
            return None
        if any(self._match(each) is not found for each in path.readings):
            raise BadPath("the path belongs to different rules, by how a server reads it")
        return found, (target if path.sent is raw else path.sent + mark + query)

    def _match(self, path: bytes) -> R | None:
        found = self._exact.get(path)
        if found is not None:
            return found
        prefixes = self._prefixes
        if prefixes:
            end = len(path)
            over = path.count(b"/") - self._longest
            if over > 0:  # no prefix has so many elements: begin with the first one that may be
                end = len(b"/".join(path.split(b"/", self._longest + 1)[: self._longest + 1]))
            while end > 0:
                found = prefixes.get(path[:end])
                if found is not None:
                    return found
                end = path.rfind(b"/", 0, end)
        return self._root if self._root is not None else self._default
