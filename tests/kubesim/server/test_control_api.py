"""The control API: faults, endpoints, audit and logs of the simulated cluster."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulated_cluster.control_client import ControlError, header_values
from tests.simulated_cluster.one_pod import POD, Simulated, pod, running

PATH = "/api/v1/namespaces/default"
LOST = (http.client.HTTPException, ConnectionError, ssl.SSLError, TimeoutError)


@pytest.fixture(scope="module")
def shared() -> Iterator[Simulated]:
    with running() as found:
        yield found


@pytest.fixture
def cluster(shared: Simulated) -> Iterator[Simulated]:
    yield shared
    shared.control.clear_faults()


def ask(connection: http.client.HTTPSConnection) -> http.client.HTTPResponse:
    connection.request("GET", PATH)
    return connection.getresponse()


@pytest.mark.parametrize(
    "kind",
    ["resetBeforeHead", "resetMidBody", "resetMidChunk", "longContentLength", "garbage"],
)
def test_a_broken_response_affects_one_request(cluster: Simulated, kind: str) -> None:
    cluster.control.fault(kind, count=1, paths=PATH)
    with pytest.raises(LOST):
        cluster.get(PATH)
    assert cluster.get(PATH)[0] == 200


def test_status_faults(cluster: Simulated) -> None:
    cluster.control.fault("status", code=429, text="Too many requests", retryAfter=3, count=1)
    status, headers, body = cluster.get(PATH)
    assert (status, headers["Retry-After"], body) == (429, "3", b"Too many requests\n")
    assert headers["X-Content-Type-Options"] == "nosniff"
    cluster.control.fault("status", code=503, methods="GET", endpoint=0, skip=1)
    assert [cluster.get(PATH)[0] for _ in range(3)] == [200, 503, 503]
    assert cluster.get(PATH, endpoint=1)[0] == 200
    assert cluster.get(PATH)[2].startswith(b'{"kind":"Status"')


def test_health_can_fail_alone(cluster: Simulated) -> None:
    cluster.control.fault("unhealthy")
    assert (cluster.get("/readyz")[0], cluster.get(PATH)[0]) == (500, 200)
    cluster.control.clear_faults()
    assert cluster.get("/readyz")[0] == 200


def test_slow_answers_are_whole(cluster: Simulated) -> None:
    whole = cluster.get(PATH)[2]
    cluster.control.fault("latency", seconds=0.1, count=1)
    start = time.monotonic()
    assert cluster.get(PATH)[2] == whole
    assert time.monotonic() - start >= 0.1


def test_a_black_hole_never_answers(cluster: Simulated) -> None:
    cluster.control.fault("blackHole", count=1)
    with pytest.raises(TimeoutError):
        cluster.get(PATH, timeout=0.2)
    assert cluster.get(PATH)[0] == 200


def test_a_fault_of_an_unknown_kind_is_refused(cluster: Simulated) -> None:
    with pytest.raises(ControlError, match="kind must be one of"):
        cluster.control.fault("nope")
    with pytest.raises(ControlError, match="unknown keys: colour"):
        cluster.control.fault("latency", colour=1)


def test_a_stopped_endpoint_refuses_and_restarts_on_its_port(cluster: Simulated) -> None:
    kept = cluster.connect(1)
    kept.request("GET", PATH)
    kept.getresponse().read()
    cluster.control.stop_endpoint(1)
    with pytest.raises(ConnectionRefusedError):
        cluster.get(PATH, endpoint=1)
    with pytest.raises(LOST):
        ask(kept)
    assert cluster.get(PATH)[0] == 200
    cluster.control.start_endpoint(1)
    assert cluster.get(PATH, endpoint=1)[0] == 200


def test_a_hanging_endpoint_accepts_connections_and_answers_nothing(cluster: Simulated) -> None:
    kept = cluster.connect(1)
    kept.request("GET", PATH)
    kept.getresponse().read()
    cluster.control.hang_endpoint(1)
    with pytest.raises(TimeoutError):
        cluster.get(PATH, endpoint=1, timeout=0.2)
    kept.request("GET", PATH)
    cluster.control.resume_endpoint(1)
    assert kept.getresponse().status == 200
    assert cluster.get(PATH, endpoint=1)[0] == 200
    kept.close()


def test_a_watch_on_a_hanging_endpoint_gets_nothing_until_it_resumes(cluster: Simulated) -> None:
    watch, other = cluster.connect(1), cluster.connect()
    watch.request("GET", f"{PATH}/configmaps?watch=1&fieldSelector=metadata.name%3Dunheard-of")
    stream = watch.getresponse()
    assert stream.status == 200
    cluster.control.hang_endpoint(1)
    body = b'{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "unheard-of"}}'
    other.request("POST", f"{PATH}/configmaps", body, {"Content-Type": "application/json"})
    assert other.getresponse().status == 201
    watch.sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        stream.readline()
    cluster.control.resume_endpoint(1)
    watch.sock.settimeout(60)
    assert b"unheard-of" in watch.sock.recv(65536)
    watch.close()
    other.close()


def test_the_audit_log_has_what_was_received(cluster: Simulated) -> None:
    mark = cluster.control.mark()
    connection = cluster.connect()
    body = b'{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "seen"}}'
    headers = {"Content-Type": "application/json", "X-ODD-case": "1", "Impersonate-User": "bob"}
    connection.request("POST", f"{PATH}/configmaps?x=%2F", body, headers)
    assert connection.getresponse().status == 403
    connection.close()
    (record,) = cluster.control.audit(mark)
    assert (record["method"], record["path"]) == ("POST", f"{PATH}/configmaps?x=%2F")
    assert (record["user"], record["authenticated_as"]) == ("bob", "admin")
    assert record["client_subject"] == "CN=admin,O=system:masters"
    assert record["status"] == 403
    assert ["X-ODD-case", "1"] in record["headers"]
    assert header_values(record, "impersonate-user") == ["bob"]
    assert record["body"] is None, "a refused request's body is not read"


def test_the_audit_log_has_bodies_that_were_read(cluster: Simulated) -> None:
    mark = cluster.control.mark()
    connection = cluster.connect()
    body = b'{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}}'
    connection.request("POST", f"{PATH}/configmaps", body, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 201
    connection.close()
    (record,) = cluster.control.audit(mark)
    assert (record["body"], record["body_length"]) == (body, len(body))


def log(cluster: Simulated, query: str, name: str = "web") -> bytes:
    return cluster.get(f"/api/v1/namespaces/default/pods/{name}/log{query}")[2]


def test_logs_are_cut_as_asked(cluster: Simulated) -> None:
    lines = [b"log line %d of default/web/main\n" % number for number in range(5)]
    assert log(cluster, "") == b"".join(lines)
    assert log(cluster, "?tailLines=2") == b"".join(lines[3:])
    assert log(cluster, "?tailLines=0") == b""
    assert log(cluster, "?limitBytes=10") == lines[0][:10]
    stamped = log(cluster, "?timestamps=true&tailLines=1")
    assert stamped.endswith(b"Z " + lines[4])


def test_followed_logs_come_at_once_and_end_with_the_pod(cluster: Simulated) -> None:
    cluster.control.create([pod("brief", lines="1", interval="0")])
    connection = cluster.connect()
    connection.request("GET", "/api/v1/namespaces/default/pods/brief/log?follow=true")
    response = connection.getresponse()
    assert response.readline() == b"log line 0 of default/brief/main\n"
    cluster.control.append_log("default", "brief", "one\ntwo")
    assert [response.readline(), response.readline()] == [b"one\n", b"two\n"]
    other = cluster.connect()
    other.request("DELETE", "/api/v1/namespaces/default/pods/brief?gracePeriodSeconds=0")
    assert other.getresponse().status == 200
    assert response.readline() == b""
    connection.close()
    other.close()


def test_a_big_log_has_its_size(cluster: Simulated) -> None:
    cluster.control.create([pod("big", bytes=str(5_000_001))])
    assert len(log(cluster, "", "big")) == 5_000_001


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("?container=nope", 400, "container nope is not valid for pod web"),
        ("?tailLines=-1", 422, "must be greater than or equal to 0"),
        ("?previous=true", 400, 'previous terminated container \\"main\\" in pod \\"web\\" not found'),
    ],
)
def test_wrong_log_requests(cluster: Simulated, query: str, status: int, message: str) -> None:
    answer: Any = cluster.get(f"{POD}/log{query}")
    assert answer[0] == status
    assert message in answer[2].decode()


def test_a_restored_backup_has_its_objects_and_revision_and_resets_all_connections(cluster: Simulated) -> None:
    def config_map(name: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}

    path = f"{PATH}/configmaps"
    revision = cluster.control.create([config_map("saved")])
    backup = cluster.control.snapshot()
    undone = cluster.control.create([config_map("undone")])
    connection = cluster.connect()
    connection.request("GET", f"{path}?watch=true&resourceVersion={revision}")
    response = connection.getresponse()
    assert json.loads(response.readline())["object"]["metadata"]["name"] == "undone"
    restored = cluster.control.restore(backup)
    assert revision <= restored < undone  # the cluster writes objects of its own, too
    try:
        assert response.readline() == b""
    except LOST:
        pass
    connection.close()
    found = json.loads(cluster.get(path)[2])
    names = {item["metadata"]["name"] for item in found["items"]}
    assert names & {"saved", "undone"} == {"saved"}
    assert int(found["metadata"]["resourceVersion"]) >= restored
    with pytest.raises(ControlError, match="no snapshot"):
        cluster.control.restore(99)


@pytest.mark.slow
def test_a_watch_from_the_future_is_told_no_version_that_the_cluster_has_not_reached(cluster: Simulated) -> None:
    revision = cluster.control.stats()["revision"]
    query = f"watch=true&allowWatchBookmarks=true&timeoutSeconds=3&resourceVersion={revision + 1000}"
    assert cluster.get(f"{PATH}/configmaps?{query}")[2] == b""


def test_a_stopped_endpoint_keeps_its_port(cluster: Simulated) -> None:
    """Whoever asked for any free port may have got it, and the endpoint could not start again."""
    cluster.control.stop_endpoint()
    try:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", cluster.process.ports[0]))
        with pytest.raises(ConnectionRefusedError):
            cluster.get(PATH)
    finally:
        cluster.control.start_endpoint()
    assert cluster.get(PATH)[0] == 200
