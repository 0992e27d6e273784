"""An aggregate of a cluster that is dialled and of one behind a tunnel: that one is a member like any other."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.consistency.relay import FOREVER, Connection, Relay, Relays
from tests.e2e.http_client import Address, Answer, Client
from tests.e2e.processes import wait_until
from tests.e2e.tunnel_site import ALICE, HUB, TunnelSite
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.soak.invariants import bugs

CLUSTER = "mcproxy.io/cluster"
MAPS = "/api/v1/namespaces/demo/configmaps"
FLEET = HUB.replace(
    "clusters:\n",
    """\
clusters:
  - name: near
    endpoints: [{{url: "NEAR_URL"}}]
    tls: {{caFile: "NEAR_CA"}}
    credentials: {{token: admin-test-token}}
    healthCheck: {{interval: 1s}}
""",
    1,
).replace(
    "servers:\n",
    """\
aggregates:
  - name: fleet
    clusters: [near, site-a]
    cache: {{resources: [{{group: "", version: v1, resource: configmaps}}]}}
    create: [{{apiGroups: ["*"], resources: ["*"], to: Label}}]
servers:
  - {{name: fleet, serverNames: [localhost], backend: {{aggregate: fleet}}, authentication: users}}
""",
    1,
)
MAY = [
    {**ALICE, "metadata": {"name": f"{name}-may"}, "subjects": [{**ALICE["subjects"][0], "name": name}]}  # type: ignore[index]
    for name in ("alice", "mcproxy-hub")
]


class Fleet:
    """The site and the near cluster."""

    def __init__(self, site: TunnelSite, near: SimulatedClusterProcess, relay: Relay) -> None:
        self.site, self.near, self.relay = site, near, relay

    @property
    def address(self) -> Address:
        return Address(self.site.port, self.site.context, "localhost")

    def ask(self, target: str, method: str = "GET", body: object = None) -> Answer:
        with Client(self.address, "localhost") as client:
            fields = [("Content-Type", "application/json")] if body is not None else []
            return client.request(method, target, fields, None if body is None else json.dumps(body).encode())

    def places(self) -> set[str]:
        """The clusters of the maps that a list has."""
        answer = self.ask(MAPS)
        return {each["metadata"]["labels"][CLUSTER] for each in answer.json["items"]} if answer.status == 200 else set()

    def act(self, what: str) -> None:
        """Do something to all connections of the tunnel."""

        def to_each(found: list[Connection]) -> None:
            for one in found:
                one.reset() if what == "reset" else one.hold(FOREVER)

        self.relay.act(to_each)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    site = TunnelSite(tmp_path_factory.mktemp("site"))
    with SimulatedClusterProcess("near") as near, Relays() as relays:
        relay = relays.relay(site.port, turned=True)
        site.edge_url = f"https://127.0.0.1:{relay.port}"
        ControlClient(near.control_url).create(MAY[:1])
        try:
            site.start(FLEET.replace("NEAR_URL", near.url).replace("NEAR_CA", str(near.ca)), connected=False)
            site.control.create(MAY[1:])
            found = Fleet(site, near, relay)
            wait_until("both members", lambda: found.places() == {"near", "site-a"})
            yield found
        finally:
            site.stop()


@pytest.fixture(autouse=True)
def _whole(fleet: Fleet) -> Iterator[None]:
    wait_until("both members", lambda: not warnings(fleet.ask(MAPS)) and fleet.places() == {"near", "site-a"})
    yield
    assert bugs(fleet.site.hub.log + fleet.site.edge.log) == []


def warnings(answer: Answer) -> list[str]:
    return [value for name, value in answer.headers if name.lower() == "warning"]


def config_map(name: str, cluster: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "demo", "labels": {CLUSTER: cluster}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}}


def test_writes_go_to_the_owner_and_reads_come_from_both(fleet: Fleet) -> None:
    with Client(fleet.address, "localhost") as client:
        watch = client.begin("GET", f"{MAPS}?watch=true")
        for cluster in ("near", "site-a"):
            name = f"written-{cluster}"
            assert fleet.ask(MAPS, "POST", config_map(name, cluster)).status == 201
            while True:
                event = json.loads(watch.readline())
                if event["type"] == "ADDED" and event["object"]["metadata"]["name"] == name:
                    break
            assert event["object"]["metadata"]["labels"][CLUSTER] == cluster
            assert fleet.ask(f"{MAPS}/{name}").json["data"] == {"a": "b"}
        watch.close()
    control = {"near": ControlClient(fleet.near.control_url), "site-a": fleet.site.control}
    for cluster, one in control.items():
        posts = [record["path"] for record in one.audit(path=MAPS) if record["method"] == "POST"]
        assert len(posts) == 1, cluster
    for cluster in control:
        assert fleet.ask(f"{MAPS}/written-{cluster}", "DELETE").status == 200


def test_a_member_whose_tunnel_is_lost_is_stale_and_its_writes_are_refused(fleet: Fleet) -> None:
    fleet.relay.refusing = True
    fleet.act("reset")
    try:
        wait_until("the warning", lambda: any("site-a" in each for each in warnings(fleet.ask(MAPS))))
        assert fleet.places() == {"near", "site-a"}, "what the cache has"
        refused = fleet.ask(MAPS, "POST", config_map("refused", "site-a"))
        assert refused.status in (503, 504)
        assert fleet.ask(MAPS, "POST", config_map("taken", "near")).status == 201
        assert fleet.ask(f"{MAPS}/taken", "DELETE").status == 200
    finally:
        fleet.relay.heal()
    begun = time.monotonic()
    wait_until("it is current again", lambda: not warnings(fleet.ask(MAPS)))
    print(f"current again {time.monotonic() - begun:.2f} s after the network")
    assert fleet.ask(f"{MAPS}/refused").status == 404


@pytest.mark.parametrize("loss", ["reset", pytest.param("silence", marks=pytest.mark.slow)])
def test_the_watch_of_an_aggregate_goes_on_over_a_loss(fleet: Fleet, loss: str) -> None:
    """The client's watch does not end: the proxy's own resumes, within seconds after RST and 30 s after silence."""
    name = f"after-{loss}"
    seen = threading.Event()
    with Client(fleet.address, "localhost") as client:
        watch = client.begin("GET", f"{MAPS}?watch=true")
        assert watch.status == 200

        def read() -> None:
            while line := watch.readline():
                if json.loads(line)["object"]["metadata"].get("name") == name:
                    seen.set()
                    return

        client.socket.settimeout(180)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        fleet.act(loss)
        begun = time.monotonic()
        item = config_map(name, "site-a")
        del item["metadata"]["labels"]
        fleet.site.control.create([item])
        assert seen.wait(120)
        seconds = time.monotonic() - begun
        reader.join(60)
    print(f"the event comes {seconds:.2f} s after {loss}")
    assert seconds < (15 if loss == "reset" else 45)


@pytest.mark.slow
def test_an_edge_that_stands_still_for_a_moment_does_no_harm(fleet: Fleet) -> None:
    for _ in range(3):
        fleet.site.edge.signal_all(signal.SIGSTOP)
        try:
            assert fleet.places() == {"near", "site-a"}
        finally:
            fleet.site.edge.signal_all(signal.SIGCONT)
    assert fleet.ask(MAPS, "POST", config_map("later", "site-a")).status == 201
    assert fleet.ask(f"{MAPS}/later", "DELETE").status == 200
