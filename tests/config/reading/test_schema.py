"""The schema file itself, and what the daemon's validator makes of it held against the jsonschema package."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.problem import Problems
from mcproxy.config.reading.nodes import Document, Mapping
from mcproxy.config.reading.schema_check import check_schema, load_schema
from mcproxy.config.reading.yaml_text import read_yaml

ROOT = Path(__file__).parents[3]
SCHEMA = load_schema()
ORACLE = jsonschema.Draft202012Validator(SCHEMA)

FULL: dict[str, Any] = {
    "version": 1,
    "include": ["conf.d/*.yaml"],
    "daemon": {
        "controlSocket": "/run/a", "shutdownDelay": "0s", "drainTimeout": 0, "workers": 1, "stateDir": "/a",
        "watchFiles": False,
        "sharedState": {
            "redis": {
                "url": "rediss://a/0", "caFile": "a", "certFile": "a", "keyFile": "b", "username": "u",
                "passwordFile": "p", "prefix": "mcproxy",
            }
        },
    },
    "listeners": [
        {
            "name": "a",
            "serves": "API",
            "paths": ["/metrics", "/"],
            "authentication": "a",
            "authorization": "a",
            "bind": "[::]:6443",
            "freeBind": True,
            "mode": "0660",
            "group": "adm",
            "proxyProtocol": {"from": ["10.0.0.0/8"]},
            "protocols": ["HTTP2", "HTTP1"],
            "goawayChance": 0.02,
            "trustedProxies": [],
            "tls": {"certificates": ["c"], "minVersion": "1.2"},
            "limits": {
                "connections": 1, "connectionsPerClient": 1, "streams": 1, "stallTimeout": "1m",
                "headBytes": "64Ki", "targetBytes": 5, "headers": 3, "bodyBytes": 0,
                "handshakeTimeout": "1s", "headTimeout": "2s", "idleTimeout": "5m",
            },
        },
        {"name": "web", "serves": "Ingress", "bind": "[::]:8443", "tls": {}},
        {
            "name": "hub",
            "dial": {
                "tunnel": "site", "urls": ["https://a"], "serverName": "b", "keepAlive": "15s", "maxConnections": 1,
                "tls": {"caFile": "a", "certFile": "a", "keyFile": "b"}, "credentials": {"tokenFile": "a"},
                "proxy": {"url": "http://a:3128", "user": "a", "passwordFile": "b"},
            },
        },
    ],
    "tunnels": [{"name": "site", "users": ["edge"], "maxConnections": 1}],
    "certificates": [{"name": "c", "certFile": "c.crt", "keyFile": "c.key", "serverNames": ["a"]}],
    "clusters": [
        {
            "name": "east",
            "labels": {"region": "eu"},
            "endpoints": [{"name": "a", "url": "https://10.0.0.1:6443", "disabled": False, "weight": 5}],
            "tls": {"caFile": "a", "serverName": "b", "insecureSkipVerify": False},
            "credentials": {"token": "a", "certFile": "a", "keyFile": "b"},
            "identity": "Proxy",
            "healthCheck": {"path": "/", "interval": "1s", "timeout": "1s", "unhealthyAfter": 1, "healthyAfter": 1},
            "connections": {
                "protocol": "Auto", "maxIdle": 1, "maxConnections": 0, "idleTimeout": "1s", "connectTimeout": "1s",
                "responseTimeout": "1s",
            },
            "proxy": {"url": "http://a:1", "user": "a", "passwordFile": "a"},
            "preserveHost": True,
            "flowControls": ["waiting"],
        },
        {
            "name": "west", "identity": "RequestHeader", "kubeconfig": {"file": "a", "context": "b"},
            "impersonateExtras": ["scopes"], "frontProxy": {"certFile": "a", "keyFile": "b"},
        },
        {
            "name": "site",
            "identity": "RequestHeader",
            "endpoints": [{"tunnel": "site"}, {"name": "b", "tunnel": "site", "path": "/clusters/b", "weight": 2}],
            "proxy": {"url": "http://a:3128", "user": "a", "passwordFile": "b"},
        },
        {
            "name": "north",
            "identity": "Proxy",
            "endpoints": [{"url": "http://a"}],
            "credentials": {
                "exec": {
                    "command": "a", "args": ["b"], "env": {"C": "d"},
                    "apiVersion": "client.authentication.k8s.io/v1beta1", "provideClusterInfo": True,
                    "installHint": "e",
                }
            },
        },
    ],
    "authentication": [
        {
            "name": "a",
            "requestHeader": {"caFile": "a", "allowedNames": ["a"], "listeners": ["hub"], "hubUser": "a"},
            "clientCertificates": {"caFile": "a", "crlFile": "b", "clusterCA": "east"},
            "tokenFile": "a",
            "oidc": [
                {
                    "issuer": "https://a", "audiences": ["a"], "jwksFile": "a", "caFile": "b", "usernameClaim": "sub",
                    "usernamePrefix": "", "groupsClaim": "groups", "groupsPrefix": "-",
                    "requiredClaims": {"hd": "example.com"}, "distributedClaims": "Ignore",
                },
                {"issuer": "https://b", "audiences": ["a"], "jwksURL": "https://b/keys"},
            ],
            "tokenReview": {"cluster": "east", "audiences": ["a"], "cacheSuccess": "1s", "cacheFailure": 0},
            "webhook": {"kubeconfig": "a", "version": "v1beta1", "cacheSuccess": "1s", "cacheFailure": 0},
            "anonymous": {"enabled": True, "paths": ["/healthz"]},
            "allowSystemNames": True,
            "shareServiceAccounts": True,
        }
    ],
    "authorization": [
        {"name": "a", "rules": [{"verbs": ["get"]}]},
        {
            "name": "b",
            "subjectAccessReview": {"cluster": "east", "version": "v1beta1", "cacheAllowed": "1s", "cacheDenied": 0},
        },
    ],
    "flowControls": [
        {
            "name": "waiting", "type": "MaxRequestsInflight", "max": 5, "maxLongRunning": 0, "per": "User",
            "queue": {"size": 5, "timeout": "5s"}, "shared": False,
        },
        {"name": "bucket", "type": "TokenBucket", "qps": 1.5, "burst": 5},
    ],
    "aggregates": [
        {
            "name": "a", "clusters": ["east"], "primary": "west", "resourceVersions": "Karmada", "unavailable": "Fail",
            "reads": {"authorize": "Server", "cacheAllowed": "1s", "cacheDenied": 0, "staleDecisions": "1h"},
            "cache": {
                "resources": [
                    {"group": "", "version": "v1", "resource": "pods", "namespaces": ["a"], "clusters": ["east"]},
                    {"group": "apps", "version": "v1", "resource": "*"},
                ],
                "maxStaleness": "1s", "initialSyncTimeout": "1s", "dropManagedFields": True, "persistSecrets": True,
            },
            "create": [{"apiGroups": ["", "apps"], "resources": ["*"], "to": "east"}],
            "conflicts": [
                {"apiGroups": [""], "resources": ["pods"], "namespaces": ["demo"], "to": "east", "show": "One"}
            ],
            "formerMembers": ["west"],
        },
        {
            "name": "b", "clusterSelector": {"region": "eu"},
            "cache": {"resources": [{"group": "", "version": "v1", "resource": "pods"}]},
        },
    ],
    "servers": [
        {
            "name": "a", "listeners": ["a"], "serverNames": ["a"], "default": True, "backend": {"cluster": "east"},
            "authentication": "a", "authorization": "b", "accessLog": False,
            "cors": {"allowedOrigins": ["https://a.example.com"]},
            "sessions": {"maxAge": "1h", "endWithCredential": True},
            "dispatch": [
                {
                    "name": "a",
                    "rules": [
                        {
                            "verbs": ["get"], "users": ["a"], "serviceAccounts": [{"namespace": "a", "name": "b"}],
                            "userGroups": ["-a"], "apiGroups": [""], "resources": ["*"], "resourceNames": ["a*"],
                            "namespaces": [""], "clusters": ["*"], "nonResourceURLs": ["/x"],
                        }
                    ],
                    "endpoints": ["a"], "strategy": "RoundRobin", "flowControl": "waiting", "accessLog": True,
                    "backend": {"cluster": "east"},
                },
                {"rules": [{}], "reject": {"code": 403, "message": "a"}},
            ],
            "apiServices": [
                {
                    "group": "a.b", "version": "v1", "cluster": "west", "groupPriorityMinimum": 20000,
                    "versionPriority": 1000,
                }
            ],
        },
        {"name": "b", "backend": {"clusters": "*"}},
        {"name": "c", "backend": {"aggregate": "a"}},
        {"name": "d", "backend": {"tunnels": ["site"]}, "authentication": "a"},
    ],
    "serviceExports": [
        {
            "name": "a", "namespace": "demo", "service": "serve", "from": ["west"], "to": ["east"],
            "as": "SameName", "type": "ClusterSetIP", "allowedCIDRs": ["10.2.0.0/16"],
            "unreachable": "Remove", "after": "1h", "createNamespaces": True,
            "lease": {"namespace": "demo", "name": "mcproxy"}, "maxEndpoints": 5, "maxSlices": 1,
            "ports": [
                {"name": "web", "port": 80, "targetPort": "http", "protocol": "TCP", "appProtocol": "kubernetes.io/h2c"}
            ],
        }
    ],
    "serviceDiscovery": {"enabled": True, "clusters": ["east"], "allowedCIDRs": ["10.2.0.0/16"]},
    "ingresses": [
        {
            "name": "b",
            "defaultBackend": {
                "namespace": "demo", "service": "web", "port": 81, "clusters": ["east"], "hashBy": {"cookie": "id"}
            },
        },
        {
            "name": "a", "listeners": ["web"], "tls": [{"hosts": ["a"], "certificate": "c"}], "redirectToTLS": False,
            "redirectPort": 8443, "wildcardLabels": "Any",
            "defaultBackend": {
                "namespace": "demo", "service": "web", "port": "http", "clusters": ["east", "west"],
                "weights": {"east": 0}, "via": "APIServer", "affinity": "Cookie", "strategy": "ConsistentHash",
                "cookie": {"name": "route", "maxAge": "1h", "sameSite": "Strict"}, "hashBy": {"header": "X-User"},
                "slowStart": "30s", "ipFamily": "IPv6", "retryOn": [503],
                "protocol": "HTTP2", "tls": {"caFile": "a", "serverName": "b", "insecureSkipVerify": False},
                "healthCheck": {
                    "path": "/?a", "interval": "1s", "timeout": "1s", "unhealthyAfter": 1, "healthyAfter": 1
                },
                "retries": 1, "connectTimeout": "1s", "responseTimeout": 0, "readTimeout": "1s",
                "allowedCIDRs": ["10.2.0.0/16"],
            },
            "rules": [
                {
                    "host": "a",
                    "paths": [
                        {
                            "path": "/", "pathType": "Exact",
                            "backend": {"namespace": "demo", "service": "web", "port": 81, "clusters": ["east"]},
                        },
                        {
                            "path": "/b", "pathType": "Prefix",
                            "methods": ["GET"], "headers": {"a": "b"}, "query": {"a": "b"}, "spill": True,
                            "backends": [
                                {
                                    "weight": 2,
                                    "backend": {
                                        "namespace": "demo", "service": "web", "port": 81, "clusters": ["east"]
                                    },
                                }
                            ],
                            "filters": {
                                "requestHeaders": {"set": {"a": "b"}, "add": {"c": "d"}, "remove": ["e"]},
                                "responseHeaders": {"set": {"a": "b"}, "add": {"c": "d"}, "remove": ["e"]},
                                "rewriteHost": "a", "rewritePath": "/c", "rewritePrefix": "/d",
                                "redirect": {
                                    "scheme": "https", "host": "a", "port": 8443, "path": "/c", "prefix": "/d",
                                    "code": 308,
                                },
                                "timeout": "1s", "bodyBytes": "64Ki",
                            },
                        },
                    ],
                }
            ],
        }
    ],
    "logging": {
        "level": "info", "format": "text", "access": {"file": "-", "format": "json"},
        "audit": {"file": "-", "level": "Metadata"},
    },
}  # fmt: skip


def accepts(document: dict[str, Any]) -> bool:
    problems = Problems()
    root = read_yaml("f", json.dumps(document).encode(), problems)
    assert isinstance(root, Mapping)
    assert problems.errors == ()
    check_schema(Document("f", "/", root), problems)
    return not problems.errors


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


PLACES = [path for path in places(FULL) if path]
ODD: list[Any] = [
    None, True, 0, -1, 1, 5, 2**40, 1.5, "", "a", "*", "5s", "64Ki", "x y", "https://a", "127.0.0.1:1", "1.3", "none",
    [], ["a"], ["*"], [1], {}, {"a": 1}, {"name": "a"}, {"cluster": "a"}, {"clusters": ["a"]}, {"from": []}, "/x#",
]  # fmt: skip


def test_a_document_with_every_key_is_accepted() -> None:
    assert ORACLE.is_valid(FULL)
    assert accepts(FULL)


def test_every_key_of_the_schema_is_in_that_document() -> None:
    used = {".".join(str(step) for step in path if isinstance(step, str)) for path in PLACES}
    for path, _ in _keys(SCHEMA, ""):
        # The rules of an authorizer are those of a policy, where all keys are; so are the backends of ingresses.
        elsewhere = path.startswith(
            ("authorization.rules.", "ingresses.rules.paths.backend.", "ingresses.rules.paths.backends.backend.")
        )
        assert path in used or path.endswith(("tokenFile", "clusters")) or elsewhere


@given(st.sampled_from(PLACES), st.sampled_from(ODD))
def test_a_changed_value_is_validated_as_by_jsonschema(path: tuple[str | int, ...], value: Any) -> None:
    document = copy.deepcopy(FULL)
    _parent(document, path)[path[-1]] = value
    assert accepts(document) == ORACLE.is_valid(document)


@given(st.sampled_from(PLACES))
def test_a_missing_value_is_validated_as_by_jsonschema(path: tuple[str | int, ...]) -> None:
    document = copy.deepcopy(FULL)
    del _parent(document, path)[path[-1]]
    assert accepts(document) == ORACLE.is_valid(document)


@given(st.sampled_from(PLACES), st.sampled_from(["kubeconfig", "endpoints", "tokenFile", "exec", "certFile", "zzz"]))
def test_an_added_key_is_validated_as_by_jsonschema(path: tuple[str | int, ...], key: str) -> None:
    document = copy.deepcopy(FULL)
    parent = _parent(document, path)
    if isinstance(parent, dict):
        parent[key] = {"file": "a"} if key == "kubeconfig" else "a"
        assert accepts(document) == ORACLE.is_valid(document)


def test_the_end_of_a_pattern_is_the_end_of_the_text() -> None:
    document = {"version": 1, "daemon": {"drainTimeout": "5s\n"}}
    assert not accepts(document)


def test_the_schema_is_valid_and_usable_by_editors() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["$id"].endswith("/mcproxy.schema.json")
    assert SCHEMA["title"]


def test_the_installed_schema_is_the_one_at_top_level() -> None:
    installed = ROOT / "mcproxy/config/mcproxy.schema.json"
    original = ROOT / "schema/mcproxy.schema.json"
    assert not original.is_symlink()
    assert installed.resolve() == original


KEYWORDS = frozenset(
    """$ref type enum pattern minimum exclusiveMinimum maximum minLength maxLength minItems items properties
    additionalProperties required minProperties maxProperties dependentRequired allOf anyOf not""".split()  # noqa: SIM905
)
ANNOTATIONS = frozenset(("$schema", "$id", "$defs", "title", "description", "default", "errorMessage", "writeOnly"))


def test_no_keyword_is_used_that_has_no_message() -> None:
    def walk(schema: dict[str, Any]) -> None:
        assert schema.keys() <= KEYWORDS | ANNOTATIONS
        assert "$ref" not in schema or schema.keys() - {"$ref"} <= ANNOTATIONS - {"writeOnly"}
        for key in ("properties", "$defs"):
            for inner in schema.get(key, {}).values():
                walk(inner)
        for inner in (schema.get("items"), schema.get("additionalProperties")):
            if isinstance(inner, dict):
                walk(inner)
        for rule in schema.get("allOf", ()):
            assert rule.keys() - {"errorMessage"} in ({"not"}, {"anyOf"})
            assert "; " in rule["errorMessage"]

    walk(SCHEMA)


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return {**SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], **schema}
    return schema


def _keys(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, inner in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield here, inner
        resolved = _resolved(inner)
        yield from _keys(resolved, here)
        if "items" in resolved:
            yield from _keys(_resolved(resolved["items"]), here)


def test_every_key_has_a_description() -> None:
    keys = list(_keys(SCHEMA, ""))
    assert len(keys) > 80
    assert [path for path, schema in keys if len(schema.get("description", "")) < 10] == []
    assert [path for path, schema in keys if not schema["description"].endswith(".")] == []


def _parent(document: Any, path: tuple[str | int, ...]) -> Any:
    for step in path[:-1]:
        document = document[step]
    return document
