"""An informer that works as client-go's reflector does, and notes each thing that must never happen.

Source: client-go `tools/cache/reflector.go` (1.36): WatchList, or a list from resourceVersion 0 in pages; watches that
resume from the last version of an event, bookmark or list; 410 lists anew; the time between attempts grows.
Versions are compared as `k8s.io/apimachinery/pkg/util/resourceversion` documents it (KEP-5504).
"""

from __future__ import annotations

import http.client
import json
import random
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from tests.e2e.http_client import Address, Client

JSONDict = dict[str, Any]
Key = tuple[str, str, str]

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class _Expired(Exception):
    """410: what was seen last cannot be resumed."""


class _Unavailable(Exception):
    """The server could not answer, or the connection broke: try again."""


def compare(one: str, other: str) -> int:
    """Return a negative number, 0 or a positive number as `one` is older, equal or newer."""
    for text in (one, other):
        assert re.fullmatch("[1-9][0-9]*", text), f"not comparable: {text!r}"
    return (len(one) > len(other)) - (len(one) < len(other)) or (one > other) - (one < other)


class Informer(threading.Thread):
    """Keeps the objects of one collection. Their `data.n` is a counter, by which it knows an older state from a newer.

    `servers` are asked in turn, one for each connection: several replicas of a proxy. `cluster` says which cluster an
    object is of, because a name may stand in several.
    """

    def __init__(
        self,
        servers: Callable[[], tuple[Address, str]],
        path: str,
        *,
        watch_list: bool,
        headers: Mapping[str, str] | None = None,
        selector: str = "",
        limit: int = 500,
        seed: int = 0,
    ) -> None:
        super().__init__(daemon=True)
        self._servers = servers
        self._path = path
        self._watch_list = watch_list
        self._headers = [("Accept", "application/json"), *(headers or {}).items()]
        self._selector = {"labelSelector": selector} if selector else {}
        self._limit = limit
        self._random = random.Random(seed)
        self._ended = threading.Event()
        self._client: Client | None = None
        self._lock = threading.Lock()
        self.items: dict[Key, JSONDict] = {}
        self.version = ""
        self.violations: list[str] = []
        self.relists = 0
        self.resumed = 0
        self._newest: dict[tuple[Key, str], JSONDict] = {}

    def contents(self) -> dict[Key, tuple[str, str]]:
        """Return what it has: key -> (uid, n)."""
        with self._lock:
            return {key: (item["metadata"]["uid"], item["data"]["n"]) for key, item in self.items.items()}

    def close(self) -> None:
        """End, and wait for the thread."""
        self._ended.set()
        client = self._client
        if client is not None:
            client.abort()
        self.join(30)
        assert not self.is_alive()

    def disconnect(self) -> None:
        """Break its connection, as a network does."""
        client = self._client
        if client is not None:
            client.abort()

    # -- the reflector ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._list_and_watch()
            except _Expired:
                self.version = ""
            except (_Unavailable, OSError, http.client.HTTPException, ValueError) as error:
                if isinstance(error, json.JSONDecodeError):
                    self._violation(f"a line that is no JSON: {error}")
                self._ended.wait(0.05 + 0.1 * self._random.random())
            except Exception as error:
                self._violation(f"{type(error).__name__}: {error}")
                return

    def _list_and_watch(self) -> None:
        self.relists += 1
        if self._watch_list:
            self._watch("", initial=True)
        else:
            self._list()
        while not self._ended.is_set():
            try:
                self._watch(self.version)
                self.resumed += 1
            except (_Unavailable, OSError, http.client.HTTPException):
                if self._ended.is_set():
                    return
                self._ended.wait(0.02 + 0.05 * self._random.random())

    def _list(self) -> None:
        """List in pages: from any version at first, after a 410 the newest state."""
        found: dict[Key, JSONDict] = {}
        query: dict[str, Any] = {"limit": self._limit, **self._selector}
        if not self.version:
            query["resourceVersion"] = "0" if self.relists == 1 else ""
        token, version = "", ""
        while True:
            page = self._get({**query, "continue": token} if token else query)
            version = page["metadata"]["resourceVersion"] if not token else version
            if token and page["metadata"]["resourceVersion"] != version:
                self._violation("pages of one list have different versions")
            for item in page["items"]:
                key = self._key(item)
                if key in found:
                    self._violation(f"{key} stands twice in one list")
                found[key] = item
            token = page["metadata"].get("continue", "")
            query.pop("resourceVersion", None)
            if not token:
                break
        self._replace(found, version)

    def _get(self, query: Mapping[str, Any]) -> JSONDict:
        address, prefix = self._servers()
        with self._open(address) as client:
            answer = client.request("GET", f"{prefix}{self._path}?{urlencode(query)}", self._headers)
        self._client = None
        if answer.status == 410:
            raise _Expired
        if answer.status != 200:
            raise _Unavailable(answer.body)
        body: JSONDict = answer.json
        return body

    def _watch(self, version: str, *, initial: bool = False) -> None:
        query: dict[str, Any] = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": 300,
            **self._selector,
        }
        if initial:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        if version:
            query["resourceVersion"] = version
        address, prefix = self._servers()
        with self._open(address) as client:
            response = client.begin("GET", f"{prefix}{self._path}?{urlencode(query)}", self._headers)
            if response.status == 410:
                raise _Expired
            if response.status != 200:
                raise _Unavailable(response.read())
            found: dict[Key, JSONDict] | None = {} if initial else None
            while line := response.readline():
                found = self._event(json.loads(line), found)
            if found is not None:
                raise _Unavailable("the watch ended before the initial events did")

    def _event(self, event: JSONDict, found: dict[Key, JSONDict] | None) -> dict[Key, JSONDict] | None:
        """Take an event; `found` are the initial ones until their end, None afterwards."""
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            if item["code"] == 410:
                raise _Expired
            raise _Unavailable(item)
        version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            if item["metadata"].get("annotations", {}).get(INITIAL_EVENTS_END) == "true":
                if found is None:
                    self._violation("the initial events ended twice")
                else:
                    self._replace(found, version)
                return None
            self.version = version
            return found
        key = self._key(item)
        if found is not None:
            if kind != "ADDED":
                self._violation(f"{kind} {key} among the initial events")
            if key in found:
                self._violation(f"{key} twice among the initial events")
            found[key] = item
            return found
        with self._lock:
            if kind == "DELETED":
                self._is_not_older(key, item)
                self.items.pop(key, None)
            else:
                self._is_not_older(key, item)
                self.items[key] = item
        self.version = version
        return None

    # -- what must hold --------------------------------------------------------------------------------------------

    def _replace(self, found: dict[Key, JSONDict], version: str) -> None:
        with self._lock:
            for key, item in found.items():
                self._is_not_older(key, item)
            self.items = found
        self.version = version

    def _is_not_older(self, key: Key, item: JSONDict) -> None:
        """No object goes back in time, by its content and by its version."""
        metadata = item["metadata"]
        known = self._newest.get((key, metadata["uid"]))
        if known is not None:
            older, newer = int(known["data"]["n"]), int(item["data"]["n"])
            if newer < older:
                self._violation(f"{key} went back from {older} to {newer}")
            order = compare(metadata["resourceVersion"], known["metadata"]["resourceVersion"])
            if newer > older and order <= 0:
                versions = f"{known['metadata']['resourceVersion']} to {metadata['resourceVersion']}"
                self._violation(f"{key} is newer ({older} to {newer}), its version is not ({versions})")
        self._newest[key, metadata["uid"]] = item

    def _key(self, item: JSONDict) -> Key:
        metadata = item["metadata"]
        return metadata.get("labels", {}).get("mcproxy.io/cluster", ""), metadata.get("namespace", ""), metadata["name"]

    def _violation(self, what: str) -> None:
        self.violations.append(what)

    def _open(self, address: Address) -> Client:
        client = self._client = Client(address)
        if self._ended.is_set():
            client.abort()
        return client
