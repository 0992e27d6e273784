"""kubectl does the same with HTTP/2 on both sides of the proxy, on one, and on none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.http2_routes import ROUTES, HTTP2Routes, all_equal
from tests.e2e.kubectl_output import SPDY, WEBSOCKET, normalised
from tests.e2e.kubectl_scenarios import copied_and_forwarded, written_and_watched
from tests.e2e.processes import Kubectl, Result, in_parallel

Scenario = Callable[[Kubectl, str], list[Result]]


NO_OR_BOTH = ("1-1", "2-2")


def everywhere(
    routes: HTTP2Routes, program: str, scenario: Scenario, user: str = "admin", *, by: tuple[str, ...] = ROUTES
) -> list[Result]:
    """Run a scenario by several routes at a time; gives what all have seen. It is given the route, to name objects."""

    def seen(route: str) -> list[Result]:
        found = [normalised(each) for each in scenario(routes.kubectl(program, route, user), route)]
        return [replace(each, stdout=each.stdout.replace(route, "ROUTE")) for each in found]

    agreed: list[Result] = all_equal(in_parallel(seen, by), by)
    return agreed


@pytest.mark.slow
def test_what_is_read(http2_routes: HTTP2Routes, kubectl: str) -> None:
    def scenario(kubectl: Kubectl, route: str) -> list[Result]:
        return [
            kubectl("get", "pods,nodes", "-A", "-o", "wide"),
            kubectl("get", "pods", "-A", "--chunk-size=7", "-o", "name"),
            kubectl("get", "pod", "absent"),
            kubectl("api-resources", "-o", "wide"),
        ]

    table, chunks, absent, resources = everywhere(http2_routes, kubectl, scenario)
    assert "web-" in table.stdout
    assert chunks.stdout.count("pod/") > 7
    assert (absent.status, absent.stderr) == (1, 'Error from server (NotFound): pods "absent" not found\n')
    assert "widgets" in resources.stdout


def test_what_a_user_may_do(http2_routes: HTTP2Routes, kubectl: str) -> None:
    def scenario(alice: Kubectl, route: str) -> list[Result]:
        return [
            alice("auth", "can-i", "list", "pods"),
            alice("get", "secrets"),
        ]

    yes, refused = everywhere(http2_routes, kubectl, scenario, "alice", by=NO_OR_BOTH)
    assert yes.stdout == "yes\n"
    assert 'User "alice" cannot list resource "secrets"' in refused.stderr


@pytest.mark.slow
def test_what_is_written_and_watched(http2_routes: HTTP2Routes, kubectl: str) -> None:
    *written, events = everywhere(http2_routes, kubectl, written_and_watched)
    assert [each.status for each in written] == [0, 0, 0, 0]
    assert events.stdout == "[('ADDED', '1'), ('DELETED', '2')]"


def test_logs_are_followed(http2_routes: HTTP2Routes, kubectl: str) -> None:
    def scenario(kubectl: Kubectl, route: str) -> list[Result]:
        whole = kubectl("logs", "db-0", "--tail=2", "--timestamps")
        with kubectl.begin("logs", "-f", "db-1", "--tail=1") as following:
            following.wait_for("log line")
            http2_routes.control.append_log("demo", "db-1", "a new line\n")
            following.wait_for("a new line")
        return [whole]

    (whole,) = everywhere(http2_routes, kubectl, scenario, by=NO_OR_BOTH)
    assert whole.stdout.count("\n") == 2


def test_exec_and_attach_by_websocket(http2_routes: HTTP2Routes, kubectl: str) -> None:
    script = "cat; echo problem >&2; exit 7"

    def scenario(kubectl: Kubectl, route: str) -> list[Result]:
        return [
            kubectl("exec", "-i", "db-0", "--", "sh", "-c", script, stdin="one\ntwo\n", environ=WEBSOCKET),
            kubectl("exec", "absent", "--", "hostname", environ=WEBSOCKET),
            kubectl("attach", "-i", "db-0", stdin="hello there\n", environ=WEBSOCKET),
        ]

    mark = http2_routes.control.mark()
    talk, absent, attached = everywhere(http2_routes, kubectl, scenario, by=NO_OR_BOTH)
    assert (talk.status, talk.stdout) == (7, "one\ntwo\n")
    assert absent.stderr == 'Error from server (NotFound): pods "absent" not found\n'
    assert attached.stdout.endswith("hello there\n")
    records = http2_routes.control.audit(mark, path="/api/v1/namespaces/demo/pods/db-0/")
    assert {(record["upgraded"] != "", record["protocol"]) for record in records} == {(True, "HTTP/1.1")}


def test_cp_and_port_forward_by_spdy(http2_routes: HTTP2Routes, kubectl: str, tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(bytes(range(256)) * 2000)

    def scenario(kubectl: Kubectl, route: str) -> list[Result]:
        return copied_and_forwarded(kubectl, route, SPDY, tmp_path)

    found = everywhere(http2_routes, kubectl, scenario, by=NO_OR_BOTH)
    assert [each.status for each in found] == [0, 0, 0]
    assert found[2].stdout == "echo this\n"


@pytest.mark.parametrize("route", ROUTES)
def test_the_version_that_each_side_speaks(http2_routes: HTTP2Routes, kubectl: str, route: str) -> None:
    """Upgrades are HTTP/1.1 everywhere, as with a kube-apiserver."""
    version = {"1": "HTTP/1.1", "2": "HTTP/2.0"}
    client, cluster = (version[each] for each in route.split("-"))
    run = http2_routes.kubectl(kubectl, route)
    mark = http2_routes.control.mark()
    run.good("get", "pods", "-o", "name")
    assert http2_routes.protocols(mark, path="/api/v1/namespaces/demo/pods") == {cluster}
    (line,) = http2_routes.logged(1, verb="list", resource="pods")
    assert line["protocol"] == client
    mark = http2_routes.control.mark()
    assert run.good("exec", "db-0", "--", "hostname") == "db-0\n"
    assert http2_routes.protocols(mark, path="/api/v1/namespaces/demo/pods/db-0/exec") == {"HTTP/1.1"}
    (line,) = http2_routes.logged(1, resource="pods/exec")
    assert line["protocol"] == "HTTP/1.1"
