"""Checks of ingresses against listeners, certificates, clusters and each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mcproxy.config import credential_checks
from mcproxy.config.checks.service_export_clusters import warn_of_anonymous_reading
from mcproxy.config.model import (
    Certificate,
    ClusterConfig,
    Ingress,
    ListenerConfig,
    PathType,
    Serves,
    Via,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import ListSection, Named, Sections
from mcproxy.config.server_names import covers, is_ip, is_server_name
from mcproxy.kube.linear_regex import LinearRegex, PatternError

MAX_PATTERNS = 100
"""Limit of the paths of type Regex with which a request for a host of a listener is compared."""


def check_ingresses(context: Context, sections: Sections) -> None:
    """Report every error and warning about ingresses. Listeners must already have their ingresses' certificates."""
    listeners, clusters = sections.listeners.valid_by_name, sections.clusters.by_name
    claims = _Claims(context)
    for place, ingress in sections.ingresses.valid:
        if not ingress.listeners and not place.has("listeners"):
            context.warn(place, "no-listener", "there is no listener for it", "add a listener with serves: Ingress")
        claims.add(place, ingress)
        _tls(context, place, ingress, listeners)
        _coverage(context, place, ingress, listeners, sections.certificates)
        _credentials(context, place, clusters)
    claims.check_patterns()
    claims.check_shadowed()
    _listeners(context, sections)


def _listeners(context: Context, sections: Sections) -> None:
    used = {name for ingress in sections.ingresses.values for name in ingress.listeners}
    # An ingress with errors can be meant for any of the listeners.
    complete = all(ingress.value is not None and not ingress.place.is_broken for ingress in sections.ingresses)
    for place, listener in sections.listeners.valid:
        if listener.serves is not Serves.INGRESS:
            continue
        if listener.name not in used and complete:
            right = "name it in the listeners of an ingress, or take it out"
            context.warn(place, "unused", "no ingress is on this listener", right)
        tls = place.get("tls")
        missing = listener.tls is not None and not listener.tls.certificates
        if tls is not None and missing and not tls.has("certificates") and complete:
            what = "has no certificates, and no ingress on this listener has a certificate in its tls"
            context.error(tls, what, "add certificates: [NAME], or tls: [{certificate: NAME}] in an ingress")


class _Claims:
    """The hosts with paths, default backends and certificates of hosts that each listener already serves."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._paths: dict[tuple[str, str, PathType, str, Conditions], Place] = {}
        self._patterns: dict[tuple[str, str], dict[bytes, list[Place]]] = {}  # by listener and host; fixed beginning
        self._defaults: dict[tuple[str, str], Place] = {}  # by listener and host; "": for hosts without a rule
        self._claimed_keys: list[tuple[Place, list[tuple[str, str]]]] = []  # keys in `_defaults` by default backend
        self._tls: dict[tuple[str, str], tuple[str, Place]] = {}

    def _count(self, listener: str, host: str, path: str, where: Place) -> None:
        try:
            begin = LinearRegex(path).beginning
        except PatternError:
            return  # the error was reported with the path
        self._patterns.setdefault((listener, host), {}).setdefault(begin, []).append(where)

    def check_patterns(self) -> None:
        """Report patterns of a host if a request can be compared with more than MAX_PATTERNS of them."""
        for (listener, host), by_begin in self._patterns.items():
            for begin, places in by_begin.items():
                with_shorter_beginning = sum(len(by_begin.get(begin[:length], ())) for length in range(len(begin)))
                if with_shorter_beginning + len(places) > MAX_PATTERNS:
                    which = (
                        f"for {host or 'every host'} that begin with {begin.decode('utf-8', 'replace') or 'anything'}"
                    )
                    what = f"listener {listener} has more than {MAX_PATTERNS} paths of type Regex {which}"
                    right = "have them begin differently, or write Prefix or Exact: of those there may be thousands"
                    self._context.error(places[max(0, MAX_PATTERNS - with_shorter_beginning)], what, right)

    def add(self, place: Place, ingress: Ingress) -> None:
        """Report paths and hosts that this or another ingress on the same listener already serves, each place once."""
        reported: set[str] = set()
        for listener in ingress.listeners:
            for host, kind, path, conditions, where in _paths(place):
                first = self._paths.setdefault((listener, host, kind, _normal(kind, path), conditions), where)
                if kind is PathType.REGEX:
                    self._count(listener, host, path, where)
                if first is not where and where.key not in reported:
                    reported.add(where.key)
                    alike = " with the same conditions" if any(conditions) else ""
                    matched = f"{kind} {path} of {host or 'every host'}{alike}"
                    what = f"listener {listener} has a backend for {matched} already, "
                    self._context.error(where, f"{what}at {first.mark}", "keep one of the two")
            self._certificates(place, listener, reported)
        default = place.get("defaultBackend")
        if default is not None:
            self._default(default, list(dict.fromkeys(rule.host for rule in ingress.rules)), ingress.listeners)

    def _default(self, default: Place, hosts: Sequence[str], listeners: Sequence[str]) -> None:
        """Claim the default backend for hosts of the ingress's rules and for all other hosts. The first claim wins."""
        for listener in listeners:
            for host in hosts or ("",):
                first = self._defaults.get((listener, host))
                if first is not None and (host or self._has_no_hosts(first)):
                    what = (
                        f"listener {listener} has a default backend for {host or 'every host'} already, at {first.mark}"
                    )
                    self._context.error(default, what, "keep one of the two")
                    return
        keys = [(listener, host) for listener in listeners for host in dict.fromkeys((*hosts, ""))]
        for key in keys:
            self._defaults.setdefault(key, default)
        self._claimed_keys.append((default, keys))

    def _has_no_hosts(self, default: Place) -> bool:
        return any(place is default and all(not host for _, host in keys) for place, keys in self._claimed_keys)

    def _certificates(self, place: Place, listener: str, reported: set[str]) -> None:
        for entry in place.children("tls"):
            certificate = entry.text("certificate")
            for item in entry.children("hosts") if certificate is not None else ():
                assert certificate is not None
                host = _host(item)
                first, where = self._tls.setdefault((listener, host), (certificate, item))
                if first != certificate and item.key not in reported:
                    reported.add(item.key)
                    what = f"{host} has certificate {first} on listener {listener} already, at {where.mark}"
                    self._context.error(item, what, "give it one certificate")

    def check_shadowed(self) -> None:
        """Warn of default backends and patterns that no request reaches, because an earlier rule matches every path."""
        for (listener, host, kind, _, _), where in self._paths.items():
            first = self._paths.get((listener, host, PathType.PREFIX, "/", ((), (), ())))
            if kind is PathType.REGEX and first is not None:
                what = f"is never reached: a Prefix comes before a Regex, and {first.mark} is one for every path"
                self._context.warn(where, "shadowed-path", what, "write a longer Prefix there, or a Regex such as /.*")
        for default, keys in self._claimed_keys:
            before = [self._before(default, key) for key in keys]
            if before and before[0] is not None and all(before):
                what = f"is never reached: what is at {before[0].mark} comes before it"
                self._context.warn(default, "shadowed-path", what, "take one of the two out")

    def _before(self, default: Place, key: tuple[str, str]) -> Place | None:
        rule = self._paths.get((*key, PathType.PREFIX, "/", ((), (), ())))
        return rule or (self._defaults[key] if self._defaults[key] is not default else None)


def _host(place: Place | None) -> str:
    return (place.string or "").lower().rstrip(".") if place is not None else ""


Conditions = tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]
"""Methods, header fields (names in lower case) and query parameters, each sorted."""


def _paths(place: Place) -> Iterator[tuple[str, PathType, str, Conditions, Place]]:
    """Yield host, type, path, conditions and place of each path."""
    for rule in place.children("rules"):
        for entry in rule.children("paths"):
            path, kind = entry.get("path"), entry.text("pathType")
            if path is not None and kind is not None:
                methods = sorted({item.string or "" for item in entry.children("methods")})
                headers, query = entry.get("headers"), entry.get("query")
                conditions = (
                    tuple(methods),
                    tuple(sorted((name.lower(), value.string or "") for name, value in _entries(headers))),
                    tuple(sorted((name, value.string or "") for name, value in _entries(query))),
                )
                yield _host(rule.get("host")), PathType(kind), path.string or "", conditions, path


def _entries(place: Place | None) -> Iterator[tuple[str, Place]]:
    return place.entries() if place is not None else iter(())


def _normal(kind: PathType, path: str) -> str:
    """Return the path for comparison: a Prefix path is the same with and without its trailing slash."""
    return path.rstrip("/") or "/" if kind is PathType.PREFIX else path


def _tls(context: Context, place: Place, ingress: Ingress, listeners: Mapping[str, ListenerConfig]) -> None:
    """Warn of a `tls` entry that no listener serves, and of redirect keys without redirects."""
    on = [listeners[name] for name in ingress.listeners if name in listeners]
    on = [listener for listener in on if listener.serves is Serves.INGRESS]
    complete = len(on) == len(list(place.children("listeners")) or on)
    written = place.get("tls")
    if written is None or not ingress.tls:
        for key in ("redirectToTLS", "redirectPort"):
            given = place.get(key)
            if given is not None and given.value not in (False, 443) and written is None:
                what = "redirects hosts of tls, and this ingress has none"
                context.warn(given, "no-effect", what, "take it out, or add tls: [{hosts: [NAME], certificate: NAME}]")
        return
    plain = [listener for listener in on if listener.tls is None]
    port = place.get("redirectPort")
    if port is not None and not ingress.redirect_to_tls and ingress.redirect_port != 443:
        context.warn(port, "no-effect", "nothing is redirected with redirectToTLS: false", "take it out")
    if not on or not complete or len(plain) < len(on):
        return
    what = "none of its listeners has tls, so its certificates are never used, and nothing is redirected"
    context.warn(written, "no-effect", what, "name a listener with tls, or take it out")


def _coverage(
    context: Context,
    place: Place,
    ingress: Ingress,
    listeners: Mapping[str, ListenerConfig],
    certificates: ListSection[Certificate],
) -> None:
    """Warn of hosts that no certificate covers, unless a certificate has errors or is not read (offline)."""
    good = {
        certificate.name: certificate.server_names
        for written, certificate in certificates.valid
        if written.has("serverNames") or not context.offline
    }
    for entry in place.children("tls"):
        patterns = good.get(entry.text("certificate") or "")
        for item in entry.children("hosts"):
            host = _host(item)
            if patterns is not None and is_server_name(host) and not any(covers(pattern, host) for pattern in patterns):
                what = f"certificate {entry.text('certificate')} does not cover {host}"
                right = "clients will refuse the connection; name another certificate"
                context.warn(item, "certificate-names", what, right)
    for name in ingress.listeners:
        tls = listeners[name].tls if name in listeners else None
        if tls is None or not tls.all_certificates or not good.keys() >= set(tls.all_certificates):
            continue
        offered = [pattern for certificate in tls.all_certificates for pattern in good[certificate]]
        offered += [host for host, _ in tls.hosts]  # a certificate that does not cover these was reported above
        for rule in place.children("rules"):
            written = rule.get("host")
            host = _host(written)
            known = not is_server_name(host) or is_ip(host) or any(covers(pattern, host) for pattern in offered)
            if written is not None and not known:
                what = f"no certificate of listener {name} covers {host}"
                right = "clients will refuse the connection; add tls: [{hosts: [HOST], certificate: NAME}]"
                context.warn(written, "certificate-names", what, right)


def _credentials(context: Context, place: Place, clusters: dict[str, Named[ClusterConfig]]) -> None:
    seen: set[str] = set()
    backends = [
        backend
        for rule in place.children("rules")
        for path in rule.children("paths")
        for backend in (path.get("backend"), *(share.get("backend") for share in path.children("backends")))
        if backend is not None
    ]
    default = place.get("defaultBackend")
    for backend in (*backends, *([default] if default is not None else ())):
        for item in backend.children("clusters"):
            name = item.string or ""
            cluster = clusters.get(name)
            if cluster is None or cluster.value is None:
                continue
            via = backend.text("via")
            if via in (Via.PORT_FORWARD, Via.API_SERVER) and credential_checks.is_anonymous(
                cluster.place, cluster.value
            ):
                what = f"cluster {name} has no credentials, and via: {via} uses the proxy's own"
                context.error(item, what, f"give cluster {name} credentials; mcproxy rbac prints the rights they need")
            elif name not in seen:
                warn_of_anonymous_reading(context, item, name, clusters)
            seen.add(name)
