"""With the rights that `mcproxy rbac` prints, and no others, the proxy does all that its configuration requires."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubesim.auth.certificates import Authority
from tests.e2e.http_client import Address, Answer, ask
from tests.e2e.identity_environment import bearer
from tests.e2e.processes import Daemon, mcproxy, wait_until
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.environment import PUBLIC_LISTENER
from tests.support.ports import reserved_port

CONFIG = (
    """\
version: 1
daemon: {{controlSocket: control.sock}}
"""
    + PUBLIC_LISTENER
    + """\
clusters:
  - name: east
    endpoints: [{{url: "{east}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: mcproxy-test-token}}
    impersonateExtras: [scopes, example.com/origin]
    healthCheck: {{interval: 100ms, timeout: 20s, unhealthyAfter: 1}}
authentication:
  - {{name: corp, clientCertificates: {{caFile: "{ca}"}}, tokenReview: {{cacheSuccess: 0s, cacheFailure: 0s}}}}
authorization:
  - {{name: delegated, subjectAccessReview: {{cacheAllowed: 0s, cacheDenied: 0s}}}}
servers:
  - {{name: east, default: true, backend: {{cluster: east}}, authentication: corp, authorization: delegated}}
"""
)
RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
JSON = [("Content-Type", "application/json")]


class RightsEnvironment:
    """A cluster that gives mcproxy nothing, and a proxy before it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = SimulatedClusterProcess(
            "east", options=("--empty", "--no-controllers"), directory=directory / "east"
        )
        self.daemon: Daemon | None = None

    def start(self) -> RightsEnvironment:
        self.cluster.start()
        for name in ("system:public-info-viewer", "system:discovery", "mcproxy"):
            assert self.direct("DELETE", f"{RBAC}/clusterrolebindings/{name}").status == 200
        authority = Authority("proxy CA")
        authority.server(["127.0.0.1"]).write(self.directory, "proxy")
        (self.directory / "ca.crt").write_bytes(authority.pem)
        metadata = {"name": "builder", "namespace": "demo"}
        self.control = ControlClient(self.cluster.control_url)
        self.control.create([{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}])
        self.port = reserved_port()
        config = CONFIG.format(port=self.port, east=self.cluster.url, ca=self.cluster.ca)
        self.daemon = Daemon(self.directory, config).start()
        self.daemon.wait_for("event=right_missing", count=8)
        path = "/api/v1/namespaces/demo/serviceaccounts/builder/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        self.account: str = self.direct("POST", path, body).json["status"]["token"]
        return self

    def stop(self) -> None:
        if self.daemon is not None:
            self.daemon.stop()
        self.cluster.cleanup()

    def direct(self, method: str, path: str, body: object = None) -> Answer:
        address = Address(self.cluster.ports[0], ssl.create_default_context(cafile=self.cluster.ca))
        data = None if body is None else json.dumps(body).encode()
        return ask(address, path, method=method, headers=[*JSON, *bearer("admin-test-token")], body=data)

    def ask(
        self, path: str, *headers: tuple[str, str], user: str = "", method: str = "GET", body: Any = None
    ) -> Answer:
        context = ssl.create_default_context(cafile=str(self.directory / "ca.crt"))
        if user:
            context.load_cert_chain(self.cluster.user(user).certificate, self.cluster.user(user).key)
        data = None if body is None else json.dumps(body).encode()
        return ask(Address(self.port, context), path, method=method, headers=[*JSON, *headers], body=data)

    def whoami(self, *headers: tuple[str, str], user: str = "") -> dict[str, Any]:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        answer = self.ask(REVIEW, *headers, user=user, method="POST", body=body)
        found: dict[str, Any] = answer.json["status"]["userInfo"] if answer.status == 201 else {}
        return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RightsEnvironment]:
    environment = RightsEnvironment(tmp_path_factory.mktemp("rights"))
    try:
        yield environment.start()
    finally:
        environment.stop()


def healthy(environment: RightsEnvironment) -> bool:
    """A refused endpoint is undecided and takes requests while none is ready, so only the cluster knows."""
    return bool(environment.control.audit(path="/readyz")[-1]["status"] == 200)


def certificate(environment: RightsEnvironment) -> bool:
    found = environment.whoami(user="alice")
    return (found.get("username"), found.get("groups")) == ("alice", ["dev", "system:authenticated"])


def token_with_uid(environment: RightsEnvironment) -> bool:
    found = environment.whoami(*bearer("alice-test-token"))
    return (found.get("username"), found.get("uid")) == ("alice", "alice-uid")


def account(environment: RightsEnvironment) -> bool:
    return environment.whoami(*bearer(environment.account)).get("username") == "system:serviceaccount:demo:builder"


def extra(key: str) -> Callable[[RightsEnvironment], bool]:
    def works(environment: RightsEnvironment) -> bool:
        escaped = key.replace("/", "%2F")
        headers = [("Impersonate-User", "bob"), (f"Impersonate-Extra-{escaped}", "a")]
        found = environment.whoami(*headers, user="admin")
        return found.get("username") == "bob" and found.get("extra") == {key: ["a"]}

    return works


def refusal(environment: RightsEnvironment) -> bool:
    answer = environment.ask("/api/v1/secrets", user="alice")
    return answer.status == 403 and 'User "alice" cannot list' in answer.json["message"]


def impersonation_refused(environment: RightsEnvironment) -> bool:
    answer = environment.ask("/api/v1/namespaces/demo/pods", ("Impersonate-User", "bob"), user="alice")
    return answer.status == 403 and 'User "alice" cannot impersonate' in answer.json["message"]


FEATURES: dict[str, Callable[[RightsEnvironment], bool]] = {
    "health": healthy,
    "certificate": certificate,
    "token with uid": token_with_uid,
    "service account": account,
    "extra": extra("scopes"),
    "extra with a slash": extra("example.com/origin"),
    "refusal": refusal,
    "impersonation refused": impersonation_refused,
}


def failing(environment: RightsEnvironment) -> list[str]:
    return [name for name, works in FEATURES.items() if not works(environment)]


@pytest.mark.slow
def test_printed_rights_are_enough_and_each_is_needed(environment: RightsEnvironment, kubectl: str) -> None:
    assert failing(environment) == list(FEATURES)
    printed = mcproxy(
        "rbac", "-c", str(environment.directory / "mcproxy.yaml"), "--cluster", "east", "--user", "mcproxy"
    )
    assert printed.returncode == 0, printed.stderr
    command = [kubectl, "--kubeconfig", environment.cluster.kubeconfig, "apply", "--validate=false", "-f", "-"]
    subprocess.run(command, input=printed.stdout, capture_output=True, text=True, timeout=60, check=True)
    wait_until("all features work", lambda: failing(environment) == [])
    (role,) = [item for item in yaml.safe_load_all(printed.stdout) if item["kind"] == "ClusterRole"]
    path = f"{RBAC}/clusterroles/{role['metadata']['name']}"
    broken: dict[str, list[str]] = {}
    for rule in role["rules"]:
        less = {**role, "rules": [other for other in role["rules"] if other is not rule]}
        assert environment.direct("PUT", path, less).status == 200
        wait_until(f"something needs {rule}", lambda: failing(environment) != [])
        broken[json.dumps(rule)] = failing(environment)
        assert environment.direct("PUT", path, role).status == 200
        wait_until("all features work again", lambda: failing(environment) == [])
    assert {name for names in broken.values() for name in names} == set(FEATURES)
    assert environment.daemon is not None
    environment.daemon.reload()
    environment.daemon.wait_for("event=rights_complete", "cluster=east")


def test_missing_rights_are_logged_one_by_one_at_the_start(environment: RightsEnvironment) -> None:
    assert environment.daemon is not None
    printed = mcproxy(
        "rbac", "-c", str(environment.directory / "mcproxy.yaml"), "--cluster", "east", "--user", "mcproxy"
    )
    (role,) = [item for item in yaml.safe_load_all(printed.stdout) if item["kind"] == "ClusterRole"]
    lines = environment.daemon.lines("event=right_missing")
    assert len(lines) == len(role["rules"])
    for rule in role["rules"]:
        (what,) = rule.get("nonResourceURLs") or rule["resources"]
        assert [line for line in lines if rule["verbs"][0] in line and what.split("/")[0] in line]
    assert all("mcproxy rbac --cluster east" in line for line in lines)
