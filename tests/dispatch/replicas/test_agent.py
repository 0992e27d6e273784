"""Agents of several replicas with real tables and a real Redis, which stops, restarts, stands still and refuses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from redis import RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry
from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.logger import LogEvent

from mcproxy.config import model
from mcproxy.config.model import Per
from mcproxy.dispatch.replicas import redis_client as client_module
from mcproxy.dispatch.replicas.engine_thread import EngineThread
from mcproxy.dispatch.replicas.redis_client import RedisEngine
from tests.dispatch.replicas.live import LiveReplica, bucket, in_flight, run
from tests.support.logged import captured_logs
from tests.support.redis_server import RedisServer

LASTS, PERIOD = 0.4, 0.04
QPS = 400
BULK = bucket(QPS, 40)

pytestmark = pytest.mark.usefixtures("nothing_left_open")
Make = Callable[..., LiveReplica]


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("agents")) as started:
        yield started


@pytest.fixture
def server(module_server: RedisServer) -> Iterator[RedisServer]:
    """A server whose state is old: of a new one, nobody gets more than it has while a lease lasts."""
    with module_server.client() as client:
        client.flushall()
        for limit in ("bulk:bucket:All", "bulk:bucket:User", "interactive:short:All"):
            client.hset(f"{{mcproxy:{limit}}}:members", "#born", 1)
    yield module_server
    try:  # a client without retries
        with module_server.client(socket_timeout=0.5, retry=Retry(NoBackoff(), 0)) as client:
            usable = client.role()[0] == "master"
    except RedisError:
        usable = False
    if not usable:
        module_server.stop()
        module_server.start()


@pytest.fixture
def replica(server: RedisServer) -> Iterator[Make]:
    made: list[LiveReplica] = []

    def make(
        control: model.FlowControl = BULK, redis: model.RedisConfig | None = None, lasts: float = LASTS
    ) -> LiveReplica:
        name = f"replica-{len(made)}"
        made.append(LiveReplica(reactor, name, control, redis or server.config(), lasts=lasts, period=PERIOD))
        return made[-1]

    yield make
    for each in made:
        pytest_twisted.blockon(each.end())


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    for _ in range(round(seconds / 0.01)):
        if condition():
            return
        await deferLater(reactor, 0.01)
    raise AssertionError("it did not come true in time")


async def admitted_comes_to(replicas: Sequence[LiveReplica], rates: Sequence[float], rate: float) -> None:
    """Offer `rates` until `rate` a second is admitted in one of some windows: in others the machine may be busy."""
    seen = []
    for _ in range(100):
        begun = time.monotonic()
        seen.append(sum(await run(reactor, replicas, rates, 0.3)) / (time.monotonic() - begun) / rate)
        if 0.8 < seen[-1] < 1.15:
            return
    raise AssertionError(f"parts of it that were admitted: {seen}")


async def known(*replicas: LiveReplica, members: int | None = None) -> None:
    """Wait until all know each other and have their equal parts."""
    number = members or len(replicas)
    await until(lambda: all(r.agent.replicas == number and r.agent.established for r in replicas))


def lines(events: Sequence[LogEvent]) -> list[tuple[str, Any]]:
    return [(event["log_format"], event.get("todo")) for event in events if event["log_namespace"].endswith(".agent")]


def differences(events: Sequence[LogEvent]) -> list[LogEvent]:
    return [event for event in events if event["log_format"] == "replicas have different limits"]


AWAY = "the shared state is unavailable: limits over replicas are divided equally"
BACK = "the shared state is available again"


async def test_a_maximum_in_flight_is_never_exceeded_and_moves(replica: Make) -> None:
    replicas = [replica(in_flight(20)) for _ in range(3)]
    await known(*replicas)
    held = [0, 0, 0]

    def take(number: int) -> bool:
        held[number] += replicas[number].take()
        assert sum(held) <= 20
        return held[number] >= 18

    def release(number: int) -> None:
        for _ in range(held[number]):
            replicas[number].limiter.release("")
        held[number] = 0

    await until(lambda: take(0))
    release(0)
    await until(lambda: take(2))
    release(0)
    release(2)


async def test_users_have_limits_of_their_own(replica: Make) -> None:
    # A lease that no stall outlasts: one that is alone for a moment would have the whole burst.
    one, two = (replica(bucket(QPS, 40, Per.USER), lasts=20.0) for _ in range(2))
    await known(one, two)
    await until(lambda: all(each.tokens("alice") == each.tokens("bob") == 20 for each in (one, two)))
    for each in (one, two):
        each.stop_clock()  # 400 tokens a second are more than none while 100 requests are made
    assert [sum(each.take("alice") for _ in range(100)) for each in (one, two)] == [20, 20]  # equal parts of the burst
    assert sum(one.take("bob") for _ in range(100)) == 20


async def test_a_redis_that_is_gone_for_less_than_a_lease_is_not_noticed(server: RedisServer, replica: Make) -> None:
    replicas = [replica(lasts=10.0), replica(lasts=10.0)]  # longer than a busy machine needs for a start
    await known(*replicas)
    await admitted_comes_to(replicas, [900, 0], QPS)
    with captured_logs() as events:
        server.stop()
        server.start()
        await admitted_comes_to(replicas, [900, 0], QPS)
    assert lines(events) == []


@pytest.mark.slow
async def test_without_redis_each_has_an_equal_part_and_two_lines_say_so(server: RedisServer, replica: Make) -> None:
    # Longer than this process may stand still: that is another cause, with another line.
    replicas = [replica(lasts=2.0), replica(lasts=2.0)]
    await known(*replicas)
    with server.client() as client, captured_logs() as events:
        client.replicaof("127.0.0.1", "1")
        await until(lambda: all(each.agent.away for each in replicas))
        await admitted_comes_to(replicas, [900, 0], QPS / 2)
        client.replicaof("NO", "ONE")
        await until(lambda: not any(each.agent.away for each in replicas))
        await until(lambda: len(lines(events)) == 4)
    todo = "name the primary in url: this is a replica, or it became one"
    assert lines(events) == [(AWAY, todo)] * 2 + [(BACK, None)] * 2


@pytest.mark.slow
async def test_nothing_waits_for_a_redis_that_stands_still(
    server: RedisServer, replica: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "TIMEOUT", 8.0)  # much longer than a busy machine lets a process wait
    one = replica(lasts=2.0)
    await known(one)
    server.stand_still()
    with captured_logs() as events:
        clock, longest = reactor.seconds, 0.0
        before = clock()
        while not one.agent.away:
            await deferLater(reactor, 0.001)
            longest, before = max(longest, clock() - before), clock()
        assert longest < 4.0
        assert one.take()
        server.go_on()
        await until(lambda: not one.agent.away)
        server.stand_still()  # once more, before it was said that it is back
        await until(lambda: one.agent.away)
        server.go_on()
        await until(lambda: len(lines(events)) > 1)
    assert [line for line, _ in lines(events)] == [AWAY, BACK]


async def test_a_redis_that_never_was_there_leaves_each_the_whole_limit(server: RedisServer, replica: Make) -> None:
    server.stop()
    with captured_logs() as events:
        one = replica()
        await until(lambda: one.agent.away)
        await until(lambda: one.tokens() == 40)
        assert sum(one.take() for _ in range(100)) >= 40
    message = "the shared state is unavailable, no other replica is known: limits hold for this one alone"
    assert [line for line, _ in lines(events)] == [message]


async def test_one_that_stops_leaves_its_part_to_the_others_at_once(replica: Make) -> None:
    one, two = replica(), replica()
    await known(one, two)
    await two.agent.stop()
    await known(one, members=1)


async def test_different_limits_are_said_once_by_each(replica: Make) -> None:
    with captured_logs() as events:
        one, two = replica(), replica(bucket(100, 40))
        await known(one, two)
        await until(lambda: len(differences(events)) >= 2)
        await deferLater(reactor, 4 * PERIOD)  # for lines that must not come
    said = differences(events)
    assert {event["cause"] for event in said} == {
        "replica-1 has qps 100, burst 40, this one qps 400, burst 40",
        "replica-0 has qps 400, burst 40, this one qps 100, burst 40",
    }
    assert len(said) == 2


async def test_a_reload_may_change_the_limit_and_the_redis(server: RedisServer, replica: Make, tmp_path: Path) -> None:
    one, two = replica(), replica()
    await known(one, two)
    for each in (one, two):
        each.configure(bucket(100, 10), server.config())
    await admitted_comes_to([one, two], [900, 900], 100)
    (tmp_path / "other").mkdir()
    with RedisServer(tmp_path / "other") as other:
        for each in (one, two):
            each.configure(bucket(100, 10), other.config())
        await known(one, two)
        with other.client() as client, server.client() as old:
            members = "{mcproxy:bulk:bucket:All}:members"
            await until(lambda: client.hlen(members) == 3)  # beside the two, when it began
            await until(lambda: old.hlen(members) == 1)
        for each in (one, two):
            each.configure(bucket(100, 10), server.config())
        await known(one, two)


async def test_a_reload_may_end_it_and_begin_again(server: RedisServer, replica: Make) -> None:
    one, two = replica(), replica()
    await known(one, two)
    one.agent.configure(None, [])
    assert (one.agent.limits, one.agent.replicas) == (0, 0)
    await known(two, members=1)
    one.configure(BULK, server.config())
    await known(one, two)


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_engine_that_cannot_be_made_is_tried_again(replica: Make, server: RedisServer) -> None:
    one = replica()
    await known(one, members=1)
    one.agent.configure(None, [])
    failures = [OSError("too many open files")] * 3

    def fails(redis: model.RedisConfig) -> Any:
        if failures:
            raise failures.pop()
        return RedisEngine(redis)

    one.agent._connect = lambda config: EngineThread(reactor, config, fails)
    one.configure(BULK, server.config())
    await until(lambda: not failures)
    await known(one, members=1)
    await until(lambda: not one.agent.away)
