"""A member whose watches are links that can be held back, on a clock of the test: what each link gives is a
kube-apiserver's, only when it arrives is up to the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import parse_qsl

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reflector.initial_list import MemberLimits
from mcproxy.aggregate.reflector.reflector import Reflector
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.upstream.control import ControlResponse
from mcproxy.upstream.control_stream import BodyTooLarge, ControlError
from tests.support.clock import Clock

PODS = APIResource(GroupVersionResource("", "v1", "pods"), "Pod", "pod", True, frozenset({"get", "list", "watch"}))
BOOKMARKS = 60.0


def event(kind: str, obj: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": obj}, separators=(",", ":")).encode() + b"\n"


def pod(name: str, version: int, uid: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "demo", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}


class Link:
    """One watch: what the member sends waits while `held`, and arrives at once else."""

    headers = ()
    apart = False

    def __init__(self, member: FakeMember, query: dict[str, str], *, held: bool) -> None:
        self.query = query
        self.status = 200
        self.endpoint = cast(Any, object())
        self.held = held
        self.open = True
        self._member = member
        self._waiting: list[bytes] = []
        self._arrived: list[bytes] = []
        self._failure: ControlError | None = None
        self._reader: Deferred[None] | None = None
        self._calls = []
        seconds = float(query["timeoutSeconds"])
        if seconds > 2:
            self._calls.append(member.clock.callLater(seconds - 2, self.bookmark))
        self._calls.append(member.clock.callLater(BOOKMARKS, self.bookmark))
        self._calls.append(member.clock.callLater(seconds, self.end))

    def header(self, name: bytes) -> bytes | None:
        return None

    def send(self, data: bytes) -> None:
        """The member sends."""
        if self.open:
            (self._waiting if self.held else self._arrived).append(data)
            self._wake()

    def release(self) -> None:
        """What was held arrives."""
        self.held = False
        self._arrived += self._waiting
        self._waiting = []
        self._wake()

    def bookmark(self) -> None:
        self.send(event("BOOKMARK", {"metadata": {"resourceVersion": str(self._member.revision)}}))

    def end(self) -> None:
        """The member ends the watch; the end is held back as all else is."""
        self.send(b"")

    def break_off(self) -> None:
        self._failure = ControlError("broke off")
        self._wake()

    async def read(self) -> bytes:
        if not self._arrived and self._failure is None:
            self._reader = Deferred(lambda _: self.close())
            await self._reader
        if self._failure is not None:
            raise self._failure
        return self._arrived.pop(0)

    async def read_all(self, limit: int) -> bytes:
        if limit == 0:
            raise BodyTooLarge
        return b"{}"

    def close(self, cause: str = "closed") -> None:
        if self.open:
            self.open = False
            for call in self._calls:
                if call.active():
                    call.cancel()
            self._failure = self._failure or ControlError(cause)
            self._wake()

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None and not reader.called and (self._arrived or self._failure):
            self._reader = None
            reader.callback(None)


class FakeMember:
    """One collection of a cluster, with every change that it had. `held`: links that are opened from now on are."""

    name = "east"

    def __init__(self) -> None:
        self.clock = Clock()
        self.revision = 10
        self.changes: list[tuple[int, bytes]] = []
        self.objects: dict[str, dict[str, Any]] = {}
        self.links: list[Link] = []
        self.held = False
        self.epoch = 0
        self.source: object = "source"
        self.uid = "uid-1"
        self.statuses: list[int] = []
        """Of the next watches; 200 behind them."""
        self.opening: Callable[[], None] = lambda: None

    # -- what happens in the cluster -----------------------------------------------------------------------------

    def touch(self) -> int:
        """Another resource changes."""
        self.revision += 1
        return self.revision

    def put(self, name: str, uid: str = "") -> int:
        self.revision += 1
        obj = pod(name, self.revision, uid)
        kind = "MODIFIED" if name in self.objects else "ADDED"
        self.objects[name] = obj
        self._tell(event(kind, obj))
        return self.revision

    def delete(self, name: str) -> int:
        self.revision += 1
        obj = self.objects.pop(name)
        obj["metadata"]["resourceVersion"] = str(self.revision)
        self._tell(event("DELETED", obj))
        return self.revision

    def _tell(self, line: bytes) -> None:
        self.changes.append((self.revision, line))
        for link in self.links:
            link.send(line)

    # -- what a reflector asks (`Member`) ------------------------------------------------------------------------

    async def open(self, path: str, *, headers: object = (), **_: object) -> Link:
        self.opening()
        query = dict(parse_qsl(path.partition("?")[2]))
        assert query["watch"] == "true"
        assert query["allowWatchBookmarks"] == "true"
        link = Link(self, query, held=self.held)
        link.status = self.statuses.pop(0) if self.statuses else 200
        if "sendInitialEvents" in query:
            for obj in self.objects.values():
                link.send(event("ADDED", obj))
            metadata = {"resourceVersion": str(self.revision), "annotations": {"k8s.io/initial-events-end": "true"}}
            link.send(event("BOOKMARK", {"metadata": metadata}))
        else:
            for revision, line in self.changes:
                if revision > int(query["resourceVersion"]):
                    link.send(line)
        self.links.append(link)
        return link

    async def get(self, path: str, **_: object) -> ControlResponse:
        body = json.dumps({"metadata": {"resourceVersion": str(self.revision)}}).encode()
        return ControlResponse(200, (), body)

    async def identify(self) -> str:
        return self.uid

    def sleep(self, seconds: float) -> Deferred[None]:
        waiting: Deferred[None] = Deferred()
        call = self.clock.callLater(seconds, waiting.callback, None)

        def cancelled(failure: Failure) -> Failure:
            if call.active():
                call.cancel()
            return failure

        waiting.addErrback(cancelled)
        return waiting

    def follow(self) -> tuple[Reflector, Store]:
        """Return a new replica's reflector of the collection, and its store."""
        clock = cast(Any, self.clock)
        store = Store(clock, self.name, PODS)
        reflector = Reflector(cast(Any, self), store, MemberLimits(4), clock, lambda: 0.5)
        reflector.start()
        return reflector, store

    def advance(self, seconds: float) -> None:
        """Let time pass, in steps of 50 ms."""
        for _ in range(round(seconds / 0.05)):
            self.clock.advance(0.05)
