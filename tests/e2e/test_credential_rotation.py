"""Credentials that change while the proxy runs: those of clients stop in time, the proxy's own cost no request."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubesim.auth.certificates import Authority
from tests.e2e.http_client import Address, Answer, Client, ask
from tests.e2e.identity_environment import bearer
from tests.e2e.processes import Daemon, wait_until
from tests.simulated_cluster.control_client import ControlClient, header_values
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.environment import PUBLIC_LISTENER
from tests.support.ports import reserved_port

KEPT = 0.4
"""Seconds for which the proxy keeps what reviewers say."""

CONFIG = (
    """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 5s}}
"""
    + PUBLIC_LISTENER
    + """\
clusters:
  - name: judge
    endpoints: [{{url: "{judge}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{tokenFile: judge-token}}
    healthCheck: {{interval: 200ms, timeout: 20s, unhealthyAfter: 1}}
  - name: east
    endpoints: [{{url: "{east}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{tokenFile: own-token}}
  - name: certificate
    endpoints: [{{url: "{east}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{certFile: own.crt, keyFile: own.key}}
  - name: plugin
    endpoints: [{{url: "{east}"}}]
    tls: {{caFile: "{ca}"}}
    credentials:
      exec: {{command: "{python}", args: ["{directory}/plugin.py"], env: {{ANSWER: "{directory}/answer"}}}}
authentication:
  - name: corp
    clientCertificates: {{caFile: clients.crt}}
    tokenFile: tokens.csv
    tokenReview: {{cluster: judge, cacheSuccess: {kept}ms, cacheFailure: {kept}ms}}
authorization:
  - {{name: judged, subjectAccessReview: {{cluster: judge, cacheAllowed: {kept}ms, cacheDenied: {kept}ms}}}}
servers:
  - {{name: corp, default: true, backend: {{clusters: "*"}}, authentication: corp}}
  - {{name: judged, serverNames: [judged.test], backend: {{cluster: east}}, authentication: corp,
     authorization: judged}}
"""
)
PLUGIN = "import os\nprint(open(os.environ['ANSWER']).read())\n"
PODS = "/clusters/east/api/v1/namespaces/demo/pods"
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
RBAC = "rbac.authorization.k8s.io"


class RotationEnvironment:
    """One simulated cluster with two endpoints: the one judges, the other serves."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = SimulatedClusterProcess(
            "east", options=("--endpoints", "2", "--empty", "--no-controllers"), directory=directory / "east"
        )
        self._daemon: Daemon | None = None
        self._accounts: dict[str, list[str]] = {}

    def start(self) -> RotationEnvironment:
        directory = self.directory
        self.cluster.start()
        self.control = ControlClient(self.cluster.control_url)
        self.old, self.new = Authority("old clients"), Authority("new clients")
        proxy = Authority("proxy CA")
        proxy.server(["127.0.0.1", "judged.test"]).write(directory, "proxy")
        self.ca = directory / "ca.crt"
        self.ca.write_bytes(proxy.pem)
        for name, authority in (("old", self.old), ("new", self.new)):
            authority.client("alice", ["dev"]).write(directory, name)
        self.trust(self.old, self.new)
        self.write_tokens("second")
        for cluster in ("east", "judge", "plugin"):
            self.rotate(cluster)
        self.grant_all("admin")  # the groups of the system that judge's TokenReview gives count for judge alone
        self.lend_certificate("mcproxy")
        (directory / "plugin.py").write_text(PLUGIN)
        self.port = reserved_port()
        config = CONFIG.format(
            port=self.port,
            judge=self.cluster.urls[0],
            east=self.cluster.urls[1],
            ca=self.cluster.ca,
            python=sys.executable,
            directory=directory,
            kept=int(KEPT * 1000),
        )
        self._daemon = Daemon(directory, config).start()
        self._daemon.wait_for("takes requests", count=4)
        self._plugin_ran = time.monotonic()
        return self

    def wait_for_the_plugins_turn(self) -> None:
        """Wait until a refused credential has the plugin run again: it is not, a moment after it was run."""
        wait_until("five seconds are over", lambda: time.monotonic() > self._plugin_ran + 5.2)

    @property
    def daemon(self) -> Daemon:
        assert self._daemon is not None
        return self._daemon

    def stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()
        self.cluster.cleanup()

    def address(self, certificate: str = "", server: str = "") -> Address:
        context = ssl.create_default_context(cafile=str(self.ca))
        if certificate:
            context.load_cert_chain(self.directory / f"{certificate}.crt", self.directory / f"{certificate}.key")
        return Address(self.port, context, server)

    def trust(self, *authorities: Authority) -> None:
        (self.directory / "clients.crt").write_bytes(b"".join(authority.pem for authority in authorities))

    def write_tokens(self, *tokens: str) -> None:
        (self.directory / "tokens.csv").write_text("".join(f'{token},alice,,"dev"\n' for token in tokens))

    def reload(self) -> None:
        done = self.daemon.reload()
        assert done.returncode == 0, done.stderr

    def lend_certificate(self, user: str) -> None:
        pair = self.cluster.user(user)
        write_over(self.directory / "own.crt", Path(pair.certificate).read_text())
        write_over(self.directory / "own.key", Path(pair.key).read_text())

    def admin(self, method: str, path: str, body: object = None) -> Answer:
        context = ssl.create_default_context(cafile=self.cluster.ca)
        data = None if body is None else json.dumps(body).encode()
        headers = [*bearer("admin-test-token"), ("Content-Type", "application/json")]
        return ask(Address(self.cluster.ports[1], context), path, method=method, headers=headers, body=data)

    def account(self, name: str) -> None:
        """A service account that may do what mcproxy may."""
        metadata = {"name": name, "namespace": "demo"}
        binding = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "mcproxy"},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        }
        self.control.create([{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}, binding])

    def grant_all(self, user: str) -> None:
        """Let a user do everything, by name."""
        subject = {"kind": "User", "apiGroup": RBAC, "name": user}
        binding = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"all-for-{user}"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [subject],
        }
        self.control.create([binding])

    def token(self, name: str) -> str:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        answer = self.admin("POST", f"/api/v1/namespaces/demo/serviceaccounts/{name}/token", body)
        assert answer.status == 201, answer
        return str(answer.json["status"]["token"])

    def revoke(self, name: str) -> None:
        """From now on no token of this account is good."""
        assert self.admin("DELETE", f"/api/v1/namespaces/demo/serviceaccounts/{name}").status == 200

    def rotate(self, cluster: str) -> str:
        """Give the proxy a token of a new account for this cluster; the one before is good no more."""
        accounts = self._accounts.setdefault(cluster, [])
        accounts.append(f"{cluster}-{len(accounts)}")
        self.account(accounts[-1])
        token = self.token(accounts[-1])
        credential = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": {"token": token},
        }
        name, text = {
            "east": ("own-token", token),
            "judge": ("judge-token", token),
            "plugin": ("answer", json.dumps(credential)),
        }[cluster]
        write_over(self.directory / name, text)
        for before in accounts[-2:-1]:
            self.revoke(before)
        return token


def write_over(path: Path, text: str) -> None:
    """Put a file in the place of another, as agents that rotate credentials do."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RotationEnvironment]:
    environment = RotationEnvironment(tmp_path_factory.mktemp("changes"))
    try:
        yield environment.start()
    finally:
        environment.stop()


def test_a_replaced_authority_stops_working_with_the_reload(environment: RotationEnvironment) -> None:
    environment.trust(environment.old)
    environment.reload()
    with Client(environment.address("old")) as old, Client(environment.address("new")) as new:
        assert (old.request("GET", PODS).status, new.request("GET", PODS).status) == (200, 401)
        environment.trust(environment.new)
        assert (old.request("GET", PODS).status, new.request("GET", PODS).status) == (200, 401)
        environment.reload()
        assert (old.request("GET", PODS).status, new.request("GET", PODS).status) == (401, 200)
        assert ask(environment.address("old"), PODS).status == 401
        assert ask(environment.address("new"), PODS).status == 200
        environment.trust(environment.old, environment.new)
        environment.reload()
        assert (old.request("GET", PODS).status, new.request("GET", PODS).status) == (200, 200)


def test_a_token_that_the_file_lost_stops_working_with_the_reload(environment: RotationEnvironment) -> None:
    environment.write_tokens("first", "second")
    environment.reload()
    with Client(environment.address()) as client:
        assert [client.request("GET", PODS, bearer(name)).status for name in ("first", "second")] == [200, 200]
        environment.write_tokens("second", "third")
        environment.reload()
        statuses = [client.request("GET", PODS, bearer(name)).status for name in ("first", "second", "third")]
        assert statuses == [401, 200, 200]
        assert ask(environment.address(), PODS, headers=bearer("first")).status == 401


def test_a_revoked_token_stops_within_the_time_of_success(environment: RotationEnvironment) -> None:
    environment.account("leaver")
    token = environment.token("leaver")
    path = PODS.replace("east", "judge")
    with Client(environment.address()) as client:
        assert client.request("GET", path, bearer(token)).status == 403  # known, without any right
        environment.revoke("leaver")
        begin = time.monotonic()
        wait_until("the token is refused", lambda: client.request("GET", path, bearer(token)).status == 401)
        assert time.monotonic() - begin < KEPT + 5.0
    assert ask(environment.address(), path, headers=bearer(token)).status == 401


def test_a_refused_token_is_accepted_once_the_time_of_failure_is_over(environment: RotationEnvironment) -> None:
    environment.account("joiner")
    token = environment.token("joiner")
    path = PODS.replace("east", "judge")
    refusal = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": {"authenticated": False}}
    body = json.dumps(refusal).encode()
    head = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    fault = environment.control.fault("raw", paths=[TOKEN_REVIEWS], raw=base64.b64encode(head + body).decode())
    assert ask(environment.address(), path, headers=bearer(token)).status == 401
    environment.control.clear_faults(fault)
    begin = time.monotonic()
    wait_until("the token is accepted", lambda: ask(environment.address(), path, headers=bearer(token)).status == 403)
    assert time.monotonic() - begin < KEPT + 5.0


def test_a_reviewer_that_is_down_is_503_for_tokens_that_only_it_can_review(environment: RotationEnvironment) -> None:
    judged = environment.address("new", "judged.test")
    under = PODS.removeprefix("/clusters/east")
    assert ask(judged, under).status == 200
    environment.control.stop_endpoint(0)
    try:
        for number in range(5):
            answer = ask(environment.address(), PODS, headers=bearer(f"unknown-{number}"))
            assert (answer.status, answer.json["reason"]) == (503, "ServiceUnavailable")
            assert answer.header("Retry-After") == "1"
        wait_until("what was allowed is not known for ever", lambda: ask(judged, under).status == 503)
        assert ask(environment.address("new"), PODS).status == 200
        assert ask(environment.address(), PODS, headers=bearer("second")).status == 200
    finally:
        environment.control.start_endpoint(0)
    wait_until("requests are judged again", lambda: ask(judged, under).status == 200)
    answer = ask(environment.address(), PODS, headers=bearer("unknown-5"))
    assert answer.status == 401
    warnings = environment.daemon.lines("event=reviewer_out", "tokenReview", "judge", "level=warn")
    causes = [re.sub(r"\d+", "N", line.partition(" cause=")[2]) for line in warnings]
    assert causes
    assert all(one != another for one, another in itertools.pairwise(causes))  # not a line for each request


@pytest.mark.parametrize("expect", [[], [("Expect", "100-continue")]], ids=["at-once", "expecting"])
def test_a_body_that_comes_during_authentication_arrives_whole(
    environment: RotationEnvironment, expect: list[tuple[str, str]]
) -> None:
    data = "0123456789" * 90_000
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"}, "data": {"a": data}}
    headers = [*bearer("admin-test-token"), ("Content-Type", "application/json"), *expect]
    path = "/api/v1/namespaces/demo/configmaps?dryRun=All"
    reviews = ["/apis/authentication.k8s.io", "/apis/authorization.k8s.io"]
    fault = environment.control.fault("latency", paths=reviews, seconds=0.2)
    body = json.dumps(config_map).encode()
    answer = ask(environment.address("", "judged.test"), path, method="POST", headers=headers, body=body)
    environment.control.clear_faults(fault)
    assert (answer.status, answer.json["data"]) == (201, {"a": data})


class Busy:
    """Clients that ask without a pause; what they are answered with."""

    def __init__(self, environment: RotationEnvironment, target: str, count: int = 3) -> None:
        self.statuses: list[int] = []
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(environment.address("new"), target)) for _ in range(count)
        ]

    def _run(self, address: Address, target: str) -> None:
        with Client(address) as client:
            while not self._stopping.is_set():
                self.statuses.append(client.request("GET", target).status)

    def wait_for_more(self, count: int = 30) -> None:
        enough = len(self.statuses) + count
        wait_until("more was answered", lambda: len(self.statuses) >= enough)

    def __enter__(self) -> Busy:
        for thread in self._threads:
            thread.start()
        self.wait_for_more()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(20)


@pytest.mark.parametrize("cluster", ["east", "plugin"])
def test_the_proxys_own_credential_rotates_at_the_cost_of_no_request(
    environment: RotationEnvironment, cluster: str
) -> None:
    if cluster == "plugin":
        environment.wait_for_the_plugins_turn()
    mark = environment.control.mark()
    with Busy(environment, PODS.replace("east", cluster)) as busy:
        token = environment.rotate(cluster)  # requests with the old token are refused by the cluster from now on
        busy.wait_for_more()
    assert set(busy.statuses) == {200}
    records = environment.control.audit(mark, path="/api/v1/namespaces/demo/pods")
    assert header_values(records[-1], "Authorization") == [f"Bearer {token}"]
    assert {record["user"] for record in records if record["status"] == 200} == {"alice"}


def test_a_write_after_the_rotation_goes_with_the_new_credential(environment: RotationEnvironment) -> None:
    token = environment.rotate("east")
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {}}
    spec: dict[str, Any] = {"resourceAttributes": {"verb": "list", "resource": "pods", "namespace": "demo"}}
    data = json.dumps({**body, "spec": spec}).encode()
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    content = [("Content-Type", "application/json")]
    mark = environment.control.mark()
    with Client(environment.address("new")) as client:
        assert client.request("GET", PODS).status == 200  # a read is repeated with the new token, a write is not
        answer = client.request("POST", f"/clusters/east{path}", content, data)
    assert (answer.status, answer.json["status"]["allowed"]) == (201, True)
    (record,) = environment.control.audit(mark, path=path)
    assert header_values(record, "Authorization") == [f"Bearer {token}"]


def test_reviews_go_on_while_the_credential_for_them_rotates(environment: RotationEnvironment) -> None:
    environment.rotate("judge")
    assert ask(environment.address(), PODS, headers=bearer("unknown-3")).status == 401
    under = PODS.removeprefix("/clusters/east")
    assert ask(environment.address("new", "judged.test"), under).status == 200


def test_the_proxys_own_certificate_changes_with_the_reload_at_the_cost_of_no_request(
    environment: RotationEnvironment,
) -> None:
    mark = environment.control.mark()
    with Busy(environment, PODS.replace("east", "certificate")) as busy:
        environment.lend_certificate("admin")
        busy.wait_for_more()  # nothing is read again before the reload
        environment.reload()
        after = environment.control.mark()
        busy.wait_for_more(100)
    assert set(busy.statuses) == {200}
    pods = "/api/v1/namespaces/demo/pods"
    subjects = [record["client_subject"] for record in environment.control.audit(mark, path=pods)]
    assert subjects.index("CN=admin,O=system:masters") > 20, set(subjects)
    late = [record["client_subject"] for record in environment.control.audit(after, path=pods)][10:]
    assert set(late) == {"CN=admin,O=system:masters"}


def test_no_credential_is_ever_logged(environment: RotationEnvironment) -> None:
    log = environment.daemon.log
    secrets = [(environment.directory / name).read_text().strip() for name in ("own-token", "judge-token")]
    for secret in (*secrets, "eyJhbGci", "Bearer ", "-test-token"):
        assert secret not in log
