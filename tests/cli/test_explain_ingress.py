"""`mcproxy check --explain METHOD URL`: the rule, the certificate and the clusters of a request to ingresses."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from mcproxy.cli import check

CONFIG = """
version: 1
listeners:
  - {name: web, serves: Ingress, bind: "0.0.0.0:8080"}
  - {name: tls, serves: Ingress, bind: "0.0.0.0:8443", tls: {certificates: [other]}}
certificates:
  - {name: other, certFile: a.crt, keyFile: a.key}
  - {name: web, certFile: b.crt, keyFile: b.key}
clusters:
  - {name: east, endpoints: [{url: "https://10.0.0.1"}], credentials: {token: t}}
  - {name: west, endpoints: [{url: "https://10.0.0.2"}], credentials: {token: t}}
ingresses:
  - name: web
    tls: [{hosts: [web.example.com], certificate: web}]
    redirectPort: 8443
    rules:
      - host: web.example.com
        paths:
          - path: /a
            pathType: Prefix
            backend: {namespace: demo, service: web, port: http, clusters: [east, west], weights: {east: 3},
              affinity: Cookie, allowedCIDRs: [10.2.0.0/16], tls: {}}
          - {path: /none, pathType: Exact, backend: {namespace: demo, service: web, port: 1, clusters: [east],
             weights: {east: 0}}}
      - host: "*.example.org"
        paths: [{path: /, pathType: Exact, backend: {namespace: demo, service: b, port: 1, clusters: [west],
          via: APIServer}}]
  - {name: rest, listeners: [tls], defaultBackend: {namespace: demo, service: rest, port: 1, clusters: [west]}}
"""


def explain(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    url: str,
    *options: str,
    config: str = CONFIG,
    method: str = "GET",
) -> tuple[int, list[str]]:
    file = tmp_path / "mcproxy.yaml"
    file.write_text(config)
    parser = argparse.ArgumentParser()
    check.add_parser(parser.add_subparsers())
    status = check.run(parser.parse_args(["check", str(file), "--explain", method, url, *options]))
    captured = capsys.readouterr()
    return status, (captured.out or captured.err).splitlines()


def test_a_rule_with_its_certificate_and_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(tmp_path, capsys, "https://Web.example.com:8443/a/b?c") == (
        0,
        [
            'listener       "tls" (0.0.0.0:8443)',
            'certificate    "web", which is for "web.example.com"',
            'ingress        "web"',
            'rule           host "web.example.com", Prefix "/a"',
            "service        demo/web, port http",
            'cluster        "east", weight 3: 75 % of the requests',
            'cluster        "west", weight 1: 25 % of the requests',
            "via            the addresses of pods in 10.2.0.0/16",
            "strategy       RoundRobin, by cookie",
            'protocol       Auto, with TLS for "web.demo.svc"',
            "result         goes to a ready endpoint of these clusters; 503 while there is none",
        ],
    )


def test_a_plain_request_is_redirected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = explain(tmp_path, capsys, "http://web.example.com/a")
    assert status == 0
    assert lines[-2:] == [
        "redirect       308 to https://web.example.com:8443/a",
        "result         redirected to TLS",
    ]


def test_behind_a_trusted_proxy_it_may_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = CONFIG.replace('"0.0.0.0:8080"', '"0.0.0.0:8080", trustedProxies: [10.0.0.0/8]')
    status, lines = explain(tmp_path, capsys, "http://web.example.com/a", config=config)
    assert status == 0
    assert (
        "redirect       308 to https://web.example.com:8443/a unless a proxy of trustedProxies got it over https"
        in lines
    )
    assert lines[-1].startswith("result         goes to")


def test_through_api_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = explain(tmp_path, capsys, "https://x.example.org/")
    assert status == 0
    assert lines[1] == 'certificate    "other", the default, unless another one has the name "x.example.org" in it'
    assert lines[3] == 'rule           host "*.example.org", Exact "/"'
    assert lines[6] == "via            the clusters' API servers, with the proxy's own credentials"


def test_to_pods_through_api_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = CONFIG.replace("via: APIServer", "via: PortForward, protocol: GRPC")
    status, lines = explain(tmp_path, capsys, "https://x.example.org/", config=config)
    assert status == 0
    assert lines[6:9] == [
        "via            pods, forwarded by the clusters' API servers, with the proxy's own credentials",
        "strategy       RoundRobin",
        "protocol       GRPC",
    ]


@pytest.mark.parametrize(
    ("url", "last"),
    [
        ("http://web.example.com/b", "result         refused: 404, no rule for this host and path"),
        ("https://web.example.com/none", "result         refused: 503, the weights of all clusters are 0"),
        ("https://x.example.org/%00", "result         refused: 400, malformed percent-encoding in the path"),
    ],
)
def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, last: str) -> None:
    status, lines = explain(tmp_path, capsys, url)
    assert (status, lines[-1]) == (1, last)


def test_the_default_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = explain(tmp_path, capsys, "https://any.test/", method="post")
    assert status == 0
    assert lines[2:5] == [
        'ingress        "rest"',
        "rule           the default backend",
        "service        demo/rest, port 1",
    ]


@pytest.mark.parametrize(
    ("url", "options", "wrong"),
    [
        ("https://", (), '"https://" is not a URL such as https://web.example.com/path'),
        ("https://a:b/", (), "is not a URL: Port could not be cast"),
        ("https://u@a/", (), "is not a URL such as"),
        ("https://a/b c", (), "is not a path"),
        ("http://a/", ("--user", "alice"), "--user goes with a path of an API server, not with a URL"),
    ],
)
def test_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, options: tuple[str, ...], wrong: str
) -> None:
    status, lines = explain(tmp_path, capsys, url, *options)
    assert status == 2
    assert wrong in lines[0]


def test_there_must_be_a_listener_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    none = "version: 1\nlisteners: []\n"
    assert explain(tmp_path, capsys, "http://a/", config=none) == (
        2,
        ["mcproxy check: the file has no listener that serves Ingress"],
    )
    plain = CONFIG.replace(", tls: {certificates: [other]}", "")
    assert explain(tmp_path, capsys, "https://a/", config=plain)[1] == [
        "mcproxy check: no listener that serves Ingress is with tls"
    ]


RULES = """
version: 1
listeners:
  - {name: web, serves: Ingress, bind: "0.0.0.0:8080"}
clusters:
  - {name: east, endpoints: [{url: "https://10.0.0.1"}], credentials: {token: t}}
ingresses:
  - name: web
    rules:
      - host: web.example.com
        paths:
          - {path: /a, pathType: Prefix, filters: {rewritePrefix: /, rewriteHost: inner.example},
             backend: &web {namespace: demo, service: web, port: http, clusters: [east]}}
          - {path: /a, pathType: Prefix, methods: [POST], query: {x: "1"}, backend: *web}
          - {path: /a, pathType: Prefix, headers: {X-V: two}, backend: *web}
          - {path: /old, pathType: Exact, filters: {redirect: {path: /new, code: 301}}}
          - path: /shared
            pathType: Prefix
            backends:
              - {weight: 3, backend: *web}
              - {weight: 1, backend: {namespace: demo, service: next, port: 80, clusters: [east]}}
          - {path: /none, pathType: Prefix, backends: [{weight: 0, backend: *web}]}
          - {path: '/r/(.*)', pathType: Regex, filters: {rewritePath: '/x/\\1'}, backend: *web}
"""


@pytest.mark.parametrize(
    ("method", "url", "expected"),
    [
        ("GET", "/a/b?x=1", ['otherwise      by its header fields: host "web.example.com", Prefix "/a", header '
                             'x-v: "two"', "rewritten      inner.example/b?x=1"]),
        ("POST", "/a?x=1", ['rule           host "web.example.com", Prefix "/a", method POST, query x="1"']),
        ("GET", "/old?q", ["redirect       301 to http://web.example.com:8080/new?q", "result         redirected by "
                           "the rule"]),
        ("GET", "/shared", ["backend        weight 3: 75 % of the requests", "service        demo/web, port http",
                            "backend        weight 1: 25 % of the requests", "service        demo/next, port 80"]),
        ("GET", "/none", ["result         refused: 500, the weights of all backends are 0"]),
        ("GET", "/r/y/z", ['rule           host "web.example.com", Regex "/r/(.*)"', "rewritten      /x/y/z"]),
        ("GET", "/r/../z", ["result         refused: 400, a segment .. in the path: clients resolve it themselves"]),
    ],
)  # fmt: skip
def test_conditions_and_filters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, url: str, expected: list[str]
) -> None:
    _, lines = explain(tmp_path, capsys, f"http://web.example.com:8080{url}", config=RULES, method=method)
    assert [line for line in lines if line in expected] == expected


def test_a_running_daemon_says_which_endpoints_there_are_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"service": "demo/web", "port": "http", "cluster": "east", "via": "Endpoints", "ready": 4, "cause": ""}
    out = [{"endpoint": "10.0.0.3:80", "cause": "it did not answer in time"}]
    ready = ["10.0.0.1:80", "10.0.0.2:80\x1b[2J"]
    away = {**known, "cluster": "west", "ready": 0, "stale": True, "cause": "there is no service"}
    status = {"ingressServices": [{**known, "readyEndpoints": ready, "outEndpoints": out}, away]}
    asked = []

    def ask(file: str, timeout: float) -> tuple[object, str]:
        asked.append(file)
        return status, ""

    monkeypatch.setattr("mcproxy.cli.status.ask", ask)
    _, lines = explain(tmp_path, capsys, "https://web.example.com:8443/a")
    assert [line for line in lines if line.startswith("now")] == [
        'now            "east": 10.0.0.1:80, 10.0.0.2:80?[2J, 1 more; out: 10.0.0.3:80 (it did not answer in time)',
        'now            "west": none; the cluster cannot be asked: the last known ones; there is no service',
    ]
    assert asked == [str(tmp_path / "mcproxy.yaml")]
    _, lines = explain(tmp_path, capsys, "https://web.example.com:8443/a", "--offline")
    assert not [line for line in lines if line.startswith("now")]
