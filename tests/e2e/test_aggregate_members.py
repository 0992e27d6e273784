"""An aggregate while its members come, go, stop and restart, and while the daemon itself does."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import pytest

from tests.aggregate.reflector.harness import crd, send
from tests.e2e.aggregate_environment import AggregateEnvironment
from tests.e2e.http_client import Address, Answer, Client, ask
from tests.e2e.processes import Daemon, wait_until
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.ports import reserved_port

MAPS = "/api/v1/namespaces/demo/configmaps"
SECRETS = "/api/v1/namespaces/demo/secrets"
CLUSTER = "mcproxy.io/cluster"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[AggregateEnvironment]:
    """Two clusters as one aggregate, for one test, which starts it."""
    environment = AggregateEnvironment(tmp_path)
    try:
        yield environment
    finally:
        environment.stop()


def get(fleet: AggregateEnvironment, target: str, user: str = "admin", accept: str = "application/json") -> Answer:
    return ask(fleet.address, target, headers=[("Authorization", f"Bearer {user}"), ("Accept", accept)])


def objects(answer: Answer) -> set[tuple[str, str]]:
    """The (cluster, name) of each item of a list."""
    assert answer.status == 200, answer.body
    return {(item["metadata"]["labels"][CLUSTER], item["metadata"]["name"]) for item in answer.json["items"]}


def of(cluster: str, found: set[tuple[str, str]]) -> set[str]:
    return {name for where, name in found if where == cluster}


def warnings(answer: Answer) -> list[str]:
    return [value for name, value in answer.headers if name.lower() == "warning"]


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "demo"}, "data": data}


def deployment(name: str) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default", "labels": {CLUSTER: "west"}},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }


class Watch:
    """A watch that is read in a thread; `events` are (type, cluster, name)."""

    def __init__(self, fleet: AggregateEnvironment, target: str, user: str = "admin", port: int = 0) -> None:
        address = fleet.address
        if port:
            address = type(address)(port, address.context)
        self._client = Client(address)
        head = [("Authorization", f"Bearer {user}"), ("Accept", "application/json")]
        self.response = self._client.begin("GET", target, head)
        assert self.response.status == 200, self.response.read()
        self.raw: list[dict[str, Any]] = []
        self.ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while line := self.response.readline():
                self.raw.append(json.loads(line))
        except (OSError, ValueError):
            pass
        self.ended = True

    @property
    def events(self) -> list[tuple[str, str, str]]:
        return [
            (event["type"], event["object"]["metadata"]["labels"][CLUSTER], event["object"]["metadata"]["name"])
            for event in self.raw
            if event["type"] in ("ADDED", "MODIFIED", "DELETED")
        ]

    @property
    def version(self) -> str:
        """The resource version of what was seen last."""
        return str(self.raw[-1]["object"]["metadata"]["resourceVersion"])

    def wait_for(self, what: Callable[[], bool]) -> None:
        try:
            wait_until("an event", what)
        except AssertionError:
            raise AssertionError(f"no event, after {self.raw[-5:]}") from None

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.socket.close()
        self._client.close()


def reads_of(fleet: AggregateEnvironment, cluster: str, since: int) -> list[str]:
    """The lists and watches that reached a cluster, but for the probes of its version."""
    return [
        record["path"]
        for record in fleet.control(cluster).audit(since, method="GET")
        if record["path"].startswith(("/api/v1/", "/apis/apps/v1/"))
        and "limit=1&" not in f"{record['path']}&"
        and "/kube-system" not in record["path"]
    ]


def settle(fleet: AggregateEnvironment, cluster: str) -> None:
    """Wait until the reflectors of a cluster have begun all watches: over HTTP/1.1 these bring the first state."""
    seen = -1

    def synced() -> bool:
        (figures,) = fleet.daemon.command_answer({"command": "status"})["aggregates"]
        return set(figures["reflectorCounts"]) == {"synced"}

    wait_until("all are synced", synced)

    def settled() -> bool:
        nonlocal seen
        time.sleep(0.4)
        before, seen = seen, len(reads_of(fleet, cluster, 0))
        return seen == before

    wait_until("quiet", settled)


class TestReload:
    @pytest.mark.slow
    def test_a_member_that_is_dropped_and_added_reaches_running_watches_and_nothing_is_listed_again(
        self, fleet: AggregateEnvironment
    ) -> None:
        fleet.start()
        before = objects(get(fleet, MAPS))
        assert of("west", before)
        with Watch(fleet, f"{MAPS}?watch=1&resourceVersion=0") as watch:
            watch.wait_for(lambda: len(watch.events) == len(before))
            settle(fleet, "east")
            mark = fleet.control("east").mark()
            fleet.members = ("east",)
            fleet.reload()
            watch.wait_for(lambda: len(watch.events) == len(before) + len(of("west", before)))
            assert set(watch.events[len(before) :]) == {("DELETED", "west", name) for name in of("west", before)}
            assert objects(get(fleet, MAPS)) == {("east", name) for name in of("east", before)}
            fleet.members = ("east", "west")
            fleet.reload()
            watch.wait_for(lambda: len(watch.events) == len(before) + 2 * len(of("west", before)))
            added = set(watch.events[len(before) + len(of("west", before)) :])
            assert added == {("ADDED", "west", name) for name in of("west", before)}
            fleet.control("east").create([config_map("after-reloads")])
            watch.wait_for(lambda: watch.events[-1] == ("ADDED", "east", "after-reloads"))
        assert reads_of(fleet, "east", mark) == []

    @pytest.mark.slow
    def test_a_resource_that_is_added_and_dropped_leaves_the_others_alone(self, fleet: AggregateEnvironment) -> None:
        fleet.resources = '        - {group: "", version: v1, resource: configmaps}\n'
        fleet.start()
        before = objects(get(fleet, MAPS))
        settle(fleet, "east")
        mark = fleet.control("east").mark()
        fleet.resources += "        - {group: apps, version: v1, resource: deployments, namespaces: [demo, shop]}\n"
        fleet.reload()
        deployments = "/apis/apps/v1/namespaces/shop/deployments"
        wait_until("both", lambda: len({where for where, _ in objects(get(fleet, deployments))}) == 2)
        assert objects(get(fleet, MAPS)) == before
        paths = reads_of(fleet, "east", mark)
        assert paths
        assert all(path.startswith("/apis/apps/v1/namespaces/") for path in paths)
        assert get(fleet, "/apis/apps/v1/namespaces/monitoring/deployments").json["items"] == []

    @pytest.mark.slow
    def test_a_member_that_is_new_reaches_a_running_watch(self, fleet: AggregateEnvironment) -> None:
        fleet.members = ("east",)
        fleet.start()
        with Watch(fleet, f"{MAPS}?watch=1&resourceVersion=0") as watch:
            watch.wait_for(lambda: len(watch.events) == len(objects(get(fleet, MAPS))))
            fleet.members = ("east", "west")
            fleet.reload()
            watch.wait_for(lambda: bool(of("west", {event[1:] for event in watch.events})))
            wait_until("all", lambda: {event[1:] for event in watch.events} == objects(get(fleet, MAPS)))
            assert not watch.ended

    @pytest.mark.slow
    def test_a_reload_that_fails_changes_nothing(self, fleet: AggregateEnvironment) -> None:
        fleet.start()
        with Watch(fleet, f"{MAPS}?watch=1") as watch:
            good = fleet.config()
            fleet.daemon.file.write_text(good.replace("clusters: [east, west]", "clusters: [east, nowhere]"))
            assert fleet.daemon.reload().returncode != 0
            fleet.control("west").create([config_map("still-there")])
            watch.wait_for(lambda: ("ADDED", "west", "still-there") in watch.events)


class TestMembersAway:
    @pytest.mark.slow
    def test_a_member_that_is_down_is_served_from_its_last_state_and_comes_back_with_what_changed(
        self, fleet: AggregateEnvironment
    ) -> None:
        fleet.start()
        before = objects(get(fleet, MAPS))
        with Watch(fleet, f"{MAPS}?watch=1&resourceVersion=0") as watch:
            watch.wait_for(lambda: len(watch.events) == len(before))
            fleet.control("west").stop_endpoint()
            wait_until("a warning", lambda: bool(warnings(get(fleet, MAPS))))
            answer = get(fleet, MAPS)
            assert objects(answer) == before
            assert any("cluster west: unavailable since" in text for text in warnings(answer))
            fleet.control("east").create([config_map("meanwhile-east")])
            watch.wait_for(lambda: watch.events[-1] == ("ADDED", "east", "meanwhile-east"))
            fleet.control("west").create([config_map("meanwhile-west")])
            fleet.control("west").start_endpoint()
            watch.wait_for(lambda: ("ADDED", "west", "meanwhile-west") in watch.events)
            wait_until("no warning", lambda: not warnings(get(fleet, MAPS)))
            assert len(watch.events) == len(before) + 2  # nothing was told twice

    @pytest.mark.slow
    def test_partial_leaves_it_out_and_fail_refuses(self, fleet: AggregateEnvironment) -> None:
        fleet.aggregate = "unavailable: Partial"
        fleet.start()
        before = objects(get(fleet, MAPS))
        fleet.control("west").stop_endpoint()
        wait_until("a warning", lambda: bool(warnings(get(fleet, MAPS))))
        assert objects(get(fleet, MAPS)) == {("east", name) for name in of("east", before)}
        fleet.aggregate = "unavailable: Fail"
        fleet.reload()
        answer = get(fleet, MAPS)
        assert (answer.status, answer.json["reason"]) == (503, "ServiceUnavailable")

    @pytest.mark.slow
    def test_a_member_that_is_stopped_holds_nobody_up_for_long(self, fleet: AggregateEnvironment) -> None:
        fleet.start()
        before = objects(get(fleet, MAPS))
        process = fleet.clusters["west"]
        os.kill(process.pid, signal.SIGSTOP)
        try:
            for user in ("admin", "alice"):  # alice's rights must be asked for
                began = time.monotonic()
                target = MAPS if user == "admin" else "/api/v1/namespaces/demo/pods"
                answer = get(fleet, target, user)
                assert time.monotonic() - began < 40  # the client waits for 60 s
                assert "east" in {where for where, _ in objects(answer)}
            wait_until("its state", lambda: objects(get(fleet, MAPS)) == before)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        wait_until("no warning", lambda: not warnings(get(fleet, MAPS)))

    @pytest.mark.slow
    def test_another_cluster_under_the_name_replaces_all_that_was_there(self, fleet: AggregateEnvironment) -> None:
        fleet.start()
        before = objects(get(fleet, MAPS))
        with Watch(fleet, f"{MAPS}?watch=1&resourceVersion=0") as watch:
            watch.wait_for(lambda: len(watch.events) == len(before))
            old = fleet.clusters["west"]
            port = old.ports[0]  # which nobody else has got, but for a moment
            old.kill()
            new = SimulatedClusterProcess(
                "west", options=("--port", str(port), "--empty"), directory=fleet.directory / "west2"
            )
            fleet.clusters["west"] = new.start()
            fleet.reload()  # it has another CA
            wait_until("its deletions", lambda: of("west", objects(get(fleet, MAPS))) & of("west", before) == set())
            gone = {("DELETED", "west", name) for name in of("west", before)}
            watch.wait_for(lambda: gone <= set(watch.events))
        assert of("east", objects(get(fleet, MAPS))) == of("east", before)


def test_what_is_written_to_the_primary_beyond_the_scope_has_nothing_of_the_aggregate(
    fleet: AggregateEnvironment,
) -> None:
    """As `kubectl expose pod`, which makes a selector of the pod's labels."""
    fleet.primary = "primary: west"
    fleet.start()
    metadata = {"name": "web", "labels": {"app": "web", CLUSTER: "east"}}
    spec = {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 3, "selector": {CLUSTER: "east"}}
    body = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec}
    path = "/apis/autoscaling/v2/namespaces/demo/horizontalpodautoscalers"
    headers = [("Authorization", "Bearer admin"), ("Content-Type", "application/json")]
    made = ask(fleet.address, path, method="POST", headers=headers, body=json.dumps(body).encode())
    assert made.status == 201, made.body
    status, stored = send(fleet.clusters["west"], "GET", f"{path}/web")
    assert (status, stored["metadata"]["labels"]) == (200, {"app": "web"})
    assert CLUSTER not in stored["spec"].get("selector", {})
    patch = json.dumps({"metadata": {"labels": {CLUSTER: "east", "tier": "x"}}}).encode()
    headers[1] = ("Content-Type", "application/merge-patch+json")
    assert ask(fleet.address, f"{path}/web", method="PATCH", headers=headers, body=patch).status == 200
    labels = send(fleet.clusters["west"], "GET", f"{path}/web")[1]["metadata"]["labels"]
    assert labels == {"app": "web", "tier": "x"}


_PODS = "/api/v1/namespaces/default/pods"
_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web"},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}


def _json(**more: Any) -> bytes:
    return json.dumps({**_POD, **more}).encode()


@pytest.mark.parametrize("workers", ["", ", workers: 2"])
def test_a_write_beyond_the_scope_is_answered_as_the_primary_answers(fleet: AggregateEnvironment, workers: str) -> None:
    """Fields, words and bytes; but for the date, the Audit-Id where the client sent none, and the connection."""
    fleet.primary, fleet.resources = "primary: west", '        - {group: apps, version: v1, resource: "*"}\n'
    fleet.state = workers
    fleet.start()
    west = fleet.clusters["west"]
    address = Address(west.ports[0], ssl.create_default_context(cafile=west.ca))
    kubectl = [("Audit-Id", "of-the-client"), ("User-Agent", "kubectl"), ("Kubectl-Command", "kubectl create")]
    dry = f"{_PODS}?dryRun=All&fieldManager=kubectl-create"
    kind = "application/json"
    protobuf = "application/vnd.kubernetes.protobuf"
    for method, target, fields, body in [
        ("POST", f"{dry}&fieldValidation=Warn", {"Content-Type": kind, "Accept": TABLE}, _json(unknown=1)),
        ("POST", f"{dry}&fieldValidation=Strict", {"Content-Type": kind}, _json(unknown=1)),
        ("POST", dry, {"Content-Type": kind, "Accept": protobuf}, _json()),
        ("POST", dry, {"Content-Type": protobuf, "Accept": protobuf}, b"k8s\0not taken apart"),
        ("POST", dry, {"Content-Type": "text/plain"}, b"hello"),
        ("POST", f"{_PODS}?dryRun=Some", {"Content-Type": kind}, _json()),
        ("POST", dry, {"Content-Type": kind, "Expect": "100-continue"}, _json(kind="Podd")),
        ("POST", dry, {"Content-Type": kind}, b" " * (3 * 1024 * 1024 + 1)),
        ("PUT", f"{_PODS}/web?dryRun=All", {"Content-Type": kind, "Content-Encoding": "gzip"}, b"\x1f\x8b\x08"),
        ("PATCH", f"{_PODS}/web?dryRun=All", {"Content-Type": "application/merge-patch+json"}, b"{}"),
    ]:
        answers = []
        for at, token in ((address, "admin-test-token"), (fleet.address, "admin")):
            headers = [("Authorization", f"Bearer {token}"), *kubectl, *fields.items()]
            answer = ask(at, target, method=method, headers=headers, body=body)
            left = sorted((name.lower(), value) for name, value in answer.headers if name.lower() not in _OF_ONE_ANSWER)
            answers.append((answer.status, left, _MADE.sub(b"", answer.body)))
        assert answers[1] == answers[0], (target, fields)


_OF_ONE_ANSWER = frozenset({"date", "content-length", "transfer-encoding"})
_MADE = re.compile(rb'"(?:uid|creationTimestamp|time)": ?"[^"]*",?')


@pytest.mark.slow
def test_a_primary_that_is_no_member_shows_its_definitions_to_those_who_may_discover_them(
    fleet: AggregateEnvironment,
) -> None:
    fleet.members, fleet.primary = ("east",), "primary: west"
    fleet.start()
    assert send(fleet.clusters["west"], "POST", CRDS, crd("gizmos", "Gizmo", "west.example.com"))[0] == 201
    paths = [
        "/apis/west.example.com",
        "/apis/west.example.com/v1",
        "/openapi/v3/apis/west.example.com/v1",
    ]
    wait_until("it is known", lambda: [get(fleet, path, "alice").status for path in paths] == [200, 200, 200])
    binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:discovery"
    assert send(fleet.clusters["west"], "DELETE", binding)[0] == 200
    fleet.daemon.signal(signal.SIGTERM)  # what it was allowed before is cached
    assert fleet.daemon.end() == 0
    fleet.start_daemon()
    wait_until("it is known", lambda: get(fleet, paths[0]).status == 200)
    assert [get(fleet, path, "alice").status for path in paths] == [404, 404, 404]
    for path in ("/apis", "/openapi/v3", "/openapi/v2"):
        assert b"west.example.com" not in get(fleet, path, "alice").body
        assert b"west.example.com" in get(fleet, path).body
    assert b'"apps"' in get(fleet, "/apis", "alice").body


class TestRestart:
    @pytest.mark.slow
    def test_what_was_saved_serves_while_a_member_is_away(self, fleet: AggregateEnvironment) -> None:
        fleet.state = ", stateDir: state"
        fleet.resources += "      initialSyncTimeout: 2s\n"  # what is not kept is waited for so long
        fleet.start()
        pods = "/api/v1/namespaces/demo/pods"
        before = objects(get(fleet, MAPS))
        secrets = objects(get(fleet, SECRETS))
        seen = objects(get(fleet, pods, "alice"))
        version = get(fleet, MAPS).json["metadata"]["resourceVersion"]
        with Watch(fleet, f"{MAPS}?watch=1&resourceVersion={version}"):
            pass
        fleet.daemon.signal(signal.SIGTERM)
        assert fleet.daemon.end() == 0
        assert all(path.stat().st_mode & 0o77 == 0 for path in (fleet.directory / "state").rglob("*"))
        fleet.control("west").stop_endpoint()
        fleet.start_daemon()
        wait_until("both", lambda: objects(get(fleet, MAPS)) == before)
        answer = get(fleet, MAPS)
        assert any("cluster west: unavailable since" in text for text in warnings(answer))
        assert objects(get(fleet, pods, "alice")) == seen  # her last decision holds
        refused = get(fleet, MAPS, "alice")
        assert refused.status in (403, 503)
        assert not [path for path in (fleet.directory / "state").rglob("*") if "secrets" in path.name]
        assert objects(get(fleet, SECRETS)) == {("east", name) for name in of("east", secrets)}  # not kept on disk
        with Watch(fleet, f"{MAPS}?watch=1&resourceVersion={version}") as watch:
            fleet.control("west").start_endpoint()
            fleet.control("west").create([config_map("after-all")])
            watch.wait_for(lambda: ("ADDED", "west", "after-all") in watch.events)
            assert watch.events == [("ADDED", "west", "after-all")]

    @pytest.mark.slow
    def test_columns_of_a_cache_that_began_empty(self, tmp_path: Path, kubectl: str) -> None:
        """Nothing but the end of a WatchList of nothing tells them, and then what was saved."""
        fleet = AggregateEnvironment(tmp_path, options=("--empty", "--no-controllers"))
        fleet.state = ", stateDir: state"
        head = ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
        try:
            kube = fleet.start().kubectl(kubectl)
            assert kube("get", "deploy", "-n", "default").stdout == ""
            kube.good("create", "-f", "-", stdin=json.dumps(deployment("one")))
            assert kube.good("get", "deploy", "-n", "default").split()[:6] == [*head, "one"]
            kube.good("delete", "deploy", "one", "-n", "default")
            fleet.daemon.signal(signal.SIGTERM)
            assert fleet.daemon.end() == 0
            fleet.start_daemon()
            kube.good("create", "-f", "-", stdin=json.dumps(deployment("two")))
            assert kube.good("get", "deploy", "-n", "default").split()[:6] == [*head, "two"]
        finally:
            fleet.stop()

    @pytest.mark.slow
    @pytest.mark.parametrize("fault", ["stop", "hang"])
    def test_who_goes_on_keeps_what_it_has_of_a_member_that_is_away(
        self, fleet: AggregateEnvironment, fault: str
    ) -> None:
        """Upon 410, or 200 without the member, an informer deletes all its objects."""
        fleet.resources += "      initialSyncTimeout: 2s\n"
        fleet.start()
        control = fleet.control("west")
        control.create([config_map("of-west")])
        wait_until("both", lambda: {("west", "of-west")} < objects(get(fleet, MAPS)))
        first = get(fleet, f"{MAPS}?limit=1").json["metadata"]
        before, version = objects(get(fleet, MAPS)), first["resourceVersion"]
        fleet.daemon.signal(signal.SIGTERM)
        assert fleet.daemon.end() == 0
        control.stop_endpoint() if fault == "stop" else control.hang_endpoint()
        fleet.start_daemon()
        wait_until("the other member", lambda: get(fleet, MAPS).status == 200)
        assert {where for where, _ in objects(get(fleet, MAPS))} == {"east"}
        at_version = f"{MAPS}?resourceVersion={version}"
        targets = [
            f"{at_version}&watch=1",
            f"{at_version}&watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            at_version,
            f"{at_version}&resourceVersionMatch=Exact",
            f"{MAPS}?continue={first['continue']}",
            f"{MAPS}/of-west",
            f"{MAPS}/nowhere",
        ]
        for target in targets:
            answer = get(fleet, target)
            assert (answer.status, answer.json["reason"]) == (503, "ServiceUnavailable"), target
            assert answer.header("retry-after"), target
        control.start_endpoint() if fault == "stop" else control.resume_endpoint()
        wait_until("what it had", lambda: get(fleet, at_version).status == 200)
        assert objects(get(fleet, at_version)) == before
        with Watch(fleet, f"{at_version}&watch=1") as watch:
            control.create([config_map("after-all")])
            watch.wait_for(lambda: ("ADDED", "west", "after-all") in watch.events)
            assert watch.events == [("ADDED", "west", "after-all")]
        assert get(fleet, f"{MAPS}/nowhere").status == 404

    @pytest.mark.slow
    def test_broken_files_are_put_aside(self, fleet: AggregateEnvironment) -> None:
        fleet.state = ", stateDir: state"
        fleet.start()
        before = objects(get(fleet, MAPS))
        fleet.daemon.signal(signal.SIGTERM)
        fleet.daemon.end()
        files = [path for path in (fleet.directory / "state").rglob("*") if path.is_file()]
        assert {path.parent.name for path in files} >= {"stores", "members", "layouts"}
        for path in files:
            path.write_bytes(path.read_bytes()[:-1])
        fleet.start_daemon()
        assert objects(get(fleet, MAPS)) == before
        assert fleet.daemon.all_lines("a state file was unusable and set aside")
        assert not fleet.daemon.all_lines("Traceback")


@pytest.mark.slow
def test_every_watch_is_resumed_on_another_daemon(fleet: AggregateEnvironment) -> None:
    fleet.start()
    other_folder = fleet.directory / "other"
    other_folder.mkdir()
    port = reserved_port()
    for name in ("proxy.crt", "proxy.key", "users.csv"):
        (other_folder / name).write_bytes((fleet.directory / name).read_bytes())
    with Daemon(other_folder, fleet.config().replace(f"127.0.0.1:{fleet.port}", f"127.0.0.1:{port}")):
        ports = (fleet.port, port)
        there = type(fleet.address)(port, fleet.address.context)
        head = [("Authorization", "Bearer admin")]
        wait_until("the other's caches", lambda: ask(there, MAPS, headers=head).body.count(b'"Warning"') == 0)
        assert len(objects(ask(there, MAPS, headers=head))) == len(objects(get(fleet, MAPS)))
        version = get(fleet, MAPS).json["metadata"]["resourceVersion"]
        seen = []
        for number in range(6):
            with Watch(fleet, f"{MAPS}?watch=1&resourceVersion={version}", port=ports[number % 2]) as watch:
                for cluster in ("east", "west"):
                    fleet.control(cluster).create([config_map(f"made-{number}")])
                watch.wait_for(lambda: len(watch.events) == 2)
                seen += watch.events
                version = watch.version
        assert len(seen) == len(set(seen)) == 12
        assert {name for _, _, name in seen} == {f"made-{number}" for number in range(6)}


@pytest.mark.slow
def test_somebody_elses_secrets_are_out_of_reach(fleet: AggregateEnvironment) -> None:
    fleet.start()
    admins = get(fleet, f"{SECRETS}?limit=2")
    assert len(objects(admins)) == 2
    token = admins.json["metadata"]["continue"]
    streaming = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    name = next(iter(objects(admins)))[1]
    targets = [
        SECRETS,
        "/api/v1/secrets",
        f"{SECRETS}/{name}",
        f"{SECRETS}?limit=2&continue={quote(token)}",
        f"{SECRETS}?watch=1",
        f"{SECRETS}?{streaming}",
        f"{SECRETS}?watch=1&resourceVersion={admins.json['metadata']['resourceVersion']}",
        f"/api/v1/watch/namespaces/demo/secrets/{name}",
        f"{SECRETS}?fieldSelector=metadata.name%3D{name}",
        f"{SECRETS}?labelSelector=mcproxy.io%2Fcluster%3Deast",
        f"/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy{SECRETS}",
        f"/clusters/east{SECRETS}",
        f"/apis/cluster.karmada.io/v1alpha1/clusters/west/proxy{SECRETS}",
    ]
    for target in targets:
        for accept in ("application/json", TABLE, TABLE.replace("Table", "PartialObjectMetadataList")):
            answer = get(fleet, target, "alice", accept)
            assert answer.status in (403, 406), (target, answer.body[:300])
            assert b"credentials" not in answer.body.replace(name.encode(), b"")
    # What she may read stays hers alone: a token for pods is not one for secrets.
    pods = get(fleet, "/api/v1/namespaces/demo/pods?limit=1", "alice")
    token = pods.json["metadata"]["continue"]
    assert get(fleet, f"{SECRETS}?limit=1&continue={quote(token)}", "admin").status == 400
    for field in ("Impersonate-User: admin", "X-Remote-User: admin", "Impersonate-Group: system:masters"):
        head = [("Authorization", "Bearer alice"), tuple(field.split(": "))]
        answer = ask(fleet.address, SECRETS, headers=head)  # type: ignore[arg-type]
        assert answer.status in (400, 403)


@pytest.mark.slow
def test_a_right_that_is_taken_away_ends_what_a_running_watch_shows(fleet: AggregateEnvironment, kubectl: str) -> None:
    fleet.aggregate = "reads: {cacheAllowed: 1s, cacheDenied: 1s}"
    fleet.start()
    west = fleet.kubectl(kubectl, "west")
    west.good("create", "role", "reader", "-n", "demo", "--verb=list,watch", "--resource=configmaps")
    west.good("create", "rolebinding", "reader", "-n", "demo", "--role=reader", "--user=nobody")
    wait_until("the right", lambda: get(fleet, MAPS, "nobody").status == 200)
    with Watch(fleet, f"{MAPS}?watch=1", "nobody") as watch:
        watch.wait_for(lambda: len(watch.events) > 1)
        assert {cluster for _, cluster, _ in watch.events} == {"west"}
        west.good("delete", "rolebinding", "reader", "-n", "demo")
        wait_until("the end", lambda: watch.ended)
        fleet.control("west").create([config_map("for-others")])
        time.sleep(0.5)
        assert "for-others" not in json.dumps(watch.raw)
        assert watch.raw[-1]["type"] in ("ERROR", "DELETED")
