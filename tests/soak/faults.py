"""What is done to a daemon under load. Each function does one thing until it is over, and returns what it explains.

A name of a fault stands for the same thing with every seed; what the seed draws are targets, lengths and moments.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.http_client import Address
from tests.e2e.processes import wait_until
from tests.e2e.workers.faults import KEEPER, LEADER, WORKER, pids_by_target, strike
from tests.e2e.workers.load import ADMIN_HEADERS, DEMO, Disturbance, Load, Reason, Retirement
from tests.e2e.workers.site import Site, WorkersDaemon
from tests.soak.clients import AggregatedWatch, AggregatedWrite, CountedWatch, Scraping
from tests.soak.jumping_clock import JumpingClock

CHECKS = 3.0
"""Seconds of a health check's interval and timeout in the suite's file: until an endpoint is known to be back."""
OUT = 6.0
"""Seconds until an endpoint that answers nothing is out."""
PLAIN = ("kept", "fresh", "watch", "exec", "logs", CountedWatch.kind)
"""Clients of the cluster `east`."""
STREAMS = ("watch", "exec", "logs", CountedWatch.kind)


class FaultError(AssertionError):
    """The daemon did not do what it should during a fault."""


@dataclass
class Scene:
    """Everything that a fault may touch."""

    site: Site
    daemon: WorkersDaemon
    load: Load
    chance: random.Random
    clock: JumpingClock
    notes: list[str] = field(default_factory=list)
    """Words about what the fault in progress did, for its line."""

    def note(self, text: str) -> None:
        self.notes.append(text)

    def reload(self) -> None:
        """Reload to another file than the last one. Raises FaultError if the daemon refuses it."""
        self.daemon.generation += 1
        self.daemon.write_config()
        answer = self.daemon.reload_quickly()
        self.expect(answer["ok"], f"a good file was refused: {answer}")

    def expect(self, holds: object, text: str) -> None:
        if not holds:
            raise FaultError(text)


Fault = Callable[[Scene], Sequence[Reason]]


# -- processes --------------------------------------------------------------------------------------------------------


def worker_killed(scene: Scene) -> Sequence[Reason]:
    return _kill(scene, WORKER)


def leader_killed(scene: Scene) -> Sequence[Reason]:
    return _kill(scene, LEADER)


def keeper_killed(scene: Scene) -> Sequence[Reason]:
    """Aggregated watches break with the keeper, and its successor does not know what was between its lists."""
    begun = time.monotonic()
    reasons = list(_kill(scene, KEEPER))
    kinds = (AggregatedWatch.kind, AggregatedWrite.kind)
    until = time.monotonic() + OUT
    # A list waits for the next keeper, unless its body has begun.
    cut = Disturbance("keeper_killed", ("aggregated",), begun, until, "IncompleteRead")
    return [*reasons, Disturbance("keeper_killed", kinds, begun, until), cut]


def _kill(scene: Scene, target: str) -> Sequence[Reason]:
    daemon = scene.daemon
    pid = pids_by_target(daemon)[target]
    death = strike(pid)
    scene.note(f"{target} {pid}")
    wait_until("its successor serves", lambda: daemon.all_serve(but=frozenset({pid})), 30)
    scene.note(f"successor after {time.monotonic() - death.since:.1f} s")
    return [death]


# -- members ----------------------------------------------------------------------------------------------------------


def member_stopped(scene: Scene) -> Sequence[Reason]:
    """All endpoints of a cluster refuse connections for a while, those that are open are reset."""
    return _outage(scene, lambda control, index: control.stop_endpoint(index), "stopped")


def member_hangs(scene: Scene) -> Sequence[Reason]:
    """All endpoints of a cluster take connections and answer nothing."""
    return _outage(scene, lambda control, index: control.hang_endpoint(index), "hangs")


def _outage(scene: Scene, strike_one: Callable[[Any, int], Any], how: str) -> Sequence[Reason]:
    name = scene.chance.choice(("east", "west"))
    control, count = scene.site.control(name), len(scene.site.clusters[name].ports)
    length = scene.chance.uniform(0.2, 3.0)
    scene.note(f"{name} for {length:.1f} s")
    begun = time.monotonic()
    for index in range(count):
        strike_one(control, index)
    time.sleep(length)
    _restore(scene, name)
    return _explained_by_outage(name, how, begun)


def endpoint_stopped(scene: Scene) -> Sequence[Reason]:
    """One of two endpoints goes: reads, health checks and reflectors go on with the other one."""
    index = scene.chance.randrange(2)
    control = scene.site.control("east")
    begun = time.monotonic()
    control.stop_endpoint(index)
    time.sleep(scene.chance.uniform(0.2, 2.0))
    control.start_endpoint(index)
    # A write may have been on its way, and what streams cannot be moved; a new connection's GET never fails.
    kinds = ("kept", AggregatedWrite.kind, *STREAMS)
    return [Disturbance("endpoint_stopped", kinds, begun, time.monotonic() + CHECKS)]


def member_starts(scene: Scene) -> Sequence[Reason]:
    """A cluster restarts, and refuses everybody for the first seconds, as an API server does until it has its roles."""
    name = scene.chance.choice(("east", "west"))
    control = scene.site.control(name)
    begun = time.monotonic()
    for index in range(len(scene.site.clusters[name].ports)):
        control.stop_endpoint(index)
        control.start_endpoint(index, starting=scene.chance.uniform(0.3, 1.5))
    time.sleep(1.6)
    _restore(scene, name, started=True)
    scene.note(name)
    return _explained_by_outage(name, "starts", begun)


def connections_reset(scene: Scene) -> Sequence[Reason]:
    """All connections to a cluster are reset at once; its endpoints go on."""
    begun = time.monotonic()
    for name, cluster in scene.site.clusters.items():
        for index in range(len(cluster.ports)):
            scene.site.control(name).reset_connections(index)
    kinds = ("kept", AggregatedWrite.kind, *STREAMS)
    return [Disturbance("connections_reset", kinds, begun, time.monotonic() + CHECKS)]


def _restore(scene: Scene, name: str, *, started: bool = False) -> None:
    control = scene.site.control(name)
    for index in range(len(scene.site.clusters[name].ports)):
        with contextlib.suppress(Exception):
            control.resume_endpoint(index)
        if not started:
            with contextlib.suppress(Exception):
                control.start_endpoint(index)
    wait_until(f"{name} is in use again", lambda: scene.daemon.get("/version").status == 200, 30)


def _explained_by_outage(name: str, how: str, begun: float) -> Sequence[Reason]:
    """Lists and watches of the aggregate go on without a member; its own clients and writes to it do not."""
    until = time.monotonic() + OUT
    kinds = (*PLAIN, AggregatedWrite.kind) if name == "east" else (AggregatedWrite.kind,)
    return [Disturbance(f"{name} {how}", kinds, begun, until)]


# -- configuration ----------------------------------------------------------------------------------------------------


def reload_storm(scene: Scene) -> Sequence[Reason]:
    """Reloads, each to another file, as fast as they are done."""
    until, count = time.monotonic() + scene.chance.uniform(1.0, 3.0), 0
    while time.monotonic() < until:
        scene.reload()
        count += 1
    scene.note(f"{count} reloads")
    return []


def wrong_files(scene: Scene) -> Sequence[Reason]:
    """Reloads of files that are no YAML, against the schema, without what they name; the last good one stays."""
    good = scene.daemon.file.read_text()
    wrong = (
        good[: len(good) // 2],
        good + "\nnonsense: true\n",
        good.replace("certFile: proxy.crt", "certFile: missing.crt"),
        good.replace("version: 1", "version: 2"),
        "\x00",
        good.replace(f"127.0.0.1:{scene.daemon.port}", "203.0.113.1:1"),  # nobody's address: bind fails
        "",
    )
    try:
        for text in scene.chance.sample(wrong, 3):
            scene.daemon.file.write_text(text)
            answer = scene.daemon.reload_quickly()
            scene.expect(not answer["ok"], f"a wrong file was accepted: {text[:200]!r}")
    finally:
        scene.daemon.file.write_text(good)
    scene.reload()
    return []


def certificate_changed(scene: Scene) -> Sequence[Reason]:
    """Another certificate and key for the listener; a new connection gets it as soon as the reload is done."""
    made = scene.site.authority.server(["127.0.0.1", "localhost", "fleet.test"])
    made.write(scene.daemon.directory, "proxy")
    scene.reload()
    with scene.daemon.address.connect() as connection:
        shown = connection.getpeercert(binary_form=True)
    wanted = ssl.PEM_cert_to_DER_cert((scene.daemon.directory / "proxy.crt").read_text())
    scene.expect(shown == wanted, "a new connection has the old certificate")
    return []


# -- clients ----------------------------------------------------------------------------------------------------------


def clients_stall(scene: Scene) -> Sequence[Reason]:
    """Clients that stop in the midst of a handshake, a head, a body, or of reading a response."""
    with _strangers(scene) as open_:
        for number in range(40):
            way = number % 5
            if way == 0:
                open_(tls=False).sendall(b"\x16\x03\x01\x02\x00\x01")
                continue
            sock = open_()
            if way == 1:
                sock.sendall(b"GET /version HTTP/1.1\r\nHost: loc")
            elif way == 2:
                sock.sendall(b"POST %b/configmaps?dryRun=All HTTP/1.1\r\nHost: localhost\r\n" % DEMO.encode())
                sock.sendall(b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
            elif way == 3:
                sock.sendall(b"GET /openapi/v2 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
            else:
                sock.sendall(b"GET %b/configmaps?watch=true HTTP/1.1\r\nHost: localhost\r\n\r\n" % DEMO.encode())
        time.sleep(scene.chance.uniform(0.5, 2.0))
    return []


def disconnect_storm(scene: Scene) -> Sequence[Reason]:
    """Clients that ask for something and are gone before the answer, with a TCP RST."""
    asked = (f"{DEMO}/configmaps", f"{DEMO}/configmaps?watch=true", "/version", f"{DEMO}/pods/db-1/log?follow=true")
    count = scene.chance.randrange(100, 250)
    for number in range(count):
        fleet = number % 2 == 0
        with _strangers(scene) as open_:
            sock = open_("fleet.test" if fleet else "")
            fields = "".join(f"{name}: {value}\r\n" for name, value in (ADMIN_HEADERS if fleet else ()))
            host = "fleet.test" if fleet else "localhost"
            with contextlib.suppress(OSError):
                sock.sendall(f"GET {asked[number % 4]} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n".encode())
            time.sleep(scene.chance.choice((0.0, 0.0, 0.005)))
    scene.note(f"{count} connections")
    return []


@contextmanager
def _strangers(scene: Scene) -> Iterator[Callable[..., socket.socket]]:
    """Open connections that are reset in the end."""
    opened: list[socket.socket] = []

    def open_(name: str = "", *, tls: bool = True) -> socket.socket:
        if tls:
            sock: socket.socket = Address(scene.daemon.port, scene.site.context, name).connect()
        else:
            sock = socket.create_connection(("127.0.0.1", scene.daemon.port), 10)
        opened.append(sock)
        return sock

    try:
        yield open_
    finally:
        for sock in opened:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()


# -- the machine ------------------------------------------------------------------------------------------------------


def logs_rotated(scene: Scene) -> Sequence[Reason]:
    """As logrotate does it: rename, SIGUSR1, and the new file has the next lines."""
    log = scene.daemon.directory / "access.log"
    for number in range(scene.chance.randrange(1, 4)):
        log.rename(log.with_suffix(f".{number}"))
        os.kill(scene.daemon.pid_of("supervisor"), signal.SIGUSR1)
        wait_until("the new access log has lines", lambda: log.exists() and log.stat().st_size > 0, 20)
    return []


def clock_jumps(scene: Scene) -> Sequence[Reason]:
    """The machine's clock is set forward and back, by seconds and by years."""
    for _ in range(4):
        jump = scene.chance.choice((-1, 1)) * scene.chance.choice((1.5, 20.0, 3600.0, 86400.0, 400 * 86400.0))
        scene.clock.set(jump)
        time.sleep(0.4)
    scene.clock.set(0.0)
    time.sleep(0.3)
    return []


def disk_full(scene: Scene) -> Sequence[Reason]:
    """No file can grow: access log, daemon's log. Lines are lost, requests are not."""
    with _limited(scene, resource.RLIMIT_FSIZE, lambda _: 1):
        time.sleep(scene.chance.uniform(0.5, 2.0))
        scene.reload()
    return []


def descriptors_out(scene: Scene) -> Sequence[Reason]:
    """No process has more than a few descriptors left; all is well as soon as it has."""
    begun = time.monotonic()
    opened: list[socket.socket] = []
    try:
        with _limited(scene, resource.RLIMIT_NOFILE, lambda pid: max(open_files(pid), default=0) + 4):
            for _ in range(60):
                with contextlib.suppress(OSError):
                    opened.append(socket.create_connection(("127.0.0.1", scene.daemon.port), 1))
            time.sleep(scene.chance.uniform(0.5, 1.5))
    finally:
        for sock in opened:
            sock.close()
    wait_until("it serves", lambda: scene.daemon.get("/version").status == 200, 20)
    everybody = (*PLAIN, "aggregated", AggregatedWatch.kind, AggregatedWrite.kind, Scraping.kind)
    return [Disturbance("descriptors_out", everybody, begun, time.monotonic() + OUT)]


@contextmanager
def _limited(scene: Scene, which: int, soft: Callable[[int], int]) -> Iterator[None]:
    """Limit all running processes of the daemon, and lift it again."""
    before: dict[int, tuple[int, int]] = {}
    try:
        for pid in scene.daemon.family.pids():
            with contextlib.suppress(OSError):
                before[pid] = resource.prlimit(pid, which)
                resource.prlimit(pid, which, (min(soft(pid), before[pid][0]), before[pid][1]))
        yield
    finally:
        for pid, limits in before.items():
            with contextlib.suppress(OSError):
                resource.prlimit(pid, which, limits)


def open_files(pid: int) -> set[int]:
    with contextlib.suppress(OSError):
        return {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    return set()


def status_asked(scene: Scene) -> Sequence[Reason]:
    """Many who ask for the status at once."""
    failed: list[str] = []

    def ask() -> None:
        try:
            for _ in range(10):
                scene.daemon.status()
        except (OSError, ValueError) as error:
            failed.append(repr(error))

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    scene.expect(not failed, f"the status: {failed[:2]}")
    return []


def upgraded(scene: Scene) -> Sequence[Reason]:
    """Another daemon takes over, by `mcproxy upgrade`; the old one ends what it has within its drain timeout."""
    from tests.e2e.processes import mcproxy
    from tests.e2e.workers.family import living

    daemon = scene.daemon
    before, begun = daemon.family.pids(), time.monotonic()
    done = mcproxy("upgrade", "-c", str(daemon.file))
    scene.expect(done.returncode == 0, f"mcproxy upgrade: {done.stdout} {done.stderr}")
    drain = float(daemon.drain.removesuffix("s"))
    wait_until("the old daemon ends", lambda: not living(before), drain + 30)
    daemon.wait_until_all_serve()
    watches = (CountedWatch.kind, AggregatedWatch.kind, AggregatedWrite.kind)
    return [
        *(Retirement(pid, begun, drain) for pid in before),
        Disturbance("upgraded", watches, begun, time.monotonic() + OUT),
    ]


OF_PROCESSES: dict[str, Fault] = {
    "worker_killed": worker_killed,
    "leader_killed": leader_killed,
    "keeper_killed": keeper_killed,
    "upgraded": upgraded,
}
"""They replace processes; all but the last one need several."""
OTHERS: dict[str, Fault] = {
    "member_stopped": member_stopped,
    "member_hangs": member_hangs,
    "member_starts": member_starts,
    "endpoint_stopped": endpoint_stopped,
    "connections_reset": connections_reset,
    "reload_storm": reload_storm,
    "wrong_files": wrong_files,
    "certificate_changed": certificate_changed,
    "clients_stall": clients_stall,
    "disconnect_storm": disconnect_storm,
    "logs_rotated": logs_rotated,
    "clock_jumps": clock_jumps,
    "status_asked": status_asked,
    "disk_full": disk_full,
    "descriptors_out": descriptors_out,
}
FAULTS = OF_PROCESSES | OTHERS
RESTARTS = ("keeper_killed", "upgraded")
"""After these a watch of an aggregate may have to begin anew: the new process knows nothing from before its lists."""
