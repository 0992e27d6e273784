"""The program is replaced under clients with open watches, exec and `logs -f`: none is cut before its time."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from tests.e2e.processes import wait_until
from tests.e2e.workers.fake_systemd import FakeSystemd
from tests.e2e.workers.load import Executing, Following, Retirement
from tests.e2e.workers.rounds import load_of, upgrade
from tests.e2e.workers.site import Events, Site

DRAIN = 2.0


def test_an_upgrade_refuses_no_connection_and_cuts_nothing_before_its_time(site: Site, tmp_path: Path) -> None:
    """Of one process; several are below, and in `chaos upgrade`."""
    daemon = site.daemon(tmp_path, workers=1, drain=f"{DRAIN:.0f}s")
    try:
        daemon.start()
        daemon.wait_until_all_serve()
        before = daemon.pid_of("supervisor")
        with Events(site), load_of(daemon, 1, pause=0.05) as load:
            wait_until("all clients are served", lambda: all(client.served for client in load.clients))
            tunnels = [client for client in load.clients if isinstance(client, Executing | Following)]
            outcome = upgrade(daemon, load)
            assert outcome.wrong == []
            served = [client.served for client in load.clients]
            wait_until(
                "all clients are served by the new program",
                lambda: all(client.served > count for client, count in zip(load.clients, served, strict=True)),
            )
            assert outcome.figures["drained"] >= DRAIN, "nothing waited for the tunnels"
            assert {client.owner for client in tunnels} <= daemon.family.pids()
        assert daemon.pid_of("supervisor") != before
        daemon.end_cleanly()
    finally:
        daemon.stop()


def test_systemd_follows_an_upgrade(site: Site, tmp_path: Path) -> None:
    """By the signal, as the unit does it; systemd's sockets and its watchdog go over to the new program."""
    with FakeSystemd(tmp_path) as systemd:
        directory = tmp_path / "daemon"
        daemon = site.daemon(directory, workers=2, drain=f"{DRAIN:.0f}s", bind="systemd:api", environ=systemd.environ)
        daemon.port = systemd.port
        try:
            systemd.start(daemon)
            wait_until("it is ready", lambda: bool(systemd.said("READY")))
            old = systemd.main
            processes = daemon.family.pids()
            with Events(site), load_of(daemon, 1, pause=0.05) as load:
                wait_until("all clients are served", lambda: all(client.served for client in load.clients))
                begun = time.monotonic()
                daemon.signal(signal.SIGUSR2)
                wait_until("another main process is ready", lambda: _is_ready(systemd, old))
                wait_until("the old program ends", lambda: daemon.process.poll() is not None)
                wait_until("all of it ends", lambda: not processes & daemon.family.pids())
                wait_until("some requests more", lambda count=load.served: load.served > count + 50)  # type: ignore[misc]
                assert load.unexplained(*(Retirement(pid, begun, DRAIN) for pid in processes)) == []
            assert daemon.process.returncode == 0
            assert systemd.main == daemon.pid_of("supervisor")
            assert systemd.longest_silence() < 10.0
            daemon.end_cleanly()
            assert systemd.said("STOPPING")[-1].pid == systemd.main
        finally:
            daemon.stop()


def _is_ready(systemd: FakeSystemd, old: int) -> bool:
    return systemd.main != old and any(each.pid == systemd.main for each in systemd.said("READY"))
