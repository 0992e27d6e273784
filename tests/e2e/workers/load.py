"""Clients that know which process serves each of their connections, and a record of everything that broke.

Every client goes on after a break, on a new connection. What broke is judged later, by `Load.unexplained`: only a
connection of a process that was killed may break.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tests.e2e.http_client import Address, Client, lines_of
from tests.e2e.processes import wait_until
from tests.e2e.workers.exec_client import Exec
from tests.e2e.workers.family import Family

DEMO = "/api/v1/namespaces/demo"
READS = (f"{DEMO}/pods/db-0", "/version", f"{DEMO}/configmaps", f"{DEMO}/pods")
ADMIN_HEADERS = (("Authorization", "Bearer admin"),)
DRY_RUN = f"{DEMO}/configmaps?dryRun=All"
BODY = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "never"}}).encode()
JSON = ("Content-Type", "application/json")
DYING = 0.1
"""Seconds in which a process that was sent SIGKILL may still accept: it dies when it next leaves the kernel."""
UNUSED = 0.4
"""Seconds after which a process that retires may close a connection that has had no request yet.

It waits for 0.5 s, and the request is on its way for some time.
"""
CLEAN_END = "the watch ended between two events"


@dataclass(frozen=True)
class Break:
    """Something that a client did not get as it should. Times are of the monotonic clock."""

    client: str
    owner: int
    """The process that had accepted the connection; 0: not known, the connection broke too soon."""
    begun: float
    """When what broke was begun: the request, the handshake, the watch."""
    ended: float
    text: str
    refused: bool = False
    """The kernel refused the connection."""
    idle: bool = False
    """A kept connection was closed cleanly between two requests; clients ask again on another one."""
    unused: float = 0.0
    """Seconds from the beginning of the connection to its first request, while its owner was looked for."""


@dataclass(frozen=True)
class Death:
    """A process that was killed, or stopped until somebody killed it."""

    pid: int
    since: float
    """When it was killed or stopped."""


@dataclass(frozen=True)
class Retirement:
    """A process that ends because another one takes its place, as a whole daemon does after an upgrade."""

    pid: int
    since: float
    drain: float
    """Seconds that tunnels and followed logs have."""


@dataclass(frozen=True)
class Disturbance:
    """Something that was done to what the clients use; what broke while it lasted is explained by it."""

    what: str
    kinds: tuple[str, ...]
    """The kinds of clients whose breaks it explains."""
    since: float
    until: float
    """When it was over and everything that it had disturbed should have recovered."""
    text: str = ""
    """What the break must say."""


class LoadClient(ABC):
    """One thread that does one kind of thing again and again."""

    kind = ""
    endless = False
    """Whether it waits for what comes without an end: its connection is broken off when the load stops."""

    def __init__(self, load: Load, address: Address, number: int, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.name = f"{self.kind}-{number}"
        self.load = load
        self.address = address
        self.headers = headers
        self.owner = 0
        self.served = 0
        self.slowest = 0.0
        self.client: Client | None = None
        self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._used = False
        self._begun = 0.0
        self._unused_for = 0.0

    def _run(self) -> None:
        while not self.load.stopping.is_set():
            if not self.load.reconnects and self.served:
                return
            begun, self.owner, self._used, self._unused_for = time.monotonic(), 0, False, 0.0
            try:
                self.client = Client(self.address)
                self.owner = self.load.owner(self.address, self.client.socket.getsockname()[1])
                self._unused_for = time.monotonic() - begun
                self.use(self.client)
            except (OSError, http.client.HTTPException, AssertionError, ValueError) as error:
                if not self.load.stopping.is_set():
                    self._broke(self._begun if self._used and self.owner else begun, error)
                    if not self.load.reconnects:
                        return
                    time.sleep(0.02)
            finally:
                if self.client is not None:
                    self.client.close()
                self.client = None

    def begin(self) -> None:
        """Note that something begins on the connection, for the record of its break."""
        self._begun, self._used = time.monotonic(), True

    def good(self) -> None:
        """Note that it has worked."""
        self.slowest = max(self.slowest, time.monotonic() - self._begun)
        self.served += 1
        self._unused_for = 0.0
        self.load.count(self.owner)

    def _broke(self, begun: float, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        refused = isinstance(error, ConnectionRefusedError)
        idle = isinstance(error, http.client.RemoteDisconnected) and self.served > 0
        now = time.monotonic()
        self.load.breaks.append(Break(self.name, self.owner, begun, now, text, refused, idle, self._unused_for))

    def get(self, client: Client, target: str) -> bool:
        """Ask; return whether the connection may be used again."""
        self.begin()
        answer = client.request("GET", target, self.headers)
        assert answer.status == 200, (answer.status, answer.body[:300])
        self.good()
        return answer.header("connection").lower() != "close"

    @abstractmethod
    def use(self, client: Client) -> None:
        """Use a new connection until it may not be used any more, or the load stops."""


class Kept(LoadClient):
    """GET and POST in turns on one connection."""

    kind = "kept"

    def use(self, client: Client) -> None:
        number = 0
        while not self.load.stopping.is_set():
            if not self.get(client, READS[number % len(READS)]):
                return
            number += 1
            self.begin()
            answer = client.request("POST", DRY_RUN, [JSON, *self.headers], BODY)
            assert answer.status == 201, (answer.status, answer.body[:300])
            self.good()
            if answer.header("connection").lower() == "close":
                return
            time.sleep(self.load.pause)


class Fresh(LoadClient):
    """A connection for each request, as kubectl does."""

    kind = "fresh"

    def use(self, client: Client) -> None:
        self.get(client, "/version")
        time.sleep(4 * self.load.pause)


class Aggregated(LoadClient):
    """Lists of an aggregate on one connection: the keeper answers them."""

    kind = "aggregated"

    def use(self, client: Client) -> None:
        while not self.load.stopping.is_set() and self.get(client, f"{DEMO}/pods"):
            time.sleep(self.load.pause)


class Watching(LoadClient):
    """A watch; it may end between two events only where the daemon ends it, which is a break here, too."""

    kind = "watch"
    endless = True

    def use(self, client: Client) -> None:
        self.begin()
        response = client.begin(
            "GET", f"{DEMO}/configmaps?watch=true&fieldSelector=metadata.name%3Dcounter", self.headers
        )
        assert response.status == 200, (response.status, response.read(300))
        for line in lines_of(response):
            json.loads(line)
            self.served += 1
            self.load.count(self.owner)
        raise ConnectionError(CLEAN_END)


class Executing(LoadClient):
    """One `cat` in a container that gives back what is written."""

    kind = "exec"

    def use(self, client: Client) -> None:
        self.begin()
        session, number = Exec(client, headers=self.headers), 0
        while not self.load.stopping.is_set():
            session.echo(b"line %d\n" % number)
            self.good()
            number += 1
            time.sleep(self.load.pause)
            self.begin()


class Following(LoadClient):
    """`kubectl logs -f`; `append_log` of the cluster gives it something to read."""

    kind = "logs"
    endless = True

    def use(self, client: Client) -> None:
        self.begin()
        response = client.begin("GET", f"{DEMO}/pods/db-1/log?follow=true&tailLines=0", self.headers)
        assert response.status == 200, (response.status, response.read(300))
        for _ in lines_of(response):
            self.served += 1
            self.load.count(self.owner)
        raise ConnectionError("the log ended")


class Load:
    """Some clients of each kind."""

    def __init__(self, family: Family, *, pause: float = 0.01) -> None:
        """`pause`: seconds between two requests of a client."""
        self.family = family
        self.pause = pause
        self.stopping = threading.Event()
        self.reconnects = True
        """Whether clients go on after a break, and after the end of a connection."""
        self.breaks: list[Break] = []
        self.clients: list[LoadClient] = []
        self.unknown = 0
        """Connections whose process was not found: it ended at once."""
        self._counts: Counter[int] = Counter()

    def add(
        self, kind: type[LoadClient], address: Address, count: int, headers: tuple[tuple[str, str], ...] = ()
    ) -> Load:
        self.clients += [kind(self, address, number, headers) for number in range(count)]
        return self

    def owner(self, address: Address, client_port: int) -> int:
        """Return the process that has the connection; 0 where it is gone already."""
        pid = self.family.owner(address.port, client_port)
        self.unknown += not pid
        return pid

    def count(self, owner: int) -> None:
        self._counts[owner] += 1

    @property
    def served_by(self) -> Counter[int]:
        """How many requests, events and lines each process served."""
        return Counter(self._counts)

    @property
    def served(self) -> int:
        return sum(client.served for client in list(self.clients))

    @property
    def slowest(self) -> float:
        """The longest that a request took that was served, in seconds."""
        return max(client.slowest for client in self.clients)

    def owners(self, *kinds: type[LoadClient]) -> Counter[int]:
        """Return how many open connections each process has, of clients of these kinds (all, if none is given)."""
        return Counter(client.owner for client in self.clients if not kinds or isinstance(client, kinds))

    def wait_until_left(self, pid: int) -> None:
        """Wait until no client has a connection of a process that was killed: all that this broke is recorded then.

        A connection that it had accepted last is recorded up to 2 s later, since its owner is looked for first.
        """
        wait_until(f"clients have left {pid}", lambda: not {0, pid} & self.owners().keys())

    @staticmethod
    def now() -> float:
        """Return the time of the clock that breaks are noted by."""
        return time.monotonic()

    def __enter__(self) -> Load:
        for client in self.clients:
            client.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.stopping.set()
        for client in self.clients:
            connection = client.client
            if connection is not None and client.endless:
                with contextlib.suppress(OSError):
                    connection.abort()
        for client in self.clients:
            if client.thread.ident is not None:
                client.thread.join(30)

    def unexplained(self, *reasons: Reason, kinds: Iterable[type[LoadClient]] = ()) -> list[Break]:
        """Return what broke (of clients of these kinds) though none of `reasons` explains it.

        A death explains a break on a connection of that process, and one on a connection whose process is not known if
        it was being opened while that process died. A retirement explains the end of a watch between two events, that
        of a tunnel or a followed log once its time is over, and that of a connection that had no request for `UNUSED`
        seconds (on a busy machine its process is found late, or not at all, since it has closed it). A kept connection
        that is closed cleanly between two requests is no break: HTTP allows it, and clients ask again. A refused
        connection is never explained. A disturbance explains what overlaps with it.
        """
        names = tuple(kind.kind for kind in kinds) or ("",)
        return [
            each
            for each in list(self.breaks)
            if each.client.startswith(names)
            and (each.refused or not (each.idle or any(_explains(reason, each) for reason in reasons)))
        ]


Reason = Death | Retirement | Disturbance


def _explains(reason: Reason, found: Break) -> bool:
    if isinstance(reason, Disturbance):
        return (
            found.client.rpartition("-")[0] in reason.kinds
            and reason.text in found.text
            and found.begun <= reason.until
            and reason.since <= found.ended
        )
    if isinstance(reason, Death):
        if found.owner:
            return found.owner == reason.pid and found.ended >= reason.since
        return found.begun <= reason.since + DYING and reason.since <= found.ended
    if found.owner not in (0, reason.pid) or found.ended < reason.since:
        return False
    if found.unused >= UNUSED:
        return True
    if not found.owner:
        return False
    if found.client.startswith((Executing.kind, Following.kind)):
        return found.ended >= reason.since + reason.drain - 0.1
    return found.client.startswith(Watching.kind) and CLEAN_END in found.text
