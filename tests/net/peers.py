"""The other ends: certificates, protocols that write down what happened, and peers that are not our own code.

Peers from the standard library (`ssl`, `socket`) block, so they run in the reactor's threads.
"""

from __future__ import annotations

import functools
import socket
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

import trustme
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Protocol
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.config.model import Certificate, Limits, PEMFile
from mcproxy.net.alpn import HTTP1_1
from mcproxy.net.certificate_store import CertificateStore
from mcproxy.net.connect import ClientTLS, connect
from mcproxy.net.listen import Listener
from mcproxy.net.pending_connection import ListenerSettings
from mcproxy.net.socket_stream import SocketStream
from mcproxy.net.tls_contexts import SessionCache, client_context

T = TypeVar("T")

CA = trustme.CA()
OTHER_CA = trustme.CA()


def reactor() -> Any:
    """The reactor that pytest-twisted runs."""
    from twisted.internet import reactor as running

    return running


@functools.cache
def pair(*names: str, ca: trustme.CA = CA, key_type: trustme.KeyType = trustme.KeyType.ECDSA) -> tuple[bytes, bytes]:
    """PEM chain and key for these names."""
    issued = ca.issue_cert(*names, key_type=key_type)
    return b"".join(pem.bytes() for pem in issued.cert_chain_pems), issued.private_key_pem.bytes()


def certificate(name: str, *names: str, chain: bytes | None = None, key: bytes | None = None) -> Certificate:
    """A certificate of the configuration, issued for `names` unless its PEM is given."""
    if chain is None or key is None:
        chain, key = pair(*names)
    return Certificate(name=name, chain=PEMFile("chain", chain), key=PEMFile("key", key), server_names=names)


@functools.cache
def store(*names: str) -> CertificateStore:
    return CertificateStore.build([certificate("only", *(names or ("localhost", "127.0.0.1")))])


def tls_settings(**limits: Any) -> ListenerSettings:
    return ListenerSettings(certificates=store(), limits=Limits(**limits))


def speaking(*protocols: bytes) -> ListenerSettings:
    """Settings of a TLS listener that agrees on these."""
    store = CertificateStore.build([certificate("only", "localhost", "127.0.0.1")], protocols=protocols)
    return ListenerSettings(certificates=store)


class Recorder(Protocol):
    """Remembers everything; `transport` is typed as the real thing."""

    stream: SocketStream
    idle_since: float | None = None

    def __init__(self) -> None:
        self.received = bytearray()
        self.events: list[str] = []
        self.reason: BaseException | None = None
        self.lost: Deferred[None] = Deferred()
        self.made: Deferred[None] = Deferred()
        self.on_data: Callable[[bytes], None] = self.received.extend

    def connectionMade(self) -> None:
        stream: object = self.transport
        assert isinstance(stream, SocketStream)
        self.stream = stream
        self.events.append("made")
        self.made.callback(None)

    def dataReceived(self, data: bytes) -> None:
        self.on_data(data)

    def connectionLost(self, reason: Failure = None) -> None:  # type: ignore[assignment]
        self.events.append("lost")
        self.reason = reason.value
        self.lost.callback(None)


@implementer(IHalfCloseableProtocol)
class HalfCloseRecorder(Recorder):
    """A recorder that outlives the peer's end of stream."""

    def readConnectionLost(self) -> None:
        self.events.append("read ended")

    def writeConnectionLost(self) -> None:
        self.events.append("write ended")


class Echo(Recorder):
    def connectionMade(self) -> None:
        super().connectionMade()
        self.on_data = self.stream.write


class Recorders:
    """Builds recorders and keeps them."""

    def __init__(self, make: Callable[[], Recorder] = Recorder) -> None:
        self.make = make
        self.all: list[Recorder] = []

    def build(self, transport: Any) -> Recorder:
        protocol = self.make()
        self.all.append(protocol)
        return protocol


def client_tls(name: str = "localhost", **changes: Any) -> ClientTLS:
    """How our client trusts the test authority."""
    ca = changes.pop("ca", CA)
    verify = changes.pop("verify", True)
    context = client_context(ca.cert_pem.bytes(), changes.pop("certificate", None), verify)
    sessions: SessionCache | None = changes.pop("sessions", None)
    assert not changes
    return ClientTLS(context, name, verify, sessions)


async def dial(
    listener: Listener, protocol: Recorder | None = None, alpn: tuple[bytes, ...] = (HTTP1_1,), **tls: Any
) -> Recorder:
    """Connect our own client to a TLS listener."""
    protocol = protocol or Recorder()
    address = listener.address
    port = address.port  # type: ignore[union-attr]
    await connect(reactor(), "127.0.0.1", port, protocol, tls=client_tls(**tls), timeout=60, alpn=alpn)
    return protocol


def stdlib_context(**versions: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context()
    CA.configure_trust(context)
    for name, version in versions.items():
        setattr(context, name, version)
    return context


def raw(listener: Listener) -> socket.socket:
    """A blocking plain socket connected to the listener."""
    address = listener.address
    return socket.create_connection(("127.0.0.1", address.port), 60)  # type: ignore[union-attr]


def in_thread(work: Callable[..., T], *args: Any, **kw: Any) -> Deferred[T]:
    """Run a blocking peer."""
    return deferToThread(work, *args, **kw)


async def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    """Let the reactor run until the condition holds; fail when it does not in time."""
    end = reactor().seconds() + seconds
    while not condition():
        assert reactor().seconds() < end, "it did not happen in time"
        await deferLater(reactor(), 0.002)
