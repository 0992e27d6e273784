"""The `kubernetes` Python package does the same through the proxy as against the cluster itself."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from tests.e2e.environment import Environment

kubernetes: Any = importlib.import_module("kubernetes")  # it has no types
streams: Any = importlib.import_module("kubernetes.stream")
ROUTES = ("direct", "path", "name")
APP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "python"}, "data": {"a": "1"}}


@contextmanager
def core(environment: Environment, route: str) -> Iterator[Any]:
    """CoreV1Api with a configuration of its own: streams change the client that they run on."""
    with kubernetes.config.new_client_from_config(str(environment.kubeconfig), context=route) as client:
        yield kubernetes.client.CoreV1Api(client)


@pytest.fixture
def everywhere(environment: Environment) -> Callable[[Callable[[Any], object]], Any]:
    """Run a scenario directly and through the proxy; fail unless all see the same. Gives what was seen directly."""

    def compare(scenario: Callable[[Any], object]) -> Any:
        seen = {}
        for route in ROUTES:
            with core(environment, route) as api:
                seen[route] = scenario(api)
        assert seen["path"] == seen["direct"]
        assert seen["name"] == seen["direct"]
        return seen["direct"]

    return compare


Everywhere = Callable[[Callable[[Any], object]], Any]


@pytest.mark.slow
def test_list_gives_the_same_objects_whole_and_in_pages(everywhere: Everywhere) -> None:
    def scenario(api: Any) -> object:
        whole = api.list_pod_for_all_namespaces(label_selector="app")
        pages, token = [], ""
        while True:
            page = api.list_pod_for_all_namespaces(label_selector="app", limit=5, _continue=token)
            pages.append([pod.metadata.name for pod in page.items])
            token = page.metadata._continue
            if not token:
                break
        return [pod.to_dict() for pod in whole.items], pages

    whole, pages = everywhere(scenario)
    assert [name for page in pages for name in page] == [pod["metadata"]["name"] for pod in whole]
    assert len(pages) > 2


def test_create_patch_replace_and_delete(everywhere: Everywhere) -> None:
    def scenario(api: Any) -> object:
        created = api.create_namespaced_config_map("demo", APP)
        with pytest.raises(ApiException) as twice:
            api.create_namespaced_config_map("demo", APP)
        merged = api.patch_namespaced_config_map("python", "demo", {"data": {"b": "2"}})
        operations = [{"op": "replace", "path": "/data/a", "value": "3"}]
        patched = api.patch_namespaced_config_map("python", "demo", operations)
        stale = api.read_namespaced_config_map("python", "demo")
        stale.metadata.resource_version = created.metadata.resource_version
        with pytest.raises(ApiException) as conflict:
            api.replace_namespaced_config_map("python", "demo", stale)
        api.delete_namespaced_config_map("python", "demo")
        with pytest.raises(ApiException) as gone:
            api.read_namespaced_config_map("python", "demo")
        problems = [(error.value.status, error.value.reason) for error in (twice, conflict, gone)]
        return [created.data, merged.data, patched.data], problems

    data, problems = everywhere(scenario)
    assert data == [{"a": "1"}, {"a": "1", "b": "2"}, {"a": "3", "b": "2"}]
    assert problems == [(409, "Conflict"), (409, "Conflict"), (404, "Not Found")]


@pytest.mark.slow
def test_watch_gives_events_from_a_version_on_until_its_time_is_over(everywhere: Everywhere) -> None:
    def scenario(api: Any) -> object:
        version = api.list_namespaced_config_map("demo").metadata.resource_version
        api.create_namespaced_config_map("demo", APP)
        api.patch_namespaced_config_map("python", "demo", {"data": {"a": "2"}})
        api.delete_namespaced_config_map("python", "demo")
        watch = kubernetes.watch.Watch()
        events = watch.stream(
            api.list_namespaced_config_map, "demo", resource_version=version, timeout_seconds=1, _request_timeout=20
        )
        return [(event["type"], event["object"].metadata.name, event["object"].data) for event in events]

    assert everywhere(scenario) == [
        ("ADDED", "python", {"a": "1"}),
        ("MODIFIED", "python", {"a": "2"}),
        ("DELETED", "python", {"a": "2"}),
    ]


def test_watch_from_a_forgotten_version_is_gone(environment: Environment, everywhere: Everywhere) -> None:
    version = environment.control().stats()["revision"]
    environment.control().create([{**APP, "metadata": {"name": "later", "namespace": "default"}}])
    environment.control().compact()

    def scenario(api: Any) -> object:
        with pytest.raises(ApiException) as gone:
            for _ in kubernetes.watch.Watch().stream(
                api.list_namespaced_config_map, "demo", resource_version=str(version - 1), timeout_seconds=5
            ):
                pass
        return gone.value.status

    assert everywhere(scenario) == 410


def test_exec_streams_both_ways_and_returns_the_exit_code(everywhere: Everywhere) -> None:
    def scenario(api: Any) -> object:
        session = streams.stream(
            api.connect_get_namespaced_pod_exec,
            "db-0",
            "demo",
            command=["sh", "-c", "head -n 2; echo problem >&2; exit 3"],
            stdin=True,
            stdout=True,
            stderr=True,
            tty=False,
            _preload_content=False,
        )
        session.write_stdin("one\ntwo\n")
        session.run_forever(timeout=20)
        return session.read_stdout(), session.read_stderr(), session.returncode

    assert everywhere(scenario) == ("one\ntwo\n", "problem\n", 3)


def test_exec_in_a_pod_that_is_not_there_is_refused(everywhere: Everywhere) -> None:
    def scenario(api: Any) -> object:
        with pytest.raises(ApiException) as refused:
            streams.stream(api.connect_get_namespaced_pod_exec, "absent", "demo", command=["hostname"], stdout=True)
        return refused.value.status, "404" in str(refused.value.reason)

    assert everywhere(scenario) == (0, True)


def test_port_forward_is_a_socket_into_the_pod(everywhere: Everywhere) -> None:
    def scenario(api: Any) -> object:
        tunnel = streams.portforward(api.connect_get_namespaced_pod_portforward, "db-0", "demo", ports="5432")
        with closing(tunnel.socket(5432)) as connection:
            connection.setblocking(True)
            connection.settimeout(20)
            connection.sendall(b"echo this")
            got = b""
            while len(got) < 9:
                got += connection.recv(9)
        return got, tunnel.error(5432)

    assert everywhere(scenario) == (b"echo this", None)


def test_logs_follow_ends_when_the_reader_has_enough(everywhere: Everywhere) -> None:
    def scenario(api: Any) -> object:
        response = api.read_namespaced_pod_log("db-0", "demo", follow=True, tail_lines=2, _preload_content=False)
        with closing(response):
            return [response.readline() for _ in range(2)]

    assert len(everywhere(scenario)) == 2


def test_version_and_api_groups(environment: Environment) -> None:
    seen = []
    for route in ROUTES:
        with kubernetes.config.new_client_from_config(str(environment.kubeconfig), context=route) as client:
            version = kubernetes.client.VersionApi(client).get_code().to_dict()
            groups = [group.name for group in kubernetes.client.ApisApi(client).get_api_versions().groups]
            seen.append((version, groups))
    assert seen[1] == seen[2] == seen[0]
    assert "apps" in seen[0][1]
