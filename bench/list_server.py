"""Serves lists of an aggregate of two clusters over TLS, from stores that were fed directly, until it is ended.

The HTTP engine, the reads and the stores are those of the daemon; identity, policies and members are left out, since
their cost does not grow with a list. Each pod has 4 KB of JSON; one in a hundred has the label percent=7.

usage: python -P list_server.py PORT CERTIFICATE KEY PODS
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mcproxy.net import reactor as lean_reactor

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.reads.reads import Reads
    from mcproxy.aggregate.request import LeftOut, MemberResponse
    from mcproxy.aggregate.view.view import View
    from mcproxy.http.exchange import Exchange
    from mcproxy.http.messages import Header
    from mcproxy.kube.user import UserInfo

T = TypeVar("T")
MEMBERS = ("east", "west")
POD_BYTES = 4096
PERCENT = "7"
"""The value of the label `percent` that one pod in a hundred has."""


class BareRequest:
    """An AggregatedRequest without identity and members."""

    left_out: tuple[LeftOut, ...] = ()
    members = MEMBERS

    def __init__(self, exchange: Exchange) -> None:
        from mcproxy.kube import requestinfo

        self.exchange = exchange
        self.head = exchange.head
        self.target = exchange.head.target
        self.info = requestinfo.parse(self.head.method, self.target)

    def leave_out(self, left_out: Sequence[LeftOut]) -> None:
        raise NotImplementedError("all may be read")

    async def decide_again(self) -> None:
        pass

    def user_for(self, member: str) -> UserInfo:
        raise NotImplementedError("nobody is asked for")

    def user_at(self, cluster: str) -> UserInfo:
        raise NotImplementedError("nobody is asked for")

    def own_fields(self, more: bytes = b"", *, cache_control: bytes = b"no-cache, private") -> bytes:
        return b"Audit-Id: 00000000-0000-4000-8000-000000000000\r\nCache-Control: %b\r\n%b" % (cache_control, more)

    async def send(
        self,
        member: str,
        method: bytes,
        target: bytes,
        *,
        fields: Sequence[Header] = (),
        body: bytes = b"",
        timeout: float | None = None,
    ) -> MemberResponse:
        raise NotImplementedError("there is no member")

    async def forward(self, member: str, target: bytes, body: bytes | None = None) -> None:
        raise NotImplementedError("there is no member")

    def served_by(self, *members: str, cached: bool) -> None:
        """There is no access log."""

    def long_running(self) -> None:
        """Nothing is limited."""

    async def while_connected(self, waiting: Deferred[T]) -> T:
        return await waiting


def view(stores: Sequence[Store]) -> View:
    """Return the view of these stores, one for each of MEMBERS."""
    from mcproxy.aggregate.resource_version.formats import version_format
    from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
    from mcproxy.aggregate.resource_version.reader import VersionReader
    from mcproxy.aggregate.view.view import MemberView, View, ViewState

    layout = Layout(MEMBERS)
    history = LayoutHistory(layout)
    nobody: Any = None
    parts = tuple(MemberView(store.member, place, nobody, (store,)) for place, store in enumerate(stores))
    return View(
        ViewState(
            resource=stores[0].resource,
            members=parts,
            undiscovered=(),
            history=history,
            karmada=False,
            format=version_format(layout),
            reader=VersionReader(history),
        )
    )


def filled(clock: Any, member: str, first: int, count: int) -> Store:
    """Return a store with pods from number `first` on."""
    from bench import pods
    from bench.fill_store import PODS
    from mcproxy.aggregate.cache.cached_object import CachedObject
    from mcproxy.aggregate.cache.store import Store

    store = Store(clock, member, PODS)
    replacement = store.replace()
    for number in range(first, first + count):
        item = pods.pod(number, number + 1)
        item["metadata"]["labels"]["percent"] = str(number // pods.REPLICAS % 100)
        pad = POD_BYTES - len(pods.encoded(item)) - len(',"annotations":{"note":""}')
        item["metadata"]["annotations"] = {"note": "x" * max(pad, 0)}
        found = store.decoder.decode_item(pods.encoded(item), clock.seconds())
        assert isinstance(found, CachedObject), found
        replacement.add(found)
    replacement.commit(first + count)
    return store


def handler(reads: Reads, of: View, failed: Callable[[Exchange, Exception], None]) -> Callable[[Exchange], None]:
    """Return what the engine calls with each exchange."""
    from twisted.internet.defer import Deferred

    async def answer(exchange: Exchange) -> None:
        try:
            await reads.list(BareRequest(exchange), of, MEMBERS)
        except Exception as error:
            failed(exchange, error)

    def handle(exchange: Exchange) -> None:
        Deferred.fromCoroutine(answer(exchange))

    return handle


def main(arguments: Sequence[str]) -> None:
    port, certificate, key, count = int(arguments[0]), Path(arguments[1]), Path(arguments[2]), int(arguments[3])
    reactor: Any = lean_reactor.install()
    from twisted.internet.threads import deferToThreadPool

    from mcproxy.aggregate.freshness import Freshness, FreshnessWaiter
    from mcproxy.aggregate.reads.reads import Reads
    from mcproxy.config.model import Certificate, Limits, TCPBind
    from mcproxy.config.model.keys import PEMFile
    from mcproxy.http.deadlines import Deadlines
    from mcproxy.http.server_factory import ServerFactory
    from mcproxy.net.certificate_store import CertificateStore
    from mcproxy.net.listen import Listener
    from mcproxy.net.pending_connection import ListenerSettings
    from mcproxy.proxy.pipeline import refusal

    half = count // 2
    stores = [filled(reactor, "east", 0, half), filled(reactor, "west", half, count - half)]

    async def probe(store: Store, timeout: float) -> int:
        return store.version

    def in_thread(function: Callable[[bytes], bytes], data: bytes) -> Deferred[bytes]:
        return deferToThreadPool(reactor, reactor.getThreadPool(), function, data)

    def failed(exchange: Exchange, error: Exception) -> None:
        exchange.answer(500, b"Content-Type: text/plain\r\n", str(error).encode())

    reads = Reads(reactor, FreshnessWaiter(reactor, probe, Freshness()), in_thread)
    factory = ServerFactory(Deadlines(reactor), Limits(), handler(reads, view(stores), failed), refusal)
    pair = Certificate(
        name="bench",
        chain=PEMFile(str(certificate), certificate.read_bytes()),
        key=PEMFile(str(key), key.read_bytes()),
        server_names=("localhost",),
    )
    settings = ListenerSettings(certificates=CertificateStore.build([pair], "1.3"))
    Listener(reactor, factory, settings, TCPBind("127.0.0.1", port)).start()
    reactor.run()


if __name__ == "__main__":
    main(sys.argv[1:])
