"""Many edges in one process: their links to a hub, without clusters behind them.

usage: python -P tunnel_edges.py URL AUTHORITY TOKENS COUNT PORT

TOKENS is a folder with the file edge-NUMBER for each. Who connects to PORT is told how many tunnels are up.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from mcproxy.net.reactor import install

reactor: Any = install()

from twisted.internet.protocol import Factory, Protocol  # noqa: E402 (after the reactor was chosen)

from mcproxy.config import model  # noqa: E402
from mcproxy.daemon.runtime import make_upstream_context  # noqa: E402
from mcproxy.http.deadlines import Deadlines  # noqa: E402
from mcproxy.http.server_factory import ServerFactory  # noqa: E402
from mcproxy.tunnels.dialer import Dialer  # noqa: E402


def main(url: str, authority: str, tokens: str, count: int, port: int) -> None:
    """Dial until the process is ended."""
    deadlines = Deadlines(reactor)
    context = make_upstream_context(reactor, deadlines, lambda endpoint: None)
    tls = model.DialTLS(ca=model.PEMFile(authority, Path(authority).read_bytes()))
    dialers = []
    for number in range(count):
        name = f"edge-{number}"
        dial = model.Dial(
            tunnel=name,
            urls=(url,),
            server_name="localhost",
            tls=tls,
            credentials=model.DialCredentials(token_file=str(Path(tokens) / name)),
        )
        factory = ServerFactory(deadlines, model.Limits(), lambda exchange: None, lambda *_: (b"", b""), name=name)
        dialer = Dialer(dial, instance=os.urandom(16).hex(), context=context, deadlines=deadlines, factory=factory)
        dialer.start_accepting()
        dialers.append(dialer)

    class Count(Protocol):
        def connectionMade(self) -> None:
            up = sum(link.is_up for dialer in dialers for link in dialer.links)
            transport: Any = self.transport
            transport.write(b"%d" % up)
            transport.loseConnection()

    counting: Any = Factory.forProtocol(Count)
    counting.noisy = False
    reactor.listenTCP(port, counting, interface="127.0.0.1")
    reactor.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
