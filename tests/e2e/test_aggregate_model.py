"""A model of three clusters and what informers must make of it, whatever happens on the way.

Random writes, compactions, lost connections, clusters that are away or silent, and reloads that take members out and
back; meanwhile informers list, watch and resume, some at one proxy, some at two in turn. When all is quiet each has
exactly the union of the members, and none has seen an object go back in time.
"""

from __future__ import annotations

import itertools
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from kubesim.auth.certificates import Authority
from tests.e2e.http_client import Address, Client
from tests.e2e.informer import Informer, Key
from tests.e2e.processes import Daemon
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.ports import reserved_port

MEMBERS = ("east", "middle", "west")
COLLECTION = "/api/v1/namespaces/demo/configmaps"
ADMIN = [("Authorization", "Bearer admin-test-token")]
QUIET = 120.0
"""Seconds within which everything must have arrived once all members are back."""

CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 1s}}
listeners: [{{name: public, bind: "127.0.0.1:{port}", tls: {{certificates: [proxy]}}}}]
certificates: [{{name: proxy, certFile: proxy.crt, keyFile: proxy.key}}]
clusters:
{clusters}
authentication: [{{name: tokens, tokenFile: tokens.csv}}]
authorization: [{{name: readers, rules: [{{users: [reader], verbs: [get, list, watch], apiGroups: [""], resources: [configmaps]}}]}}]
aggregates:
  - name: fleet
    clusters: [{members}]
    reads: {{authorize: Server}}
    cache: {{resources: [{{group: "", version: v1, resource: configmaps}}], initialSyncTimeout: 3s}}
servers: [{{name: fleet, default: true, backend: {{aggregate: fleet}}, authentication: tokens, authorization: readers}}]
"""  # noqa: E501
CLUSTER = """\
  - name: {name}
    endpoints: [{{url: "{url}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: admin-test-token}}
    healthCheck: {{interval: 500ms, timeout: 500ms, unhealthyAfter: 2}}
    identity: Impersonate
"""


class World:
    """Three clusters and two proxies over them, used by all examples."""

    def __init__(self, directory: Path) -> None:
        self.clusters = {
            name: SimulatedClusterProcess(name, options=("--empty", "--endpoints", "2", "--bookmark-seconds", "0.5"))
            for name in MEMBERS
        }
        self.authority = Authority("e2e CA")
        self.directory = directory
        self.daemons: list[tuple[Daemon, Address]] = []
        self.counter = itertools.count(1)

    def start(self) -> World:
        for cluster in self.clusters.values():
            cluster.spawn()
        for cluster in self.clusters.values():
            cluster.wait_ready()
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        for name in ("one", "two"):
            directory = self.directory / name
            directory.mkdir()
            self.authority.server(["127.0.0.1"]).write(directory, "proxy")
            (directory / "tokens.csv").write_text("reader-token,reader,1\n")
            (directory / "tokens.csv").chmod(0o600)
            port = reserved_port()
            daemon = Daemon(directory, self.config(port, MEMBERS)).start()
            self.daemons.append((daemon, Address(port, context)))
        return self

    def config(self, port: int, members: tuple[str, ...]) -> str:
        clusters = "".join(
            CLUSTER.format(name=name, url=cluster.url, ca=cluster.ca) for name, cluster in self.clusters.items()
        )
        return CONFIG.format(port=port, clusters=clusters.rstrip(), members=", ".join(members))

    def reload(self, members: tuple[str, ...]) -> None:
        for daemon, address in self.daemons:
            daemon.file.write_text(self.config(address.port, members))
            done = daemon.reload()
            assert done.returncode == 0, done.stderr

    def control(self, member: str) -> ControlClient:
        return ControlClient(self.clusters[member].control_url)

    def connect(self, member: str) -> Client:
        """Connect to the endpoint that the proxies do not know: the member changes while they cannot reach it."""
        cluster = self.clusters[member]
        return Client(Address(cluster.ports[1], ssl.create_default_context(cafile=cluster.ca)))

    def stop(self) -> None:
        for daemon, _ in self.daemons:
            daemon.stop()
        for cluster in self.clusters.values():
            cluster.cleanup()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("model"))
    try:
        yield world.start()
    finally:
        world.stop()


members = st.sampled_from(MEMBERS)
names = st.sampled_from([f"object-{number}" for number in range(3)])
changes = st.lists(st.tuples(names, st.booleans()), min_size=1, max_size=4)


class AggregateModel(RuleBasedStateMachine):
    """What is done to the clusters; `objects` is what they then hold."""

    world: World  # set by the test

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[Key, tuple[str, str]] = {}
        self.away: set[str] = set()
        self.removed = False
        one, two = (address for _, address in self.world.daemons)
        turns = itertools.cycle([two, one])
        authorization = {"Authorization": "Bearer reader-token"}
        kinds = {
            "list": (one, False),
            "watchlist": (one, True),
            "both-list": (None, False),
            "both-watchlist": (None, True),
        }
        self.informers = {
            name: Informer(
                (lambda: (next(turns), "")) if at is None else (lambda at=at: (at, "")),  # type: ignore[misc]
                COLLECTION,
                watch_list=watch_list,
                headers=authorization,
                limit=4,
                seed=number,
            )
            for number, (name, (at, watch_list)) in enumerate(kinds.items())
        }
        for informer in self.informers.values():
            informer.start()

    @rule(member=members, name=names, remove=st.booleans())
    def write(self, member: str, name: str, remove: bool) -> None:
        key = (member, "demo", name)
        n = str(next(self.world.counter))
        body = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"n": n}})
        fields = [*ADMIN, ("Content-Type", "application/json")]
        with self.world.connect(member) as client:
            if key not in self.objects:
                answer = client.request("POST", COLLECTION, fields, body.encode())
            elif remove:
                answer = client.request("DELETE", f"{COLLECTION}/{name}", fields)
            else:
                answer = client.request("PUT", f"{COLLECTION}/{name}", fields, body.encode())
        assert answer.status in (200, 201), answer.body
        if key in self.objects and remove:
            del self.objects[key]
        else:
            self.objects[key] = (answer.json["metadata"]["uid"], n)

    @rule(member=members)
    def compact(self, member: str) -> None:
        self.world.control(member).compact()

    @rule(member=members)
    def reset_connections(self, member: str) -> None:
        if member not in self.away:
            self.world.control(member).reset_connections()

    @precondition(lambda self: len(self.away) < 2)
    @rule(member=members, how=st.sampled_from(["stop", "hang"]))
    def lose(self, member: str, how: str) -> None:
        if member in self.away:
            return
        control = self.world.control(member)
        if how == "stop":
            control.stop_endpoint()
        else:
            control.hang_endpoint()
        self.away.add(member)

    @rule(member=members, changed=changes, compacted=st.booleans())
    def change_during_an_outage(self, member: str, changed: list[tuple[str, bool]], compacted: bool) -> None:
        """What the proxies must find out by a list, if the history is gone when they are back."""
        if member in self.away:
            return
        control = self.world.control(member)
        control.stop_endpoint()
        for name, remove in changed:
            self.write(member, name, remove)
        if compacted:
            control.compact()
        control.start_endpoint()

    @precondition(lambda self: bool(self.away))
    @rule()
    def bring_back(self) -> None:
        for member in sorted(self.away):
            control = self.world.control(member)
            control.resume_endpoint()
            control.start_endpoint()
        self.away.clear()

    @rule(which=st.sampled_from(["list", "watchlist", "both-list", "both-watchlist"]))
    def disconnect(self, which: str) -> None:
        self.informers[which].disconnect()

    @rule()
    def reload(self) -> None:
        """Take the last member out, or back in."""
        self.removed = not self.removed
        self.world.reload(MEMBERS[:-1] if self.removed else MEMBERS)

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0]))
    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def teardown(self) -> None:
        try:
            if self.away:
                self.bring_back()
            if self.removed:
                self.reload()
            deadline = time.monotonic() + QUIET
            for name, informer in self.informers.items():
                while informer.contents() != self.objects and time.monotonic() < deadline:
                    time.sleep(0.05)
                assert informer.violations == [], name
                assert informer.contents() == self.objects, name
        finally:
            for informer in self.informers.values():
                informer.close()
            for member, _, name in list(self.objects):
                with self.world.connect(member) as client:
                    client.request("DELETE", f"{COLLECTION}/{name}", ADMIN)


@pytest.mark.slow
@pytest.mark.hypothesis
def test_informers_end_with_the_union_of_the_members(world: World) -> None:
    model = type("Model", (AggregateModel,), {"world": world})
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        model,
        settings=settings(
            phases=[Phase.generate],  # a failure takes its whole time, so that there is none for smaller examples
            max_examples=settings().max_examples // 12,  # 4 in the suite, 41 at night
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=checks,
        ),
    )
