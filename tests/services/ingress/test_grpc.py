"""gRPC through an ingress, with the client and the server of grpcio: all kinds of calls, and how they end."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import pytest_twisted  # type: ignore[import-untyped]

from mcproxy.config import model
from mcproxy.config.model import Limits
from mcproxy.services.ingress.forward_target import AttemptOutcome
from tests.net.peers import in_thread, until
from tests.proxy.harness import listener
from tests.services.ingress.config import backend, ingress, path, rule
from tests.services.ingress.grpc_server import Calls, GRPCServer
from tests.services.ingress.stand import H2C, Front, Stand
from tests.services.ingress.whole import LISTENER, Whole, ingress_config


class Play:
    """Servers, a front before them, and clients of it."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.servers: list[GRPCServer] = []
        self.clients: list[Calls] = []

    def serve(self, front: Front, **options: int) -> GRPCServer:
        server = GRPCServer(f"pod{len(self.servers)}", **options)
        self.servers.append(server)
        front.to(server.port, H2C)
        return server

    def calls(self, front: Front) -> Calls:
        calls = Calls(front.port)
        self.clients.append(calls)
        return calls

    def close(self) -> None:
        for client in self.clients:
            client.channel.close()
        for server in self.servers:
            server.cancelled.set()
            server.stop()


@pytest.fixture
def play(stand: Stand) -> Iterator[Play]:
    play = Play(stand)
    yield play
    play.close()


async def test_unary_calls_with_metadata_both_ways(play: Play) -> None:
    front = play.stand.front()
    server = play.serve(front)
    calls = play.calls(front)

    def ask() -> Any:
        return calls.unary("Unary").with_call(b"hello", metadata=(("x-asked", "yes"), ("x-b-bin", b"\x01")), timeout=60)

    answer, call = await in_thread(ask)
    assert answer == b"hello pod0"
    assert dict(call.initial_metadata())["x-initial"] == "yes"
    assert call.trailing_metadata() == (("x-last", "end"), ("x-last-bin", b"\x00\xff"))
    deadline = server.deadlines[0]
    assert deadline is not None
    assert 10 < deadline <= 60  # grpc-timeout is passed on
    assert front.asked[0].outcomes == [AttemptOutcome.ANSWERED]


async def test_client_and_server_streams(play: Play) -> None:
    front = play.stand.front()
    play.serve(front)
    calls = play.calls(front)
    pieces = [b"%d," % number for number in range(500)]
    assert await in_thread(lambda: calls.join("Join")(iter(pieces), timeout=60)) == b"".join(pieces)
    assert await in_thread(lambda: list(calls.split("Split")(b"500", timeout=60))) == [b"%d" % n for n in range(500)]


async def test_a_dialogue_in_which_each_side_waits_for_the_other_and_closes_apart(play: Play) -> None:
    front = play.stand.front()
    play.serve(front)
    calls = play.calls(front)

    def talk() -> list[bytes]:
        said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        heard = []
        answers = calls.talk("Talk")(iter(said.get, None), timeout=60)
        for word in (b"one", b"two", b"three"):
            said.put(word)
            heard.append(next(answers))
        said.put(None)
        return [*heard, *answers]

    assert await in_thread(talk) == [b"heard one", b"heard two", b"heard three", b"bye"]


async def test_messages_of_some_megabytes_both_ways(play: Play) -> None:
    front = play.stand.front()
    play.serve(front, **{"grpc.max_receive_message_length": -1})
    channel = grpc.insecure_channel(f"127.0.0.1:{front.port}", options=[("grpc.max_receive_message_length", -1)])
    large = b"x" * 6_000_000
    try:
        answer = await in_thread(lambda: channel.unary_unary("/test.Echo/Unary")(large, timeout=60))
    finally:
        channel.close()
    assert answer == large + b" pod0"


@pytest.mark.slow
async def test_streams_of_many_messages_are_no_flood_of_control_frames(play: Play) -> None:
    """gRPC measures the bandwidth with PINGs, and opens windows in small steps."""
    front = play.stand.front()
    play.serve(front)
    calls = play.calls(front)
    message = b"x" * 400

    def stream() -> int:
        joined = calls.join("Join")(iter([message] * 5000), timeout=60)
        heard = list(calls.talk("Talk")(iter([message] * 5000), timeout=60))
        return len(joined) + len(heard)

    assert await in_thread(stream) == 5000 * 400 + 5001
    assert len({asked.exchange.connection for asked in front.asked}) == 1


async def test_a_status_without_a_message_is_passed_on(play: Play) -> None:
    front = play.stand.front()
    play.serve(front)
    calls = play.calls(front)

    def fail() -> Any:
        with pytest.raises(grpc.RpcError) as caught:
            calls.unary("Fail")(b"", timeout=60)
        return caught.value

    error = await in_thread(fail)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert error.details() == "not so, ünd so weiter"
    assert dict(error.trailing_metadata())["x-why"] == "because"


async def test_a_status_after_messages_is_passed_on(play: Play) -> None:
    front = play.stand.front()
    play.serve(front)
    calls = play.calls(front)

    def fail() -> Any:
        answers = calls.split("FailLate")(b"", timeout=60)
        assert next(answers) == b"first"
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        return caught.value

    error = await in_thread(fail)
    assert (error.code(), error.details()) == (grpc.StatusCode.DATA_LOSS, "later")


@pytest.mark.slow
async def test_the_clients_deadline_ends_the_call_and_not_the_connections(play: Play) -> None:
    front = play.stand.front()
    front.response_timeout = 0.1  # is none of a call's
    server = play.serve(front)
    calls = play.calls(front)

    def hang() -> Any:
        with pytest.raises(grpc.RpcError) as caught:
            calls.unary("Hang")(b"", timeout=5)
        return caught.value.code()

    assert await in_thread(hang) is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await in_thread(lambda: server.cancelled.wait(60))
    await in_thread(lambda: calls.unary("Unary")(b"", timeout=60))
    assert len({asked.exchange.connection for asked in front.asked}) == 1
    assert front.pods[0].counts()["HTTP/2.0"][0] == 1


async def test_cancelling_a_stream_cancels_it_at_the_pod(play: Play) -> None:
    front = play.stand.front()
    server = play.serve(front)
    calls = play.calls(front)

    def cancel() -> None:
        call = calls.talk("HangStream")(iter([b"x"]))
        assert next(call) == b"begun"
        assert server.hanging.wait(60)
        call.cancel()
        assert server.cancelled.wait(60)

    await in_thread(cancel)
    await until(lambda: front.asked[0].done)
    assert front.asked[0].outcomes == [AttemptOutcome.CANCELLED]


@pytest.mark.slow
async def test_a_call_may_be_silent_for_longer_than_a_body_or_a_client(play: Play) -> None:
    front = play.stand.front(limits=Limits(stall_timeout=1.0, idle_timeout=1.0))
    play.serve(front)
    calls = play.calls(front)

    def talk() -> list[bytes]:
        said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        answers = calls.talk("Talk")(iter(said.get, None), timeout=60)
        said.put(b"one")
        heard = [next(answers)]
        with pytest.raises(queue.Empty):
            queue.SimpleQueue[None]().get(timeout=3.0)
        said.put(b"two")
        said.put(None)
        return [*heard, *answers]

    assert await in_thread(talk) == [b"heard one", b"heard two", b"bye"]


async def test_many_calls_at_once_share_the_connections_to_a_pod(play: Play) -> None:
    front = play.stand.front()
    server = play.serve(front, **{"grpc.max_concurrent_streams": 4})
    calls = play.calls(front)

    def many() -> set[bytes]:
        futures = [calls.unary("Unary").future(b"%d" % number, timeout=60) for number in range(100)]
        return {future.result() for future in futures}

    assert await in_thread(many) == {b"%d pod0" % number for number in range(100)}
    assert server.calls == 100
    assert all(asked.outcomes == [AttemptOutcome.ANSWERED] for asked in front.asked)


async def test_connections_that_a_pod_takes_out_of_service_cost_no_call(play: Play) -> None:
    front = play.stand.front()
    aging = {"grpc.max_connection_age_ms": 100, "grpc.max_connection_age_grace_ms": 9000}
    server = play.serve(front, **aging)
    calls = play.calls(front)

    def ask() -> int:
        end = time.monotonic() + 1.5
        count = 0
        while time.monotonic() < end:
            futures = [calls.unary("Unary").future(b"x", timeout=60) for _ in range(10)]
            count += len([future.result() for future in futures])
        return count

    assert await in_thread(ask) == server.calls == len(front.asked)


async def test_a_pod_that_is_taken_out_and_ends_costs_no_call(play: Play) -> None:
    front = play.stand.front()
    first, second = play.serve(front), play.serve(front)
    calls = play.calls(front)

    def ask() -> list[bytes]:
        return [calls.unary("Unary")(b"", timeout=60) for _ in range(100)]

    assert set(await in_thread(ask)) == {b" pod0"}
    asking = in_thread(ask)
    front.registry.release(front.pods[0])  # no EndpointSlice has it any more
    first.stop(5)
    assert set(await asking) <= {b" pod0", b" pod1"}
    assert set(await in_thread(ask)) == {b" pod1"}
    assert second.calls >= 100


async def test_without_a_pod_the_call_is_unavailable(play: Play) -> None:
    front = play.stand.front()
    calls = play.calls(front)

    def fail() -> Any:
        with pytest.raises(grpc.RpcError) as caught:
            calls.unary("Unary")(b"", timeout=60)
        return caught.value.code()

    assert await in_thread(fail) is grpc.StatusCode.UNAVAILABLE


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_whole_proxy_takes_grpc_on_a_plain_listener_that_speaks_http2(play: Play, whole: Whole) -> None:
    plain = listener(
        LISTENER,
        tls=False,
        serves=model.Serves.INGRESS,
        protocols=(model.HTTPProtocol.HTTP2, model.HTTPProtocol.HTTP1),
    )
    via = backend("echo", protocol=model.BackendProtocol.HTTP2)
    await whole.serve(ingress_config(ingress("grpc", rule("", path("/test.Echo", via))), listeners=(plain,)))
    server = GRPCServer()
    play.servers.append(server)
    whole.endpoints("echo", server.port)
    calls = Calls(whole.port(0))
    play.clients.append(calls)
    answer, call = await in_thread(lambda: calls.unary("Unary").with_call(b"hello", timeout=60))
    assert answer == b"hello one"
    assert dict(call.trailing_metadata())["x-last"] == "end"
    assert await in_thread(lambda: list(calls.talk("Talk")(iter([b"a", b"b"]), timeout=60))) == [
        b"heard a",
        b"heard b",
        b"bye",
    ]
