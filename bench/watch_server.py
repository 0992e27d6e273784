"""Serves watches on an aggregate of two members over TLS, and changes objects at a fixed rate once all are there.

The stores are fed through the decoder of a member's watch, as a reflector does it. Every event has the same length: its
sequence number and the time stand at the same place in each, so that the load can check and time them cheaply.

usage: python -P watch_server.py PORT CERTIFICATE KEY WATCHERS RATE SECONDS

Prints one line of JSON when the changes have been made, and serves on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from bench.list_server import BareRequest
from mcproxy.aggregate.cache.cached_object import CachedObject
from mcproxy.aggregate.cache.decoder import ObjectDecoder, ObjectEvent
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.request import LeftOut
from mcproxy.aggregate.resource_version.formats import version_format
from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
from mcproxy.aggregate.resource_version.reader import VersionReader
from mcproxy.aggregate.view.view import MemberView, View, ViewState
from mcproxy.aggregate.watch.watch_handler import WatchHandler, WatchSettings
from mcproxy.config.model import Limits, PEMFile, TCPBind
from mcproxy.config.model.listeners import Certificate
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.exchange import Exchange
from mcproxy.http.server_factory import ServerFactory
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.net.certificate_store import CertificateStore
from mcproxy.net.listen import Listener
from mcproxy.net.pending_connection import ListenerSettings
from mcproxy.net.reactor import LeanEpollReactor, install

MEMBERS = ("east", "west")
OBJECTS = 500
SIZE = 4096
PODS = APIResource(GroupVersionResource("", "v1", "pods"), "Pod", "pod", True, frozenset({"list", "watch", "get"}))
_FIRST = 10**8  # versions begin here: all have nine digits
_SETTLE = 2.0  # seconds after the last watch has begun


def pod(name: str, number: int, now: float) -> bytes:
    """Return an object of about SIZE bytes; `number` is that of its change."""
    metadata = {"name": name, "namespace": "bench", "uid": name, "resourceVersion": str(_FIRST + number)}
    document = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": {"pad": "x" * (SIZE - 330)},
        "status": {"n": f"{number:09d}", "t": f"{now:017.6f}"},
    }
    return json.dumps(document, separators=(",", ":")).encode()


def run_delay() -> float:
    """Return the seconds that this process was ready to run but had no core (Linux, `sched-stats.rst`)."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


class Polls:
    """The poll object of the reactor, which measures each turn from one wait to the next.

    `longest` is the most processor time of one, which is what the code is responsible for; `longest_elapsed` has the
    time that the process waited for a core, too.
    """

    def __init__(self, poll: Any) -> None:
        self._poll = poll
        self._returned = time.perf_counter()
        self._used = time.thread_time()
        self.longest = 0.0
        self.longest_elapsed = 0.0
        self.turns = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poll, name)

    def poll(self, timeout: float, number: int) -> Any:
        self.longest = max(self.longest, time.thread_time() - self._used)
        self.longest_elapsed = max(self.longest_elapsed, time.perf_counter() - self._returned)
        self.turns += 1
        found = self._poll.poll(timeout, number)
        self._returned = time.perf_counter()
        self._used = time.thread_time()
        return found


class WatchRequest(BareRequest):
    """A request for a watch; everything is allowed."""

    recheck_after = 30.0

    def own_fields(self, more: bytes = b"", *, cache_control: bytes = b"") -> bytes:
        return more

    def long_running(self) -> None:
        self.exchange.set_long_running()

    async def allowed(
        self, request: object, members: Sequence[str], verb: str, info: object
    ) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
        return tuple(members), ()

    async def again(
        self, request: object, members: Sequence[str], info: object
    ) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
        return tuple(members), ()


class Run:
    """The server and the changes that it makes."""

    def __init__(self, reactor: LeanEpollReactor, watchers: int, rate: int, seconds: float) -> None:
        self._reactor = cast(Any, reactor)
        self._watchers, self._rate, self._total = watchers, rate, int(rate * seconds)
        self._made = 0
        self._began = self._cpu = self._waited = 0.0
        history = LayoutHistory(Layout(MEMBERS))
        self.stores = [Store(self._reactor, name, PODS) for name in MEMBERS]
        members = tuple(
            MemberView(name, number, cast(Any, None), (store,))
            for number, (name, store) in enumerate(zip(MEMBERS, self.stores, strict=True))
        )
        self.view = View(
            ViewState(
                resource=PODS,
                members=members,
                undiscovered=(),
                history=history,
                karmada=False,
                format=version_format(history.present),
                reader=VersionReader(history),
            )
        )
        for store in self.stores:
            replacement = store.replace()
            for number in range(OBJECTS):
                item = store.decoder.decode_item(pod(f"pod-{number:04d}", 0, 0.0), 0.0)
                assert isinstance(item, CachedObject), item
                replacement.add(item)
            replacement.commit(_FIRST)
        self.watches = WatchHandler(self._reactor, lambda: 0.5, WatchSettings(), cast(Any, None), cast(Any, None))
        self._polls = reactor._poller = Polls(reactor._poller)

    def handle(self, exchange: Exchange) -> None:
        request = WatchRequest(exchange)
        served = Deferred.fromCoroutine(self.watches.serve(cast(Any, request), self.view, cast(Any, request)))
        served.addErrback(_failed)
        self.watch_begun()

    def watch_begun(self) -> None:
        """With the last watch the changes begin."""
        if len(self.watches) == self._watchers:
            self._reactor.callLater(_SETTLE, self._begin)

    def _begin(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()
        self._waited = run_delay()
        self._polls.longest = self._polls.longest_elapsed = 0.0
        self._polls.turns = 0
        self._change()

    def _change(self) -> None:
        """Make the changes that are due; one member after the other."""
        elapsed = time.perf_counter() - self._began
        due = min(self._total, int(elapsed * self._rate) + 1)
        while self._made < due:
            self._made += 1
            store = self.stores[self._made % len(self.stores)]
            obj = pod(f"pod-{self._made % OBJECTS:04d}", self._made, time.time())
            self._apply(store, store.decoder, b'{"type":"MODIFIED","object":%b}' % obj)
        if self._made < self._total:
            self._reactor.callLater(1 / self._rate, self._change)
        else:
            self._reactor.callLater(1.0, self._report)

    def _apply(self, store: Store, decoder: ObjectDecoder, line: bytes) -> None:
        event = decoder.decode_event(line, time.time())
        assert isinstance(event, ObjectEvent), event
        store.apply(event.type, event.object)

    def _report(self) -> None:
        elapsed = time.perf_counter() - self._began
        found = {
            "changes": self._made,
            "seconds": elapsed,
            "core": (time.process_time() - self._cpu) / elapsed,
            "waited": (run_delay() - self._waited) / elapsed,
            "longest_turn": self._polls.longest,
            "longest_elapsed": self._polls.longest_elapsed,
            "turns": self._polls.turns,
            "watchers": len(self.watches),
        }
        print(json.dumps(found), flush=True)


def _failed(failure: Failure) -> None:
    print(failure.getTraceback(), file=sys.stderr)


def main(arguments: Sequence[str]) -> None:
    port, certificate, key, watchers, rate, seconds = arguments
    reactor = install()
    run = Run(reactor, int(watchers), int(rate), float(seconds))
    chain = PEMFile(certificate, Path(certificate).read_bytes())
    key_file = PEMFile(key, Path(key).read_bytes())
    pair = Certificate(name="bench", chain=chain, key=key_file, server_names=("localhost",))
    settings = ListenerSettings(certificates=CertificateStore.build([pair]))
    deadlines = Deadlines(cast(Any, reactor))
    factory = ServerFactory(deadlines, Limits(), run.handle, lambda connection, problem: (b"", b""))
    Listener(cast(Any, reactor), factory, settings, TCPBind("127.0.0.1", int(port))).start()
    cast(Any, reactor).run()


if __name__ == "__main__":
    main(sys.argv[1:])
