"""`mcproxy check --explain METHOD URL`: explains which ingress rule applies to a request, and where it is sent.

It explains the decisions that depend on the file alone: listener, certificate, rule, redirect, backend. The endpoint
is chosen at run time; a daemon that runs the file reports its current endpoints. No connection to a pod is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mcproxy.cli.terminal import clean
from mcproxy.config import model
from mcproxy.config.server_names import is_ip, is_server_name
from mcproxy.dispatch.explain import shown
from mcproxy.net.name_table import NameTable
from mcproxy.services.ingress.live_ingresses import redirected_hosts
from mcproxy.services.ingress.request_paths import BadPath
from mcproxy.services.ingress.router import Route, RouteChanges, Router, routes_of

_PORTS = {"http": 80, "https": 443}


class URLError(Exception):
    """A URL that no request to an ingress can have."""


def is_url(target: str) -> bool:
    """Return whether the argument of `--explain` is a URL, and not the path of an API request."""
    return target.lower().startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class URL:
    scheme: str
    host: str
    port: int
    target: bytes  # path and query


def read_url(text: str) -> URL:
    """Parse a URL. Raises URLError."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise URLError(f"{shown(text)} is not a URL: {error}") from None
    host = (parts.hostname or "").rstrip(".")
    if not (is_server_name(host) or is_ip(host)) or parts.username is not None:
        raise URLError(f"{shown(text)} is not a URL such as https://web.example.com/path")
    path = parts.path or "/"
    if not path.isascii() or not path.isprintable() or " " in path:
        raise URLError(f"{shown(path)} is not a path; it is percent-encoded, as in a URL")
    target = path + (f"?{parts.query}" if parts.query else "")
    return URL(parts.scheme, host, port or _PORTS[parts.scheme], target.encode())


class IngressTrace:
    """A request to the ingresses of the file; `refused` is whether a listener refuses it."""

    def __init__(
        self, config: model.Config, url: URL, method: str = "GET", status: Mapping[str, Any] | None = None
    ) -> None:
        """`status` is the document of a running daemon. Raises URLError if the request cannot reach a listener."""
        self._config = config
        self._services = {
            (each.get("service"), each.get("port"), each.get("cluster"), each.get("via")): each
            for each in (status or {}).get("ingressServices") or ()
        }
        self._method = method.upper()
        self._url = url
        self.refused = False
        self._listeners = _listeners(config, url)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines, each as a label and a text, for each listener that can get the request."""
        for listener in self._listeners:
            yield "listener", f"{shown(listener.name)} ({listener.bind})"
            if listener.tls is not None:
                yield "certificate", _certificate(self._config, listener.tls, self._url.host)
            yield from self._route(listener)

    def _route(self, listener: model.ListenerConfig) -> Iterator[tuple[str, str]]:
        ingresses = [ingress for ingress in self._config.ingresses if listener.name in ingress.listeners]
        router = Router((route, route) for route in routes_of(ingresses))
        try:
            found = router.find(self._url.host.encode(), self._url.target, self._method.encode())
        except BadPath as error:
            yield self._refuse(400, str(error))
            return
        if found is None:
            names = ", ".join(shown(host) for host in _hosts(ingresses, self._url.host)) or "none"
            yield "rules", f"none matches; hosts that do: {names}"
            yield self._refuse(404, "no rule for this host and path")
            return
        route, target = found
        yield "ingress", shown(route.ingress.name)
        yield "rule", _described(route)
        yield from self._on_fields(router, ingresses)
        redirected = redirected_hosts(self._config, listener, route.ingress)
        if redirected is not None and redirected.find(self._url.host):
            port = "" if route.ingress.redirect_port == 443 else f":{route.ingress.redirect_port}"
            where = f"https://{self._url.host}{port}{target.decode()}"
            believed = " unless a proxy of trustedProxies got it over https" if listener.trusted_proxies else ""
            yield "redirect", f"308 to {where}{believed}"
            if not listener.trusted_proxies:
                yield "result", "redirected to TLS"
                return
        if route.filters is not None:
            try:
                changes = RouteChanges(route)
                if changes.redirect is not None:
                    location = changes.redirect.location(self._authority, target, https=self._url.scheme == "https")
                    yield "redirect", f"{changes.redirect.code} to {location.decode()}"
                    yield "result", "redirected by the rule"
                    return
                sent = changes.target(target)
            except BadPath as error:
                yield self._refuse(400, str(error))
                return
            if sent != target or changes.host is not None:
                yield "rewritten", f"{'' if changes.host is None else changes.host.decode()}{sent.decode()}"
        total = sum(weight for _, weight in route.shares)
        for backend, weight in route.shares:
            if len(route.shares) > 1:
                share = f"{100 * weight / total:.3g} % of the requests" if weight else "none of the requests"
                yield "backend", f"weight {weight}: {share}"
            yield from _backend(backend)
            yield from self._endpoints(backend)
        if not total:
            yield self._refuse(500, "the weights of all backends are 0")
            return
        used = [backend for backend, weight in route.shares if weight]
        if not any(backend.weight(cluster) for backend in used for cluster in backend.clusters):
            yield self._refuse(503, "the weights of all clusters are 0")
            return
        yield "result", "goes to a ready endpoint of these clusters; 503 while there is none"

    def _endpoints(self, backend: model.IngressBackend) -> Iterator[tuple[str, str]]:
        """Yield the current endpoints of a running daemon, by cluster; none without a daemon."""
        for cluster in backend.clusters:
            service = f"{backend.namespace}/{backend.service}"
            now = self._services.get((service, str(backend.port), cluster, str(backend.via)))
            if now is None:
                continue
            names = [clean(str(each)) for each in now.get("readyEndpoints") or ()]
            out = [clean(f"{each.get('endpoint')} ({each.get('cause')})") for each in now.get("outEndpoints") or ()]
            more = int(now.get("ready") or 0) - len(names) - len(out)
            words = [
                ", ".join([*names, *([f"{more} more"] if more > 0 else ())]) or "none",
                *([f"out: {', '.join(out)}"] if out else ()),
                *(["the cluster cannot be asked: the last known ones"] if now.get("stale") else ()),
                *([clean(str(now["cause"]))] if now.get("cause") else ()),
            ]
            yield "now", f"{shown(cluster)}: {'; '.join(words)}"

    @property
    def _authority(self) -> bytes:
        host = f"[{self._url.host}]" if ":" in self._url.host else self._url.host
        own = self._url.port == _PORTS[self._url.scheme]
        return (host if own else f"{host}:{self._url.port}").encode()

    def _on_fields(self, router: Router[Route], ingresses: Sequence[model.Ingress]) -> Iterator[tuple[str, str]]:
        """Yield a line for each rule that would apply to the request with other header fields."""
        for route in routes_of(ingresses):
            rule = route.rule
            if rule is None or not rule.headers:
                continue
            fields = "".join(f"{name}: {value}\r\n" for name, value in rule.headers).encode()
            found = router.find(self._url.host.encode(), self._url.target, self._method.encode(), fields)
            if found is not None and found[0].rule is rule:
                yield "otherwise", f"by its header fields: {_described(route)}"

    def _refuse(self, code: int, message: str) -> tuple[str, str]:
        self.refused = True
        return "result", f"refused: {code}, {message}"


def _listeners(config: model.Config, url: URL) -> Sequence[model.ListenerConfig]:
    """Return the listeners that can get a request: those with its port, else all with or all without TLS.

    Behind a load balancer or a firewall that maps ports, a listener's port usually differs from the URL's.
    """
    serving = [listener for listener in config.listeners if listener.serves is model.Serves.INGRESS]
    if not serving:
        raise URLError("the file has no listener that serves Ingress")
    alike = [listener for listener in serving if (listener.tls is not None) == (url.scheme == "https")]
    if not alike:
        raise URLError(f"no listener that serves Ingress is {'with' if url.scheme == 'https' else 'without'} tls")
    exact = [each for each in alike if isinstance(each.bind, model.TCPBind) and each.bind.port == url.port]
    return exact or alike


def _certificate(config: model.Config, tls: model.ListenerTLS, host: str) -> str:
    known = {certificate.name: certificate.server_names for certificate in config.certificates}
    names = [*tls.hosts, *((each, name) for name in tls.all_certificates for each in known.get(name, ()))]
    found = NameTable(names).find(host)
    if found is not None:
        return f"{shown(found)}, which is for {shown(host)}"
    return f"{shown(tls.certificates[0])}, the default, unless another one has the name {shown(host)} in it"


def _hosts(ingresses: Sequence[model.Ingress], host: str) -> list[str]:
    """Return the hosts of the rules that can match a request for `host`."""
    wanted = (host, f"*.{host.partition('.')[2]}", "")
    found = dict.fromkeys(rule.host for ingress in ingresses for rule in ingress.rules if rule.host in wanted)
    return [each or "every host" for each in found]


def _described(route: Route) -> str:
    if not route.path:
        return "the default backend"
    host = f"host {shown(route.host)}" if route.host else "every host"
    rule = route.rule
    assert rule is not None
    conditions = [
        *([f"method {' or '.join(rule.methods)}"] if rule.methods else ()),
        *(f"header {name}: {shown(value)}" for name, value in rule.headers),
        *(f"query {name}={shown(value)}" for name, value in rule.query),
    ]
    return ", ".join([host, f"{route.path_type} {shown(route.path)}", *conditions])


def _strategy(backend: model.IngressBackend) -> str:
    text = str(backend.strategy)
    if backend.strategy is model.Strategy.CONSISTENT_HASH:
        by = backend.hash_by or model.HashBy()
        what = f"header {by.header}" if by.header else f"cookie {by.cookie}" if by.cookie else "the client's address"
        text += f" by {what}"
    return text + (", by cookie" if backend.affinity is model.Affinity.COOKIE else "")


def _backend(backend: model.IngressBackend) -> Iterator[tuple[str, str]]:
    yield "service", f"{backend.namespace}/{backend.service}, port {backend.port}"
    total = sum(backend.weight(cluster) for cluster in backend.clusters)
    for cluster in backend.clusters:
        weight = backend.weight(cluster)
        share = f"{100 * weight / total:.3g} % of the requests" if weight else "none of the requests"
        yield "cluster", f"{shown(cluster)}, weight {weight}: {share}"
    if backend.via is model.Via.API_SERVER:
        yield "via", "the clusters' API servers, with the proxy's own credentials"
        return
    allowed = ", ".join(str(network) for network in backend.allowed_cidrs)
    pods = f"pods{f' in {allowed}' if allowed else ''}"
    if backend.via is model.Via.PORT_FORWARD:
        yield "via", f"{pods}, forwarded by the clusters' API servers, with the proxy's own credentials"
    else:
        yield "via", f"the addresses of {pods}"
    yield "strategy", _strategy(backend)
    name = f"{backend.service}.{backend.namespace}.svc"
    tls = f", with TLS for {shown(backend.tls.server_name or name)}" if backend.tls is not None else ""
    yield "protocol", f"{backend.protocol}{tls}"
