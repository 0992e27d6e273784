"""The API server of the demo as a process beside a cluster."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Iterator

import pytest

from tests.simulated_cluster.process import SimulatedClusterProcess

USER = {"X-Remote-User": "jane", "X-Remote-Group": "shop-editors"}


@pytest.fixture(scope="module")
def apis() -> Iterator[SimulatedClusterProcess]:
    with SimulatedClusterProcess("east") as east:
        options = ("--metrics-of", str(east.directory), "--seed", "1")
        with SimulatedClusterProcess("apis", options=options) as process:
            deadline = time.monotonic() + 60
            while ask(process, "/readyz")[0] != 200:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield process


def ask(process: SimulatedClusterProcess, path: str, method: str = "GET", body: str | None = None) -> tuple[int, bytes]:
    """Send a request as a front proxy for jane."""
    context = ssl.create_default_context(cafile=process.ca)
    context.load_cert_chain(process.front_proxy.certificate, process.front_proxy.key)
    connection = http.client.HTTPSConnection("127.0.0.1", process.ports[0], timeout=60, context=context)
    try:
        connection.request(method, path, body, {**USER, "Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def names(answer: tuple[int, bytes]) -> list[str]:
    assert answer[0] == 200, answer
    return [each["metadata"]["name"] for each in json.loads(answer[1])["items"]]


def test_it_has_metrics_of_the_cluster(apis: SimulatedClusterProcess) -> None:
    assert "east-node-1" in names(ask(apis, "/apis/metrics.k8s.io/v1beta1/nodes"))
    pods = names(ask(apis, "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods"))
    assert any(name.startswith("frontend-") for name in pods)


def test_users_have_the_rights_that_the_demo_gives_them(apis: SimulatedClusterProcess) -> None:
    path = "/apis/garden.example.com/v1/namespaces/{}/plants"
    assert set(names(ask(apis, path.format("shop")))) == {"basil", "cactus", "fern"}
    rose = json.dumps({"metadata": {"name": "rose"}, "spec": {"species": "rose"}})
    assert ask(apis, path.format("shop"), "POST", rose)[0] == 201
    assert ask(apis, path.format("monitoring"), "POST", rose)[0] == 403
    wrong = json.dumps({"metadata": {"name": "moss"}, "spec": {"litres": -1}})
    assert ask(apis, path.format("shop"), "POST", wrong)[0] == 422


def test_it_is_an_api_server_of_its_own(apis: SimulatedClusterProcess) -> None:
    groups = [each["name"] for each in json.loads(ask(apis, "/apis")[1])["groups"]]
    assert sorted(groups) == ["garden.example.com", "metrics.k8s.io"]
    assert ask(apis, "/api")[0] == 404
    assert ask(apis, "/api/v1/nodes")[0] in (403, 404)


def test_only_who_may_see_all_reads_what_it_publishes(apis: SimulatedClusterProcess) -> None:
    assert ask(apis, "/bootstrap/garden.example.com")[0] == 403
    context = ssl.create_default_context(cafile=apis.ca)
    connection = http.client.HTTPSConnection("127.0.0.1", apis.ports[0], timeout=60, context=context)
    admin = {"Authorization": f"Bearer {apis.tokens['admin']}"}
    for group, status in (("garden.example.com", 200), ("metrics.k8s.io", 404)):
        connection.request("GET", f"/bootstrap/{group}", None, admin)
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()
