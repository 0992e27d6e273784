"""Who asks for discovery waits for a cluster's documents once, and not for those that have just been read."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.defer import Deferred

from mcproxy.aggregate.discovery.merge_cache import AggregateMerges
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.reflector.member_discovery import MemberDiscovery
from tests.aggregate.discovery.fake_api_server import FakeAPIServer, aggregated
from tests.aggregate.discovery.stage import EverythingCached, FakeSource, fleet
from tests.support.clock import Clock


def test_documents_that_have_just_been_read_are_not_waited_for_again() -> None:
    clock, server = Clock(), FakeAPIServer("core")
    server.answers = {"/api": aggregated(), "/apis": aggregated("apps/v1")}
    discovery = MemberDiscovery("core", server.get, clock, lambda: 0.5)
    discovery.start()
    merges = AggregateMerges(clock)
    core = cast(Member, FakeSource("core", cast(Any, discovery)))
    merges.update(fleet(clusters=(), primary="core"), {"core": core}, EverythingCached())
    clock.advance(10)
    discovery.renew(1.0)
    done: list[Any] = []
    Deferred.fromCoroutine(merges.ready()).addBoth(done.append)
    assert done == [None]  # without another read, whose turn would come in a second
