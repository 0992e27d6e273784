"""Workers under load: killed, reloaded, more and fewer of them; limits are one for all, and no connection is refused.

All with one daemon, since each process takes half a second to start. Moments of chance, SIGSTOP and its 10 s, dying
supervisors, systemd, 1,000 reloads: `python -m tests.e2e.workers.chaos`.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.http_client import Client, ask
from tests.e2e.processes import TIMEOUT, wait_until
from tests.e2e.workers.faults import KEEPER, LEADER, WORKER, Moment, pids_by_target, stopped, strike
from tests.e2e.workers.load import ADMIN_HEADERS, DEMO, Load, Retirement
from tests.e2e.workers.rounds import Outcome, Reloads, fault_while, load_of, upgrade
from tests.e2e.workers.site import Events, Site, WorkersDaemon

WORKERS = 2
RELOADS = 12
DRAIN = 1.0
MAX = 60
QPS, BURST = 20, 10
HELD = "/api/v1/namespaces/demo/secrets"
COUNTED = "/healthz"
CACHED = "/api/v1/configmaps"
"""What the keeper fills a cache from."""
LIMITS = f"""\
flowControls:
  - {{name: few, type: MaxRequestsInflight, max: {MAX}}}
  - {{name: slow, type: TokenBucket, qps: {QPS}, burst: {BURST}}}
"""
POLICIES = f"""
      {{rules: [{{verbs: ["*"], apiGroups: ["*"], resources: [secrets]}}], flowControl: few}},
      {{rules: [{{verbs: ["*"], nonResourceURLs: ["{COUNTED}"]}}], flowControl: slow}}, """


@pytest.fixture(scope="module")
def daemon(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkersDaemon]:
    daemon = site.daemon(
        tmp_path_factory.mktemp("daemon"),
        workers=WORKERS,
        aggregate=True,
        drain=f"{DRAIN:.0f}s",
        policies=POLICIES,
        more=LIMITS,
    )
    try:
        daemon.start()
        daemon.wait_until_all_serve()
        assert ask(daemon.fleet, f"{DEMO}/pods", headers=ADMIN_HEADERS).status == 200  # its watches run
        yield daemon
        daemon.end_cleanly()
    finally:
        daemon.stop()


@pytest.fixture(scope="module")
def load(daemon: WorkersDaemon) -> Iterator[Load]:
    with Events(daemon.site), load_of(daemon, 1, pause=0.1) as load:
        wait_until("all clients are served", lambda: all(client.served for client in load.clients))
        yield load


# -- limits -----------------------------------------------------------------------------------------------------------


class Holders:
    """Requests that the cluster does not answer, each on a connection of its own."""

    def __init__(self, daemon: WorkersDaemon) -> None:
        self.daemon = daemon
        self.control = daemon.site.control("east")
        self.clients: list[Client] = []

    def hold(self, count: int) -> None:
        """Send so many requests, and wait until the cluster has them all."""
        mark = self.control.mark()
        for _ in range(count):
            self.clients.append(Client(self.daemon.address))
            self.clients[-1].send("GET", HELD)
        wait_until(f"{count} more are admitted", lambda: len(self.control.audit(mark, path=HELD)) == count)

    def at_the_cluster(self) -> int:
        """How many there are in flight, the keeper's watches included, but for a health check at some moment."""
        return min(int(self.control.stats()["inFlight"]) for _ in range(5))

    def statuses(self, count: int) -> Counter[int]:
        """What so many further requests get, on new connections; one that is admitted would wait."""
        return Counter(ask(self.daemon.address, HELD).status for _ in range(count))

    def close(self) -> None:
        for client in self.clients:
            client.close()


@pytest.fixture
def holders(daemon: WorkersDaemon) -> Iterator[Holders]:
    holders = Holders(daemon)
    holders.control.fault("blackHole", paths=[HELD])
    try:
        yield holders
    finally:
        holders.control.clear_faults()
        holders.close()


@pytest.mark.slow
def test_requests_in_flight_are_counted_over_all_workers_and_come_back_from_a_killed_one(
    daemon: WorkersDaemon, holders: Holders
) -> None:
    holders.hold(MAX)
    full = holders.at_the_cluster()
    by_owner = Counter(daemon.family.connections(daemon.port).values())
    assert by_owner.total() == MAX
    assert len(by_owner) == WORKERS
    assert holders.statuses(3 * WORKERS) == {429: 3 * WORKERS}
    killed, lost = by_owner.most_common(1)[0]
    strike(killed)
    daemon.wait_until_all_serve(but=frozenset({killed}))
    wait_until("its requests are gone", lambda: holders.at_the_cluster() <= full - lost)
    holders.hold(lost)
    assert holders.statuses(3 * WORKERS) == {429: 3 * WORKERS}
    holders.close()
    wait_until("all requests are gone", lambda: holders.at_the_cluster() <= full - MAX)
    holders.hold(MAX)  # nothing has leaked
    assert holders.statuses(WORKERS) == {429: WORKERS}


@dataclass(frozen=True)
class Asked:
    """A request: when it was sent, when it was answered, and with which status."""

    begun: float
    ended: float
    status: int


def stretches(refused: list[Asked]) -> Iterator[tuple[Asked, Asked]]:
    """Give the first and the last of refusals between which the bucket cannot have been full.

    At a refusal it has less than one token. Where so much time passes until the next one that it may be full, as while
    the machine stands still, what comes in is lost.
    """
    refused.sort(key=lambda each: each.begun)
    first = last = refused[0]
    for each in refused[1:]:
        if each.ended - last.begun > (BURST - 1) / QPS:
            yield first, last
            first = each
        last = each
    yield first, last


def test_a_bucket_of_all_workers_admits_what_that_of_one_process_does(daemon: WorkersDaemon) -> None:
    """At two refusals it is empty, so between them it has admitted just what came in, on any machine."""
    asked: list[Asked] = []
    clients: list[Client] = []
    owners: set[int] = set()
    while len(clients) < 5 * WORKERS or len(owners) < WORKERS:  # the kernel chooses a worker at random
        clients.append(Client(daemon.address))
        owners.add(daemon.family.owner(daemon.port, clients[-1].socket.getsockname()[1], within=TIMEOUT))
    stopping = threading.Event()

    def ask_again(client: Client) -> None:
        while not stopping.is_set():
            begun = time.monotonic()
            status = client.request("GET", COUNTED).status
            asked.append(Asked(begun, time.monotonic(), status))
            time.sleep(0.005)

    threads = [threading.Thread(target=ask_again, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    refusals = 20 * WORKERS
    wait_until("many are refused", lambda: sum(each.status == 429 for each in asked[:]) >= refusals)
    time.sleep(0.5)
    stopping.set()
    for thread, client in zip(threads, clients, strict=True):
        thread.join(TIMEOUT)
        client.close()
    assert {each.status for each in asked} == {200, 429}
    admitted = [each for each in asked if each.status == 200]
    for first, last in stretches([each for each in asked if each.status == 429]):
        at_most = sum(each.begun <= last.ended and each.ended >= first.begun for each in admitted)
        at_least = sum(each.begun >= first.ended and each.ended <= last.begun for each in admitted)
        assert at_most >= QPS * (last.begun - first.ended) - 1
        assert at_least <= QPS * (last.ended - first.begun) + 1
    took = max(each.ended for each in asked) - min(each.begun for each in asked)
    assert len(admitted) <= BURST + QPS * took + 1


# -- killed -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_keeper_is_replaced_and_fills_its_caches_once(daemon: WorkersDaemon, load: Load) -> None:
    before, mark = daemon.footprints(), daemon.site.control().mark()
    outcome = fault_while(daemon, load, None, KEEPER, signal.SIGKILL, Moment(0.0), "idle", within=100)
    assert outcome.wrong == []  # that a successor serves within 1 s, no busy machine can show
    records = daemon.site.control().audit(mark, path=CACHED)
    asked = [record["path"] for record in records if record["path"].startswith(f"{CACHED}?")]
    assert len(asked) == 1, asked
    after = daemon.footprints()
    assert daemon.zombies() == set()
    assert after["supervisor"].descriptors <= before["supervisor"].descriptors + 2  # connections of this test's status


@pytest.mark.slow
def test_a_child_killed_in_a_reload_is_replaced_and_all_have_one_configuration(
    daemon: WorkersDaemon, load: Load
) -> None:
    """A worker stands still, so that the reload waits for it: then another child is killed."""
    reloads, who = Reloads(daemon), pids_by_target(daemon)
    first, outcome = len(load.breaks), Outcome("reload", figures={"ok": 1})
    result: list[bool] = []
    reload = threading.Thread(target=lambda: result.append(reloads.next()))
    with stopped(who[WORKER]):
        reload.start()
        time.sleep(0.2)
        assert reload.is_alive(), "the reload did not wait for the worker that stands still"
        death = strike(who[LEADER])
    reload.join(TIMEOUT)
    assert result == [True]
    daemon.wait_until_all_serve(but=frozenset({who[LEADER]}))
    reloads.check(outcome)
    assert outcome.wrong == []
    load.wait_until_left(death.pid)
    assert [each for each in load.unexplained(death) if each in load.breaks[first:]] == []


# -- reloads ----------------------------------------------------------------------------------------------------------


def test_a_dozen_reloads_fail_no_request(daemon: WorkersDaemon, load: Load) -> None:
    reloads, outcome, first = Reloads(daemon), Outcome("reloads", figures={"ok": 1}), len(load.breaks)
    before = daemon.children()
    for _ in range(RELOADS):
        assert reloads.next()
    reloads.check(outcome)
    assert outcome.wrong == []
    assert load.breaks[first:] == []
    assert daemon.children() == before


@pytest.mark.slow
def test_another_number_of_workers_comes_by_reload_and_no_request_fails(daemon: WorkersDaemon, load: Load) -> None:
    reloads = Reloads(daemon)
    retired: list[Retirement] = []
    for count in (3, 2):
        before = {each.pid for each in daemon.processes().values() if each.name.startswith("worker")}
        first, begun = len(load.breaks), load.now()
        daemon.workers = count
        assert reloads.next()
        daemon.wait_until_all_serve(count)
        after = {each.pid for each in daemon.processes().values() if each.name.startswith("worker")}
        assert len(before & after) == min(len(before), count)
        retired += [Retirement(pid, begun, DRAIN) for pid in before - after]
        assert [each for each in load.unexplained(*retired) if each in load.breaks[first:]] == []
        outcome = Outcome("another number", figures={"ok": 1})
        reloads.check(outcome)
        assert outcome.wrong == []
    assert daemon.zombies() == set()


# -- upgrades ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_upgrade_refuses_no_connection_and_cuts_no_tunnel_before_its_time(daemon: WorkersDaemon, load: Load) -> None:
    assert upgrade(daemon, load, last=True).wrong == []
