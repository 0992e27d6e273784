"""When a request is sent again: only where nothing was processed, or it may be, and never with half of its body."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mcproxy.config.model import UpstreamProtocol
from mcproxy.http.exchange import Exchange
from mcproxy.http.h2.frames import END_HEADERS, END_STREAM
from mcproxy.http.messages import CHUNKED
from mcproxy.http.request_relay import MAX_KEPT
from mcproxy.services.ingress.forward_target import AttemptOutcome, Failure, Target
from tests.http.h2 import raw
from tests.net.peers import until
from tests.services.ingress.stand import H2C, Asked, Stand
from tests.services.ingress.test_ingress_forward import Echo
from tests.support.ports import reserved_port

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
DIES = b""  # an answer of no byte; the connection is closed


@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_where_nothing_listens_the_next_pod_gets_it_whatever_the_method(stand: Stand, method: bytes) -> None:
    front = stand.front()
    front.to(reserved_port())
    front.to(stand.pod(Echo))
    got = await front.client().ask(method, body=b"body" if method == b"POST" else b"")
    assert got.status == 200
    assert front.asked[0].outcomes == [AttemptOutcome.CONNECT_FAILED, AttemptOutcome.ANSWERED]
    assert [pod.in_flight for pod in front.pods] == [0, 0]


async def test_where_no_pod_can_be_connected_to_it_is_502_after_some_attempts(stand: Stand) -> None:
    front = stand.front()
    for _ in range(8):
        front.to(reserved_port())
    got = await front.client().ask()
    assert got.status == 502
    assert front.asked[0].failure is Failure.UNREACHABLE
    assert front.asked[0].outcomes == [AttemptOutcome.CONNECT_FAILED] * 3


async def test_without_pods_it_is_503(stand: Stand) -> None:
    front = stand.front()
    assert (await front.client().ask()).status == 503


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"POST", b"PATCH"])
async def test_a_pod_that_closes_without_an_answer_has_another_tried_for_idempotent_methods(
    stand: Stand, method: bytes
) -> None:
    front, first = stand.front(), stand.raw_pod()
    first.answers, first.ends = [DIES], 1
    front.to(first.port)
    front.to(stand.pod(Echo))
    body = b"body" if method in (b"PUT", b"POST", b"PATCH") else b""
    got = await front.client().ask(method, body=body)
    asked = front.asked[0]
    if method in (b"POST", b"PATCH"):
        assert got.status == 502
        assert asked.outcomes == [AttemptOutcome.UNANSWERED]
    else:
        assert got.status == 200
        assert asked.outcomes == [AttemptOutcome.UNANSWERED, AttemptOutcome.ANSWERED]
        if method == b"PUT":
            assert got.body.endswith(b" body")


async def test_retries_are_bounded(stand: Stand) -> None:
    front = stand.front()
    front.retries = 2
    pods = [stand.raw_pod() for _ in range(5)]
    for pod in pods:
        pod.answers, pod.ends = [DIES], 1
        front.to(pod.port)
    got = await front.client().ask()
    assert got.status == 502
    assert front.asked[0].outcomes == [AttemptOutcome.UNANSWERED] * 3


async def test_a_body_that_is_too_large_to_be_kept_is_not_sent_again(stand: Stand) -> None:
    front, first = stand.front(), stand.raw_pod()
    front.to(first.port)
    front.to(stand.pod(Echo))
    asking = await front.client().begin(b"PUT", length=CHUNKED)
    asking.send(b"x" * (MAX_KEPT + 1))
    asking.end()
    await until(lambda: first.connections and len(first.connections[0].received) > MAX_KEPT)
    first.connections[0].transport.loseConnection()  # type: ignore[union-attr]
    await asking.wait()
    assert asking.status == 502
    assert front.asked[0].outcomes == [AttemptOutcome.UNANSWERED]


async def test_a_response_that_has_begun_is_never_tried_again(stand: Stand) -> None:
    front, first = stand.front(), stand.raw_pod()
    first.answers, first.ends = [b"HTTP/1.1 200 OK\r\nContent-Le"], 1
    front.to(first.port)
    front.to(stand.pod(Echo))
    got = await front.client().ask()
    assert got.status == 502
    assert front.asked[0].outcomes == [AttemptOutcome.UNANSWERED]


async def test_a_kept_connection_that_was_dead_is_no_failure_of_its_pod(stand: Stand) -> None:
    front, pod = stand.front(), stand.raw_pod()
    target = front.to(pod.port)
    pod.answers = [OK]
    client = front.client()
    await client.ask()
    pod.answers, pod.ends = [DIES, OK], 1  # the next request meets the end of the connection
    asking = await client.ask()
    assert asking.body == b"ok"
    assert front.asked[1].outcomes == [AttemptOutcome.ANSWERED]
    assert target.in_flight == 0


async def test_an_answer_that_is_late_is_504_once_no_other_pod_has_one(stand: Stand) -> None:
    front, first, second = stand.front(), stand.raw_pod(), stand.raw_pod()
    front.response_timeout = 0.1
    front.to(first.port)
    front.to(second.port)
    got = await front.client().ask()
    assert got.status == 504
    assert front.asked[0].outcomes == [AttemptOutcome.TIMED_OUT] * 2
    assert (len(first.heads), len(second.heads)) == (1, 1)


async def test_a_late_answer_to_a_post_is_504_at_once(stand: Stand) -> None:
    front, first, second = stand.front(), stand.raw_pod(), stand.raw_pod()
    front.response_timeout = 0.1
    front.to(first.port)
    front.to(second.port)
    got = await front.client().ask(b"POST", body=b"x")
    assert got.status == 504
    assert not second.heads


UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"
LONG = UNAVAILABLE.replace(b"Content-Length: 4", b"Content-Length: 99")  # the rest of its body never comes


@pytest.mark.parametrize("answer", [UNAVAILABLE, LONG], ids=["whole", "begun"])
@pytest.mark.parametrize("method", [b"GET", b"PUT", b"POST"])
async def test_a_status_that_is_named_has_another_pod_tried_for_idempotent_methods(
    stand: Stand, method: bytes, answer: bytes
) -> None:
    front, first = stand.front(), stand.raw_pod()
    front.retry_on = (503,)
    first.answers = [answer]
    front.to(first.port)
    front.to(stand.pod(Echo))
    client = front.client()
    asking = await client.begin(method, length=0 if method == b"GET" else CHUNKED)
    if method != b"GET":
        asking.send(b"body")
        asking.end()
    if method == b"POST":
        await until(lambda: asking.head)
        assert asking.status == 503
        assert asking.stream is not None
        asking.stream.cancel()
        await until(lambda: front.asked[0].done)
        assert len(front.asked[0].chosen) == 1
        return
    await asking.wait()
    assert asking.status == 200
    assert front.asked[0].outcomes == [AttemptOutcome.REJECTED, AttemptOutcome.ANSWERED]
    assert method == b"GET" or asking.body.endswith(b" body")
    assert [pod.in_flight for pod in front.pods] == [0, 0]
    await until(lambda: front.pods[0].counts().get("HTTP/1.1", (0, 0))[1] == 0)


async def test_the_last_answer_is_passed_on_where_no_other_pod_is_left(stand: Stand) -> None:
    front, first = stand.front(), stand.raw_pod()
    front.retry_on = (503,)
    first.answers = [UNAVAILABLE]
    front.to(first.port)
    got = await front.client().ask()
    assert (got.status, got.body) == (503, b"busy")
    assert front.asked[0].outcomes == [AttemptOutcome.ANSWERED]


async def test_three_tries_are_all_whatever_they_meet(stand: Stand) -> None:
    front = stand.front()
    front.retry_on, front.retries = (503,), 9
    pods = [stand.raw_pod() for _ in range(5)]
    for pod in pods:
        pod.answers = [UNAVAILABLE]
        front.to(pod.port)
    got = await front.client().ask()
    assert got.status == 503
    assert front.asked[0].outcomes == [AttemptOutcome.REJECTED] * 2 + [AttemptOutcome.ANSWERED]
    assert [len(pod.heads) for pod in pods] == [1, 1, 1, 0, 0]


async def test_other_statuses_are_the_pods_own(stand: Stand) -> None:
    front, first = stand.front(), stand.raw_pod()
    front.retry_on = (502,)
    first.answers = [UNAVAILABLE]
    front.to(first.port)
    front.to(stand.pod(Echo))
    assert (await front.client().ask()).status == 503


REFUSED = raw.settings() + raw.rst_stream(1, 0x7)
GONE = raw.settings() + raw.goaway(0)


@pytest.mark.parametrize(
    "refusals", [[REFUSED, raw.rst_stream(3, 0x7)], [GONE, GONE]], ids=["REFUSED_STREAM", "GOAWAY"]
)
async def test_what_a_pod_refuses_unprocessed_is_sent_again_with_its_body_whatever_the_method(
    stand: Stand, refusals: list[bytes]
) -> None:
    front, first = stand.front(), stand.raw_pod()
    first.answers = refusals.copy()
    front.to(first.port, H2C)
    front.to(stand.pod(Echo), H2C)
    got = await front.client(UpstreamProtocol.HTTP2).ask(b"POST", body=b"body")
    assert got.status == 200
    assert got.body.endswith(b"HTTP/2.0 body")
    assert front.asked[0].outcomes[-1] is AttemptOutcome.ANSWERED


async def test_a_goaway_lets_what_was_taken_end_and_the_next_request_connects_anew(stand: Stand) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port, H2C)
    head = raw.headers(1, raw.fields((b":status", b"200")), END_HEADERS)
    pod.answers = [raw.settings() + head + raw.goaway(1)] * 2
    client = front.client()
    first = await client.begin()
    await until(lambda: first.head)
    second = await client.begin()
    await until(lambda: second.head)
    assert len(pod.connections) == 2
    for connection, asking in zip(pod.connections, (first, second), strict=True):
        connection.send(raw.data(1, b"all", END_STREAM))
        await asking.wait()
        assert asking.body == b"all"


async def test_a_pod_that_is_gone_keeps_its_requests_and_gets_no_other(stand: Stand) -> None:
    held: list[Exchange] = []
    front = stand.front()
    pod = front.to(stand.pod(held.append))
    asking = await front.client().begin()
    await until(lambda: held)
    front.registry.release(pod)
    other = front.to(stand.pod(Echo))
    assert (await front.client().ask()).status == 200
    held[0].answer(200, b"", b"still")
    await asking.wait()
    assert asking.body == b"still"
    assert (pod.in_flight, other.in_flight) == (0, 0)
    assert pod.counts()["HTTP/1.1"] == (0, 0)


async def test_what_waits_for_a_connection_to_a_pod_that_goes_takes_another(stand: Stand) -> None:
    front = stand.front()
    front.hanging.add(1)
    pending = front.to(1)
    asking = await front.client().begin()
    await until(lambda: front.asked)
    front.to(stand.pod(Echo))
    front.registry.release(pending)
    await asking.wait()
    assert asking.status == 200
    assert front.asked[0].outcomes == [AttemptOutcome.ANSWERED]
    assert pending.in_flight == 0


async def test_a_bug_in_the_choice_of_another_pod_is_answered(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    front = stand.front()
    pod = front.to(reserved_port())

    def choose(asked: Asked, tried: Sequence[Target]) -> Target:
        if tried:
            raise ZeroDivisionError
        return pod

    monkeypatch.setattr(Asked, "choose", choose)
    assert (await front.client().ask()).status == 500
    assert front.bugs == 1
    assert pod.in_flight == 0
