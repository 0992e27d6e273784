"""Exported services and ingresses that are right, and what they become; errors are in cases/."""

from ipaddress import ip_network
from pathlib import Path

import pytest

from mcproxy.config.load import load
from mcproxy.config.model import (
    Affinity,
    AffinityCookie,
    BackendHealthCheck,
    BackendProtocol,
    BackendTLS,
    Config,
    ExportType,
    HashBy,
    HeaderEdits,
    HTTPProtocol,
    Ingress,
    IngressBackend,
    IngressPath,
    IngressRule,
    IngressTLS,
    IPFamily,
    ListenerTLS,
    PathType,
    PEMFile,
    Redirect,
    RouteFilters,
    SameSite,
    ServiceDiscovery,
    ServiceExport,
    ServicePort,
    Strategy,
    Via,
    WildcardLabels,
)
from mcproxy.config.problem import ConfigErrors
from tests.config.pki import NOW

REST = """
version: 1
listeners:
  - {name: plain, serves: Ingress, bind: "0.0.0.0:80", protocols: [HTTP2, HTTP1]}
  - {name: tls, serves: Ingress, bind: "0.0.0.0:443", tls: {certificates: [d]}}
  - {name: api, bind: "127.0.0.1:1"}
certificates:
  - {name: c, certFile: good.crt, keyFile: good.key}
  - {name: d, certFile: good.crt, keyFile: good.key, serverNames: [web.example.com, d.example.com]}
clusters:
  - {name: east, endpoints: [{url: "https://10.0.0.1"}], tls: {caFile: ca.crt}, credentials: {token: t}}
  - {name: west, endpoints: [{url: "https://10.0.0.2"}], tls: {caFile: ca.crt}, credentials: {token: t}}
  - {name: metrics, endpoints: [{url: "https://10.0.0.3"}], tls: {caFile: ca.crt}, identity: Passthrough}
servers:
  - {name: s, default: true, backend: {cluster: east}, authentication: none,
     apiServices: [{group: metrics.k8s.io, version: v1, cluster: metrics}]}
"""


def loaded(folder: Path, text: str) -> Config:
    (folder / "services.yaml").write_text(REST + text)
    return load(str(folder / "services.yaml"), environ={}, now=NOW).config


def test_an_export_with_everything(folder: Path) -> None:
    config = loaded(
        folder,
        """serviceExports:
  - {name: a, namespace: demo, service: serve, from: [west], to: [east], type: Headless, allowedCIDRs: [10.2.0.0/16],
     ports: [{name: web, port: 80, targetPort: http, appProtocol: kubernetes.io/h2c},
       {name: x, port: 80, protocol: UDP}]}
""",
    )
    assert config.service_exports == (
        ServiceExport(
            name="a",
            namespace="demo",
            service="serve",
            from_clusters=("west",),
            to=("east",),
            type=ExportType.HEADLESS,
            ports=(
                ServicePort(name="web", port=80, target_port="http", app_protocol="kubernetes.io/h2c"),
                ServicePort(name="x", port=80, protocol="UDP"),
            ),
            allowed_cidrs=(ip_network("10.2.0.0/16"),),
        ),
    )


def test_the_least_export_is_as_its_source_is(folder: Path) -> None:
    text = "serviceExports: [{name: a, namespace: demo, service: serve, from: [west, east], to: [east, west]}]"
    [export] = loaded(folder, text).service_exports
    assert export == ServiceExport(
        name="a", namespace="demo", service="serve", from_clusters=("west", "east"), to=("east", "west")
    )


def test_discovery_is_of_all_clusters_that_are_no_api_servers_of_others(folder: Path) -> None:
    assert loaded(folder, "").service_discovery == ServiceDiscovery()
    found = loaded(folder, "serviceDiscovery: {enabled: true}").service_discovery
    assert found == ServiceDiscovery(enabled=True, clusters=("east", "west"))
    found = loaded(folder, "serviceDiscovery: {clusters: [west], allowedCIDRs: [10.0.0.0/8]}").service_discovery
    assert found == ServiceDiscovery(clusters=("west",), allowed_cidrs=(ip_network("10.0.0.0/8"),))


WEB = """ingresses:
  - name: web
    tls: [{hosts: [Web.example.com, "*.example.org"], certificate: c}, {certificate: d}]
    rules:
      - host: Web.example.com.
        paths:
          - {path: /a/, pathType: Prefix, backend: {namespace: demo, service: web, port: http, clusters: [east, west],
             weights: {west: 3}, affinity: Cookie, strategy: ConsistentHash, hashBy: {header: X-User},
             cookie: {name: route, maxAge: 1h, sameSite: Strict}, ipFamily: IPv6, retryOn: [502, 503],
             protocol: HTTP2, retries: 0, slowStart: 30s,
             connectTimeout: 1s, responseTimeout: 0, allowedCIDRs: [10.2.0.0/16], healthCheck: {path: /ok},
             tls: {caFile: ca.crt, serverName: a.b}}}
    defaultBackend: {namespace: demo, service: web, port: 81, clusters: [west], via: APIServer}
"""


def test_an_ingress_with_everything(folder: Path) -> None:
    [ingress] = loaded(folder, WEB).ingresses
    default = IngressBackend(namespace="demo", service="web", port=81, clusters=("west",), via=Via.API_SERVER)
    backend = IngressBackend(
        namespace="demo",
        service="web",
        port="http",
        clusters=("east", "west"),
        weights=(("west", 3),),
        affinity=Affinity.COOKIE,
        cookie=AffinityCookie(name="route", max_age=3600.0, same_site=SameSite.STRICT),
        strategy=Strategy.CONSISTENT_HASH,
        hash_by=HashBy(header="X-User"),
        slow_start=30.0,
        ip_family=IPFamily.IPV6,
        retry_on=(502, 503),
        protocol=BackendProtocol.HTTP2,
        tls=BackendTLS(ca=PEMFile(str(folder / "ca.crt"), (folder / "ca.crt").read_bytes()), server_name="a.b"),
        health_check=BackendHealthCheck(path="/ok"),
        retries=0,
        connect_timeout=1.0,
        response_timeout=0.0,
        allowed_cidrs=(ip_network("10.2.0.0/16"),),
    )
    assert ingress == Ingress(
        name="web",
        listeners=("plain", "tls"),
        tls=(
            IngressTLS(hosts=("web.example.com", "*.example.org"), certificate="c"),
            IngressTLS(hosts=(), certificate="d"),
        ),
        default_backend=default,
        rules=(
            IngressRule(
                host="web.example.com", paths=(IngressPath(path="/a/", path_type=PathType.PREFIX, backend=backend),)
            ),
        ),
    )
    assert ingress.backends == (backend, default)
    assert [backend.weight(name) for name in backend.clusters] == [1, 3]


def test_a_listener_has_the_certificates_of_its_ingresses(folder: Path) -> None:
    plain, tls, api = loaded(folder, WEB).listeners
    assert plain.tls is None
    assert plain.protocols == (HTTPProtocol.HTTP2, HTTPProtocol.HTTP1)
    # The first ingress that has a host decides, and a certificate without hosts is for its own names.
    hosts = (("web.example.com", "c"), ("*.example.org", "c"), ("d.example.com", "d"))
    assert tls.tls == ListenerTLS(certificates=("d",), hosts=hosts)
    assert tls.tls.all_certificates == ("d", "c")
    assert api.tls is None


def test_servers_and_ingresses_are_on_their_own_kinds_of_listeners(folder: Path) -> None:
    config = loaded(folder, WEB)
    assert config.servers[0].listeners == ("api",)
    assert config.ingresses[0].listeners == ("plain", "tls")


def test_the_default_of_a_listener_without_certificates_is_that_of_the_first_ingress(folder: Path) -> None:
    (folder / "services.yaml").write_text(REST.replace("tls: {certificates: [d]}", "tls: {}") + WEB)
    tls = load(str(folder / "services.yaml"), environ={}, now=NOW).config.listeners[1].tls
    assert tls is not None
    assert tls.certificates == ("c",)


def test_conditions_and_filters_of_a_path(folder: Path) -> None:
    config = loaded(
        folder,
        r"""ingresses:
  - name: web
    wildcardLabels: Any
    rules:
      - host: "*.example.com"
        paths:
          - path: /a(/|$$)(.*)
            pathType: Regex
            methods: [GET, HEAD]
            headers: {X-Version: two}
            query: {a: b}
            spill: true
            filters: {rewritePath: '/b/\2', rewriteHost: Inner.example., timeout: 5s, bodyBytes: 10Mi,
              requestHeaders: {set: {X-Team: web}, add: {X-More: "1"}, remove: [Cookie]}}
            backends:
              - {weight: 9, backend: &a {namespace: a, service: a, port: 80, clusters: [east], protocol: HTTPS,
                 readTimeout: 0s}}
              - {backend: {namespace: a, service: b, port: 80, clusters: [west], protocol: GRPC}}
          - path: /old
            pathType: Prefix
            filters: {redirect: {scheme: https, host: b, port: 1, prefix: /c, code: 308}}
""",
    )
    first, second = config.ingresses[0].rules[0].paths
    assert config.ingresses[0].wildcard_labels is WildcardLabels.ANY
    assert (first.path, first.path_type) == ("/a(/|$)(.*)", PathType.REGEX)
    assert first.methods == ("GET", "HEAD")
    assert (first.headers, first.query) == ((("x-version", "two"),), (("a", "b"),))
    assert first.spill
    assert first.filters == RouteFilters(
        rewrite_path=r"/b/\2",
        rewrite_host="inner.example",
        timeout=5.0,
        body_bytes=10 * 1024 * 1024,
        request_headers=HeaderEdits(set_=(("X-Team", "web"),), add=(("X-More", "1"),), remove=("Cookie",)),
    )
    assert [(backend.service, backend.protocol, backend.read_timeout, weight) for backend, weight in first.shares] == [
        ("a", BackendProtocol.HTTPS, 0.0, 9),
        ("b", BackendProtocol.GRPC, 60.0, 1),
    ]
    assert [backend.service for backend in config.ingresses[0].backends] == ["a", "b"]
    assert second.filters == RouteFilters(redirect=Redirect(scheme="https", host="b", port=1, prefix="/c", code=308))
    assert not second.shares


def test_the_patterns_of_a_host_are_limited(folder: Path) -> None:
    """A request may have to be compared with each of them."""
    paths = "".join(
        f"      - {{path: '/a[bc]{number}.*', pathType: Regex, filters: {{redirect: {{path: /}}}}}}\n"
        for number in range(102)
    )
    with pytest.raises(ConfigErrors) as raised:
        loaded(folder, f"ingresses:\n  - name: web\n    listeners: [plain]\n    rules:\n    - paths:\n{paths}")
    (problem,) = raised.value.problems
    assert "listener plain has more than 100 paths of type Regex for every host that begin with /a" in str(problem)


def test_a_host_may_have_thousands_of_patterns_that_begin_differently(folder: Path) -> None:
    """A request is compared with those alone that begin as its path does: those of /app, and of /app7 or another."""
    paths = "".join(
        f"      - {{path: '/{begin}', pathType: Regex, filters: {{redirect: {{path: /}}}}}}\n"
        for begin in ("app.*", *(f"app{number:04}(/|$$)(.*)" for number in range(2000)))
    )
    [ingress] = loaded(
        folder, f"ingresses:\n  - name: web\n    listeners: [plain]\n    rules:\n    - paths:\n{paths}"
    ).ingresses
    assert len(ingress.rules[0].paths) == 2001
