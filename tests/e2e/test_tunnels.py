"""kubectl and client libraries do the same through a tunnel as against the cluster itself."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.http_client import Address
from tests.e2e.informer import Informer
from tests.e2e.kubectl_output import SPDY, WEBSOCKET, normalised
from tests.e2e.kubectl_scenarios import copied_and_forwarded, written_and_watched
from tests.e2e.processes import Kubectl, Result, in_parallel, wait_until
from tests.e2e.tunnel_site import ROUTES, TunnelSite
from tests.soak.invariants import bugs

kubernetes: Any = importlib.import_module("kubernetes")  # it has no types
PROTOCOLS = pytest.mark.parametrize("environ", [WEBSOCKET, SPDY], ids=["websocket", "spdy"])
PROCESSES = [
    pytest.param((1, 1), id="one-process"),
    pytest.param((3, 2), id="workers", marks=pytest.mark.slow),
]
"""Workers of the hub and of the edge. With several, most connections are copied from one process to another."""

Scenario = Callable[[Kubectl, str], list[Result]]
Compare = Callable[[Scenario], list[Result]]


@pytest.fixture(scope="module", params=PROCESSES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TunnelSite]:
    hub, edge = request.param
    site = TunnelSite(tmp_path_factory.mktemp("site"), hub_workers=hub, edge_workers=edge)
    try:
        yield site.start()
    finally:
        site.stop()


@pytest.fixture
def everywhere(site: TunnelSite, kubectl: str) -> Compare:
    """Run a scenario past the tunnel and through it, at the same time; fail unless both see the same.

    A scenario is given the route, to name its objects. Gives what was seen directly.
    """

    def seen(scenario: Scenario, route: str) -> list[Result]:
        found = [normalised(each) for each in scenario(site.kubectl(kubectl, route), route)]
        return [Result(each.status, each.stdout.replace(route, "ROUTE"), each.stderr) for each in found]

    def compare(scenario: Scenario) -> list[Result]:
        both = in_parallel(lambda route: seen(scenario, route), ROUTES)
        assert both["hub"] == both["direct"]
        return both["direct"]

    site.kubeconfig()
    return compare


@pytest.fixture(autouse=True)
def _no_bugs(site: TunnelSite) -> Iterator[None]:
    yield
    for daemon in (site.hub, site.edge):
        assert bugs(daemon.log) == []


def test_get_and_describe(everywhere: Compare) -> None:
    def scenario(kubectl: Kubectl, route: str) -> list[Result]:
        return [
            kubectl("get", "pods,nodes", "-A", "-o", "wide"),
            kubectl("get", "pods", "-A", "--chunk-size=7", "-o", "name"),
            kubectl("get", "pod", "absent"),
            kubectl("describe", "pod", "db-0"),
            kubectl("api-resources", "-o", "wide"),
        ]

    table, chunks, absent, described, resources = everywhere(scenario)
    assert "web-" in table.stdout
    assert chunks.stdout.count("pod/") > 7
    assert (absent.status, absent.stderr) == (1, 'Error from server (NotFound): pods "absent" not found\n')
    assert "Controlled By:" in described.stdout
    assert "widgets" in resources.stdout


def test_the_user_of_the_hub_is_the_user_at_the_cluster(site: TunnelSite, kubectl: str) -> None:
    run = site.kubectl(kubectl)
    told = run.good("auth", "whoami")
    assert re.search(r"^Username +alice$", told, re.M)
    assert re.search(r"^Groups +\[.*dev.*\]$", told, re.M)
    assert run.good("auth", "can-i", "delete", "nodes") == "yes\n"
    # alice may do all at the cluster, so impersonation by her is refused before it.
    refused = run("get", "pods", "--as=admin")
    assert refused.status == 1


def test_apply_watch_patch_and_delete(everywhere: Compare) -> None:
    *written, events = everywhere(written_and_watched)
    assert [each.status for each in written] == [0, 0, 0, 0]
    assert events.stdout == "[('ADDED', '1'), ('DELETED', '2')]"


def test_logs_are_followed(site: TunnelSite, everywhere: Compare) -> None:
    def scenario(kubectl: Kubectl, route: str) -> list[Result]:
        whole = kubectl("logs", "db-0", "--tail=2", "--timestamps")
        with kubectl.begin("logs", "-f", "db-1", "--tail=1") as following:
            following.wait_for("log line")
            site.control.append_log("demo", "db-1", f"a new line of {route}\n")
            following.wait_for(f"a new line of {route}")
        return [whole, kubectl("logs", "db-1", "-c", "absent")]

    whole, absent = everywhere(scenario)
    assert whole.stdout.count("\n") == 2
    assert absent.status == 1


@PROTOCOLS
def test_exec_and_attach(everywhere: Compare, environ: dict[str, str]) -> None:
    script = "cat; echo problem >&2; exit 7"
    text = "0123456789abcde\n" * 65536

    def scenario(kubectl: Kubectl, route: str) -> list[Result]:
        return [
            kubectl("exec", "-i", "db-0", "--", "sh", "-c", script, stdin="one\ntwo\n", environ=environ),
            kubectl("exec", "-i", "db-0", "--", "cat", stdin=text, environ=environ),
            kubectl("exec", "absent", "--", "hostname", environ=environ),
            kubectl("attach", "-i", "db-0", stdin="hello there\n", environ=environ),
        ]

    talk, echoed, absent, attached = everywhere(scenario)
    assert (talk.status, talk.stdout) == (7, "one\ntwo\n")
    assert "problem\n" in talk.stderr
    assert (echoed.status, echoed.stdout) == (0, text)
    assert (absent.status, absent.stderr) == (1, 'Error from server (NotFound): pods "absent" not found\n')
    assert attached.stdout.endswith("hello there\n")


@PROTOCOLS
def test_cp_both_ways_and_port_forward(everywhere: Compare, environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(bytes(range(256)) * 8000)

    def scenario(kubectl: Kubectl, route: str) -> list[Result]:
        return copied_and_forwarded(kubectl, route, environ, tmp_path)

    found = everywhere(scenario)
    assert [each.status for each in found] == [0, 0, 0]
    assert found[2].stdout == "echo this\n"


def test_sixteen_execs_at_the_same_time(site: TunnelSite, kubectl: str) -> None:
    """Each has a connection of its own, dialled on request; the edge dials 20 in a second."""
    run = site.kubectl(kubectl)
    names = [f"exec-{number}" for number in range(16)]
    found = in_parallel(lambda name: run("exec", "-i", "db-0", "--", "cat", stdin=name, environ=SPDY), names)
    assert {name: (each.status, each.stdout) for name, each in found.items()} == {name: (0, name) for name in names}
    wait_until("their connections are closed", lambda: connections(site, "HTTP/1.1") == 0)


def connections(site: TunnelSite, protocol: str) -> int:
    """The data connections of the tunnel at the hub."""
    found = site.hub.command_answer({"command": "status"})["tunnels"]
    (tunnel,) = [each for each in found if each["name"] == "site-a"]
    return int(tunnel["connections"].get(protocol, 0))


def test_requests_share_connections(site: TunnelSite) -> None:
    """A hundred requests are no hundred connections."""
    for _ in range(100):
        assert site.ask("/version").status == 200
    assert 1 <= connections(site, "HTTP/2.0") <= 4 * site.hub_workers
    assert connections(site, "HTTP/1.1") == 0


@pytest.mark.parametrize("watch_list", [True, False])
def test_an_informer_sees_each_change(site: TunnelSite, watch_list: bool) -> None:
    address = Address(site.port, site.context)
    path = "/api/v1/namespaces/demo/configmaps"
    informer = Informer(
        lambda: (address, "/clusters/site-a"), path, watch_list=watch_list, selector=f"informed=w{watch_list}"
    )
    informer.start()
    try:
        wait_until("the list", lambda: informer.version != "")
        for number in range(30):
            metadata = {"namespace": "demo", "name": f"w{watch_list}-{number}".lower()}
            labels = {"informed": f"w{watch_list}"}
            item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**metadata, "labels": labels}}
            site.control.create([{**item, "data": {"n": "1"}}])
        wait_until("all changes", lambda: len(informer.contents()) == 30)
    finally:
        informer.close()
    assert informer.violations == []
    assert informer.relists == 1


def test_the_python_client_watches_and_executes(site: TunnelSite) -> None:
    kubeconfig = str(site.kubeconfig())
    streams: Any = importlib.import_module("kubernetes.stream")
    with kubernetes.config.new_client_from_config(kubeconfig, context="hub") as client:
        api = kubernetes.client.CoreV1Api(client)
        assert len(api.list_namespaced_pod("demo").items) > 3
        seen: list[str] = []

        def watch() -> None:
            watching = kubernetes.watch.Watch()
            for event in watching.stream(api.list_namespaced_secret, "demo", timeout_seconds=60):
                seen.append(event["object"].metadata.name)
                if event["object"].metadata.name == "by-python":
                    watching.stop()

        watcher = threading.Thread(target=watch)
        watcher.start()
        secret = kubernetes.client.V1Secret(metadata=kubernetes.client.V1ObjectMeta(name="by-python"))
        api.create_namespaced_secret("demo", secret)
        watcher.join(60)
        api.delete_namespaced_secret("by-python", "demo")
        assert "by-python" in seen
    with kubernetes.config.new_client_from_config(kubeconfig, context="hub") as client:
        connect = kubernetes.client.CoreV1Api(client).connect_get_namespaced_pod_exec
        command = ["sh", "-c", "echo said"]
        assert streams.stream(connect, "db-0", "demo", command=command, stdout=True, stderr=True) == "said\n"
