"""A member whose watch is late while everything else is not: one connection behind a relay is held back, no fault.

Over HTTP/1.1, where a watch has a connection of its own and a probe another.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.aggregate.reflector.harness import config_map, send
from tests.consistency.relay import FOREVER, Connection, Relay, Relays
from tests.e2e.aggregate_environment import AggregateEnvironment
from tests.e2e.http_client import Address, Answer, ask
from tests.e2e.processes import Daemon, wait_until
from tests.e2e.test_aggregate_members import MAPS, Watch, get, objects
from tests.support.ports import reserved_port

SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"generateName": "other-", "namespace": "demo"}}


class TwoProxies(AggregateEnvironment):
    """Two proxies over the same clusters: the first reaches west through a relay, the second directly."""

    relay: Relay
    second_port: int

    def config(self) -> str:
        west = self.clusters["west"]
        self.relay.target = west.ports[0]
        return self._direct().replace(west.urls[0], f"https://127.0.0.1:{self.relay.port}")

    def _direct(self) -> str:
        return super().config().replace("    healthCheck:", "    connections: {protocol: HTTP1}\n    healthCheck:")

    def start(self) -> AggregateEnvironment:
        super().start()
        second = self.directory / "second"
        second.mkdir()
        for name in ("proxy.crt", "proxy.key", "users.csv"):
            shutil.copy(self.directory / name, second / name)
        self.second_port = reserved_port()
        text = self._direct().replace(f"127.0.0.1:{self.port}", f"127.0.0.1:{self.second_port}")
        self.daemons.insert(0, Daemon(second, text).start())
        return self

    def get_second(self, target: str) -> Answer:
        return ask(Address(self.second_port, self.address.context), target, headers=[("Authorization", "Bearer admin")])


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoProxies]:
    options = ("--empty", "--no-controllers", "--bookmark-seconds", "0.3")
    with Relays() as relays:
        environment = TwoProxies(tmp_path_factory.mktemp("delays"), options=options)
        environment.resources = '        - {group: "", version: v1, resource: configmaps}\n'
        environment.relay = relays.relay(0)
        try:
            environment.start()
            for cluster in environment.clusters.values():
                assert send(cluster, "POST", MAPS, config_map("known", "demo"))[0] == 201
            both = {("east", "known"), ("west", "known")}
            wait_until("both", lambda: {each for each in objects(get(environment, MAPS)) if each[1] == "known"} == both)
            yield environment
        finally:
            environment.stop()


def hold_watches(relay: Relay) -> int:
    """Hold back what comes down on the connections that bookmarks come on; return how many these are."""

    def hold(found: list[Connection]) -> int:
        watches = [connection for connection in found if connection.streams]
        for connection in watches:
            connection.hold(FOREVER, ("down",))
        return len(watches)

    return relay.act(hold)


@pytest.mark.slow
def test_a_late_watch_makes_no_version_that_hides_an_object_at_another_proxy(fleet: TwoProxies) -> None:
    wait_until("the watch", lambda: hold_watches(fleet.relay) == 1)
    west = fleet.clusters["west"]
    assert send(west, "POST", MAPS, config_map("late", "demo"))[0] == 201
    assert send(west, "POST", "/api/v1/namespaces/demo/secrets", SECRET)[0] == 201

    # As new as now: the probe's answer comes at once, the watch is silent, and nothing else suggests that it is late.
    answer = get(fleet, MAPS)
    version = answer.json["metadata"]["resourceVersion"]
    seen = objects(answer)
    with Watch(fleet, f"{MAPS}?watch=1&resourceVersion={quote(version)}", port=fleet.second_port) as watch:
        if ("west", "late") not in seen:
            watch.wait_for(lambda: ("ADDED", "west", "late") in watch.events)

    # Who names a version gets it proven, by another connection; the watch that is late is replaced.
    there = fleet.get_second(MAPS).json["metadata"]["resourceVersion"]
    answer = get(fleet, f"{MAPS}?resourceVersion={quote(there)}&resourceVersionMatch=NotOlderThan")
    assert ("west", "late") in objects(answer)
    send(west, "POST", MAPS, config_map("later", "demo"))
    wait_until("what comes later", lambda: ("west", "later") in objects(get(fleet, MAPS)))
    fleet.relay.heal()
    names = {("west", "late"), ("west", "later")}
    assert names <= objects(get(fleet, MAPS))
