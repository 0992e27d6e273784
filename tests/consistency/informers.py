"""Informers that work as client-go's reflector does, and go to another replica whenever a connection ends.

Source: client-go `tools/cache/reflector.go` (1.36): WatchList, or a list in pages; watches that are resumed from the
last version of a list, an event or a bookmark; 410 lists anew.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from tests.consistency.client import SILENCE, ClientThread, JSONDict, UpstreamContext, collection, selectors
from tests.consistency.fleet import NUMBER, TOKEN
from tests.consistency.history import Selection
from tests.consistency.records import Answer, Ended, Item, Listed, Marked, Opened, Refused, Seen, item_of, joined
from tests.e2e.http_client import Client

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_BACKOFF = (0.1, 0.5)


class Informer(ClientThread):
    """Keeps one selection. `limit`: of its pages, which may come from different replicas."""

    pause = (0.0, 0.05)

    def __init__(
        self,
        shared: UpstreamContext,
        name: str,
        seed: str,
        selection: Selection,
        *,
        server: str = NUMBER,
        watch_list: bool = False,
        limit: int = 500,
    ) -> None:
        super().__init__(shared, name, seed, server)
        self._selection = selection
        self._watch_list = watch_list
        self._limit = limit
        self._path = collection(selection.namespace)
        self._version = ""
        self._version_at = 0.0
        self._lists = 0
        self._watching: Client | None = None

    @property
    def over(self) -> bool:
        return self.shared.ended.is_set()

    def disconnect(self) -> None:
        """Break its connection, as a network does."""
        client = self._watching
        if client is not None:
            client.abort()

    def turn(self) -> None:
        if self._version:
            self._watch()
        elif self._watch_list:
            self._watch(initial=True)
        else:
            self._list()

    def _saw(self, version: str) -> None:
        self._version, self._version_at = version, time.monotonic()
        self.shared.saw(self.server, version)

    def _wait(self) -> None:
        self.shared.ended.wait(self.chance.uniform(*_BACKOFF))

    # -- lists --------------------------------------------------------------------------------------------------

    def _list(self) -> None:
        """List in pages: what is cached at first, after a 410 the newest state."""
        self._lists += 1
        query: dict[str, Any] = {"limit": self._limit, **selectors(self._selection)}
        asked = "0" if self._lists == 1 else ""
        if asked:
            query["resourceVersion"] = asked
        items: list[Item] = []
        versions: list[str] = []
        answers: list[Answer] = []
        while True:
            reply = self.ask(self.any_proxy(), "GET", self._path, query)
            if reply.answer.status != 200:
                self.refused(reply, version_at=answers[0].begun if answers else 0.0)
                self._wait()
                return
            page = reply.json
            answers.append(reply.answer)
            items += [item_of(found) for found in page["items"]]
            versions.append(page["metadata"]["resourceVersion"])
            token = page["metadata"].get("continue", "")
            if not token:
                break
            query = {"limit": self._limit, "continue": token, **selectors(self._selection)}
        self.put(
            Listed(
                joined(answers),
                self._selection,
                "0" if asked else "",
                versions[0],
                tuple(items),
                page_versions=tuple(versions[1:]),
                follower=self.name,
            )
        )
        self._saw(versions[0])

    # -- watches ------------------------------------------------------------------------------------------------

    def _watch(self, *, initial: bool = False) -> None:
        query: dict[str, object] = {"watch": "true", "allowWatchBookmarks": "true", **selectors(self._selection)}
        query["timeoutSeconds"] = self.chance.choice((3, 8, 300, 300))
        if initial:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        if self._version:
            query["resourceVersion"] = self._version
        proxy, begun = self.any_proxy(), time.monotonic()
        target = f"{self._path}?{urlencode(query)}"
        try:
            client = self._watching = Client(self.address(proxy), self.server)
        except OSError as error:
            self._refused(proxy, target, begun, 0, f"{type(error).__name__}: {error}")
            self._wait()
            return
        with client:
            self._read(client, proxy, target, begun, initial=initial)
        self._watching = None

    def _refused(self, proxy: str, target: str, begun: float, status: int, message: str) -> None:
        answer = Answer(self.name, proxy, f"GET {self.server} {target}", begun, time.monotonic(), status, message)
        self.put(Refused(answer, self._version_at))
        if status == 410:
            self._version = ""

    def _read(self, client: Client, proxy: str, target: str, begun: float, *, initial: bool) -> None:
        client.socket.settimeout(SILENCE)
        opened = False
        try:
            headers = [("Authorization", f"Bearer {TOKEN}"), ("Accept", "application/json")]
            response = client.begin("GET", target, headers)
            if response.status != 200:
                data = response.read()
                with contextlib.suppress(ValueError):
                    data = json.loads(data)["message"].encode()
                self._refused(proxy, target, begun, response.status, data[:300].decode("utf-8", "replace"))
                self._wait()
                return
            opened = True
            version = "" if initial else self._version
            self.put(Opened(self.name, proxy, time.monotonic(), self._selection, version, initial=initial))
            self._lines(response, proxy)
        except TimeoutError:
            self.put(self._ended(proxy, "silence"))
        except (OSError, http.client.HTTPException, ValueError) as error:
            if self.over:
                return
            text = f"{type(error).__name__}: {error}"
            if opened:
                self.put(self._ended(proxy, "broken", 0, text))
            else:
                self._refused(proxy, target, begun, 0, text)
            self._wait()

    def _ended(self, proxy: str, how: Any, code: int = 0, message: str = "") -> Ended:
        return Ended(self.name, proxy, time.monotonic(), how, code, message, self._version_at)

    def _lines(self, response: http.client.HTTPResponse, proxy: str) -> None:
        while line := response.readline():
            event: JSONDict = json.loads(line)
            kind, found = event["type"], event["object"]
            if kind == "ERROR":
                self.put(self._ended(proxy, "error", int(found.get("code", 0)), str(found.get("message", ""))))
                if found.get("code") == 410:
                    self._version = ""
                self._wait()
                return
            version = found["metadata"]["resourceVersion"]
            if kind == "BOOKMARK":
                annotations: Mapping[str, str] = found["metadata"].get("annotations") or {}
                end = annotations.get(INITIAL_EVENTS_END) == "true"
                self.put(Marked(self.name, time.monotonic(), version, initial_end=end))
            else:
                self.put(Seen(self.name, time.monotonic(), kind, item_of(found)))
                if kind != "DELETED":
                    self.shared.showed(self.server, found)
            if kind == "BOOKMARK" or self._version:  # of the initial events only their end is where to go on
                self._saw(version)
        self.put(self._ended(proxy, "end"))
