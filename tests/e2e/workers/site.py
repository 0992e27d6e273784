"""Simulated clusters, and a daemon of several processes before them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubesim.auth.certificates import Authority
from tests.e2e.http_client import Address, Answer, ask
from tests.e2e.processes import TIMEOUT, Daemon, wait_until
from tests.e2e.workers.family import Family, descriptors, living, resident, zombies
from tests.e2e.workers.generation import policy
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.ports import reserved_port

CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: {drain}, workers: {workers}}}
listeners:
  - {{name: public, bind: "{bind}", tls: {{certificates: [proxy]}}}}
  - {{name: local, bind: "unix:{directory}/api.sock"}}
{listeners}certificates:
  - {{name: proxy, certFile: proxy.crt, keyFile: proxy.key}}
authentication:
  - {{name: users, tokenFile: users.csv, allowSystemNames: true}}
clusters:
  - name: east
    endpoints: [{east}]
    tls: {{caFile: "{east_ca}"}}
    credentials: {{token: admin-test-token}}
    identity: Proxy
{cluster}  - name: west
    endpoints: [{west}]
    tls: {{caFile: "{west_ca}"}}
    credentials: {{token: admin-test-token}}
    identity: Proxy
{cluster}servers:
  - {{name: plain, default: true, authentication: none, backend: {{cluster: east}}{plain}}}
{more}logging: {{access: {{file: access.log}}}}
"""
AGGREGATE = """\
  - {name: fleet, serverNames: [fleet.test], authentication: users, backend: {aggregate: fleet}}
aggregates:
  - name: fleet
    clusters: [east, west]
    primary: east
    cache: {resources: [{group: "", version: v1, resource: "*"}]}
"""
COUNTER = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "counter", "namespace": "demo"}}


@dataclass(frozen=True)
class ProcessStatus:
    """One entry of `processes` in the answer of the command `status`."""

    name: str
    pid: int
    role: str
    leader: bool
    restarts: int


@dataclass(frozen=True)
class Footprint:
    """What a process has open and uses."""

    descriptors: int
    memory: int


class Site:
    """Two clusters, whose directory has what a daemon's file names."""

    def __init__(self, directory: Path, *, endpoints: int = 1) -> None:
        """`endpoints`: of `east`; `west` has one."""
        self.directory = directory
        self.clusters = {
            name: SimulatedClusterProcess(name, directory=directory / name, options=("--endpoints", str(count)))
            for name, count in (("east", endpoints), ("west", 1))
        }
        self.authority = Authority("site CA")
        self.context = ssl.create_default_context(cadata=self.authority.pem.decode())

    def start(self) -> Site:
        for cluster in self.clusters.values():
            cluster.spawn()
        for cluster in self.clusters.values():
            cluster.wait_ready()
        self.control("east").create([COUNTER])
        return self

    def control(self, name: str = "east") -> ControlClient:
        return ControlClient(self.clusters[name].control_url)

    def daemon(self, directory: Path, **options: Any) -> WorkersDaemon:
        return WorkersDaemon(self, directory, **options)

    def stop(self) -> None:
        for cluster in self.clusters.values():
            cluster.cleanup()


class WorkersDaemon(Daemon):
    """`mcproxy run` with several workers. A context manager that leaves none of its processes behind."""

    def __init__(
        self,
        site: Site,
        directory: Path,
        *,
        workers: int = 2,
        drain: str = "5s",
        aggregate: bool | str = False,
        policies: str = "",
        more: str = "",
        bind: str = "",
        listeners: str = "",
        cluster: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`aggregate`: whether there is one, or its sections; `policies`: of the server; `more`: more servers, then
        more sections; `bind`: of the listener; `listeners`: more of them; `cluster`: more keys of both clusters."""
        directory.mkdir(exist_ok=True)
        self.site, self.workers, self.drain = site, workers, drain
        self.aggregate, self.policies, self.more = bool(aggregate), policies, more
        self.sections = aggregate if isinstance(aggregate, str) else AGGREGATE if aggregate else ""
        self.listeners, self.cluster = listeners, cluster
        self.generation = 0
        """A number that the file has, and by which it is known which file a process has (`generation`)."""
        self.port = reserved_port()
        self.admin_port = 0
        """Of an Admin listener, where `listeners` has one."""
        self.bind = bind or f"127.0.0.1:{self.port}"
        self.family = Family()
        self.directory = directory
        site.authority.server(["127.0.0.1", "localhost", "fleet.test"]).write(directory, "proxy")
        (directory / "users.csv").write_text('admin,admin,,"system:masters"\n')
        super().__init__(directory, self.config(), environ={**self.family.environ, **(environ or {})})

    def config(self) -> str:
        """The configuration with what it should be now."""
        clusters = self.site.clusters
        return CONFIG.format(
            directory=self.directory,
            workers=self.workers,
            drain=self.drain,
            bind=self.bind,
            listeners=self.listeners,
            cluster=self.cluster,
            east=_endpoints(clusters["east"].urls),
            east_ca=clusters["east"].ca,
            west=_endpoints(clusters["west"].urls),
            west_ca=clusters["west"].ca,
            plain=policy(self.generation, self.policies),
            more=self.sections + self.more,
        )

    def write_config(self) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(self.config())
        os.replace(new, self.file)

    @property
    def address(self) -> Address:
        return Address(self.port, self.site.context)

    @property
    def fleet(self) -> Address:
        return Address(self.port, self.site.context, "fleet.test")

    def get(self, target: str = "/version") -> Answer:
        return ask(self.address, target)

    # -- its processes ----------------------------------------------------------------------------------------------

    def status(self, timeout: float = TIMEOUT) -> dict[str, Any]:
        return self.command_answer({"command": "status"}, timeout)

    def processes(self) -> dict[str, ProcessStatus]:
        """The children by name, as the daemon's status has them."""
        return {
            each["name"]: ProcessStatus(
                each["name"], each["pid"], each["role"], bool(each.get("leader")), each.get("restarts", 0)
            )
            for each in self.status().get("processes", [])
            if each["role"] != "single"
        }

    def pid_of(self, name: str) -> int:
        """The pid of `supervisor`, `leader`, or a child by its name."""
        if name == "supervisor":
            return int(self.status()["pid"])
        children = self.processes()
        if name == "leader":
            (name,) = (each.name for each in children.values() if each.leader)
        return children[name].pid

    def children(self) -> set[int]:
        return {each.pid for each in self.processes().values() if each.name != "supervisor"}

    def all_serve(self, workers: int = 0, *, but: frozenset[int] = frozenset()) -> bool:
        """Whether all workers (and the keeper) live and each has a listening socket; none of them is in `but`."""
        try:
            children, supervisor = self.processes(), self.pid_of("supervisor")
        except OSError:
            return False
        listening = self.family.listeners(self.port)
        if (workers or self.workers) == 1:
            return not children and supervisor not in but and supervisor in listening
        found = [each.pid for each in children.values() if each.name.startswith("worker")]
        return (
            len(found) == (workers or self.workers)
            and not but & {each.pid for each in children.values()}
            and all(listening.get(pid) for pid in found)
            and ("keeper" in children) == self.aggregate
        )

    def wait_until_all_serve(self, workers: int = 0, *, but: frozenset[int] = frozenset()) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not self.all_serve(workers, but=but):
            assert time.monotonic() < deadline, "not all processes serve"
            time.sleep(0.1)  # a look takes milliseconds

    def footprints(self) -> dict[str, Footprint]:
        """Descriptors and private memory of each process, by name."""
        pids = {"supervisor": self.pid_of("supervisor")}
        pids.update({each.name: each.pid for each in self.processes().values()})
        return {name: Footprint(descriptors(pid), resident(pid)) for name, pid in pids.items()}

    def is_gone(self) -> bool:
        """Whether no process of it is left."""
        return not living(self.family.known) and not self.family.pids()

    def left(self) -> list[str]:
        """What is left of it after its end: processes and sockets in its directory."""
        found = [f"process {pid}" for pid in self.family.pids()]
        return found + [f"socket {path.name}" for path in self.directory.iterdir() if path.is_socket()]

    def start_next(self) -> None:
        """Start another daemon where the supervisor has died, with a log of its own; wait until it serves."""
        self.process.wait(TIMEOUT)
        self.log_file = self.log_file.with_name(f"next-{self.log_file.name}")
        self.spawn()
        wait_until("the next daemon serves", lambda: bool(self.lines('msg="mcproxy is ready"')), 60)

    def zombies(self) -> set[int]:
        return zombies(self.family.pids())

    def stop(self) -> None:
        self.family.kill_all()
        super().stop()

    def end_cleanly(self) -> None:
        """Stop it with SIGTERM; nothing of it may be left."""
        os.kill(self.pid_of("supervisor"), signal.SIGTERM)
        wait_until("all its processes end", self.is_gone, 60)
        assert self.left() == []


def _endpoints(urls: Sequence[str]) -> str:
    return ", ".join(f'{{url: "{url}"}}' for url in urls)


class Events:
    """Changes what watches look at and writes to the log that is followed, each 50 ms, past the proxy."""

    def __init__(self, site: Site) -> None:
        self._control = site.control("east")
        self._site = site
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.count = 0

    def _run(self) -> None:
        cluster = self._site.clusters["east"]
        address = Address(cluster.ports[0], ssl.create_default_context(cafile=cluster.ca))
        headers = (("Authorization", "Bearer admin-test-token"), ("Content-Type", "application/merge-patch+json"))
        while not self._stopping.wait(0.05):
            self.count += 1
            body = json.dumps({"data": {"count": str(self.count)}}).encode()
            with contextlib.suppress(OSError):
                ask(address, "/api/v1/namespaces/demo/configmaps/counter", method="PATCH", headers=headers, body=body)
                self._control.append_log("demo", "db-1", f"line {self.count}\n")

    def __enter__(self) -> Events:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(TIMEOUT)


def seconds_until(what: str, holds: Any, timeout: float = TIMEOUT) -> float:
    """Wait until `holds()`; return how long that took."""
    begun = time.monotonic()
    wait_until(what, holds, timeout)
    return time.monotonic() - begun
