"""kube-apiservers that have just started refuse everybody until they have read their roles; no user may notice."""

from __future__ import annotations

import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubesim.auth.certificates import Authority
from tests.e2e.http_client import Address, ask
from tests.e2e.processes import TIMEOUT, Daemon, wait_until
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.environment import PUBLIC_LISTENER
from tests.support.ports import reserved_port

CONFIG = (
    """\
version: 1
"""
    + PUBLIC_LISTENER
    + """\
clusters:
  - name: east
    endpoints: [{{name: a, url: "{a}"}}, {{name: b, url: "{b}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: mcproxy-test-token}}
    healthCheck: {{interval: 200ms, timeout: 20s, unhealthyAfter: 2}}
authentication:
  - {{name: users, tokenFile: users.csv}}
servers:
  - {{name: east, default: true, backend: {{cluster: east}}, authentication: users}}
"""
)
PODS = "/api/v1/namespaces/demo/pods"
ALICE = [("Authorization", "Bearer alice-token")]


class Site:
    def __init__(self, directory: Path) -> None:
        self.cluster = SimulatedClusterProcess("east", options=("--endpoints", "2"), directory=directory / "east")
        self.cluster.start()
        self.control = ControlClient(self.cluster.control_url)
        authority = Authority("starting CA")
        authority.server(["127.0.0.1"]).write(directory, "proxy")
        (directory / "users.csv").write_text('alice-token,alice,,"dev"\n')
        self.address = Address(reserved_port(), ssl.create_default_context(cadata=authority.pem.decode()))
        a, b = self.cluster.urls
        self.daemon = Daemon(directory, CONFIG.format(port=self.address.port, a=a, b=b, ca=self.cluster.ca))

    def status(self) -> int:
        return ask(self.address, PODS, headers=ALICE).status


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("starting"))
    try:
        yield site
    finally:
        site.cluster.cleanup()


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    """Both endpoints serve, and no daemon runs; the cluster is the same for all tests."""
    for number in (0, 1):
        shared_site.control.start_endpoint(number)
        shared_site.control.finish_starting(number)
    try:
        yield shared_site
    finally:
        shared_site.daemon.stop()


class Users:
    """Reads by a user, all the time; `statuses` counts what they got."""

    def __init__(self, site: Site, count: int = 3) -> None:
        self._site = site
        self._stopping = threading.Event()
        self.statuses: Counter[int] = Counter()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def __enter__(self) -> Users:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(TIMEOUT)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.statuses[self._site.status()] += 1
            time.sleep(0.005)

    def work(self) -> None:
        before = self.statuses.total()
        wait_until("reads", lambda: self.statuses.total() > before + 20)


def test_a_cluster_that_starts_with_the_proxy_is_503_until_it_has_read_its_roles(site: Site) -> None:
    for number in (0, 1):
        site.control.stop_endpoint(number)
        site.control.start_endpoint(number, starting=600)
    site.daemon.start()
    with Users(site) as users:
        users.work()
        assert set(users.statuses) == {503}  # never the 403 that is meant for the proxy
        assert not site.daemon.lines("takes requests")
        for number in (0, 1):
            site.control.finish_starting(number)
        site.daemon.wait_for("takes requests", count=2)
    with Users(site) as users:  # others than before, of whose answers one may not have been counted yet
        users.work()
        assert set(users.statuses) == {200}


@pytest.mark.slow
def test_a_rolling_restart_fails_no_request(site: Site) -> None:
    mark = site.control.mark()
    site.daemon.start()
    wait_until(
        "health checks of both endpoints",
        lambda: {each["endpoint"] for each in site.control.audit(mark, path="/readyz")} == {0, 1},
    )
    wait_until("an answer", lambda: site.status() == 200)
    with Users(site) as users:
        for number, name in enumerate("ab"):
            texts = (f"cluster=east endpoint={name}",)
            out = len(site.daemon.lines(*texts, "is out"))
            back = len(site.daemon.lines(*texts, "takes requests"))
            users.work()
            site.control.stop_endpoint(number)
            site.daemon.wait_for(*texts, "is out", count=out + 1)
            mark = site.control.mark()
            site.control.start_endpoint(number, starting=600)
            users.work()
            asked = [each for each in site.control.audit(mark) if each["endpoint"] == number]
            wait_until(
                "health checks of the endpoint that starts",
                lambda number=number, mark=mark: (  # type: ignore[misc]
                    sum(each["endpoint"] == number for each in site.control.audit(mark, path="/readyz")) > 3
                ),
            )
            assert all("readyz" in each["path"] for each in asked)
            site.control.finish_starting(number)
            site.daemon.wait_for(*texts, "takes requests", count=back + 1)
            users.work()
    assert set(users.statuses) == {200}
