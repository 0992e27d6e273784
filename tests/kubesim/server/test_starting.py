"""An endpoint that has just started refuses everybody whose rights come from roles, as a real kube-apiserver does."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess

READYZ = "/readyz"
PODS = "/api/v1/namespaces/demo/pods"
SELF_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedClusterProcess]:
    options = ("--empty", "--endpoints", "2", "--starting-seconds", "3600")
    with SimulatedClusterProcess("east", options=options) as process:
        yield process


@pytest.fixture
def control(cluster: SimulatedClusterProcess) -> ControlClient:
    """The control API; endpoint 0 has just started, endpoint 1 is ready."""
    client = ControlClient(cluster.control_url)
    client.stop_endpoint(0)
    client.start_endpoint(0, starting=3600)
    client.finish_starting(1)
    return client


def ask(
    cluster: SimulatedClusterProcess,
    user: str,
    path: str,
    *,
    endpoint: int = 0,
    headers: dict[str, str] | None = None,
    body: Any = None,
) -> tuple[int, str]:
    """Send a GET, or a POST with `body`; return (status, message of the Status or text of the body)."""
    context = ssl.create_default_context(cafile=cluster.ca)
    if user:
        context.load_cert_chain(cluster.user(user).certificate, cluster.user(user).key)
    connection = http.client.HTTPSConnection("127.0.0.1", cluster.ports[endpoint], context=context, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        sent = {"Content-Type": "application/json"} if data else {}
        connection.request("POST" if data else "GET", path, data, {**sent, **(headers or {})})
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    if text.startswith("{"):
        content = json.loads(text)
        text = content["message"] if content["kind"] == "Status" else json.dumps(content.get("status"))
    return response.status, text


def test_a_user_of_roles_is_refused_even_readyz(cluster: SimulatedClusterProcess, control: ControlClient) -> None:
    assert ask(cluster, "mcproxy", READYZ) == (403, 'forbidden: User "mcproxy" cannot get path "/readyz"')
    assert ask(cluster, "", READYZ) == (403, 'forbidden: User "system:anonymous" cannot get path "/readyz"')
    text = 'pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the namespace "demo"'
    assert ask(cluster, "alice", PODS) == (403, text)
    assert ask(cluster, "mcproxy", READYZ, endpoint=1) == (200, "ok")


def test_impersonation_is_refused_to_the_proxy(cluster: SimulatedClusterProcess, control: ControlClient) -> None:
    headers = {"Impersonate-User": "alice"}
    code, text = ask(cluster, "mcproxy", PODS, headers=headers)
    assert code == 403
    assert text.startswith('pods is forbidden: User "mcproxy" cannot impersonate-on:user-info:list resource "pods"')
    assert ask(cluster, "mcproxy", PODS, headers=headers, endpoint=1)[0] == 200


def test_impersonation_is_refused_with_the_message_of_earlier_versions() -> None:
    options = ("--empty", "--legacy-impersonation", "--starting-seconds", "3600")
    with SimulatedClusterProcess("east", options=options) as process:
        code, text = ask(process, "mcproxy", PODS, headers={"Impersonate-User": "alice"})
    assert code == 403
    assert text == (
        'users "alice" is forbidden: User "mcproxy" cannot impersonate resource "users" in API group "" at the '
        "cluster scope"
    )


def test_system_masters_pass_and_see_the_unfinished_hook(
    cluster: SimulatedClusterProcess, control: ControlClient
) -> None:
    assert ask(cluster, "admin", PODS)[0] == 200
    for path in ("/readyz", "/livez", "/healthz"):
        code, text = ask(cluster, "admin", path)
        assert code == 500
        assert "[-]poststarthook/rbac/bootstrap-roles failed: reason withheld\n" in text
        assert text.endswith(f"{path[1:]} check failed\n")
    assert ask(cluster, "admin", f"{READYZ}?exclude=poststarthook/rbac/bootstrap-roles") == (200, "ok")
    assert ask(cluster, "admin", f"{READYZ}/poststarthook/rbac/bootstrap-roles")[0] == 500
    assert ask(cluster, "admin", f"{READYZ}/ping") == (200, "ok")


def test_reviews_answer_when_the_roles_have_been_read(cluster: SimulatedClusterProcess, control: ControlClient) -> None:
    attributes = {"verb": "impersonate", "resource": "users"}
    review = {"spec": {"resourceAttributes": attributes}}
    assert ask(cluster, "mcproxy", SELF_REVIEWS, body=review)[0] == 403
    control.finish_starting(0)
    code, text = ask(cluster, "mcproxy", SELF_REVIEWS, body=review)
    assert (code, json.loads(text)["allowed"]) == (201, True)
    code, text = ask(cluster, "alice", SELF_REVIEWS, body=review)
    assert (code, json.loads(text)["allowed"]) == (201, False)


def test_the_time_ends_by_itself() -> None:
    with SimulatedClusterProcess("east", options=("--empty", "--starting-seconds", "0.000001")) as process:
        assert ask(process, "mcproxy", READYZ) == (200, "ok")
