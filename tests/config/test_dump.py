"""The effective configuration is valid by the schema and, unmasked, loads to the same model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.dump import MASK, effective, resolved, to_json, to_yaml
from mcproxy.config.load import load
from mcproxy.config.loaded import Loaded
from mcproxy.config.model import Config
from mcproxy.config.problem import Problems
from mcproxy.config.reading.nodes import Mapping, Node, Scalar, Sequence
from mcproxy.config.reading.schema_check import load_schema
from mcproxy.config.reading.yaml_text import read_yaml
from tests.config.pki import NOW

FULL = """
version: 1
daemon: {controlSocket: run/c.sock, shutdownDelay: 1m30s, drainTimeout: 0, stateDir: state, sharedState: {redis: {url: "rediss://r:1/2",
  caFile: ca.crt, certFile: client.crt, keyFile: client.key, username: m, passwordFile: token, prefix: p}}}
listeners:
  - {name: a, bind: "0.0.0.0:6443", tls: {certificates: [k8s], minVersion: "1.3"}, proxyProtocol: {from: [10.0.0.0/8]},
     goawayChance: 0.001, limits: {streams: 7}}
  - {name: b, bind: "[::1]:0", trustedProxies: ["fd00::/8"], freeBind: true,
     limits: {headBytes: 1000, bodyBytes: 16Mi, idleTimeout: 0, stallTimeout: 0, connectionsPerClient: 7}}
  - {name: c, bind: "unix:/run/a b.sock", mode: "660", group: root}
  - {name: d, bind: "systemd:api"}
  - {name: e, bind: "127.0.0.1:0", tls: {certificates: [k8s]}, protocols: [HTTP1], goawayChance: 0}
  - {name: f, bind: "127.0.0.1:0", tls: {certificates: [k8s]}, protocols: [HTTP1, HTTP2]}
  - {name: g, serves: Ingress, bind: "127.0.0.1:0", protocols: [HTTP2, HTTP1]}
  - {name: h, serves: Ingress, bind: "127.0.0.1:0", tls: {}}
  - {name: i, dial: {tunnel: up, urls: ["https://Hub-1.example", "https://[FD00::1]:6443"], serverName: tunnels.example,
     tls: {caFile: ca.crt, certFile: client.crt, keyFile: client.key}, keepAlive: 1m, maxConnections: 7},
     goawayChance: 0.001, limits: {streams: 9}}
  - {name: j, dial: {tunnel: "on", urls: ["https://hub.example"], tls: {caFile: ca.crt},
     credentials: {tokenFile: token}, proxy: {url: "http://proxy.example:3128", user: edge, passwordFile: token}}}
tunnels:
  - {name: site-a, users: ["edge$$", "0", "system:serviceaccount:a:b"], maxConnections: 5}
  - {name: "null", users: [edge]}
certificates: [{name: k8s, certFile: good.crt, keyFile: good.key}, {name: "0x1", certFile: good.crt, keyFile: good.key}]
clusters:
  - name: "0123"
    labels: {on: "on", "22:22": "1e3", x: "$${HOME}", y: "a\\u2028b\\x7f", z: ""}
    endpoints: [{name: "true", url: "https://10.0.0.1", weight: 3}, {url: "https://[fd00::1]:6443/a", disabled: true}]
    tls: {caFile: ca.crt, serverName: kubernetes}
    credentials: {token: "hush$$", certFile: client.crt, keyFile: client.key}
    identity: Proxy
    healthCheck: {interval: 500ms}
    connections: {protocol: HTTP1, maxIdle: 1}
    proxy: {url: "http://proxy.example.com:3128", user: edge, passwordFile: token}
    preserveHost: true
    flowControls: [bucket, slow]
  - name: exec
    endpoints: [{url: "https://10.0.0.1"}]
    tls: {insecureSkipVerify: true}
    credentials: {exec: {command: ./plugin, args: [-a, "", "b c"], env: {A: hush, B: "null"}, installHint: "get: it"}}
    identity: Proxy
  - {name: kube, identity: Passthrough, kubeconfig: {file: dump.kubeconfig}}
  - name: told
    kubeconfig: {file: dump.kubeconfig}
    impersonateExtras: [scopes, example.com/team]
  - name: front
    endpoints: [{url: "https://10.0.0.1"}]
    identity: RequestHeader
    frontProxy: {certFile: client.crt, keyFile: client.key}
  - name: site
    identity: RequestHeader
    endpoints:
      [{tunnel: site-a}, {name: b, tunnel: "null", path: /clusters/k/, weight: 2}, {tunnel: site-a, path: /clusters/b}]
  - {name: mixed, identity: Proxy, endpoints: [{url: "https://10.0.0.1"}, {tunnel: "null", disabled: true}]}
authentication:
  - name: corp
    requestHeader: {caFile: front-ca.crt, allowedNames: [front]}
    clientCertificates: {caFile: ca.crt, crlFile: ca.crl, clusterCA: kube}
    tokenFile: tokens/good.csv
    oidc:
      - {issuer: "https://a.example.com", audiences: [k8s, other], jwksFile: jwks/good.json}
      - {issuer: "https://b.example.com/", audiences: [k8s], jwksURL: "https://b.example.com/k?a=$$", caFile: ca.crt,
         usernameClaim: email, groupsClaim: groups, groupsPrefix: "b:"}
      - {issuer: "https://c.example.com", audiences: [k8s], usernamePrefix: "-", groupsClaim: groups,
         requiredClaims: {hd: "a$$"}, distributedClaims: Ignore}
    tokenReview: {cluster: kube, audiences: [a], cacheSuccess: 0, cacheFailure: 1s}
    webhook: {kubeconfig: dump.kubeconfig, version: v1beta1, cacheSuccess: 1m}
    anonymous: {enabled: true, paths: [/healthz]}
    allowSystemNames: true
    shareServiceAccounts: true
  - {name: "null", tokenReview: {}, requestHeader: {caFile: front-ca.crt}}
  - {name: hubs, requestHeader: {listeners: [i, j], hubUser: "mcproxy$$hub"}}
  - {name: both, requestHeader: {listeners: [i], hubUser: "system:hub", caFile: front-ca.crt, allowedNames: [a]},
     allowSystemNames: true}
authorization:
  - {name: local, rules: [{verbs: [impersonate], users: ["a*"], apiGroups: [""], resources: [users]}, {}]}
  - {name: "on", subjectAccessReview: {cluster: kube, cacheDenied: 0}}
  - {name: both, rules: [{verbs: ["*"], nonResourceURLs: ["*"]}], subjectAccessReview: {}}
flowControls:
  - {name: inflight, type: MaxRequestsInflight, max: 0, maxLongRunning: 5, queue: {size: 1, timeout: 2m30s},
     shared: true}
  - {name: bucket, type: TokenBucket, qps: 50, burst: 100, per: User}
  - {name: slow, type: TokenBucket, qps: 1e-7, burst: 1, per: Cluster, queue: {size: 5, timeout: 5ms}, shared: false}
  - {name: nothing, type: Exempt}
aggregates:
  - name: fleet
    clusters: [told, "0123"]
    primary: kube
    resourceVersions: Karmada
    unavailable: Partial
    reads: {cacheAllowed: 0, staleDecisions: 0}
    cache:
      resources:
        - {group: "", version: v1, resource: pods, namespaces: [a, "1"], clusters: ["0123"]}
        - {group: apps, version: v1, resource: "*"}
      maxStaleness: 500ms
      initialSyncTimeout: 0
      dropManagedFields: true
    create: [{apiGroups: ["", apps], resources: ["*"], to: told}, {apiGroups: ["*"], resources: ["*"], to: Primary}]
  - {name: "yes", clusterSelector: {x: "$${HOME}"}, cache: {resources: [{group: "", version: v1, resource: secrets}]}}
servers:
  - {name: whole, serverNames: [w.example.com], backend: {aggregate: fleet}, authentication: corp, authorization: local,
     apiServices: [{group: metrics.k8s.io, version: v1beta1, cluster: front, groupPriorityMinimum: 100},
       {group: a.example.com, version: v2, cluster: kube, versionPriority: 1}]}
  - {name: one, listeners: [a], serverNames: [k8s.example.com, "*.k8s.example.com"], backend: {cluster: exec},
     authentication: none, accessLog: false}
  - {name: all, default: true, backend: {clusters: "*"}, authentication: none}
  - {name: known, serverNames: [known.example.com], backend: {cluster: exec}, authentication: corp,
     authorization: local}
  - name: policies
    serverNames: [p.example.com]
    backend: {cluster: "0123"}
    authentication: corp
    authorization: local
    dispatch:
      - name: refused
        rules: [{verbs: ["*"], apiGroups: [""], resources: [secrets], userGroups: ["-a"], namespaces: ["", "k-*"]}]
        reject: {code: 404, message: "$$: none"}
      - rules:
          - {verbs: ["-get"], apiGroups: [""], resources: ["*/status"], serviceAccounts: [{namespace: a, name: b}]}
          - {verbs: [get], nonResourceURLs: ["/healthz*"]}
        endpoints: ["https://[FD00::1]:6443/a/", "true"]
        strategy: ConsistentHash
        flowControl: inflight
        accessLog: false
      - {rules: [{verbs: ["*"], nonResourceURLs: ["*"], users: ["-x"]}], backend: {cluster: exec}, accessLog: true}
      - {rules: [{verbs: ["*"], nonResourceURLs: [/logs]}], reject: {}}
  - {name: none, serverNames: [n.example.com], backend: {cluster: kube}, authentication: none, dispatch: []}
  - name: several
    serverNames: [s.example.com]
    backend: {clusters: [exec, kube]}
    authentication: none
    dispatch: [{rules: [{verbs: [get], nonResourceURLs: ["*"], clusters: [exec]}], flowControl: slow}]
  - {name: tunnels, serverNames: [t.example.com], backend: {tunnels: "*"}, authentication: corp}
  - {name: tunnel, serverNames: [u.example.com], backend: {tunnels: ["null"]}, authentication: both}
  - {name: edge, listeners: [i], backend: {cluster: "0123"}, authentication: hubs, authorization: local}
  - {name: edges, listeners: [j], default: true, backend: {clusters: [site]}, authentication: both}
serviceExports:
  - {name: on, namespace: demo, service: serve, from: ["0123", told], to: [told], type: Headless,
     ports: [{name: "80", port: 80, targetPort: http, protocol: UDP},
       {name: y, port: 1, targetPort: 2, appProtocol: a/b}],
     allowedCIDRs: [10.2.0.0/16, "fd00::/8"]}
  - {name: least, namespace: demo, service: other, from: [kube], to: [told]}
serviceDiscovery: {enabled: true, clusters: [told, "0123"], allowedCIDRs: [10.3.0.0/16]}
ingresses:
  - name: web
    listeners: [g, h]
    tls: [{hosts: [k8s.example.com, "*.k8s.example.com"], certificate: "0x1"}]
    redirectPort: 8443
    rules:
      - host: k8s.example.com
        paths:
          - path: /$$
            pathType: Prefix
            backend: {namespace: demo, service: web, port: "yes", clusters: ["0123", told],
              weights: {"0123": 0, told: 3},
              affinity: Cookie, cookie: {maxAge: 1h}, strategy: ConsistentHash, hashBy: {cookie: id}, ipFamily: IPv6,
              retryOn: [502, 503], protocol: HTTP2, tls: {caFile: ca.crt, serverName: a.b},
              healthCheck: {path: "/ok?a", interval: 500ms}, retries: 0, connectTimeout: 1s, responseTimeout: 0,
              allowedCIDRs: [10.2.0.0/16]}
      - paths: [{path: /, pathType: Exact, backend: {namespace: demo, service: web, port: 81, clusters: [told]}}]
  - name: rest
    redirectToTLS: false
    defaultBackend: {namespace: demo, service: web, port: 81, clusters: [told], via: APIServer}
logging: {level: debug, access: {file: access.log, format: combined}}
"""
KUBECONFIG = """
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters:
  - name: a
    cluster: {server: "https://10.0.0.1", certificate-authority-data: "@CA@", proxy-url: "http://edge:hush@proxy:3128"}
users: [{name: a, user: {token: hush}}]
"""


def load_at_noon(file: Path) -> Loaded:
    return load(str(file), environ={"PATH": ""}, now=NOW)


def read(file: Path) -> Config:
    return replace(load_at_noon(file).config, files=())


@pytest.fixture(scope="module")
def full(folder: Path) -> Config:
    import base64

    (folder / "dump.yaml").write_text(FULL)
    ca = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
    (folder / "dump.kubeconfig").write_text(KUBECONFIG.replace("@CA@", ca))
    return read(folder / "dump.yaml")


@pytest.mark.parametrize("write", [to_yaml, to_json])
def test_what_is_dumped_unmasked_loads_to_the_same_model(full: Config, tmp_path: Path, write: Any) -> None:
    file = tmp_path / "again.yaml"
    file.write_text(write(effective(full, masked=False)))
    assert read(file) == full


def test_what_is_dumped_has_no_warning_that_the_file_has_not(full: Config, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "again.yaml"
    file.write_text(to_yaml(effective(full, masked=False)))
    before = {warning.what for warning in load_at_noon(folder / "dump.yaml").warnings}
    assert {warning.what for warning in load_at_noon(file).warnings} - before == set()


def test_what_is_dumped_is_valid_by_the_schema(full: Config) -> None:
    jsonschema.Draft202012Validator(load_schema()).validate(effective(full))


@pytest.mark.parametrize("write", [to_yaml, to_json])
def test_no_secret_is_dumped(full: Config, write: Any) -> None:
    text = write(effective(full))
    assert "hush" not in text
    assert "BEGIN" not in text
    assert text.count(MASK) == 6  # the token, three arguments and two environment variables


def test_comments_show_what_a_kubeconfig_was_resolved_to(full: Config, folder: Path) -> None:
    text = to_yaml(effective(full), resolved(full))
    assert "hush" not in text
    [start] = [number for number, line in enumerate(text.splitlines()) if line == "  - name: kube"]
    lines = text.splitlines()[start:]
    shown = [line for line in lines[: lines.index("    identity: Passthrough")] if line.startswith("      # ")]
    assert shown == [
        "      # resolved:",
        "      #   endpoints:",
        '      #     - name: "https://10.0.0.1:443"',
        '      #       url: "https://10.0.0.1:443"',
        "      #       disabled: false",
        "      #       weight: 1",
        "      #   tls:",
        f'      #     caFile: "{folder}/dump.kubeconfig#clusters[0].cluster.certificate-authority-data"',
        "      #     insecureSkipVerify: false",
        "      #   credentials:",
        '      #     token: "(masked)"',
        "      #   proxy:",
        '      #     url: "http://proxy:3128"',
        "      #     user: edge",
        '      #     password: "(masked)"',
    ]
    problems = Problems()
    assert _plain(read_yaml("f", text.encode(), problems)) == effective(full)


def test_defaults_and_absolute_names_are_filled_in(full: Config, folder: Path) -> None:
    document = effective(full)
    assert document["daemon"] == {
        "controlSocket": str(folder / "run/c.sock"),
        "shutdownDelay": "1m30s",
        "drainTimeout": "0s",
        "workers": 1,
        "stateDir": str(folder / "state"),
        "watchFiles": True,
        "sharedState": {
            "redis": {
                "url": "rediss://r:1/2",
                "caFile": str(folder / "ca.crt"),
                "certFile": str(folder / "client.crt"),
                "keyFile": str(folder / "client.key"),
                "username": "m",
                "passwordFile": str(folder / "token"),
                "prefix": "p",
            }
        },
    }
    assert document["listeners"][0]["limits"]["targetBytes"] == "32Ki"
    assert [each.get("protocols") for each in document["listeners"]] == [
        ["HTTP2", "HTTP1"],
        ["HTTP1"],
        ["HTTP1"],
        ["HTTP1"],
        ["HTTP1"],
        ["HTTP1", "HTTP2"],
        ["HTTP2", "HTTP1"],
        ["HTTP2", "HTTP1"],
        None,
        None,
    ]
    assert [each["goawayChance"] for each in document["listeners"]] == [0.001, 0, 0, 0, 0, 0, 0, 0, 0.001, 0]
    assert [each["limits"]["streams"] for each in document["listeners"]] == [7, *[250] * 7, 9, 250]
    assert document["listeners"][8]["dial"]["urls"] == ["https://hub-1.example:443", "https://[fd00::1]:6443"]
    assert document["listeners"][9]["dial"] == {
        "tunnel": "on",
        "urls": ["https://hub.example:443"],
        "tls": {"caFile": str(folder / "ca.crt")},
        "credentials": {"tokenFile": str(folder / "token")},
        "proxy": {"url": "http://proxy.example:3128", "user": "edge", "passwordFile": str(folder / "token")},
        "keepAlive": "15s",
        "maxConnections": 32,
    }
    assert document["clusters"][5]["endpoints"] == [
        {"name": "tunnel:site-a", "tunnel": "site-a", "disabled": False, "weight": 1},
        {"name": "b", "tunnel": "null", "path": "/clusters/k", "disabled": False, "weight": 2},
        {
            "name": "tunnel:site-a/clusters/b",
            "tunnel": "site-a",
            "path": "/clusters/b",
            "disabled": False,
            "weight": 1,
        },
    ]
    assert document["authentication"][2]["requestHeader"] == {"listeners": ["i", "j"], "hubUser": "mcproxy$$hub"}
    assert document["listeners"][7]["tls"]["certificates"] == ["0x1"]
    assert document["serviceDiscovery"]["clusters"] == ["told", "0123"]
    assert document["ingresses"][1]["listeners"] == ["g", "h"]
    assert document["certificates"][0]["serverNames"] == ["k8s.example.com", "*.k8s.example.com"]
    assert document["clusters"][0]["tls"]["caFile"] == str(folder / "ca.crt")
    assert document["clusters"][0]["proxy"] == {
        "url": "http://proxy.example.com:3128",
        "user": "edge",
        "passwordFile": str(folder / "token"),
    }
    assert document["clusters"][2]["kubeconfig"] == {"file": str(folder / "dump.kubeconfig"), "context": "a"}
    assert document["aggregates"][1]["clusters"] == ["0123"]
    assert document["servers"][0]["backend"] == {"aggregate": "fleet"}
    assert document["servers"][2]["listeners"] == ["a", "b", "c", "d", "e", "f"]
    assert document["servers"][2]["backend"] == {"clusters": ["0123", "exec", "kube", "told", "front", "site", "mixed"]}
    assert [server["backend"] for server in document["servers"][7:9]] == [
        {"tunnels": ["site-a", "null"]},
        {"tunnels": ["null"]},
    ]


def test_the_least_configuration() -> None:
    text = to_yaml(effective(Config()))
    assert text.startswith("version: 1\ndaemon:\n  shutdownDelay: 0s\n  drainTimeout: 30s\n")
    assert "listeners: []\n" in text


_values = st.recursive(
    st.booleans() | st.integers() | st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("aé $:0-\n", max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text("ab", min_size=1, max_size=3), _values, min_size=1, max_size=3))
def test_the_yaml_that_is_written_is_read_as_what_it_means(document: dict[str, Any]) -> None:
    problems = Problems()
    node = read_yaml("f", to_yaml(document).encode(), problems)
    assert problems.errors == ()
    assert _plain(node) == document
    assert json.loads(to_json(document)) == document


def _plain(node: Node | None) -> object:
    if isinstance(node, Mapping):
        return {name: _plain(entry.node) for name, entry in node.entries.items()}
    if isinstance(node, Sequence):
        return [_plain(item) for item in node.items]
    assert isinstance(node, Scalar)
    return node.value
