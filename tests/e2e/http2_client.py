"""One blocking connection of HTTP/2 on the `h2` package, for tests that look at its frames."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from tests.e2e.http_client import Address
from tests.proxy.http2_peers import H2Client, PeerStream

TIMEOUT = 60.0


class _Socket:
    """What a `Peer` writes to."""

    def __init__(self, address: Address) -> None:
        address.context.set_alpn_protocols(["h2"])
        self.tls = address.connect()
        self.tls.settimeout(0.05)

    def write(self, data: bytes) -> None:
        self.tls.sendall(data)

    def abortConnection(self) -> None:
        self.tls.close()

    loseConnection = abortConnection


class HTTP2Client:
    """A client whose `peer` has the streams; it reads only while it waits for something."""

    def __init__(self, address: Address) -> None:
        self._socket = _Socket(address)
        self.peer = H2Client()
        self.peer.makeConnection(self._socket)  # type: ignore[no-untyped-call]

    def ask(self, path: str, method: str = "GET") -> PeerStream:
        return self.peer.ask(method.encode(), path.encode())

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Read until `holds()`; fail with `what` if it never does, or the connection ends before."""
        deadline = time.monotonic() + TIMEOUT
        while not holds():
            assert time.monotonic() < deadline, f"{what}: not within {TIMEOUT} s"
            try:
                data = self._socket.tls.recv(1 << 16)
            except TimeoutError:
                continue
            if not data:
                self.peer.lost = EOFError()
                assert holds(), f"the connection ended before: {what}"
                return
            self.peer.dataReceived(data)
            assert self.peer.problem is None

    @property
    def local_port(self) -> int:
        port: int = self._socket.tls.getsockname()[1]
        return port

    def __enter__(self) -> HTTP2Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.tls.close()
