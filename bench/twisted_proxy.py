"""The plain twisted.web proxy of the comparison: a Site in front of an Agent with a connection pool, TLS on both sides.

Written as the Twisted documentation would have one write it: HTTP/1.1, a persistent pool, the response streamed with
back-pressure, hop-by-hop headers removed, the upstream's certificate verified.

usage: python -P twisted_proxy.py LISTEN UPSTREAM CERTIFICATE KEY AUTHORITY TOKEN
"""

# mypy: disallow-untyped-calls=False
# (most of twisted.web has no annotations)
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from twisted.internet import endpoints, protocol, reactor, ssl
from twisted.internet.interfaces import IPushProducer
from twisted.python.failure import Failure
from twisted.web.client import Agent, BrowserLikePolicyForHTTPS, HTTPConnectionPool, ResponseDone
from twisted.web.http_headers import Headers
from twisted.web.iweb import IResponse
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

_HOP_BY_HOP = (b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host")


class Passing(protocol.Protocol):
    """Writes an upstream's body into the client's response."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._open = True
        request.notifyFinish().addErrback(self._gone)

    def connectionMade(self) -> None:
        producer: object = self.transport
        if IPushProducer.providedBy(producer):
            self._request.registerProducer(producer, True)

    def dataReceived(self, data: bytes) -> None:
        if self._open:
            self._request.write(data)

    def connectionLost(self, reason: Failure = protocol.connectionDone) -> None:
        if not self._open:
            return
        self._request.unregisterProducer()
        if reason.check(ResponseDone):
            self._request.finish()
        else:
            self._request.loseConnection()

    def _gone(self, reason: Failure) -> None:
        self._open = False
        self._request.unregisterProducer()
        if self.transport is not None:
            self.transport.loseConnection()


class Proxy(Resource):
    """Sends every request to the one upstream."""

    isLeaf = True

    def __init__(self, agent: Agent, upstream: int, token: str) -> None:
        super().__init__()
        self._agent = agent
        self._base = b"https://localhost:%d" % upstream
        self._authorization = b"Bearer " + token.encode()

    def render(self, request: Request) -> int:
        headers = Headers({})
        for name, values in request.requestHeaders.getAllRawHeaders():
            if name.lower() not in _HOP_BY_HOP:
                headers.setRawHeaders(name, values)
        headers.setRawHeaders(b"authorization", [self._authorization])
        headers.setRawHeaders(b"x-forwarded-for", [request.getClientAddress().host.encode()])
        headers.setRawHeaders(b"x-forwarded-proto", [b"https"])
        headers.setRawHeaders(b"x-forwarded-host", [request.getHeader(b"host") or b""])
        sent = self._agent.request(request.method, self._base + request.uri, headers)
        sent.addCallbacks(self._answer, self._refuse, callbackArgs=(request,), errbackArgs=(request,))
        return NOT_DONE_YET

    def _answer(self, response: IResponse, request: Request) -> None:
        request.setResponseCode(response.code)
        for name, values in response.headers.getAllRawHeaders():
            if name.lower() not in _HOP_BY_HOP:
                request.responseHeaders.setRawHeaders(name, values)
        if isinstance(response.length, int):
            request.setHeader(b"content-length", b"%d" % response.length)
        response.deliverBody(Passing(request))

    def _refuse(self, failure: Failure, request: Request) -> None:
        request.setResponseCode(502)
        request.finish()


def main(listen: int, upstream: int, certificate: str, key: str, authority: str, token: str) -> None:
    """Serve until SIGTERM."""
    loop: Any = reactor
    pool = HTTPConnectionPool(loop)
    pool.maxPersistentPerHost = 4096
    policy = BrowserLikePolicyForHTTPS(ssl.Certificate.loadPEM(Path(authority).read_bytes()))
    pair = ssl.PrivateCertificate.loadPEM(Path(certificate).read_bytes() + Path(key).read_bytes())
    endpoint = endpoints.SSL4ServerEndpoint(loop, listen, pair.options(), backlog=4096, interface="127.0.0.1")
    endpoint.listen(Site(Proxy(Agent(loop, policy, pool=pool), upstream, token)))
    loop.run()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:7])
