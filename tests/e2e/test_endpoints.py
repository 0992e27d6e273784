"""Four endpoints of one cluster that die, hang, slow down, come back, are disabled, removed and renamed under load.

Only requests that had been sent to a dying endpoint, and were not safe to repeat, may fail.
"""

from __future__ import annotations

import json
import re
import signal
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubesim.auth.certificates import Authority
from tests.e2e.client_load import CONFIGMAPS, ClientLoad, Failure
from tests.e2e.http_client import Address, Client, ask
from tests.e2e.processes import TIMEOUT, Daemon, wait_until
from tests.simulated_cluster.control_client import ControlClient, is_proxys_own
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.environment import PUBLIC_LISTENER
from tests.support.ports import reserved_port

INTERVAL, FAILURES = 0.2, 2
#: Seconds that a health check may take: so long that no endpoint is out because the machine is busy.
CHECK_TIMEOUT = 20.0
#: The same, for the test of an endpoint that hangs.
SHORT_CHECK_TIMEOUT = 3.0
#: Longer than any of these tests, so that nothing ends by it.
RESPONSE_TIMEOUT = 120.0
DRAIN = 5.0
MANY = 24
"""Reads, and writes, after which all kinds of them have been to all endpoints."""
ADMIN = (("Authorization", "Bearer admin-test-token"),)
NAMES = ("a", "b", "c", "d")
#: So many that each endpoint has some of them by consistent hash: the ports are chosen anew in each run, and 24 users
#: left one of four without any in 4 of 1,000 runs; with 96 that is 4 * 0.75 ** 96 = 4e-12.
USERS = tuple(f"user-{number}" for number in range(96))

CONFIG = (
    """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: {drain}ms}}
"""
    + PUBLIC_LISTENER
    + """\
clusters:
  - name: east
    endpoints: {endpoints}
    tls: {{caFile: "{ca}"}}
    credentials: {{token: admin-test-token}}
    identity: Proxy
    healthCheck: {{interval: {interval}ms, timeout: {timeout}ms, unhealthyAfter: {failures}}}
    connections: {{responseTimeout: {response}ms, connectTimeout: 20s}}
  - name: told
    endpoints: {told}
    tls: {{caFile: "{ca}"}}
    credentials: {{token: admin-test-token}}
    healthCheck: {{interval: {interval}ms, timeout: {timeout}ms, unhealthyAfter: {failures}}}
authentication:
  - {{name: users, tokenFile: users.csv}}
servers:
  - name: east
    default: true
    backend: {{cluster: east}}
    dispatch:
      - name: lists
        rules: [{{verbs: [list, watch], apiGroups: ["*"], resources: ["*"]}}]
        strategy: LeastRequests
      - name: other-reads
        rules:
          - {{verbs: [get], apiGroups: ["*"], resources: ["*"]}}
          - {{verbs: ["*"], nonResourceURLs: ["*"]}}
        strategy: ConsistentHash
      - name: writes
        rules: [{{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}}]
  - name: shares
    serverNames: [shares.test]
    backend: {{cluster: told}}
    authentication: users
    dispatch:
      - name: round-robin
        rules: [{{verbs: ["*"], apiGroups: [""], resources: [pods]}}]
      - name: least
        rules: [{{verbs: ["*"], apiGroups: [""], resources: [services]}}]
        strategy: LeastRequests
      - name: hash
        rules: [{{verbs: ["*"], apiGroups: [""], resources: [secrets]}}]
        strategy: ConsistentHash
      - name: subset
        rules: [{{verbs: ["*"], apiGroups: [""], resources: [nodes]}}]
        endpoints: [d, b]
"""
)


class Site:
    """The cluster, the proxy before it, and what happens to either."""

    def __init__(self, directory: Path) -> None:
        self.cluster = SimulatedClusterProcess("east", options=("--endpoints", "4"), directory=directory / "east")
        self.cluster.spawn()
        authority = Authority("e2e CA")
        authority.server(["127.0.0.1", "shares.test"]).write(directory, "proxy")
        (directory / "users.csv").write_text("".join(f"{name}-token,{name},,\n" for name in USERS))
        self.cluster.wait_ready()
        self.control = ControlClient(self.cluster.control_url)
        self.check_timeout = CHECK_TIMEOUT
        self.port = reserved_port()
        mine = ssl.create_default_context(cadata=authority.pem.decode())
        self.address = Address(self.port, mine)
        self.shares = Address(self.port, mine, "shares.test")
        self.direct = Address(self.cluster.ports[0], ssl.create_default_context(cafile=self.cluster.ca))
        self.endpoints: list[dict[str, Any]] = [
            {"name": name, "url": url} for name, url in zip(NAMES, self.cluster.urls, strict=True)
        ]
        self.daemon = Daemon(directory, self.config(self.endpoints))
        self.daemon.start()
        self.daemon.wait_for("takes requests", count=8)

    def config(self, endpoints: list[dict[str, Any]]) -> str:
        return CONFIG.format(
            port=self.port,
            ca=self.cluster.ca,
            endpoints=json.dumps(endpoints),
            told=json.dumps(endpoints if {each["name"] for each in endpoints} == set(NAMES) else self.endpoints),
            drain=int(DRAIN * 1000),
            interval=int(INTERVAL * 1000),
            timeout=int(self.check_timeout * 1000),
            failures=FAILURES,
            response=int(RESPONSE_TIMEOUT * 1000),
        )

    def reload(self, endpoints: list[dict[str, Any]], *, by_signal: bool = False) -> None:
        self.daemon.file.write_text(self.config(endpoints))
        if by_signal:
            count = len(self.daemon.all_lines("configuration reloaded"))
            self.daemon.signal(signal.SIGHUP)
            self.daemon.wait_for("configuration reloaded", count=count + 1)
        else:
            done = self.daemon.reload()
            assert done.returncode == 0, done

    def changed(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        return [{**each, **fields} if each["name"] == name else each for each in self.endpoints]

    def until(self, name: str, state: str, act: Callable[[], object]) -> None:
        """Do something that brings an endpoint of `east` into a state, and wait until the daemon has seen it."""
        texts = (f"cluster=east endpoint={name}", state)
        count = len(self.daemon.all_lines(*texts))
        act()
        self.daemon.wait_for(*texts, count=count + 1)

    def asked(self, since: int) -> Counter[str]:
        """How many requests of clients each endpoint got."""
        return Counter(NAMES[each["endpoint"]] for each in self.control.audit(since) if not is_proxys_own(each))

    def health_checks(self, since: int, endpoint: int) -> list[dict[str, Any]]:
        """The health checks that an endpoint got."""
        return [each for each in self.control.audit(since, path="/readyz") if each["endpoint"] == endpoint]

    def close(self) -> None:
        self.daemon.stop()
        self.cluster.cleanup()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("endpoints"))
    try:
        yield site
    finally:
        site.close()


class CheckedLoad:
    """A load of which nothing may fail but what the test forgives."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._begun = site.control.mark()
        self.clients = ClientLoad(site.address)

    def __enter__(self) -> CheckedLoad:
        self.clients.start()
        self.works()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        changes = self.clients.finish(self.site.direct, ADMIN)
        with Client(self.site.direct) as client:
            target = "/api/v1/namespaces/demo/configmaps/the-end"
            assert client.request("DELETE", target, ADMIN).status == 200
        if kind is not None:
            return
        assert self.clients.failures == []
        assert len(changes) > 20
        for seen in self.clients.seen:
            assert seen == changes  # nothing lost, nothing twice

    def works(self) -> None:
        """All kinds of clients get on with their work."""
        clients = self.clients
        reads, writes = clients.reads, clients.writes
        wait_until("reads and writes", lambda: clients.reads >= reads + MANY and clients.writes >= writes + MANY)
        seen = [len(each) for each in clients.seen]
        wait_until("events", lambda: all(len(each) > count for each, count in zip(clients.seen, seen, strict=True)))

    def watched(self) -> int:
        """The number of an endpoint that sends a watch."""
        asked = self.site.control.audit(self._begun, path=f"{CONFIGMAPS}?watch=")
        return int(asked[-1]["endpoint"])

    def forgive(self, *names: str, statuses: tuple[int, ...] = (502, 504)) -> list[Failure]:
        """Take off the list the writes that failed because they had been sent to an endpoint that died."""
        forgiven = []
        for failure in list(self.clients.failures):
            culprit = re.search(r'endpoint (\w+) of cluster \\"east\\"(?:: | went out )', failure.text)
            if failure.kind == "write" and failure.status in statuses and culprit and culprit[1] in names:
                self.clients.failures.remove(failure)
                forgiven.append(failure)
        return forgiven


@pytest.mark.slow
def test_a_killed_endpoint_fails_only_writes_that_were_sent_to_it(site: Site) -> None:
    with CheckedLoad(site) as load:
        watched = load.watched()
        for number in (watched, 3 - watched):
            name = NAMES[number]
            site.until(name, "is out", lambda number=number: site.control.stop_endpoint(number))  # type: ignore[misc]
            load.works()
            site.until(name, "takes requests", lambda number=number: site.control.start_endpoint(number))  # type: ignore[misc]
            load.works()
            load.forgive(name)
        wait_until("the watch goes on elsewhere", lambda: load.clients.resumed >= 1)


def test_two_endpoints_killed_at_once(site: Site) -> None:
    with CheckedLoad(site) as load:
        for _ in range(2):
            site.control.stop_endpoint(1)
            site.until("c", "is out", lambda: site.control.stop_endpoint(2))
            load.works()
            site.control.start_endpoint(1)
            site.until("c", "takes requests", lambda: site.control.start_endpoint(2))
        site.daemon.wait_for("event=endpoint_ready", "cluster=east endpoint=b")
        load.works()
        load.forgive("b", "c")


@pytest.mark.slow
def test_connections_that_are_reset_fail_only_writes_that_were_sent(site: Site) -> None:
    with CheckedLoad(site) as load:
        for _ in range(3):
            for number in range(4):
                site.control.reset_connections(number)
            load.works()
        load.forgive(*NAMES)


@pytest.mark.slow
def test_a_hanging_endpoint_holds_reads_and_writes_until_its_checks_fail(site: Site) -> None:
    """Reads are sent elsewhere then; what became of writes nobody can know: they are 504."""
    site.check_timeout = SHORT_CHECK_TIMEOUT
    site.reload(site.endpoints)
    with CheckedLoad(site) as load:
        for _ in range(5):  # a write that waits for a new connection goes elsewhere: one is to be sent on a kept one
            site.until("b", "is out", lambda: site.control.hang_endpoint(1))
            load.works()
            gave_up = any(failure.status == 504 for failure in load.clients.failures)
            assert load.clients.slowest_read < RESPONSE_TIMEOUT
            site.until("b", "takes requests", lambda: site.control.resume_endpoint(1))
            load.works()
            if gave_up:
                break
        assert gave_up
        for failure in load.forgive("b", statuses=(504,)):
            assert failure.after < RESPONSE_TIMEOUT
            assert "went out before it answered" in failure.text
    site.check_timeout = CHECK_TIMEOUT
    site.reload(site.endpoints)


def test_a_slow_endpoint_fails_nothing(site: Site) -> None:
    with CheckedLoad(site) as load:
        fault = site.control.fault("latency", endpoint=2, seconds=0.1)
        load.works()
        site.control.clear_faults(fault)
        load.works()


def test_an_endpoint_that_is_not_ready_gets_nothing_more_and_fails_nothing(site: Site) -> None:
    faults: list[int] = []
    with CheckedLoad(site) as load:
        site.until("d", "is out", lambda: faults.append(site.control.fault("unhealthy", endpoint=3)))
        load.works()
        mark = site.control.mark()
        load.works()
        asked = site.asked(mark)
        assert asked["d"] == 0
        assert asked["a"]
        site.until("d", "takes requests", lambda: site.control.clear_faults(faults[0]))
        load.works()


@pytest.mark.slow
def test_a_restarted_endpoint_gets_nothing_until_it_has_read_its_roles(site: Site) -> None:
    with CheckedLoad(site) as load:
        site.until("b", "is out", lambda: site.control.stop_endpoint(1))
        load.works()
        forbidden = site.control.fault("status", code=403, endpoint=1)
        mark = site.control.mark()
        site.control.start_endpoint(1)
        wait_until("the endpoint is checked again", lambda: len(site.health_checks(mark, 1)) >= 3)
        load.works()
        assert site.asked(mark)["b"] == 0
        site.until("b", "takes requests", lambda: site.control.clear_faults(forbidden))
        load.works()
        assert site.asked(mark)["b"]
        load.forgive("b")


@pytest.mark.slow
def test_a_disabled_endpoint_gets_nothing_more_and_fails_nothing(site: Site) -> None:
    with CheckedLoad(site) as load:
        site.reload(site.changed("a", disabled=True))
        load.works()
        mark = site.control.mark()
        load.works()
        assert site.asked(mark)["a"] == 0
        site.reload(site.endpoints, by_signal=True)
        mark = site.control.mark()
        load.works()
        assert site.asked(mark)["a"]


@pytest.mark.slow
def test_a_removed_endpoint_ends_what_it_has_in_time_and_may_then_die(site: Site) -> None:
    with CheckedLoad(site) as load:
        site.reload([each for each in site.endpoints if each["name"] != "b"], by_signal=True)
        time.sleep(DRAIN)
        load.works()
        assert load.clients.failures == []
        mark = site.control.mark()
        site.control.stop_endpoint(1)
        load.works()
        assert site.asked(mark)["b"] == 0
        assert load.clients.failures == []
        site.control.start_endpoint(1)
        site.until("b", "takes requests", lambda: site.reload(site.endpoints))
        mark = site.control.mark()
        load.works()
        assert site.asked(mark)["b"]


@pytest.mark.slow
def test_all_endpoints_replaced_by_others_at_once(site: Site) -> None:
    with CheckedLoad(site) as load:
        for _ in range(2):
            site.reload(site.endpoints[:2])
            load.works()
            site.reload(site.endpoints[2:], by_signal=True)
            load.works()
        site.reload(site.endpoints)
        load.works()


@pytest.mark.slow
def test_a_renamed_endpoint_keeps_its_connections_and_watches(site: Site) -> None:
    with CheckedLoad(site) as load:
        load.works()
        resumed = load.clients.resumed
        for name in ("north", "south", "c"):
            site.reload([{**each, "name": name} if each["name"] == "c" else each for each in site.endpoints])
            load.works()
        assert load.clients.resumed == resumed


class TestShares:
    """What each endpoint gets, counted there."""

    def counted(self, site: Site, target: str, users: tuple[str, ...], count: int) -> Counter[str]:
        mark = site.control.mark()
        with Client(site.shares) as client:
            for _ in range(count):
                for user in users:
                    assert client.request("GET", target, [("Authorization", f"Bearer {user}-token")]).status == 403
        return site.asked(mark)

    def test_round_robin_gives_exact_turns_and_goes_on_over_a_reload(self, site: Site) -> None:
        assert self.counted(site, "/api/v1/pods", USERS[:1], 20) == dict.fromkeys(NAMES, 5)
        mark = site.control.mark()
        self.counted(site, "/api/v1/pods", USERS[:1], 2)
        site.reload(site.changed("a", disabled=False), by_signal=True)
        self.counted(site, "/api/v1/pods", USERS[:1], 2)
        assert site.asked(mark) == dict.fromkeys(NAMES, 1)

    def test_weights_are_exact_shares(self, site: Site) -> None:
        site.reload(site.changed("c", weight=3))
        assert self.counted(site, "/api/v1/pods", USERS[:1], 60) == {"a": 10, "b": 10, "c": 30, "d": 10}
        site.reload(site.endpoints)

    def test_a_subset_gets_all_and_others_nothing(self, site: Site) -> None:
        assert self.counted(site, "/api/v1/nodes/x", USERS[:1], 10) == {"b": 5, "d": 5}

    @pytest.mark.slow
    def test_a_user_stays_with_one_endpoint_and_moves_only_while_that_is_away(self, site: Site) -> None:
        def homes() -> dict[str, str]:
            homes = {}
            for user in USERS:
                (homes[user],) = self.counted(site, "/api/v1/secrets", (user,), 2)
            return homes

        before = homes()
        assert set(before.values()) == set(NAMES)
        site.reload(site.changed("b", disabled=True))
        without = homes()
        assert {user for user in USERS if without[user] != before[user]} == {
            user for user in USERS if before[user] == "b"
        }
        site.reload(site.endpoints)
        assert homes() == before

    def test_least_requests_leaves_a_busy_endpoint_alone(self, site: Site) -> None:
        fault = site.control.fault("latency", endpoint=0, seconds=60.0, paths=["/api/v1/services/slow"])
        waiting: list[Client] = []
        asked: set[str] = set()
        while "a" not in asked:
            assert len(waiting) < 4  # turns: one of four goes to the slow one
            mark = site.control.mark()
            waiting.append(Client(site.shares))
            waiting[-1].send("GET", "/api/v1/services/slow", [("Authorization", "Bearer user-0-token")])
            wait_until("it is asked", lambda: sum(site.asked(mark).values()) == 1, TIMEOUT)  # noqa: B023
            asked = set(site.asked(mark))
            if "a" not in asked:
                waiting[-1].receive("GET").read()
        assert set(self.counted(site, "/api/v1/services", USERS[:1], 8)) == {"b", "c", "d"}
        site.control.clear_faults(fault)
        for client in waiting:
            client.close()


def test_nothing_was_a_bug(site: Site) -> None:
    assert site.daemon.lines("bug") == []
    assert ask(site.address, "/version").status == 200
