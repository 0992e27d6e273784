"""Clients beside those of `tests.e2e.workers.load`: they see each change of a counter once and read what they wrote."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.http_client import Address, Client, lines_of
from tests.e2e.workers.load import ADMIN_HEADERS, CLEAN_END, DEMO, JSON, Load, LoadClient
from tests.e2e.workers.site import Site

NAME = "soak"
_OBJECT = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": "demo"}}
_MERGE = (("Authorization", "Bearer admin-test-token"), ("Content-Type", "application/merge-patch+json"))


@dataclass
class History:
    """What was found of the counter, by all clients."""

    wrong: list[str] = field(default_factory=list)
    """Events that were lost, doubled or out of order: nothing explains those."""
    restarts: list[tuple[str, float]] = field(default_factory=list)
    """Watches that had to begin anew with a list (410): client and time. Only some faults explain them."""
    seen: int = 0
    """Events."""


class Counter:
    """Counts in an object of the cluster `east`, past the proxy: each number once, however often its endpoints fail."""

    def __init__(self, site: Site, pause: float = 0.05) -> None:
        site.control("east").create([{**_OBJECT, "data": {"count": "0"}}])
        self.value = 0
        self._site = site
        self._pause = pause
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="counter", daemon=True)

    def _run(self) -> None:
        cluster = self._site.clusters["east"]
        context = ssl.create_default_context(cafile=cluster.ca)
        addresses, client = [Address(port, context) for port in cluster.ports], None
        control, turn = self._site.control("east"), 0
        while not self._stopping.wait(self._pause):
            # The same number until it is confirmed: to write it twice is one change, and one event.
            body = json.dumps({"data": {"count": str(self.value + 1)}}).encode()
            try:
                if client is None:
                    client = Client(addresses[turn % len(addresses)])
                    client.socket.settimeout(1.0)
                answer = client.request("PATCH", f"{DEMO}/configmaps/{NAME}", _MERGE, body)
                if answer.status != 200:
                    raise ConnectionError(f"{answer.status}")
                self.value += 1
            except (OSError, http.client.HTTPException):
                if client is not None:
                    client.close()
                client, turn = None, turn + 1
            with contextlib.suppress(Exception):
                control.append_log("demo", "db-1", f"line {self.value}\n")

    def __enter__(self) -> Counter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(30)


class CountedWatch(LoadClient):
    """A watch of the counter that goes on where it was broken, as an informer does."""

    kind = "counted"
    endless = True
    history: History

    def __init__(self, load: Load, address: Address, number: int, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(load, address, number, headers)
        self.version = ""
        self.value = -1

    def use(self, client: Client) -> None:
        if not self.version:
            self._list(client)
        self.begin()
        target = f"{DEMO}/configmaps?watch=true&fieldSelector=metadata.name%3D{NAME}&resourceVersion={self.version}"
        response = client.begin("GET", target, self.headers)
        if response.status == 410:
            self._expired()
            return
        assert response.status == 200, (response.status, response.read(300))
        for line in lines_of(response):
            self.served += 1
            self.load.count(self.owner)
            event = json.loads(line)
            if event["type"] == "ERROR":
                code = event["object"].get("code")
                assert code == 410, event
                self._expired()
                return
            self._event(event)
        raise ConnectionError(CLEAN_END)

    def _list(self, client: Client) -> None:
        self.begin()
        answer = client.request("GET", f"{DEMO}/configmaps?fieldSelector=metadata.name%3D{NAME}", self.headers)
        assert answer.status == 200, (answer.status, answer.body[:300])
        found: dict[str, Any] = answer.json
        items = found["items"]
        if len(items) != 1:
            self.history.wrong.append(f"{self.name}: a list without the counter at {time.monotonic():.3f}")
            raise ConnectionError("a list without the counter")
        value = int(items[0]["data"]["count"])
        if value < self.value:
            self.history.wrong.append(f"{self.name}: a list went back from {self.value} to {value}")
        self.value, self.version = value, found["metadata"]["resourceVersion"]

    def _event(self, event: dict[str, Any]) -> None:
        found = event["object"]
        if event["type"] != "MODIFIED":
            self.history.wrong.append(f"{self.name}: {event['type']} after {self.value}")
        value = int(found["data"]["count"])
        if value != self.value + 1:
            self.history.wrong.append(f"{self.name}: {value} came after {self.value} (version {self.version})")
        self.value, self.version = value, found["metadata"]["resourceVersion"]
        self.history.seen += 1

    def _expired(self) -> None:
        self.history.restarts.append((self.name, time.monotonic()))
        self.version = ""


class AggregatedWatch(CountedWatch):
    """The same through an aggregate."""

    kind = "aggregated-watch"


class AggregatedWrite(LoadClient):
    """Creates, changes, lists and deletes an object through an aggregate; each answer shows what was written."""

    kind = "aggregated-write"
    history: History

    def use(self, client: Client) -> None:
        name = f"written-{self.name}-{time.monotonic_ns()}"
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}}
        path = f"{DEMO}/configmaps"
        created = self._send(client, "POST", path, 201, body)
        self._must_read(client, name, created, "1")
        changed = self._send(client, "PATCH", f"{path}/{name}", 200, {"data": {"a": "2"}})
        self._must_read(client, name, changed, "2")
        self._send(client, "DELETE", f"{path}/{name}", 200)
        self.begin()
        answer = client.request("GET", f"{path}/{name}", self.headers)
        if answer.status == 200:
            self.history.wrong.append(f"{self.name}: {name} is read after it was deleted")
        assert answer.status == 404, (answer.status, answer.body[:300])
        self.good()
        time.sleep(self.load.pause)

    def _send(self, client: Client, method: str, path: str, code: int, body: Any = None) -> Any:
        self.begin()
        type_ = ("Content-Type", "application/merge-patch+json") if method == "PATCH" else JSON
        data = None if body is None else json.dumps(body).encode()
        answer = client.request(method, path, [type_, *self.headers], data)
        assert answer.status == code, (method, answer.status, answer.body[:300])
        self.good()
        return answer.json

    def _must_read(self, client: Client, name: str, written: Any, value: str) -> None:
        self.begin()
        answer = client.request("GET", f"{DEMO}/configmaps/{name}", self.headers)
        assert answer.status == 200, ("GET", answer.status, answer.body[:300])
        if answer.json["data"]["a"] != value:
            self.history.wrong.append(f"{self.name}: {name} has {answer.json['data']} after {value} was written")
        self.good()


class Scraping(LoadClient):
    """GETs of an admin listener, as Prometheus and load balancers send them; each on a connection of its own."""

    kind = "scraping"
    targets: tuple[str, ...] = ("/metrics", "/livez", "/status")

    def use(self, client: Client) -> None:
        self.get(client, self.targets[self.served % len(self.targets)])
        time.sleep(10 * self.load.pause)


def make_load(daemon: Any, history: History, *, clients: int, pause: float) -> Load:
    """Return a load with so many clients of each kind for each worker, not yet begun; `pause` in seconds."""
    from tests.e2e.workers.rounds import load_of

    load: Load = load_of(daemon, clients, pause=pause)
    count = clients * daemon.workers
    load.add(CountedWatch, daemon.address, count)
    load.add(AggregatedWatch, daemon.fleet, count, ADMIN_HEADERS)
    load.add(AggregatedWrite, daemon.fleet, 1, ADMIN_HEADERS)
    load.add(Scraping, Address(daemon.admin_port, daemon.site.context), 1, ADMIN_HEADERS)
    for client in load.clients:
        if isinstance(client, CountedWatch | AggregatedWrite):
            client.history = history
    return load
