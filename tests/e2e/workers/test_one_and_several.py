"""A reload makes several processes of one, and one of several, under load: no connection is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.e2e.http_client import ask
from tests.e2e.processes import wait_until
from tests.e2e.workers.family import living
from tests.e2e.workers.load import ADMIN_HEADERS, DEMO, Aggregated, Fresh, Kept, Load, Retirement
from tests.e2e.workers.rounds import Outcome, Reloads, load_of
from tests.e2e.workers.site import Events, Site, WorkersDaemon

DRAIN = 1.0


@pytest.fixture
def daemon(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkersDaemon]:
    directory = tmp_path_factory.mktemp("daemon")
    daemon = site.daemon(directory, workers=1, aggregate=True, drain=f"{DRAIN:.0f}s")
    try:
        daemon.start()
        daemon.wait_until_all_serve()
        assert ask(daemon.fleet, f"{DEMO}/pods", headers=ADMIN_HEADERS).status == 200  # its watches run
        yield daemon
        daemon.end_cleanly()
    finally:
        daemon.stop()


@pytest.fixture
def load(site: Site, daemon: WorkersDaemon) -> Iterator[Load]:
    with Events(site), load_of(daemon, 1, pause=0.05) as load:
        wait_until("all clients have been served", lambda: all(client.served for client in load.clients))
        yield load


def go_on(load: Load) -> None:
    served = load.served
    wait_until("clients are served", lambda: load.served > served + 20)


def all_ended(pids: set[int]) -> bool:
    return not living(pids)


def requests(daemon: WorkersDaemon) -> int:
    return int(daemon.status()["totals"]["requests"])


@pytest.mark.slow
def test_one_process_becomes_several_and_one_again_and_no_request_fails(daemon: WorkersDaemon, load: Load) -> None:
    reloads = Reloads(daemon)
    pid = daemon.pid_of("supervisor")
    counted = requests(daemon)
    retired: list[Retirement] = []
    for count in (2, 1):
        before, begun = daemon.children(), load.now()
        daemon.workers = count
        assert reloads.next()
        daemon.wait_until_all_serve(count)
        go_on(load)
        time.sleep(DRAIN + 0.5)  # tunnels have their time
        # what is open ends in the process that it is in: the daemon's own if it was the only one
        retired += [Retirement(each, begun, DRAIN) for each in before or {pid}]
        wait_until("the former workers end", partial(all_ended, before))
        assert daemon.pid_of("supervisor") == pid
        assert requests(daemon) >= counted, "what was counted before is gone"
        counted = requests(daemon)
        assert load.unexplained(*retired) == []
        if count > 1:
            outcome = Outcome("several", figures={"ok": 1})
            reloads.check(outcome)
            assert outcome.wrong == []
            assert len(set(load.owners(Kept, Fresh, Aggregated)) - {0, pid}) >= 1
    assert daemon.zombies() == set()
    assert daemon.lines("event=internal_error") == []


@pytest.mark.slow
def test_a_change_that_cannot_be_made_leaves_all_as_it_was(daemon: WorkersDaemon, load: Load) -> None:
    """The new processes cannot open the access log."""
    for workers, other in ((1, 2), (2, 1)):
        gone: list[Retirement] = []
        if daemon.workers != workers:
            # what was open while it was the only process ends in it
            gone.append(Retirement(daemon.pid_of("supervisor"), load.now(), DRAIN))
            daemon.workers = workers
            daemon.write_config()
            assert daemon.reload_quickly()["ok"]
            daemon.wait_until_all_serve(workers)
            time.sleep(DRAIN + 0.5)
        before, children, first = daemon.pid_of("supervisor"), daemon.children(), len(load.breaks)
        daemon.workers = other
        daemon.file.write_text(daemon.config().replace("access.log", "no/such/folder/access.log"))
        answer = daemon.reload_quickly()
        assert not answer["ok"]
        assert "access.log" in answer["errors"][0]
        daemon.workers = workers
        assert daemon.all_serve()
        assert (daemon.pid_of("supervisor"), daemon.children()) == (before, children)
        odd = load.unexplained(*gone) if gone else load.breaks
        assert [each for each in load.breaks[first:] if each in odd] == []
        go_on(load)
