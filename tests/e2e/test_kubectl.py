"""kubectl does the same through the proxy, in the path form and by TLS name, as against the cluster itself."""

from __future__ import annotations

import http.client
import itertools
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.environment import Environment
from tests.e2e.kubectl_output import SPDY, WEBSOCKET, normalised
from tests.e2e.processes import Kubectl, Result, in_parallel, wait_until
from tests.simulated_cluster.control_client import is_proxys_own

ROUTES = ("direct", "path", "name")
PROTOCOLS = pytest.mark.parametrize("environ", [WEBSOCKET, SPDY], ids=["websocket", "spdy"])

Scenario = Callable[[Kubectl], list[Result]]
Compare = Callable[[Scenario], list[Result]]


@pytest.fixture
def everywhere(environment: Environment, kubectl: str) -> Compare:
    """Run a scenario directly and through the proxy; fail unless all see the same. Gives what was seen directly.

    A scenario leaves the cluster as it found it, so that the next finds the same.
    """

    def compare(scenario: Scenario) -> list[Result]:
        return same({route: seen_of(scenario, environment.kubectl(kubectl, route)) for route in ROUTES})

    return compare


@pytest.fixture
def all_at_once(environment: Environment, kubectl: str) -> Compare:
    """The same, all ways at a time, for scenarios that don't disturb each other."""

    def compare(scenario: Scenario) -> list[Result]:
        return same(in_parallel(lambda route: seen_of(scenario, environment.kubectl(kubectl, route)), ROUTES))

    return compare


def seen_of(scenario: Scenario, kubectl: Kubectl) -> list[Result]:
    return [normalised(result) for result in scenario(kubectl)]


def same(seen: dict[str, list[Result]]) -> list[Result]:
    for route in ROUTES[1:]:
        assert seen[route] == seen["direct"]
    return seen["direct"]


@pytest.mark.slow
def test_get_shows_tables_objects_and_errors(all_at_once: Compare) -> None:
    def scenario(kubectl: Kubectl) -> list[Result]:
        return [
            kubectl("get", "pods", "-A", "-o", "wide"),
            kubectl("get", "deploy,svc,cm", "-n", "shop", "--show-labels"),
            kubectl("get", "pods", "-n", "demo", "-l", "app=web", "-o", "yaml"),
            kubectl("get", "pods", "-A", "--chunk-size=7", "-o", "name"),
            kubectl("get", "pod", "absent"),
            kubectl("get", "nonsense"),
        ]

    table, *_, chunks, absent, nonsense = all_at_once(scenario)
    assert "web-" in table.stdout
    assert chunks.stdout.count("pod/") > 7
    assert (absent.status, absent.stderr) == (1, 'Error from server (NotFound): pods "absent" not found\n')
    assert (nonsense.status, nonsense.stderr.strip()) == (
        1,
        'error: the server doesn\'t have a resource type "nonsense"',
    )


def test_describe_gathers_what_belongs_together(all_at_once: Compare) -> None:
    pod, _ = all_at_once(
        lambda kubectl: [kubectl("describe", "pod", "db-0"), kubectl("describe", "node", "east-node-2")]
    )
    assert "Controlled By:  StatefulSet/db" in pod.stdout


CONFIGMAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: applied, namespace: demo}}\ndata: {{a: {value}}}\n"


@pytest.mark.slow
def test_apply_creates_leaves_and_changes(everywhere: Compare) -> None:
    def scenario(kubectl: Kubectl) -> list[Result]:
        return [
            kubectl("apply", "-f", "-", stdin=CONFIGMAP.format(value="one")),
            kubectl("apply", "-f", "-", stdin=CONFIGMAP.format(value="one")),
            kubectl("diff", "-f", "-", stdin=CONFIGMAP.format(value="one")),
            kubectl("apply", "-f", "-", stdin=CONFIGMAP.format(value="two")),
            kubectl("get", "cm", "applied", "-o", "jsonpath={.data}"),
            kubectl("apply", "-f", "-", stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Wrong_Name}\n"),
            kubectl("delete", "cm", "applied"),
        ]

    created, unchanged, same, changed, data, wrong, _ = everywhere(scenario)
    assert [step.stdout for step in (created, unchanged, changed)] == [
        f"configmap/applied {what}\n" for what in ("created", "unchanged", "configured")
    ]
    assert same.status == 0
    assert data.stdout == '{"a":"two"}'
    assert wrong.status == 1


@pytest.mark.slow
def test_server_side_apply_keeps_managers_apart(everywhere: Compare) -> None:
    def scenario(kubectl: Kubectl) -> list[Result]:
        apply = ("apply", "--server-side", "-f", "-")
        return [
            kubectl(*apply, stdin=CONFIGMAP.format(value="one")),
            kubectl(*apply, "--field-manager=other", stdin=CONFIGMAP.format(value="two")),
            kubectl(*apply, "--field-manager=other", "--force-conflicts", stdin=CONFIGMAP.format(value="two")),
            kubectl("get", "cm", "applied", "-o", "jsonpath={.data.a} {.metadata.managedFields[*].manager}"),
            kubectl("delete", "cm", "applied"),
        ]

    first, conflict, forced, data, _ = everywhere(scenario)
    assert first.stdout == forced.stdout == "configmap/applied serverside-applied\n"
    assert conflict.status == 1
    assert 'conflict with "kubectl"' in conflict.stderr
    assert data.stdout.startswith("two ")


@pytest.mark.slow
def test_run_wait_and_delete_follow_a_pod_through_its_life(everywhere: Compare) -> None:
    def scenario(kubectl: Kubectl) -> list[Result]:
        return [
            kubectl("run", "lives", "--image=registry.example.com/a:1", "--restart=Never"),
            kubectl("wait", "pod/lives", "--for=condition=Ready", "--timeout=120s"),
            kubectl("wait", "pod/lives", "--for=condition=Nonsense", "--timeout=100ms"),
            kubectl("delete", "pod", "lives"),
            kubectl("get", "pod", "lives"),
        ]

    _, ready, never, deleted, gone = everywhere(scenario)
    assert ready.stdout == "pod/lives condition met\n"
    assert never.status == 1
    assert "timed out" in never.stderr
    assert deleted.stdout.startswith('pod "lives" deleted')
    assert gone.status == 1


@pytest.mark.slow
def test_scale_and_rollout_wait_for_the_replicas(everywhere: Compare) -> None:
    def scenario(kubectl: Kubectl) -> list[Result]:
        steps = [kubectl("scale", "deploy/api", "--replicas=3")]
        kubectl.good("rollout", "status", "deploy/api", "--timeout=120s")
        steps.append(kubectl("get", "deploy", "api", "-o", "jsonpath={.status.availableReplicas}"))
        kubectl.good("scale", "deploy/api", "--replicas=2")
        count = ("get", "deploy", "api", "-o", "jsonpath={.status.replicas}")
        wait_until("there are two again", lambda: kubectl.good(*count) == "2")
        return steps

    scaled, available = everywhere(scenario)
    assert scaled.stdout == "deployment.apps/api scaled\n"
    assert available.stdout == "3"


@pytest.mark.slow
def test_logs_are_whole_and_follow(environment: Environment, everywhere: Compare) -> None:
    def scenario(kubectl: Kubectl) -> list[Result]:
        whole = kubectl("logs", "db-0", "--tail=2", "--timestamps")
        with kubectl.begin("logs", "-f", "db-1", "--tail=1") as following:
            following.wait_for("log line")
            environment.control().append_log("demo", "db-1", "a new line\n")
            following.wait_for("a new line")
        # what a follower of db-1 gets first depends on who followed before; that it gets the new line does not
        return [whole, kubectl("logs", "db-1", "-c", "absent")]

    whole, absent = everywhere(scenario)
    assert whole.stdout.count("\n") == 2
    assert absent.status == 1


@PROTOCOLS
def test_exec_passes_stdin_both_outputs_and_the_exit_code(all_at_once: Compare, environ: dict[str, str]) -> None:
    def scenario(kubectl: Kubectl) -> list[Result]:
        script = "cat; echo problem >&2; exit 7"
        return [
            kubectl("exec", "-i", "db-0", "--", "sh", "-c", script, stdin="one\ntwo\n", environ=environ),
            kubectl("exec", "db-0", "--", "hostname", environ=environ),
            kubectl("exec", "db-0", "--", "no-such-program", environ=environ),
            kubectl("exec", "absent", "--", "hostname", environ=environ),
        ]

    talk, name, program, pod = all_at_once(scenario)
    assert (talk.status, talk.stdout) == (7, "one\ntwo\n")
    assert "problem\n" in talk.stderr
    assert (name.status, name.stdout) == (0, "db-0\n")
    assert program.status not in (0, 7)
    assert (pod.status, pod.stderr) == (1, 'Error from server (NotFound): pods "absent" not found\n')


@PROTOCOLS
def test_exec_of_a_megabyte_arrives_whole(all_at_once: Compare, environ: dict[str, str]) -> None:
    text = "0123456789abcde\n" * 65536
    (echoed,) = all_at_once(lambda kubectl: [kubectl("exec", "-i", "db-0", "--", "cat", stdin=text, environ=environ)])
    assert echoed.status == 0
    assert echoed.stdout == text


@pytest.mark.slow
@PROTOCOLS
def test_cp_both_ways_keeps_every_byte(
    environment: Environment, everywhere: Compare, environ: dict[str, str], tmp_path: Path
) -> None:
    sent = tmp_path / "sent"
    (sent / "below").mkdir(parents=True)
    (sent / "bytes").write_bytes(bytes(range(256)) * 2000)
    (sent / "below" / "empty").write_bytes(b"")

    def scenario(kubectl: Kubectl) -> list[Result]:
        there = kubectl("cp", "sent", "db-0:/tmp/sent", environ=environ, cwd=tmp_path)
        assert environment.control().read_file("demo", "db-0", "/tmp/sent/bytes") == (sent / "bytes").read_bytes()
        back = kubectl("cp", "db-0:/tmp/sent", "back", environ=environ, cwd=tmp_path)
        assert (tmp_path / "back" / "bytes").read_bytes() == (sent / "bytes").read_bytes()
        (tmp_path / "back" / "bytes").unlink()
        kubectl.good("exec", "db-0", "--", "rm", "-rf", "/tmp/sent")
        return [there, back]

    there, back = everywhere(scenario)
    assert (there.status, back.status) == (0, 0)


@PROTOCOLS
def test_attach_talks_with_the_main_process(everywhere: Compare, environ: dict[str, str]) -> None:
    def scenario(kubectl: Kubectl) -> list[Result]:
        return [kubectl("attach", "-i", "db-0", stdin="hello there\n", environ=environ)]

    (attached,) = everywhere(scenario)
    assert attached.status == 0
    assert attached.stdout.endswith("hello there\n")


@PROTOCOLS
def test_port_forward_carries_http_and_plain_bytes(all_at_once: Compare, environ: dict[str, str]) -> None:
    def scenario(kubectl: Kubectl) -> list[Result]:
        with kubectl.begin("port-forward", "pod/db-0", ":80", ":5432", environ=environ) as forwarding:
            forwarding.wait_for("-> 5432")
            ports = {
                there: int(here)
                for here, there in re.findall(
                    r"Forwarding from 127\.0\.0\.1:(\d+) -> (\d+)", forwarding.output.decode()
                )
            }
            page = [_get(ports["80"]) for _ in range(3)][-1]
            with socket.create_connection(("127.0.0.1", ports["5432"]), timeout=20) as connection:
                connection.sendall(b"echo this\n")
                echoed = connection.makefile("rb").readline().decode()
        return [Result(0, page, ""), Result(0, echoed, "")]

    page, echoed = all_at_once(scenario)
    assert '"pod": "db-0"' in page.stdout
    assert echoed.stdout == "echo this\n"


def _get(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/some/where", headers={"Host": "pod"})
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_api_resources_and_versions_list_all_kinds(all_at_once: Compare) -> None:
    resources, versions, _ = all_at_once(
        lambda kubectl: [kubectl("api-resources", "-o", "wide"), kubectl("api-versions"), kubectl("version")]
    )
    assert "widgets" in resources.stdout
    assert "apps/v1\n" in versions.stdout


def test_explain_reads_openapi(all_at_once: Compare) -> None:
    pod, _, wrong = all_at_once(
        lambda kubectl: [
            kubectl("explain", "pod.spec.containers.livenessProbe"),
            kubectl("explain", "deployments", "--recursive"),
            kubectl("explain", "pod.spec.nonsense"),
        ]
    )
    assert "periodSeconds" in pod.stdout
    assert wrong.status == 1


@pytest.mark.slow
def test_get_watch_shows_changes_as_they_come(everywhere: Compare) -> None:
    def scenario(kubectl: Kubectl) -> list[Result]:
        with kubectl.begin("get", "cm", "-l", "watched=yes", "-w", "--output-watch-events") as watching:
            kubectl.good("create", "cm", "--dry-run=client", "seen", "-o", "name")
            kubectl.good(
                "apply",
                "-f",
                "-",
                stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: seen, labels: {watched: 'yes'}}\n",
            )
            watching.wait_for("ADDED")
            kubectl.good("patch", "cm", "seen", "-p", '{"data": {"a": "b"}}')
            watching.wait_for("MODIFIED")
            kubectl.good("delete", "cm", "seen")
            watching.wait_for("DELETED")
            return [Result(0, watching.output.decode(), "")]

    (seen,) = everywhere(scenario)
    assert re.findall(r"^(\w+) +seen +(\d)", seen.stdout, re.M) == [("ADDED", "0"), ("MODIFIED", "1"), ("DELETED", "1")]


def test_a_watch_ends_at_the_cluster_when_kubectl_is_gone(environment: Environment, kubectl: str) -> None:
    control = environment.control()
    mark = control.mark()

    def watches() -> list[dict[str, Any]]:
        records = control.audit(mark, path="/api/v1/namespaces/default/configmaps")
        return [record for record in records if "watch=true" in record["path"]]

    with environment.kubectl(kubectl, "path").begin("get", "cm", "-n", "default", "-w"):
        wait_until("the watch is there", lambda: bool(watches()))
    # The simulated cluster finds out when it writes the next event.
    names = (f"event-{number}" for number in itertools.count())

    def gone() -> bool:
        metadata = {"namespace": "default", "name": next(names)}
        control.create([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}])
        (watch,) = watches()
        return watch["body_length"] is not None  # its audit record is complete

    wait_until("the watch is gone", gone)


def test_the_other_cluster_is_another(environment: Environment, kubectl: str) -> None:
    nodes = environment.kubectl(kubectl, "west").good("get", "nodes", "-o", "name")
    assert "node/west-node-1" in nodes
    assert "east" not in nodes


@PROTOCOLS
def test_passed_through_token_makes_the_user(environment: Environment, kubectl: str, environ: dict[str, str]) -> None:
    """alice may read pods in demo and nothing else, whichever way she comes."""

    def scenario(alice: Kubectl) -> list[Result]:
        return [
            alice("auth", "can-i", "list", "pods"),
            alice("get", "pods"),
            alice("get", "pods", "-n", "shop"),
            alice("exec", "db-0", "--", "hostname", environ=environ),
            alice("get", "pods", "--as=admin"),
        ]

    mark = environment.control().mark()
    ways = ("direct-alice", "own", "own-name")
    seen = in_parallel(lambda route: seen_of(scenario, environment.kubectl(kubectl, route)), ways)
    records = [record for record in environment.control().audit(mark, path="/api") if not is_proxys_own(record)]
    assert {record["user"] for record in records} == {"alice"}
    assert seen["own"] == seen["own-name"] == seen["direct-alice"]
    assert seen["own"][0].stdout == "yes\n"
    assert [result.status for result in seen["own"]] == [0, 0, 1, 1, 1]
