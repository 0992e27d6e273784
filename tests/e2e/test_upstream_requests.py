"""What clusters receive, by the simulated cluster's audit log: credentials, headers, paths and bodies."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from typing import Any

import pytest

from tests.e2e.environment import Environment
from tests.e2e.http_client import Client, ask
from tests.e2e.processes import wait_until
from tests.simulated_cluster.control_client import header_values, is_proxys_own

EXEC = "/api/v1/namespaces/demo/pods/db-0/exec?command=hostname&stdout=true"
SPOOFED = [
    ("Authorization", "Bearer alice-test-token"),
    ("X-Remote-User", "root"),
    ("X-Remote-Group", "system:masters"),
    ("X-Remote-Extra-Scopes", "all"),
    ("X-Remote-Uid", "0"),
    ("x_remote_user", "root"),
]
WEBSOCKET = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Protocol", "v5.channel.k8s.io"),
]
SPDY = [
    ("Connection", "Upgrade"),
    ("Upgrade", "SPDY/3.1"),
    ("X-Stream-Protocol-Version", "v4.channel.k8s.io"),
]
UPGRADES = pytest.mark.parametrize("upgrade", [WEBSOCKET, SPDY], ids=["websocket", "spdy"])


def sent(environment: Environment, way_name: str, target: str, *, cluster: str = "east", **rest: Any) -> dict[str, Any]:
    """Send one request and give the one record of it."""
    route = environment.route(way_name)
    control = environment.control(cluster)
    mark = control.mark()
    ask(route.address, route.path + target, **rest)
    (record,) = [record for record in control.audit(mark) if not is_proxys_own(record)]
    return record


def upgraded(environment: Environment, way_name: str, headers: list[tuple[str, str]]) -> dict[str, Any]:
    """Begin an exec session and give the record of it."""
    route = environment.route(way_name)
    control = environment.control()
    mark = control.mark()
    method = "GET" if ("Upgrade", "websocket") in headers else "POST"
    body = None if method == "GET" else b""
    with Client(route.address) as client:
        response = client.begin(method, route.path + EXEC, headers, body)
        assert response.status == 101, response.read()
    (record,) = [record for record in control.audit(mark) if not is_proxys_own(record)]
    return record


def test_lent_identity_replaces_the_clients(environment: Environment) -> None:
    for route in ("path", "name"):
        record = sent(environment, route, "/api/v1/namespaces/demo/pods", headers=SPOOFED)
        assert header_values(record, "Authorization") == ["Bearer admin-test-token"]
        assert not [name for name, _ in record["headers"] if name.lower().replace("_", "-").startswith("x-remote")]
        assert (record["user"], record["client_subject"]) == ("admin", "")


def test_lent_certificate_comes_without_any_token(environment: Environment) -> None:
    record = sent(environment, "west", "/api/v1/nodes", cluster="west", headers=SPOOFED)
    assert header_values(record, "Authorization") == []
    assert record["user"] == "admin"
    assert "CN=admin" in record["client_subject"]


@UPGRADES
def test_lent_credential_is_on_upgrades_too(environment: Environment, upgrade: list[tuple[str, str]]) -> None:
    record = upgraded(environment, "path", [*upgrade, *SPOOFED])
    assert header_values(record, "Authorization") == ["Bearer admin-test-token"]
    assert (record["user"], record["status"]) == ("admin", 101)
    assert header_values(record, "Connection") == ["Upgrade"]
    assert header_values(record, "Upgrade") == [dict(upgrade)["Upgrade"]]
    assert header_values(record, "X-Forwarded-Uri") == [f"/clusters/east{EXEC}"]


def test_bearer_token_among_the_subprotocols_is_taken_out(environment: Environment) -> None:
    protocols = "base64url.bearer.authorization.k8s.io.YWxpY2UtdGVzdC10b2tlbg, v5.channel.k8s.io"
    upgrade = [*WEBSOCKET[:-1], ("Sec-WebSocket-Protocol", protocols)]
    record = upgraded(environment, "path", upgrade)
    assert header_values(record, "Sec-WebSocket-Protocol") == ["v5.channel.k8s.io"]
    assert record["user"] == "admin"


@pytest.mark.parametrize("header", ["Impersonate-User", "Impersonate-Group", "impersonate_uid", "Impersonate-Extra-A"])
def test_impersonation_with_identity_proxy_is_403_and_not_forwarded(environment: Environment, header: str) -> None:
    route = environment.route("path")
    mark = environment.control().mark()
    answer = ask(route.address, route.path + "/api/v1/pods", headers=[(header, "alice")])
    assert (answer.status, answer.json["kind"], answer.json["reason"]) == (403, "Status", "Forbidden")
    assert [record for record in environment.control().audit(mark) if not is_proxys_own(record)] == []


def test_own_token_passes_as_it_is_and_nothing_of_the_proxys(environment: Environment) -> None:
    for route in ("own", "own-name"):
        record = sent(environment, route, "/api/v1/namespaces/demo/pods", headers=SPOOFED)
        assert header_values(record, "Authorization") == ["Bearer alice-test-token"]
        assert not [name for name, _ in record["headers"] if name.lower().replace("_", "-").startswith("x-remote")]
        assert (record["user"], record["client_subject"]) == ("alice", "")
        assert sent(environment, route, "/version")["user"] == "system:anonymous"


def test_own_impersonation_passes(environment: Environment) -> None:
    headers = [
        ("Authorization", "Bearer admin-test-token"),
        ("Impersonate-User", "alice"),
        ("Impersonate-Group", "dev"),
    ]
    record = sent(environment, "own", "/api/v1/namespaces/demo/pods", headers=headers)
    assert (record["user"], record["authenticated_as"]) == ("alice", "admin")


@UPGRADES
def test_own_token_is_on_upgrades_too(environment: Environment, upgrade: list[tuple[str, str]]) -> None:
    record = upgraded(environment, "own", [*upgrade, ("Authorization", "Bearer admin-test-token")])
    assert header_values(record, "Authorization") == ["Bearer admin-test-token"]


def test_forwarded_headers_are_set_anew(environment: Environment) -> None:
    lies = [
        ("X-Forwarded-For", "203.0.113.9"),
        ("X-Forwarded-Proto", "http"),
        ("X-Forwarded-Host", "elsewhere"),
        ("X-Forwarded-Uri", "/elsewhere"),
        ("X-Forwarded-Client-Cert", "lie"),
        ("Forwarded", "for=203.0.113.9"),
    ]
    record = sent(environment, "name", "/api/v1/pods", headers=lies, host="east.e2e.test:6443")
    assert header_values(record, "X-Forwarded-For") == ["127.0.0.1"]
    assert header_values(record, "X-Forwarded-Proto") == ["https"]
    assert header_values(record, "X-Forwarded-Host") == ["east.e2e.test:6443"]
    assert header_values(record, "X-Forwarded-Uri") == []
    assert header_values(record, "X-Forwarded-Client-Cert") == []
    assert header_values(record, "Via") == []
    assert header_values(record, "Host")[0] in [url.removeprefix("https://") for url in environment.east.urls]


TARGETS = [
    "/api/v1/namespaces/demo/configmaps/a%3Ab%20c",
    "/api/v1/pods?labelSelector=a%3Db,c+in+(d)&fieldSelector=&b=2&a=1&a=1",
    "/api/v1/pods?",
    "/api/v1/pods?&&=",
    "/api/v1/pods/?x=%E4%BD%A0",
    "/api/v1/namespaces/demo/services/http:web:80/proxy/a//b%2Fc/;d=e",
    "/apis/apps/v1/deployments?limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ%3D%3D",
    "/not/an/api~$!*'(),@:",
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("route", ["path", "name"])
def test_path_and_query_arrive_byte_for_byte(environment: Environment, route: str, target: str) -> None:
    assert sent(environment, route, target)["path"] == target


@pytest.mark.parametrize(
    "target",
    ["/api/v1/namespaces/demo/configmaps/a%2Fb", "/api/v1/namespaces/demo/../shop/pods", "/api//v1/pods/%2e%2e"],
)
def test_ambiguous_path_is_400_and_not_forwarded(environment: Environment, target: str) -> None:
    route = environment.route("path")
    mark = environment.control().mark()
    answer = ask(route.address, route.path + target)
    assert (answer.status, answer.json["kind"], answer.json["reason"]) == (400, "Status", "BadRequest")
    assert [record for record in environment.control().audit(mark) if not is_proxys_own(record)] == []


def test_other_prefixes_of_a_cluster_mean_the_same(environment: Environment) -> None:
    address = environment.route("path").address
    for prefix in (
        "/apis/aggregated.kubeadmiral.io/v1alpha1/aggregations/east/proxy",
        "/apis/cluster.karmada.io/v1alpha1/clusters/east/proxy",
    ):
        mark = environment.control().mark()
        assert ask(address, prefix + "/api/v1/pods?limit=1").status == 200
        assert "/api/v1/pods?limit=1" in [record["path"] for record in environment.control().audit(mark)]


def test_cluster_that_is_not_served_is_404_and_not_forwarded(environment: Environment) -> None:
    address = environment.route("path").address
    mark = environment.control().mark()
    for name in ("north", "", "east%2F..%2Fwest", "EAST", "east;a=b"):
        answer = ask(address, f"/clusters/{name}/api/v1/pods")
        assert (answer.status, answer.json["kind"]) == (404, "Status"), name
    assert [record for record in environment.control().audit(mark) if not is_proxys_own(record)] == []


def test_hop_by_hop_headers_end_at_the_proxy(environment: Environment) -> None:
    headers = [
        ("Connection", "keep-alive, X-Hop"),
        ("X-Hop", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Connection", "keep-alive"),
        ("Proxy-Authorization", "Basic eA=="),
        ("TE", "gzip"),
        ("X-Stays", "yes"),
    ]
    record = sent(environment, "path", "/api/v1/pods", headers=headers)
    names = {name.lower() for name, _ in record["headers"]}
    gone = {"connection", "x-hop", "keep-alive", "proxy-connection", "proxy-authorization", "te", "transfer-encoding"}
    assert names & gone == set()
    assert header_values(record, "X-Stays") == ["yes"]


def test_connection_header_cannot_take_away_what_the_proxy_adds(environment: Environment) -> None:
    headers = [
        ("Connection", "X-Forwarded-For, X-Forwarded-Proto, Host, Content-Length"),
        ("Authorization", "Bearer x"),
    ]
    record = sent(environment, "path", "/api/v1/pods", headers=headers)
    assert header_values(record, "Authorization") == ["Bearer admin-test-token"]
    assert header_values(record, "X-Forwarded-For") == ["127.0.0.1"]
    assert header_values(record, "X-Forwarded-Proto") == ["https"]
    assert len(header_values(record, "Host")) == 1


@pytest.mark.parametrize("route", ["path", "own"])
@pytest.mark.parametrize("header", ["Authorization", "Impersonate-User", "X-Remote-User"])
def test_connection_header_that_names_an_identity_header_is_400_and_not_forwarded(
    environment: Environment, route: str, header: str
) -> None:
    """To drop it would mean another user."""
    there = environment.route(route)
    mark = environment.control().mark()
    headers = [("Connection", f"keep-alive, {header}"), ("Authorization", "Bearer admin-test-token")]
    answer = ask(there.address, there.path + "/api/v1/pods", headers=headers)
    assert (answer.status, answer.json["kind"]) == (400, "Status")
    assert [record for record in environment.control().audit(mark) if not is_proxys_own(record)] == []


def test_bodies_arrive_whole_by_length_and_in_chunks(environment: Environment) -> None:
    random_bytes = random.Random(7)
    data = {"data": {"a": "".join(random_bytes.choices("abcdefghij", k=300_000))}}
    names = (f"body-{number}" for number in itertools.count())
    route = environment.route("path")
    for chunked in (False, True):
        obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": next(names)}, **data}
        body = json.dumps(obj).encode()
        mark = environment.control().mark()
        headers = [("Content-Type", "application/json")]
        target = route.path + "/api/v1/namespaces/demo/configmaps?dryRun=All"
        if chunked:
            pieces = [body[at : at + 7919] for at in range(0, len(body), 7919)]
            encoded = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
            with Client(route.address) as client:
                answer = client.request("POST", target, [*headers, ("Transfer-Encoding", "chunked")], encoded, raw=True)
        else:
            answer = ask(route.address, target, method="POST", headers=headers, body=body)
        assert answer.status == 201, answer.body

        def arrived() -> list[str]:
            records = environment.control().audit(mark, method="POST")  # noqa: B023
            return [record["body_sha256"] for record in records if not is_proxys_own(record)]

        wait_until("the body is in the audit", lambda: any(arrived()))
        assert arrived() == [hashlib.sha256(body).hexdigest()]


def test_answers_carry_the_clusters_headers_once(environment: Environment) -> None:
    route = environment.route("path")
    answer = ask(route.address, route.path + "/api/v1/namespaces/demo/pods?limit=1")
    assert len(answer.header("Audit-Id")) == 36
    assert answer.header("Content-Type") == "application/json"
    assert answer.header("X-Kubernetes-Pf-Flowschema-Uid")
    assert answer.header("Connection") == ""


def test_compressed_answers_pass_as_they_are(environment: Environment) -> None:
    headers = [("Accept-Encoding", "gzip"), ("Authorization", "Bearer admin-test-token")]
    seen = []
    for name in ("direct", "path"):
        route = environment.route(name)
        answer = ask(route.address, route.path + "/api/v1/pods", headers=headers)
        seen.append((answer.header("Content-Encoding"), answer.header("Content-Type"), answer.body))
    assert seen[0] == seen[1]
    assert seen[0][0] == "gzip"


def test_a_refused_request_is_a_status(environment: Environment) -> None:
    address = environment.route("path").address
    assert ask(address, "/api/v1/pods").json["message"].startswith('server "all" has no API of its own')
    misdirected = ask(environment.route("name").address, "/api/v1/pods", host="x.own.e2e.test")
    assert (misdirected.status, misdirected.json["kind"]) == (421, "Status")
