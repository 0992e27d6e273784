"""A document of each cluster, as last read: when it is read again, who waits, what stays."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from mcproxy.aggregate.discovery.last_read import LastRead
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.reflector.member_calls import MemberError, MemberUnreachable
from mcproxy.kube.discovery import DiscoveryError
from mcproxy.net.failures import failure
from tests.aggregate.discovery.stage import FakeSource, source
from tests.support.clock import DATE, Clock
from tests.support.logged import captured_logs


class Script:
    """Reads that the test answers."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.reads: list[tuple[str, str | None, Deferred[str]]] = []
        self.documents: LastRead[str] = LastRead("the document", self.clock, self.read, lifetime=10.0, patience=3.0)

    async def read(self, cluster: Member, last: str | None) -> str:
        deferred: Deferred[str] = Deferred()
        self.reads.append((cluster.name, last, deferred))
        return await deferred

    def refresh(self, *sources: FakeSource, wait_for_old: bool = True) -> Deferred[None]:
        return Deferred.fromCoroutine(self.documents.refresh(sources, wait_for_old=wait_for_old))

    def answer(self, content: Any, index: int = -1) -> None:
        if isinstance(content, Exception):
            self.reads[index][2].errback(failure(content))
        else:
            self.reads[index][2].callback(content)


EAST, WEST = source("east", ()), source("west", ())


def test_it_is_read_when_it_is_old() -> None:
    script = Script()
    first = script.refresh(EAST)
    script.answer("1")
    assert first.called
    assert script.documents.known("east") == "1"
    assert script.refresh(EAST).called
    script.clock.advance(10)
    script.refresh(EAST)
    assert [(name, last) for name, last, _ in script.reads] == [("east", None), ("east", "1")]


def test_all_are_read_at_once_and_each_once() -> None:
    script = Script()
    first, second = script.refresh(EAST, WEST), script.refresh(WEST)
    assert [name for name, _, _ in script.reads] == ["east", "west"]
    script.answer("w", 1)
    assert (first.called, second.called) == (False, True)
    script.answer("e", 0)
    assert first.called


def test_nobody_waits_longer_than_the_patience_and_the_read_goes_on() -> None:
    script = Script()
    waiting = script.refresh(EAST)
    script.clock.advance(2.9)
    assert not waiting.called
    script.clock.advance(0.2)
    assert bool(waiting.called)
    script.answer("late")
    assert script.documents.known("east") == "late"
    assert script.clock.getDelayedCalls() == []


def test_who_goes_away_leaves_the_read_to_others() -> None:
    script = Script()
    gone, stays = script.refresh(EAST), script.refresh(EAST)
    gone.addErrback(lambda _: None)
    gone.cancel()
    script.answer("1")
    assert stays.called
    assert script.documents.known("east") == "1"
    assert script.clock.getDelayedCalls() == []


def test_what_is_only_old_need_not_be_waited_for() -> None:
    script = Script()
    script.refresh(EAST)
    script.answer("1")
    script.clock.advance(10)
    assert script.refresh(EAST, wait_for_old=False).called
    assert not script.refresh(EAST).called
    assert len(script.reads) == 2


def test_the_last_one_stays_and_a_failed_read_is_not_repeated_at_once() -> None:
    script = Script()
    script.refresh(EAST)
    script.answer("1")
    for error in (MemberError("broken"), DiscoveryError("malformed")):
        script.clock.advance(10)
        waiting = script.refresh(EAST)
        script.answer(error)
        assert waiting.called
        assert script.documents.known("east") == "1"
        before = len(script.reads)
        assert script.refresh(EAST).called
        assert len(script.reads) == before
        script.clock.advance(2)
        script.refresh(EAST)
        assert len(script.reads) == before + 1
        script.answer("1")


def test_a_cluster_that_cannot_be_reached_is_not_asked() -> None:
    script = Script()
    away = source("away", ())
    away.unavailable_since = DATE
    assert script.refresh(away).called
    assert not script.reads


def test_expire_and_forget() -> None:
    script = Script()
    script.refresh(EAST, WEST)
    script.answer("e", 0)
    script.answer("w", 1)
    script.documents.expire(["east"])
    script.refresh(EAST, WEST)
    assert [name for name, _, _ in script.reads] == ["east", "west", "east"]
    assert script.documents.known("east") == "e"
    script.documents.forget(["west"])
    assert (script.documents.known("east"), script.documents.known("west")) == (None, "w")


def test_each_new_cause_is_logged_once() -> None:
    script = Script()

    def fail(error: Exception | str) -> list[str]:
        with captured_logs() as events:
            script.refresh(EAST)
            script.answer(error)
        script.clock.advance(10)
        return [f"{event['document']} of {event['cluster']}: {event['cause']}" for event in events]

    first = "the document of east: the cluster answered 403 on /x"
    assert fail(DiscoveryError("the cluster answered 403 on /x")) == [first]
    assert fail(DiscoveryError("the cluster answered 403 on /x")) == []
    assert fail(MemberError("broken")) == ["the document of east: broken"]
    assert fail(MemberUnreachable("no endpoint is ready")) == []
    assert fail("well") == []
    assert fail(MemberError("broken")) == ["the document of east: broken"]


def test_nothing_is_kept_of_a_cluster_that_is_gone_even_if_it_was_never_read() -> None:
    script = Script()
    script.refresh(EAST, WEST)
    script.answer("1", 0)
    script.answer(MemberError("no"), 1)
    script.documents.forget(["east"])
    script.refresh(EAST, WEST)
    assert [name for name, _, _ in script.reads] == ["east", "west", "west"]  # at once: it is another one
