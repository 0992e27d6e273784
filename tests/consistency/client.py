"""What all clients of the tester share: how they ask the proxies, and what they have seen that others may use."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlencode

from tests.consistency.fleet import MEMBERS, NAMES, NAMESPACES, NUMBER, PROXIES, TOKEN, Fleet
from tests.consistency.history import GROUP, Key, Selection
from tests.consistency.records import Answer, Record, Refused, warned
from tests.e2e.http_client import Address, Client

JSONDict = dict[str, Any]
PATIENCE = 15.0
"""Seconds without a byte of an answer after which a client gives up; the proxies give up much earlier."""
SILENCE = 80.0
"""Seconds for which a watch with bookmarks may be silent."""


@dataclass
class UpstreamContext:
    """What the clients have in common. Appending to deques and queues is safe in threads."""

    fleet: Fleet
    records: SimpleQueue[Record] = field(default_factory=SimpleQueue)
    stopping: threading.Event = field(default_factory=threading.Event)
    """No more writes and reads; informers go on."""
    ended: threading.Event = field(default_factory=threading.Event)
    versions: dict[str, deque[tuple[str, float]]] = field(default_factory=dict)
    """Versions that were seen, by server, and when."""
    objects: dict[str, deque[JSONDict]] = field(default_factory=dict)
    """Objects that watches have shown, by server."""
    created: deque[tuple[str, Key]] = field(default_factory=lambda: deque(maxlen=5))
    """Objects that were created at members, with the member: what a proxy may not know yet."""
    wrong: deque[str] = field(default_factory=deque)
    """What is wrong with the tester itself, or with an answer's form."""

    def saw(self, server: str, version: str) -> None:
        self.versions.setdefault(server, deque(maxlen=20)).append((version, time.monotonic()))

    def any_object(self, chance: random.Random) -> tuple[str, Key]:
        """Draw an object, with its member: often one that is new."""
        new = list(self.created)
        if new and chance.random() < 0.4:
            return chance.choice(new)
        member = chance.choice(MEMBERS)
        return member, (chance.choice(NAMESPACES), f"{member}-{chance.randrange(NAMES)}")

    def showed(self, server: str, found: JSONDict) -> None:
        self.objects.setdefault(server, deque(maxlen=30)).append(found)


@dataclass(frozen=True)
class Reply:
    """An answer with its body."""

    answer: Answer
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ClientThread(threading.Thread):
    """One client. `turn` is called until the run is over; what it raises is a bug of the tester."""

    pause = (0.02, 0.2)
    """Seconds between two turns, at least and at most."""

    def __init__(self, shared: UpstreamContext, name: str, seed: str, server: str = NUMBER) -> None:
        super().__init__(name=name, daemon=True)
        self.shared = shared
        self.server = server
        self.chance = random.Random(seed)
        self._kept: dict[tuple[str, str], Client] = {}

    def turn(self) -> None:
        raise NotImplementedError

    @property
    def over(self) -> bool:
        return self.shared.stopping.is_set()

    def run(self) -> None:
        try:
            while not self.over:
                self.turn()
                self.shared.stopping.wait(self.chance.uniform(*self.pause))
        except Exception as error:
            self.shared.wrong.append(f"{self.name}: {type(error).__name__}: {error}")
        finally:
            for client in self._kept.values():
                client.close()

    def put(self, record: Record) -> None:
        self.shared.records.put(record)

    def any_proxy(self) -> str:
        return self.chance.choice(PROXIES)

    def address(self, proxy: str) -> Address:
        return self.shared.fleet.proxies[proxy].address(self.server)

    def ask(self, proxy: str, method: str, path: str, query: Mapping[str, object] | None = None) -> Reply:
        return self.send(proxy, method, path, query)

    def send(
        self,
        proxy: str,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: JSONDict | None = None,
        content_type: str = "application/json",
    ) -> Reply:
        """Send a request on the kept connection to a proxy; a broken one is no answer (status 0)."""
        target = path + (f"?{urlencode(query)}" if query else "")
        headers = [("Authorization", f"Bearer {TOKEN}"), ("Accept", "application/json")]
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers.append(("Content-Type", content_type))
        begun = time.monotonic()
        request = f"{method} {self.server} {target}"
        fresh = False
        try:
            client = self._kept.get((proxy, self.server))
            if client is None:
                fresh = True
                client = self._kept[proxy, self.server] = Client(self.address(proxy), self.server)
                client.socket.settimeout(PATIENCE)
            found = client.request(method, target, headers, data)
        except (OSError, http.client.HTTPException, ValueError) as error:
            kept = self._kept.pop((proxy, self.server), None)
            if kept is not None:
                kept.close()
            text = f"{type(error).__name__}: {error}{'' if fresh else ' (on a kept connection)'}"
            return Reply(Answer(self.name, proxy, request, begun, time.monotonic(), 0, text))
        ended = time.monotonic()
        if "close" in found.header("Connection").lower():
            self._kept.pop((proxy, self.server)).close()
        message = "" if found.status < 300 else _message(found.body)
        answer = Answer(self.name, proxy, request, begun, ended, found.status, message, warned(found.headers))
        return Reply(answer, found.body)

    def refused(self, reply: Reply, version_at: float = 0.0) -> None:
        self.put(Refused(reply.answer, version_at))


def _message(body: bytes) -> str:
    try:
        found = json.loads(body)
        return f"{found['reason']}: {found['message']}"
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


def collection(namespace: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps" if namespace else "/api/v1/configmaps"


def selectors(selection: Selection) -> dict[str, str]:
    """Return the query of a selection, without its namespace."""
    found = {}
    if selection.group:
        found["labelSelector"] = f"{GROUP}={selection.group}"
    if selection.name:
        found["fieldSelector"] = f"metadata.name={selection.name}"
    return found
