"""`mcproxy rbac`: what it prints is enough for all that the proxy does in a cluster, and nothing of it is too much.

A later part that needs a right adds an act here, and its section to CONFIG if it takes one.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import ssl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from mcproxy.cli import rbac
from mcproxy.config import model
from mcproxy.config.load import load
from mcproxy.identity.required_rights import required_rights
from mcproxy.identity.upstream_identity_headers import named_alone, upstream_fields_for
from mcproxy.kube.user import UserInfo
from tests.config import pki
from tests.e2e.conftest import kubectl as kubectl
from tests.simulated_cluster.process import SimulatedClusterProcess

CONFIG = """
version: 1
listeners: [{name: local, bind: "127.0.0.1:6443"}]
clusters:
  - name: east
    endpoints: [{url: "https://127.0.0.1:1"}]
    credentials: {token: hush}
    impersonateExtras: [scopes, example.com/origin]
    healthCheck: {path: "/readyz?verbose"}
authentication:
  - {name: corp, tokenReview: {cluster: east}}
authorization:
  - {name: delegated, subjectAccessReview: {}}
servers:
  - {name: east, default: true, backend: {cluster: east}, authentication: corp, authorization: delegated}
"""

FLEET = """
version: 1
listeners: [{name: local, bind: "127.0.0.1:6443"}]
clusters:
  - {name: east, endpoints: [{url: "https://127.0.0.1:1"}], credentials: {token: hush}}
authentication: [{name: corp, tokenFile: users.csv}]
aggregates:
  - name: fleet
    clusters: [east]
    cache:
      resources:
        - {group: "", version: v1, resource: pods}
        - {group: apps, version: v1, resource: "*"}
        - {group: "", version: v1, resource: secrets, namespaces: [kube-public]}
servers: [{name: fleet, default: true, backend: {aggregate: fleet}, authentication: corp}]
"""

SERVICES = """
version: 1
listeners: [{name: web, serves: Ingress, bind: "127.0.0.1:8080"}]
clusters:
  - {name: west, endpoints: [{url: "https://127.0.0.1:1"}], credentials: {token: hush}}
  - {name: east, endpoints: [{url: "https://127.0.0.1:1"}], credentials: {token: hush}}
serviceExports: [{name: serve, namespace: kube-public, service: serve, from: [west], to: [east]}]
ingresses:
  - name: web
    defaultBackend: {namespace: kube-public, service: web, port: 81, clusters: [east], via: APIServer}
"""
DISCOVERY = """
version: 1
clusters:
  - {name: west, endpoints: [{url: "https://127.0.0.1:1"}], credentials: {token: hush}}
  - {name: east, endpoints: [{url: "https://127.0.0.1:1"}], credentials: {token: hush}}
serviceDiscovery: {enabled: true}
"""

CONSTRAINED = """
version: 1
listeners: [{name: local, bind: "127.0.0.1:6443"}]
clusters:
  - name: east
    endpoints: [{url: "https://127.0.0.1:1"}]
    credentials: {token: hush}
    impersonateExtras: [scopes, example.com/origin]
authorization:
  - name: some
    rules:
      - {verbs: [get, list], apiGroups: [""], resources: [pods, pods/log]}
      - {verbs: [patch], apiGroups: [apps], resources: [deployments], namespaces: [kube-public], resourceNames: [web]}
      - {verbs: [get], nonResourceURLs: [/version, "/apis/*"]}
servers: [{name: east, default: true, backend: {cluster: east}, authentication: corp, authorization: some}]
authentication: [{name: corp, tokenFile: users.csv}]
"""

GROUP = "rbac.authorization.k8s.io"
ROLES, BINDINGS = (f"/apis/{GROUP}/v1/clusterroles", f"/apis/{GROUP}/v1/clusterrolebindings")


def printed(folder: Path, capsys: pytest.CaptureFixture[str], *options: str, config: str = CONFIG) -> str:
    file = folder / "mcproxy.yaml"
    file.write_text(config)
    parser = argparse.ArgumentParser()
    rbac.add_parser(parser.add_subparsers())
    status = rbac.run(parser.parse_args(["rbac", "-c", str(file), *options]))
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return captured.out


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document is not None]


# What the proxy does in a cluster.


class Cluster:
    """A simulated cluster that gives mcproxy nothing: neither by its own role there nor as it gives to everyone."""

    def __init__(self, process: SimulatedClusterProcess) -> None:
        self.process = process
        self._tls = ssl.create_default_context(cafile=process.ca)
        self._connection = self._connect()  # kept open: a handshake for each of hundreds of requests takes seconds
        for name in ("system:public-info-viewer", "system:discovery", "mcproxy"):
            assert self.ask("DELETE", f"{BINDINGS}/{name}", "admin-test-token")[0] == 200

    def _connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.process.ports[0], timeout=60, context=self._tls)

    def close(self) -> None:
        self._connection.close()

    def ask(
        self, method: str, path: str, token: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        sent = None if body is None else json.dumps(body)
        fields = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **(headers or {})}
        self._connection.request(method, path, sent, fields)
        response = self._connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text.startswith(b"{") else text

    def watches(self, path: str, token: str) -> bool:
        """Whether a watch begins; it is broken off then, since waiting for its end would take a second."""
        connection = self._connect()
        try:
            connection.request("GET", f"{path}?watch=1&timeoutSeconds=60", None, {"Authorization": f"Bearer {token}"})
            response = connection.getresponse()
            assert response.status in (200, 403), response.read()
            return response.status == 200
        finally:
            connection.close()

    def apply(self, program: str, text: str) -> None:
        command = [program, "--kubeconfig", self.process.kubeconfig, "apply", "--validate=false", "-f", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    def delete(self, text: str) -> None:
        """Delete what has been applied."""
        for document in documents(text):
            name, namespace = document["metadata"]["name"], document["metadata"].get("namespace")
            plural = f"{document['kind'].lower()}s"
            path = f"namespaces/{namespace}/{plural}" if namespace else plural
            assert self.ask("DELETE", f"/apis/{GROUP}/v1/{path}/{name}", "admin-test-token")[0] == 200


class Act(NamedTuple):
    name: str
    works: Callable[[Cluster, str], bool]


def health(cluster: Cluster, token: str) -> bool:
    return cluster.ask("GET", "/readyz?verbose", token)[0] == 200


def review(group: str, kind: str, spec: dict[str, Any]) -> Callable[[Cluster, str], bool]:
    def works(cluster: Cluster, token: str) -> bool:
        body = {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
        return cluster.ask("POST", f"/apis/{group}/v1/{kind.lower()}s", token, body)[0] == 201

    return works


def telling(user: UserInfo, *extras: str) -> Callable[[Cluster, str], bool]:
    """The cluster gets `user` in the proxy's headers, and takes the caller for this user."""
    east = model.ClusterConfig(name="east", endpoints=(), impersonate_extras=extras or ("scopes", "example.com/origin"))

    def works(cluster: Cluster, token: str) -> bool:
        lines = upstream_fields_for(east, user).decode().removesuffix("\r\n").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        assert len(headers) == len(lines)
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        status, answer = cluster.ask("POST", path, token, body, headers)
        if status != 201:
            assert status == 403, answer
            return False
        found = answer["status"]["userInfo"]
        assert (found["username"], found.get("uid", "")) == (user.name, user.uid)
        assert found.get("extra", {}) == {key: list(values) for key, values in user.extra}
        return True

    return works


ACTS = (
    Act("health", health),
    Act("user", telling(UserInfo("bob"))),
    Act("groups", telling(UserInfo("bob", ("system:authenticated",)))),
    Act("service account", telling(UserInfo("system:serviceaccount:demo:builder"))),
    Act("uid", telling(UserInfo("bob", uid="u-1"))),
    Act("extra", telling(UserInfo("bob", extra=(("scopes", ("a",)),)))),
    Act("extra with a slash", telling(UserInfo("bob", extra=(("example.com/origin", ("b",)),)))),
    Act("token review", review("authentication.k8s.io", "TokenReview", {"token": "x"})),
    Act(
        "access review",
        review(
            "authorization.k8s.io",
            "SubjectAccessReview",
            {"user": "bob", "resourceAttributes": {"verb": "list", "resource": "pods"}},
        ),
    ),
)


def reading(path: str) -> Callable[[Cluster, str], bool]:
    return lambda cluster, token: cluster.ask("GET", path, token)[0] == 200


def watching(path: str) -> Callable[[Cluster, str], bool]:
    return lambda cluster, token: cluster.watches(path, token)


#: What the proxy does in a member of an aggregate with the scope of FLEET.
ACTS_OF_FLEET = (
    *(act for act in ACTS if act.name not in ("health", "extra", "extra with a slash", "token review")),
    Act("health", reading("/readyz")),
    Act("discovery, core group", reading("/api")),
    Act("discovery, a version of the core group", reading("/api/v1")),
    Act("discovery, groups", reading("/apis")),
    Act("discovery, a group-version", reading("/apis/apps/v1")),
    Act("OpenAPI v2", reading("/openapi/v2")),
    Act("OpenAPI v3", reading("/openapi/v3")),
    Act("OpenAPI v3, a group-version", reading("/openapi/v3/apis/apps/v1")),
    Act("version", reading("/version")),
    Act("uid of the cluster", reading("/api/v1/namespaces/kube-system")),
    Act("list of all namespaces", reading("/api/v1/pods")),
    Act("watch of all namespaces", watching("/api/v1/pods")),
    Act("list of a group", reading("/apis/apps/v1/deployments")),
    Act("watch of a group", watching("/apis/apps/v1/replicasets")),
    Act("list in one namespace", reading("/api/v1/namespaces/kube-public/secrets")),
    Act("watch in one namespace", watching("/api/v1/namespaces/kube-public/secrets")),
)


def allowed(method: str, path: str, body: Any = None, content: str = "application/json") -> Callable[..., bool]:
    """The request is let through, whatever becomes of it: the cluster has neither the objects nor the CRDs."""

    def works(cluster: Cluster, token: str) -> bool:
        status, answer = cluster.ask(method, path, token, body, {"Content-Type": content})
        if status == 403:
            return False
        assert status not in (401, 500), answer
        return True

    return works


def applying(path: str, body: dict[str, Any]) -> Callable[[Cluster, str], bool]:
    """An object is applied that is not there, and deleted."""
    target = f"{path}/{body['metadata']['name']}"

    def works(cluster: Cluster, token: str) -> bool:
        apply, options = "application/apply-patch+yaml", "?fieldManager=mcproxy&force=true"
        status, answer = cluster.ask("PATCH", f"{target}{options}", token, body, {"Content-Type": apply})
        assert status in (200, 201, 403), answer
        deleted, _ = cluster.ask("DELETE", target, token)
        assert cluster.ask("DELETE", target, "admin-test-token")[0] in (200, 404)
        return status == 201 and deleted == 200

    return works


DISCOVERY_V1 = "/apis/discovery.k8s.io/v1"
MULTICLUSTER = "/apis/multicluster.x-k8s.io/v1alpha1"
PROPERTIES = "/apis/about.k8s.io/v1alpha1/clusterproperties"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


def acts_of_services(namespace: str) -> tuple[Act, ...]:
    within = f"namespaces/{namespace}/" if namespace else ""
    slices, services = f"{DISCOVERY_V1}/{within}endpointslices", f"/api/v1/{within}services"
    return (
        Act("health", reading("/readyz")),
        Act("discovery, core group", reading("/api")),
        Act("discovery, a version of the core group", reading("/api/v1")),
        Act("discovery, groups", reading("/apis")),
        Act("discovery, a group-version", reading("/apis/apps/v1")),
        Act("uid of the cluster", reading("/api/v1/namespaces/kube-system")),
        Act("list of namespaces", reading("/api/v1/namespaces")),
        Act("watch of namespaces", watching("/api/v1/namespaces")),
        Act("list of slices", reading(slices)),
        Act("watch of slices", watching(slices)),
        Act("list of services", reading(services)),
        Act("watch of services", watching(services)),
        Act(
            "import of a slice",
            applying(
                f"{DISCOVERY_V1}/namespaces/kube-public/endpointslices",
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {"name": "imported-west-a", "namespace": "kube-public"},
                    "addressType": "IPv4",
                    "endpoints": [],
                },
            ),
        ),
        Act(
            "derived service",
            applying(
                "/api/v1/namespaces/kube-public/services",
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "metadata": {"name": "derived-a", "namespace": "kube-public"},
                    "spec": {"ports": [{"port": 80}]},
                },
            ),
        ),
        Act(
            "a new Lease",
            allowed("POST", LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {}}),
        ),
        Act("the Lease", allowed("GET", f"{LEASES}/mcproxy-services")),
        Act("renewal of the Lease", allowed("PUT", f"{LEASES}/mcproxy-services", {})),
    )


PROXY = "/api/v1/namespaces/kube-public/services/web:81/proxy/a"
ACTS_OF_SERVICES = (
    *acts_of_services("kube-public"),
    *(Act(f"{method} through the API server", allowed(method, PROXY)) for method in
      ("GET", "POST", "PUT", "PATCH", "DELETE")),
    Act("TLS to pods behind the API server", allowed("GET", PROXY.replace("web:81", "https:web:81"))),
)  # fmt: skip
ACTS_OF_DISCOVERY = (
    *acts_of_services(""),
    *(Act(f"{verb} of {kind}", allowed("GET", f"{MULTICLUSTER}/{kind}{query}"))
      for kind in ("serviceexports", "serviceimports") for verb, query in (("list", ""), ("watch", "?watch=1"))),
    Act("list of cluster properties", allowed("GET", PROPERTIES)),
    Act("watch of cluster properties", allowed("GET", f"{PROPERTIES}?watch=1")),
    *(Act(f"{method} of an import", allowed(method, f"{MULTICLUSTER}/namespaces/demo/serviceimports{name}", {}))
      for method, name in (("POST", ""), ("PATCH", "/a"), ("DELETE", "/a"))),
    *(Act(f"status of {kind}", allowed("PATCH", f"{MULTICLUSTER}/namespaces/demo/{kind}/a/status", {}))
      for kind in ("serviceexports", "serviceimports")),
)  # fmt: skip
EAST = model.ClusterConfig(name="east", endpoints=(), impersonate_extras=("scopes", "example.com/origin"))


def speaking_for(user: UserInfo, method: str, path: str) -> Callable[[Cluster, str], bool]:
    """The proxy may ask for this as the user, whatever the cluster says to the user."""
    fields = upstream_fields_for(EAST, named_alone(EAST, user) or user).decode().removesuffix("\r\n").split("\r\n")

    def works(cluster: Cluster, token: str) -> bool:
        headers = {"Content-Type": "application/merge-patch+json", **dict(line.split(": ", 1) for line in fields)}
        status, answer = cluster.ask(method, path, token, None if method == "GET" else {}, headers)
        if status == 403:
            return f'User "{user.name}" cannot' in answer["message"]
        assert status in (200, 404), answer
        return True

    return works


NAMED_USERS = {
    "user": UserInfo("bob"),
    "groups": UserInfo("bob", ("dev", "system:authenticated")),
    "uid": UserInfo("bob", uid="u-1"),
    "extra": UserInfo("bob", extra=(("example.com/origin", ("b",)),)),
    "service account": UserInfo(
        "system:serviceaccount:demo:builder",
        ("system:serviceaccounts", "system:serviceaccounts:demo", "system:authenticated"),
        "u-2",
        (("authentication.kubernetes.io/credential-id", ("JTI=x",)),),
    ),
    "node": UserInfo("system:node:n1", ("system:nodes", "system:authenticated")),
}
ASKED = (
    ("GET", "/api/v1/namespaces/default/pods/a"),
    ("GET", "/api/v1/namespaces/default/pods/a/log"),
    ("GET", "/api/v1/pods"),
    ("PATCH", "/apis/apps/v1/namespaces/kube-public/deployments/web"),
    ("GET", "/version"),
    ("GET", "/apis/apps/v1"),
)
ACTS_OF_USERS = (
    Act("health", reading("/readyz")),
    *(Act(f"{who}: {method} {path}", speaking_for(user, method, path)) for who, user in NAMED_USERS.items()
      for method, path in (ASKED[-1:] if who in ("groups", "uid", "extra") else ASKED)),
)  # fmt: skip
REFUSED_TO_USERS = (
    speaking_for(NAMED_USERS["user"], "GET", "/api/v1/secrets"),
    speaking_for(NAMED_USERS["user"], "DELETE", "/api/v1/namespaces/default/pods/a"),
    speaking_for(NAMED_USERS["user"], "PATCH", "/apis/apps/v1/namespaces/default/deployments/web"),
    speaking_for(NAMED_USERS["user"], "PATCH", "/apis/apps/v1/namespaces/kube-public/deployments/other"),
    speaking_for(NAMED_USERS["user"], "GET", "/metrics"),
    speaking_for(UserInfo("bob", ("system:masters",)), "GET", "/version"),
    speaking_for(UserInfo("bob", extra=(("scopes", ("a",)),)), "GET", "/version"),
    speaking_for(replace(NAMED_USERS["node"], groups=("system:nodes", "ops")), "GET", "/version"),
)
REFUSED_OF_SERVICES = (
    reading("/api/v1/services"),
    reading("/api/v1/namespaces/kube-public/endpoints"),
    reading("/api/v1/namespaces/kube-public/secrets"),
    allowed("POST", "/api/v1/namespaces/default/services", {}),
    allowed("GET", "/api/v1/namespaces/kube-public/services/web:82/proxy/a"),
    allowed("GET", "/api/v1/namespaces/kube-public/services/other:81/proxy/a"),
    allowed("PUT", f"{LEASES}/other", {}),
)
REFUSED = (
    reading("/api/v1/secrets"),
    reading("/api/v1/namespaces/kube-public/configmaps"),
    reading("/api/v1/namespaces/default"),
    reading("/api/v1/namespaces/kube-public/secrets/a"),
)


def failing(cluster: Cluster, token: str, acts: Sequence[Act] = ACTS) -> list[str]:
    return [act.name for act in acts if not act.works(cluster, token)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with (
        SimulatedClusterProcess("east", options=("--empty", "--no-controllers")) as process,
        contextlib.closing(Cluster(process)) as cluster,
    ):
        yield cluster


def test_everything_works_with_it_and_every_rule_is_needed(
    cluster: Cluster, kubectl: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token, admin = "mcproxy-test-token", "admin-test-token"
    assert failing(cluster, token) == [act.name for act in ACTS]
    text = printed(tmp_path, capsys, "--cluster", "east", "--user", "mcproxy")
    cluster.apply(kubectl, text)
    assert failing(cluster, token) == []
    role = next(document for document in documents(text) if document["kind"] == "ClusterRole")
    path = f"{ROLES}/{role['metadata']['name']}"
    broken: list[list[str]] = []
    for number in range(len(role["rules"])):
        rules = [rule for index, rule in enumerate(role["rules"]) if index != number]
        assert cluster.ask("PUT", path, admin, {**role, "rules": rules})[0] == 200
        broken.append(failing(cluster, token))
    assert all(broken), list(zip(role["rules"], broken, strict=True))
    assert sorted({name for names in broken for name in names}) == sorted(act.name for act in ACTS)
    for plural, name in ((ROLES, path), (BINDINGS, path.replace(ROLES, BINDINGS))):
        assert cluster.ask("DELETE", name, admin)[0] == 200, plural
    assert failing(cluster, token) == [act.name for act in ACTS]


@pytest.mark.slow
def test_an_aggregate_reads_its_members_with_it_and_every_rule_is_needed(
    cluster: Cluster, kubectl: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(tmp_path, capsys, "--user", "mcproxy", config=FLEET)
    assert _each_item_is_needed(cluster, kubectl, text, ACTS_OF_FLEET, REFUSED) == [None, "kube-public"]


@pytest.mark.slow
def test_services_are_imported_with_it_and_every_rule_is_needed(
    cluster: Cluster, kubectl: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(tmp_path, capsys, "--user", "mcproxy", "--cluster", "east", config=SERVICES)
    namespaces = _each_item_is_needed(cluster, kubectl, text, ACTS_OF_SERVICES, REFUSED_OF_SERVICES)
    assert namespaces == [None, "kube-public", "kube-system"]


@pytest.mark.slow
def test_discovered_services_are_imported_with_it_and_every_rule_is_needed(
    cluster: Cluster, kubectl: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(tmp_path, capsys, "--user", "mcproxy", "--cluster", "east", config=DISCOVERY)
    refused = (reading("/api/v1/secrets"), reading("/api/v1/endpoints"), allowed("PUT", f"{LEASES}/other", {}))
    assert _each_item_is_needed(cluster, kubectl, text, ACTS_OF_DISCOVERY, refused) == [None, "kube-system"]


def test_users_are_named_by_constrained_impersonation_with_it(
    cluster: Cluster, kubectl: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = constrained(tmp_path, capsys)
    roles = [document for document in documents(text) if "rules" in document]
    assert "impersonate" not in {verb for role in roles for rule in role["rules"] for verb in rule["verbs"]}
    assert "It never gives the group system:masters" in text.replace("\n# ", " ")
    assert "extras without a domain (impersonateExtras) are refused: scopes" in text
    cluster.apply(kubectl, text)
    try:
        assert failing(cluster, "mcproxy-test-token", ACTS_OF_USERS) == []
        assert not any(act(cluster, "mcproxy-test-token") for act in REFUSED_TO_USERS)
    finally:
        cluster.delete(text)


@pytest.mark.slow
def test_users_are_named_by_constrained_impersonation_with_it_and_every_rule_is_needed(
    cluster: Cluster, kubectl: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = constrained(tmp_path, capsys)
    assert _each_item_is_needed(cluster, kubectl, text, ACTS_OF_USERS, REFUSED_TO_USERS) == [None, "kube-public"]


def constrained(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    (folder / "users.csv").write_text("")
    return printed(folder, capsys, "--user", "mcproxy", "--constrained", config=CONSTRAINED)


def _each_item_is_needed(
    cluster: Cluster, kubectl: str, text: str, acts: Sequence[Act], refused: Sequence[Callable[[Cluster, str], bool]]
) -> list[str | None]:
    """Apply the roles and take away each item of each rule; return the namespaces of the roles."""
    token, admin = "mcproxy-test-token", "admin-test-token"
    assert failing(cluster, token, acts) == [act.name for act in acts]
    cluster.apply(kubectl, text)
    assert failing(cluster, token, acts) == []
    assert not any(act(cluster, token) for act in refused)
    roles = [document for document in documents(text) if document["kind"] in ("ClusterRole", "Role")]
    broken: list[list[str]] = []
    for role in roles:
        name, namespace = role["metadata"]["name"], role["metadata"].get("namespace")
        path = f"/apis/{GROUP}/v1/namespaces/{namespace}/roles/{name}" if namespace else f"{ROLES}/{name}"
        for number, rule in enumerate(role["rules"]):
            for key in ("verbs", "resources", "nonResourceURLs"):
                for item in rule.get(key, ()):
                    less = {**rule, key: [other for other in rule[key] if other != item]}
                    rules = [less if index == number else other for index, other in enumerate(role["rules"])]
                    rules = [other for other in rules if other["verbs"] and other.get(key) != []]
                    assert cluster.ask("PUT", path, admin, {**role, "rules": rules})[0] == 200
                    broken.append(failing(cluster, token, acts))
                    assert broken[-1], f"{item} is not needed in {rule}"
            assert cluster.ask("PUT", path, admin, role)[0] == 200
    assert sorted({name for names in broken for name in names}) == sorted(act.name for act in acts)
    cluster.delete(text)
    return [role["metadata"].get("namespace") for role in roles]


def test_every_rule_is_one_right_with_its_purpose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(tmp_path, capsys)
    role = next(document for document in documents(text) if document["kind"] == "ClusterRole")
    for rule in role["rules"]:
        assert all(len(values) == 1 and values[0] != "*" for values in rule.values())
    lines = text.partition("rules:\n")[2].partition("---\n")[0].splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("  - ")]
    assert len(starts) == len(role["rules"])
    assert all(lines[number - 1].startswith("  # ") for number in starts)


def test_a_cluster_is_joined_by_a_service_account(
    cluster: Cluster, kubectl: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(tmp_path, capsys, "--service-account")
    kinds = [document["kind"] for document in documents(text)]
    assert kinds == ["Namespace", "ServiceAccount", "Secret", "ClusterRole", "ClusterRoleBinding"]
    secret = documents(text)[2]
    assert secret["type"] == "kubernetes.io/service-account-token"
    assert secret["metadata"]["annotations"] == {"kubernetes.io/service-account.name": "mcproxy"}
    cluster.apply(kubectl, text)
    cluster.apply(kubectl, text)  # a second time changes nothing
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    path = "/api/v1/namespaces/mcproxy/serviceaccounts/mcproxy/token"
    status, answer = cluster.ask("POST", path, "admin-test-token", body)
    assert status == 201
    assert failing(cluster, answer["status"]["token"]) == []


# What is printed for which configuration.


def cluster_config(name: str = "east", **fields: Any) -> model.ClusterConfig:
    return model.ClusterConfig(name=name, endpoints=(), **fields)


def server(cluster: str = "east", *more: str, **fields: Any) -> model.Server:
    backend = model.ClustersBackend((cluster, *more)) if more else model.ClusterBackend(cluster)
    return model.Server(name=f"s-{cluster}", listeners=("l",), backend=backend, **fields)


def rights(config: model.Config, number: int = 0) -> list[str]:
    return [
        f"{grant.verb} {grant.path or grant.resource}" for grant in required_rights(config, config.clusters[number])
    ]


IMPERSONATION = ["impersonate users", "impersonate groups", "impersonate serviceaccounts", "impersonate uids"]
REVIEW = "create subjectaccessreviews"
RULES = model.Authorization(name="r", rules=(model.Rule(verbs=("*",), api_groups=("*",), resources=("*",)),))
IMPERSONATION_RULES = model.Authorization(
    name="i", rules=(model.Rule(verbs=("impersonate",), api_groups=("",), resources=("*",)),)
)
DELEGATED = model.Authorization(name="d", subject_access_review=model.SubjectAccessReview())
BY_WEST = model.Authorization(name="w", subject_access_review=model.SubjectAccessReview(cluster="west"))


@pytest.mark.parametrize(
    ("identity", "authorization", "expected"),
    [
        (model.UpstreamIdentity.IMPERSONATE, None, ["get /readyz", *IMPERSONATION, REVIEW]),
        (model.UpstreamIdentity.IMPERSONATE, "r", ["get /readyz", *IMPERSONATION]),
        (model.UpstreamIdentity.IMPERSONATE, "i", ["get /readyz", *IMPERSONATION, REVIEW]),
        (model.UpstreamIdentity.IMPERSONATE, "d", ["get /readyz", *IMPERSONATION, REVIEW]),
        (model.UpstreamIdentity.REQUEST_HEADER, None, ["get /readyz", REVIEW]),
        (model.UpstreamIdentity.REQUEST_HEADER, "r", ["get /readyz"]),
        (model.UpstreamIdentity.REQUEST_HEADER, "i", ["get /readyz", REVIEW]),
        (model.UpstreamIdentity.PROXY, "r", ["get /readyz"]),
        (model.UpstreamIdentity.PROXY, "i", ["get /readyz"]),
        (model.UpstreamIdentity.PROXY, "d", ["get /readyz", REVIEW]),
        (model.UpstreamIdentity.PASSTHROUGH, None, ["get /readyz"]),
    ],
)
def test_rights_follow_from_identity(
    identity: model.UpstreamIdentity, authorization: str | None, expected: list[str]
) -> None:
    config = model.Config(
        clusters=(cluster_config(identity=identity),),
        authorization=(RULES, IMPERSONATION_RULES, DELEGATED),
        servers=(server(authorization=authorization),),
    )
    assert rights(config) == expected


def test_where_clients_speak_for_themselves_impersonation_is_reviewed_if_they_are_known() -> None:
    passthrough = cluster_config(identity=model.UpstreamIdentity.PASSTHROUGH)
    for authentication, expected in ((None, ["get /readyz"]), ("c", ["get /readyz", REVIEW])):
        config = model.Config(clusters=(passthrough,), servers=(server(authentication=authentication),))
        assert rights(config) == expected


def test_all_extras_are_a_star_over_their_group() -> None:
    config = model.Config(clusters=(cluster_config(impersonate_extras=("*",)),), servers=(server(),))
    star = required_rights(config, config.clusters[0])[4]
    assert star.rule == {"apiGroups": ["authentication.k8s.io"], "resources": ["*"], "verbs": ["impersonate"]}
    assert rights(config) == ["get /readyz", *IMPERSONATION[:-1], "impersonate *", REVIEW]


def test_all_extras_can_be_named_with_that_star(cluster: Cluster) -> None:
    admin, token, name = "admin-test-token", "mcproxy-test-token", "extras"
    config = model.Config(clusters=(cluster_config(impersonate_extras=("*",)),), servers=(server(),))
    rules = [right.rule for right in required_rights(config, config.clusters[0])]
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "mcproxy"}],
    }
    assert cluster.ask("POST", ROLES, admin, role)[0] == 201
    assert cluster.ask("POST", BINDINGS, admin, binding)[0] == 201
    try:
        named = UserInfo("bob", ("system:authenticated",), "u-1", (("any.example.com/key", ("a",)), ("scopes", ("b",))))
        assert telling(named, "*")(cluster, token)
    finally:
        for plural in (BINDINGS, ROLES):
            assert cluster.ask("DELETE", f"{plural}/{name}", admin)[0] == 200


def test_a_cluster_that_no_server_uses_is_only_looked_after() -> None:
    assert rights(model.Config(clusters=(cluster_config(),), servers=(server("west"),))) == ["get /readyz"]


def test_a_cluster_that_a_policy_sends_requests_to_is_used() -> None:
    policy = model.Policy(name="p", rules=(), backend=model.ClusterBackend("east"))
    config = model.Config(clusters=(cluster_config(),), servers=(server("west", dispatch=(policy,)),))
    assert rights(config) == ["get /readyz", *IMPERSONATION, REVIEW]


def test_requests_to_one_cluster_may_be_reviewed_by_another() -> None:
    clusters = (cluster_config("east", identity=model.UpstreamIdentity.PROXY), cluster_config("west"))
    config = model.Config(clusters=clusters, authorization=(BY_WEST,), servers=(server("east", authorization="w"),))
    assert rights(config, 0) == ["get /readyz"]
    assert rights(config, 1) == ["get /readyz", REVIEW]


@pytest.mark.parametrize(
    ("reviewer", "used", "expected"),
    [
        (None, server("east", authentication="c"), True),
        (None, server("east", "west", authentication="c"), False),
        ("east", server("west", authentication="c"), True),
        ("west", server("east", authentication="c"), False),
        ("east", server("east"), False),
    ],
)
def test_token_reviews_are_those_of_used_servers(reviewer: str | None, used: model.Server, expected: bool) -> None:
    authentication = model.Authentication(name="c", token_review=model.TokenReview(cluster=reviewer))
    config = model.Config(clusters=(cluster_config(),), authentication=(authentication,), servers=(used,))
    assert ("create tokenreviews" in rights(config)) is expected


def test_an_admin_listener_has_its_users_and_their_requests_reviewed() -> None:
    review = model.SubjectAccessReview(cluster="east")
    config = model.Config(
        clusters=(cluster_config(identity=model.UpstreamIdentity.PROXY),),
        authentication=(model.Authentication(name="users", token_review=model.TokenReview(cluster="east")),),
        authorization=(model.Authorization(name="scrapers", subject_access_review=review),),
    )
    assert rights(config) == ["get /readyz"]
    bind = model.TCPBind("127.0.0.1", 9901)
    admin = model.ListenerConfig(
        name="admin", bind=bind, serves=model.Serves.ADMIN, authentication="users", authorization="scrapers"
    )
    assert rights(replace(config, listeners=(admin,))) == [
        "get /readyz",
        "create tokenreviews",
        "create subjectaccessreviews",
    ]


def test_a_health_check_of_a_resource_is_a_right_on_it() -> None:
    checked = cluster_config(health_check=model.HealthCheck(path="/api/v1/namespaces/default/services/x/status"))
    grant = required_rights(model.Config(clusters=(checked,)), checked)[0]
    assert grant.rule == {"apiGroups": [""], "resources": ["services/status"], "verbs": ["get"]}


def aggregated(*entries: model.CachedResource, **fields: Any) -> model.Config:
    fleet = model.Aggregate(
        name="fleet", clusters=("east", "west"), primary="hub", cache=model.Cache(resources=entries), **fields
    )
    return model.Config(
        clusters=tuple(cluster_config(name, identity=model.UpstreamIdentity.PROXY) for name in ("east", "west", "hub")),
        aggregates=(fleet,),
        servers=(
            model.Server(
                name="s", listeners=(), backend=model.AggregateBackendConfig("fleet", ("east", "west"), "hub")
            ),
        ),
    )


PODS = model.CachedResource(group="", version="v1", resource="pods")
KNOWN = [
    "get /api", "get /api/*", "get /apis", "get /apis/*", "get /openapi/v2", "get /openapi/v3", "get /openapi/v3/*",
    "get /version", "get namespaces",
]  # fmt: skip
MEMBER = ["get /readyz", *KNOWN]


def test_a_member_is_read_with_the_rights_of_the_scope_and_a_primary_is_only_known() -> None:
    config = aggregated(PODS, model.CachedResource(group="apps", version="v1", resource="*", clusters=("west",)))
    assert rights(config) == [*MEMBER, "list pods", "watch pods"]
    assert rights(config, 1) == [*MEMBER, "list pods", "watch pods", "list *", "watch *"]
    assert rights(config, 2) == MEMBER
    assert rights(replace(config, servers=())) == ["get /readyz"]


@pytest.mark.parametrize("authorize", [model.ReadAuthorization.MEMBERS, model.ReadAuthorization.SERVER])
def test_members_are_asked_who_may_write_whoever_authorizes_reads(authorize: model.ReadAuthorization) -> None:
    config = aggregated(PODS, reads=model.ReadsConfig(authorize=authorize))
    passthrough = cluster_config(identity=model.UpstreamIdentity.PASSTHROUGH)
    assert REVIEW in rights(replace(config, clusters=(passthrough,)))


@pytest.mark.parametrize(
    ("identity", "asks"), [(model.UpstreamIdentity.PROXY, False), (model.UpstreamIdentity.REQUEST_HEADER, True)]
)
def test_a_cluster_that_knows_no_user_is_asked_about_the_proxy_itself(
    identity: model.UpstreamIdentity, asks: bool
) -> None:
    config = replace(aggregated(PODS), clusters=(cluster_config(identity=identity),), authorization=(RULES,))
    config = replace(config, servers=(replace(config.servers[0], authorization="r"),))
    assert (REVIEW in rights(config)) is asks


def test_all_of_the_core_group_is_not_its_secrets() -> None:
    found = rights(aggregated(replace(PODS, resource="*")))
    assert {"list pods", "watch configmaps", "list services"} <= set(found)
    assert not {"list secrets", "watch secrets", "list *", "watch *", "list componentstatuses"} & set(found)
    named = rights(aggregated(replace(PODS, resource="*"), replace(PODS, resource="secrets")))
    assert {*named} - {*found} == {"list secrets", "watch secrets"}


def test_rights_in_namespaces_are_not_asked_for_beside_those_in_all() -> None:
    narrow = replace(PODS, namespaces=("a", "b"))
    found = required_rights(aggregated(narrow), cluster_config())
    assert [(right.verb, right.namespace) for right in found if right.resource == "pods"] == [
        ("list", "a"), ("watch", "a"), ("list", "b"), ("watch", "b"),
    ]  # fmt: skip
    found = required_rights(aggregated(narrow, PODS), cluster_config())
    assert [(right.verb, right.namespace) for right in found if right.resource == "pods"] == [
        ("list", ""), ("watch", ""),
    ]  # fmt: skip


# Whom the rights are for.


def subject(text: str) -> dict[str, str]:
    found: dict[str, str] = documents(text)[-1]["subjects"][0]
    return found


def token_of(subject: str) -> str:
    payload = base64.urlsafe_b64encode(json.dumps({"sub": subject}).encode()).rstrip(b"=").decode()
    return f"e30.{payload}.c2ln"


def test_the_subject_comes_from_the_client_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pki.write(tmp_path)
    config = CONFIG.replace("{token: hush}", "{certFile: client.crt, keyFile: client.key}")
    text = printed(tmp_path, capsys, config=config)
    assert subject(text) == {"kind": "User", "apiGroup": GROUP, "name": "client"}
    assert "common name" in text


@pytest.mark.parametrize("place", ["token", "tokenFile"])
def test_the_subject_comes_from_the_service_accounts_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    token = token_of("system:serviceaccount:edge:proxy")
    (tmp_path / "token").write_text(token + "\n")
    config = CONFIG.replace("{token: hush}", f"{{{place}: {token if place == 'token' else 'token'}}}")
    text = printed(tmp_path, capsys, config=config)
    assert subject(text) == {"kind": "ServiceAccount", "namespace": "edge", "name": "proxy"}
    assert token not in text


@pytest.mark.parametrize(
    "token", ["hush", token_of("alice"), token_of("system:serviceaccount:x"), "a.b.c", "..", "a.W10.b"]
)
def test_without_a_known_subject_a_service_account_is_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], token: str
) -> None:
    text = printed(tmp_path, capsys, config=CONFIG.replace("hush", token))
    assert subject(text) == {"kind": "ServiceAccount", "namespace": "mcproxy", "name": "mcproxy"}
    assert "--user" in text


def test_a_user_that_is_named_is_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(tmp_path, capsys, "--user", "a: b\n- c")
    assert subject(text)["name"] == "a: b\n- c"
    account = printed(tmp_path, capsys, "--user", "system:serviceaccount:a:b")
    assert subject(account) == {"kind": "ServiceAccount", "namespace": "a", "name": "b"}


def test_without_a_credential_there_is_no_subject(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = CONFIG.replace("    credentials: {token: hush}\n", "    identity: Passthrough\n")
    config = config.replace("authentication: corp, authorization: delegated", "authentication: none")
    for line in (
        "authentication:",
        "  - {name: corp",
        "authorization:",
        "  - {name: delegated",
        "    impersonateExtras",
    ):
        config = "\n".join(kept for kept in config.split("\n") if not kept.startswith(line))
    assert documents(printed(tmp_path, capsys, config=config)) == []


# The command.


def test_all_clusters_in_the_order_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    west = '  - {name: west, endpoints: [{url: "https://127.0.0.1:2"}], credentials: {token: hush}}\n'
    config = CONFIG.replace("authentication:\n", west + "authentication:\n", 1)
    names = [document["metadata"]["name"] for document in documents(printed(tmp_path, capsys, config=config))]
    assert names == ["mcproxy:east"] * 2 + ["mcproxy:west"] * 2
    only = documents(printed(tmp_path, capsys, "--cluster", "west", config=config))
    assert [document["metadata"]["name"] for document in only] == ["mcproxy:west"] * 2
    assert printed(tmp_path, capsys, config=config) == printed(tmp_path, capsys, config=config)


def test_the_configuration_of_these_tests_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "mcproxy.yaml").write_text(CONFIG)
    assert load(str(tmp_path / "mcproxy.yaml")).config.clusters[0].impersonate_extras == (
        "scopes",
        "example.com/origin",
    )


def test_no_file_is_needed_but_the_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = CONFIG.replace("{token: hush}", "{certFile: no.crt, keyFile: no.key}")
    told = printed(tmp_path, capsys, config=text)
    assert "(a guess: its credential has no name; see --user)" in told
    assert documents(told) == documents(printed(tmp_path, capsys))
    kubeconfig = CONFIG.replace('endpoints: [{url: "https://127.0.0.1:1"}]', "kubeconfig: {file: no.kubeconfig}")
    told = printed(tmp_path, capsys, config=kubeconfig.replace("    credentials: {token: hush}\n", ""))
    assert documents(told) == documents(printed(tmp_path, capsys))


def test_a_cluster_that_is_not_there_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mcproxy.yaml").write_text(CONFIG)
    args = argparse.Namespace(
        config=str(tmp_path / "mcproxy.yaml"), cluster="north", apiservice=None, user=None, service_account=False
    )
    assert rbac.run(args) == 2
    assert "no cluster north" in capsys.readouterr().err


def test_a_file_with_faults_is_told_as_by_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mcproxy.yaml").write_text("version: 2\n")
    args = argparse.Namespace(
        config=str(tmp_path / "mcproxy.yaml"), cluster=None, apiservice=None, user=None, service_account=False
    )
    assert rbac.run(args) == 78
    assert "version" in capsys.readouterr().err


TUNNELS = """
version: 1
listeners: [{name: local, bind: "127.0.0.1:6443"}]
tunnels: [{name: site-a, users: [edge]}]
authentication: [{name: corp, tokenFile: users.csv}]
clusters:
  - {name: told, identity: RequestHeader, endpoints: [{tunnel: site-a}], credentials: {token: hush}}
  - {name: passed, identity: Passthrough, endpoints: [{tunnel: site-a}]}
  - {name: named, endpoints: [{tunnel: site-a}], credentials: {token: hush}}
servers:
  - {name: all, default: true, backend: {clusters: "*"}, authentication: corp}
  - {name: tunnels, serverNames: [t.example], backend: {tunnels: "*"}, authentication: corp}
"""


def test_behind_a_tunnel_the_edge_has_the_rights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("told", "passed"):
        text = printed(tmp_path, capsys, "--cluster", name, config=TUNNELS)
        assert documents(text) == []
        assert text.startswith(f"# Cluster {name}: it dials out, and mcproxy needs no credential there")
        assert f"mcproxy rbac --cluster {name} --user HUBUSER" in text
    [role, binding] = documents(printed(tmp_path, capsys, "--cluster", "told", "--user", "mcproxy-hub", config=TUNNELS))
    assert {"nonResourceURLs": ["/readyz"], "verbs": ["get"]} in role["rules"]
    assert not any("impersonate" in rule["verbs"] for rule in role["rules"])
    assert binding["subjects"][0]["name"] == "mcproxy-hub"
    [role, _] = documents(printed(tmp_path, capsys, "--cluster", "named", config=TUNNELS))
    assert any("impersonate" in rule["verbs"] for rule in role["rules"])
