"""The channel between the supervisor and a child, over real sockets."""

import os
import resource
import socket
from collections.abc import Iterator

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred, gatherResults

from mcproxy.daemon.channel import MAX_DESCRIPTORS, Channel, ChannelMessage, Fields, socket_pair
from mcproxy.daemon.errors import DaemonError, ProcessError, ProcessLost
from mcproxy.net.tls_contexts import PairError
from tests.support.logged import captured_logs


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    here, there = (Channel(reactor, end) for end in socket_pair())
    yield here, there
    here.close()
    there.close()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_request_is_answered_with_what_its_handler_returns(channels: tuple[Channel, Channel]) -> None:
    here, there = channels
    there.on("double", lambda message: {"is": 2 * message["number"]})
    assert await here.ask("double", timeout=60, number=21) == {"is": 42}


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_requests_are_answered_out_of_order(channels: tuple[Channel, Channel]) -> None:
    here, there = channels
    waiting: dict[str, Deferred[None]] = {"a": Deferred(), "b": Deferred()}

    async def answer(message: ChannelMessage) -> Fields:
        await waiting[message["name"]]
        return {"name": message["name"]}

    there.on("wait", answer)
    first, second = (ensureDeferred(here.ask("wait", timeout=60, name=name)) for name in "ab")
    there.on("go", lambda message: waiting[message["name"]].callback(None))
    here.tell("go", name="b")
    assert await second == {"name": "b"}
    here.tell("go", name="a")
    assert await first == {"name": "a"}


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_messages_of_megabytes_pass_both_ways_at_once(channels: tuple[Channel, Channel]) -> None:
    text = "x" * 3_000_000
    for channel in channels:
        channel.on("echo", lambda message: {"text": message["text"]})
    answers = await gatherResults([ensureDeferred(each.ask("echo", timeout=60, text=text)) for each in channels])
    assert [len(answer["text"]) for answer in answers] == [3_000_000, 3_000_000]


def test_closing_after_the_rest_handles_what_an_ended_process_had_sent(channels: tuple[Channel, Channel]) -> None:
    here, there = channels
    received: list[int] = []
    here.on("note", lambda message: received.append(message["number"]))
    for number in range(100):
        there.tell("note", number=number, padding="p" * 300)
    there.close()
    here.close_after_rest()
    assert received == list(range(100))
    assert here.lost


def test_closing_after_the_rest_does_not_wait_for_who_still_has_the_other_end(
    channels: tuple[Channel, Channel],
) -> None:
    here, there = channels
    received: list[int] = []
    here.on("note", lambda message: received.append(message["number"]))
    there.tell("note", number=1)
    here.close_after_rest()
    assert received == [1]
    assert here.lost


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_each_message_has_its_own_descriptors(channels: tuple[Channel, Channel]) -> None:
    """Also when messages with many, with few and without descriptors wait together for a full socket."""
    here, there = channels
    files = [os.memfd_create(str(number)) for number in range(MAX_DESCRIPTORS + 50)]
    for number, file in enumerate(files):
        os.write(file, str(number).encode())
    received: list[list[int]] = []

    def take(message: ChannelMessage) -> None:
        received.append([int(os.pread(file, 10, 0)) for file in message.fds])
        assert not any(os.get_inheritable(file) for file in message.fds)
        message.close()

    there.on("take", take)
    there.on("last", lambda message: None)
    sizes = [3, 0, len(files), 1, 0, MAX_DESCRIPTORS, 2]
    for size in sizes:
        here.tell("take", files[:size], padding="p" * 200_000)
    for file in files:
        os.close(file)
    await here.ask("last", timeout=60)
    assert received == [list(range(size)) for size in sizes]


def limit_with_free(count: int) -> int:
    """Return a limit of descriptors below which about `count` are free, whatever other tests have left open."""
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    limit = 0
    while count:
        count -= limit not in used
        limit += 1
    return limit


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_descriptors_that_do_not_fit_refuse_one_request_alone(channels: tuple[Channel, Channel]) -> None:
    here, there = channels
    there.on("take", lambda message: message.close())
    files = [os.memfd_create("file") for _ in range(8)]
    before = len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit_with_free(4), limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            await here.ask("take", files, timeout=60)
        assert await here.ask("take", files[:1], timeout=60) == {}
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for file in files:
            os.close(file)


@pytest.mark.parametrize(
    "error",
    [
        DaemonError("state directory /x: missing", todo="make it"),
        PairError("certificate a: no PEM"),
        FileNotFoundError(2, "No such file or directory", "/var/log/access.log"),
    ],
)
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_operational_error_is_raised_as_it_was(channels: tuple[Channel, Channel], error: Exception) -> None:
    here, there = channels

    def fail(message: ChannelMessage) -> None:
        raise error

    there.on("fail", fail)
    with pytest.raises(type(error)) as raised:
        await here.ask("fail", timeout=60)
    assert str(raised.value) == str(error)
    assert getattr(raised.value, "todo", "") == getattr(error, "todo", "")


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_bug_is_an_error_here_and_has_its_traceback_there(channels: tuple[Channel, Channel]) -> None:
    here, there = channels
    there.on("fail", lambda message: {"is": 1 // message["by"]})
    with captured_logs() as events, pytest.raises(ProcessError, match="ZeroDivisionError"):
        await here.ask("fail", timeout=60, by=0)
    (failure,) = [event["log_failure"] for event in events if "log_failure" in event]
    assert "test_channel.py" in failure.getTraceback()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_kind_that_nobody_handles_is_refused_and_logged(channels: tuple[Channel, Channel]) -> None:
    here, there = channels
    there.on("known", lambda message: None)
    with captured_logs() as events:
        here.tell("unknown")
        with pytest.raises(ProcessError, match="unknown"):
            await here.ask("unknown", timeout=60)
    assert [event["kind"] for event in events if "kind" in event] == ["unknown", "unknown"]


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_whoever_waits_learns_that_the_other_process_is_gone(channels: tuple[Channel, Channel]) -> None:
    here, there = channels
    there.on("never", lambda message: Deferred())
    there.on("leave", lambda message: there.close())
    asked = ensureDeferred(here.ask("never", timeout=None))
    here.tell("leave")
    await here.when_lost()
    with pytest.raises(ProcessLost):
        await asked
    with pytest.raises(ProcessLost):
        await here.ask("never", timeout=None)
    here.tell("never")


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_no_answer_in_time_is_an_error_and_a_late_one_is_dropped(channels: tuple[Channel, Channel]) -> None:
    here, there = channels
    late: Deferred[Fields] = Deferred()
    there.on("slow", lambda message: late)
    there.on("quick", lambda message: None)
    with pytest.raises(ProcessError, match=r"no answer to slow within 0\.01 s"):
        await here.ask("slow", timeout=0.01)
    late.callback({})
    assert await here.ask("quick", timeout=60) == {}


def test_a_process_that_reads_nothing_is_lost_before_it_costs_all_memory() -> None:
    here, there = socket_pair()
    channel = Channel(reactor, here)
    with captured_logs() as events, there:
        for _ in range(8):
            channel.tell("more", text="x" * 15_000_000)
    assert channel.lost
    assert any("does not read its messages" in str(event.get("log_format")) for event in events)


def test_the_ends_are_closed_at_exec() -> None:
    ends = socket_pair()
    assert not any(end.get_inheritable() for end in ends)
    assert all(end.type == socket.SOCK_STREAM for end in ends)
    for end in ends:
        end.close()
