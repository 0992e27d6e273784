"""Which requests of the proxy are sent again when their connection, shared with those of clients, ends."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.config.model import UpstreamProtocol
from mcproxy.upstream.control import ControlClient, ControlError, ControlResponse
from tests.http.h2.client_harness import response
from tests.http.h2.raw import goaway, settings
from tests.http.test_connection_pool import Play
from tests.upstream.fakes import make_upstream_context, some_endpoints


class NoCredentials:
    is_ready = True

    def authorization(self) -> bytes | None:
        return None

    def invalidate(self, refused: bytes | None) -> bool:
        return False


class Stage:
    def __init__(self) -> None:
        self.play = Play(UpstreamProtocol.AUTO)
        self.endpoint = some_endpoints(1)[0]
        self.endpoint.control_pool = self.play.pool
        self.control = ControlClient(NoCredentials(), make_upstream_context(self.play.clock))  # type: ignore[arg-type]

    def asks(self, method: str) -> list[Any]:
        """A request over a connection that is being opened; its answer, or why there is none, is added."""
        got: list[Any] = []
        work = self.control.request(self.endpoint, method, "/apis", timeout=5.0)
        Deferred.fromCoroutine(work).addCallbacks(got.append, lambda why: got.append(why.value))
        return got

    def opened(self) -> None:
        self.play.agrees(b"h2")
        self.play.wires[-1].deliver(settings())
        self.play.wires[-1].turn()

    def ends(self) -> None:
        """The server ends the connection for what another stream did, and has counted all of them."""
        self.play.wires[-1].deliver(goaway(1, 11))
        self.play.wires[-1].protocol.connectionLost()


def test_a_read_over_a_new_connection_that_another_stream_ends_is_repeated_once() -> None:
    stage = Stage()
    got = stage.asks("GET")
    stage.opened()
    stage.ends()
    assert got == []
    stage.opened()
    stage.play.wires[-1].deliver(response(1, end=True))
    [answer] = got
    assert isinstance(answer, ControlResponse)
    assert answer.status == 200


@pytest.mark.parametrize(("method", "times"), [("GET", 2), ("POST", 1)])
def test_what_ends_each_time_is_an_error(method: str, times: int) -> None:
    stage = Stage()
    got = stage.asks(method)
    for _ in range(times):
        assert got == []
        stage.opened()
        stage.ends()
    assert [type(each) for each in got] == [ControlError]
    assert stage.play.dials == []
