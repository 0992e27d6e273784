"""Clients that read, write and watch through the proxy without a pause, with a record of every request that failed."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.e2e.http_client import Address, Answer, Client, lines_of

CONFIGMAPS = "/api/v1/namespaces/demo/configmaps"
READS = (
    "/api/v1/namespaces/demo/pods/db-0",
    "/api/v1/namespaces/demo/pods",
    CONFIGMAPS,
    "/apis/apps/v1/deployments?limit=3",
    "/version",
)
JSON = ("Content-Type", "application/json")
PATCH = ("Content-Type", "application/merge-patch+json")
PAUSE = 0.01


@dataclass(frozen=True)
class Failure:
    """A request that did not get the answer that it should."""

    kind: str  # read, write, watch
    what: str
    began: float
    after: float  # seconds
    status: int  # 0: the connection broke
    text: str


class ClientLoad:
    """Some of each kind of client, in threads. Every one goes on after a failure."""

    def __init__(self, address: Address, *, readers: int = 3, writers: int = 3, watchers: int = 3) -> None:
        self.address = address
        self.failures: list[Failure] = []
        self.reads = self.writes = self.resumed = 0
        self.slowest_read = 0.0
        self.seen: list[list[tuple[str, str, str]]] = [[] for _ in range(watchers)]
        self._stopping = threading.Event()
        self._last = 0
        self._first = self._version()
        self._watches: dict[int, Client] = {}
        loops: list[tuple[Callable[[int], None], int]] = [(self._read, readers), (self._write, writers)]
        self._workers = [
            threading.Thread(target=loop, args=(number,)) for loop, count in loops for number in range(count)
        ]
        self._watchers = [threading.Thread(target=self._watch, args=(number,)) for number in range(watchers)]

    def start(self) -> None:
        for thread in (*self._watchers, *self._workers):
            thread.start()

    def stop(self) -> None:
        """Have readers and writers end after what they are doing; watchers go on until `finish`."""
        self._stopping.set()

    def join_workers(self) -> None:
        """Wait until readers and writers have ended; 30 s for each at most."""
        for thread in self._workers:
            thread.join(30)

    # -- one after the other on a kept connection -----------------------------------------------------------------

    def _ask(
        self, client: list[Client], kind: str, method: str, target: str, *headers: Any, body: Any = None
    ) -> Answer:
        """Ask on the connection that is kept; None was answered: status 0."""
        began = time.monotonic()
        try:
            if not client:
                client.append(Client(self.address))
            answer = client[0].request(method, target, headers, None if body is None else json.dumps(body).encode())
            if answer.header("connection") == "close":
                client.pop().close()
        except (OSError, http.client.HTTPException) as error:
            answer = Answer(0, [], f"{type(error).__name__}: {error}".encode())
            while client:
                client.pop().close()
        after = time.monotonic() - began
        if kind == "read":
            self.slowest_read = max(self.slowest_read, after)
        if not 200 <= answer.status < 300:
            text = answer.body.decode(errors="replace")
            self.failures.append(Failure(kind, f"{method} {target}", began, after, answer.status, text))
        return answer

    def _read(self, number: int) -> None:
        client: list[Client] = []
        while not self._stopping.is_set():
            answer = self._ask(client, "read", "GET", READS[(self.reads + number) % len(READS)])
            assert answer.status != 200 or answer.json
            self.reads += 1
            time.sleep(PAUSE)
        for each in client:
            each.close()

    def _write(self, number: int) -> None:
        """The whole life of one object after another.

        A write that hung or was cut off may be carried out at any later time, so what has been asked to be deleted is
        not touched again: whether a second DELETE finds it would be chance. What stays is deleted by nobody.
        """
        client: list[Client] = []
        count = 0
        while not self._stopping.is_set():
            count += 1
            name = f"w{self._first}-{number}-{count}"
            one = f"{CONFIGMAPS}/{name}"
            body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
            self._ask(client, "write", "POST", CONFIGMAPS, JSON, body=body)
            if self._there(client, one):
                self._ask(client, "write", "PUT", one, JSON, body={**body, "data": {"a": "1"}})
                self._ask(client, "write", "PATCH", one, PATCH, body={"data": {"a": "2"}})
                self._ask(client, "write", "DELETE", one)
            self.writes += 4
            time.sleep(PAUSE)
        for each in client:
            each.close()

    def _there(self, client: list[Client], target: str) -> bool:
        """Whether an object is there: a list, since 404 would be a failure."""
        name = target.rpartition("/")[2]
        answer = self._ask(client, "read", "GET", f"{CONFIGMAPS}?fieldSelector=metadata.name%3D{name}")
        return answer.status == 200 and bool(answer.json["items"])

    # -- watches ------------------------------------------------------------------------------------------------

    def _version(self) -> str:
        with Client(self.address) as client:
            version: str = client.request("GET", CONFIGMAPS).json["metadata"]["resourceVersion"]
            return version

    def _watch(self, number: int) -> None:
        """Follow all changes from the beginning to the end; resume as an informer does."""
        version = self._first
        while True:
            began = time.monotonic()
            try:
                with Client(self.address) as client:
                    version, ended = self._follow(client, number, version)
            except (OSError, http.client.HTTPException) as error:
                self._failed_watch(began, 0, f"{type(error).__name__}: {error}")
                ended = False
            if ended:
                return
            self.resumed += 1
            time.sleep(random.uniform(0, 0.05))

    def _follow(self, client: Client, number: int, version: str) -> tuple[str, bool]:
        began = time.monotonic()
        target = f"{CONFIGMAPS}?watch=1&resourceVersion={version}"
        response = client.begin("GET", target)
        if response.status != 200:
            self._failed_watch(began, response.status, response.read().decode(errors="replace"))
            return version, False
        for line in lines_of(response):
            if not line.endswith(b"\n"):
                self._failed_watch(began, 200, f"ended inside an event: {line!r}")
                break
            event = json.loads(line)
            metadata = event["object"]["metadata"]
            version = metadata["resourceVersion"]
            if metadata["name"] == "the-end":
                return version, True
            self.seen[number].append((event["type"], metadata["name"], version))
        return version, False

    def _failed_watch(self, began: float, status: int, text: str) -> None:
        self.failures.append(Failure("watch", "watch", began, time.monotonic() - began, status, text))

    # -- what came of it ----------------------------------------------------------------------------------------

    def finish(self, direct: Address, headers: tuple[tuple[str, str], ...]) -> list[tuple[str, str, str]]:
        """End everything; returns all changes that there were, as the cluster tells them directly."""
        self.stop()
        self.join_workers()
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "the-end"}}
        with Client(direct) as client:
            assert client.request("POST", CONFIGMAPS, (*headers, JSON), json.dumps(body).encode()).status == 201
            response = client.begin("GET", f"{CONFIGMAPS}?watch=1&resourceVersion={self._first}", headers)
            changes = []
            for line in lines_of(response):
                event = json.loads(line)
                metadata = event["object"]["metadata"]
                if metadata["name"] == "the-end":
                    break
                changes.append((event["type"], metadata["name"], metadata["resourceVersion"]))
        for thread in self._watchers:
            thread.join(30)
        assert not any(thread.is_alive() for thread in (*self._workers, *self._watchers))
        return changes
