"""What is known of one API server's group-versions, whatever it answers."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import maybeDeferred

from mcproxy.aggregate.discovery import service_source
from mcproxy.aggregate.discovery.api_services import NEVER_READ, ServiceDocument
from mcproxy.aggregate.discovery.service_source import POLL, TIMEOUT, ServiceSource
from mcproxy.aggregate.reflector.member_calls import MemberError
from mcproxy.kube.discovery import AGGREGATED_MEDIA_TYPE
from mcproxy.net.wall_time import WallSeconds
from mcproxy.upstream.control import ControlResponse
from tests.aggregate.discovery.fake_api_server import FakeAPIServer, aggregated, answer, resource_list
from tests.support.clock import Clock
from tests.support.logged import captured_logs

KEY = ("x.io", "v1")
GV = "x.io/v1"


def source(server: FakeAPIServer, clock: Clock, *wanted: tuple[str, str]) -> ServiceSource:
    made = ServiceSource(server, clock, lambda: 0.5, maybeDeferred)
    made.want(wanted or (KEY,))
    return made


def names(document: ServiceDocument) -> list[str]:
    return [resource.resource for resource in document.resources]


def server_of(
    apis: ControlResponse | MemberError | None, **more: ControlResponse | MemberError | None
) -> FakeAPIServer:
    server = FakeAPIServer()
    server.answers = {"/apis": apis, **more}
    return server


def test_what_is_registered_is_read_and_nothing_else_of_it() -> None:
    groups = (GV, "x.io/v2", "apps/v1", *(f"g{number}.io/v1" for number in range(1000)))
    made = source(server_of(aggregated(*groups)), Clock())
    assert made.document(KEY).fresh
    assert names(made.document(KEY)) == ["things"]
    assert made.document(("apps", "v1")) == NEVER_READ


def test_a_poll_costs_a_304() -> None:
    clock, server = Clock(), server_of(aggregated(GV, etag='"1"'))
    made = source(server, clock)
    clock.advance(POLL + 1)
    assert server.conditions == ["", '"1"']
    assert made.document(KEY).fresh


@pytest.mark.parametrize("status", [200, 403, 404, 406, 500])
def test_without_an_aggregated_document_the_legacy_one_is_read(status: int) -> None:
    apis = answer({"kind": "APIGroupList", "groups": []}, status)
    made = source(server_of(apis, **{f"/apis/{GV}": resource_list(GV, "a", "b")}), Clock())
    assert made.document(KEY).fresh
    assert names(made.document(KEY)) == ["a", "b"]


def test_what_the_aggregated_document_does_not_name_is_asked_for_by_itself() -> None:
    server = server_of(aggregated("other.io/v1"), **{f"/apis/{GV}": resource_list(GV, "a")})
    made = source(server, Clock())
    assert names(made.document(KEY)) == ["a"]


RUBBISH: dict[str, ControlResponse | MemberError] = {
    "an error": answer(b"", 500),
    "HTML": answer(b"<html>", 200),
    "no JSON": answer(b'{"kind": "APIResourceList", "resources": [{"na', 200),
    "nested deeply": answer(b'{"a":' * 200_000, 200),
    "another's group": resource_list(GV, "a", says="apps/v1"),
    "core": resource_list(GV, "a", says="v1"),
    "too many resources": resource_list(GV, *(f"r{number}" for number in range(1001))),
    "too long": resource_list(GV, *(f"{'r' * 200}{number}" for number in range(900))),
    "endless": MemberError("the cluster answered with more than 4194304 bytes on /apis"),
    "a million elements": answer(b"[" + b"1," * 1_100_000 + b"1]", 200),
    "another kind": answer({"kind": "Status", "groupVersion": GV}, 200),
}


@pytest.mark.parametrize("form", ["aggregated", "legacy"])
@pytest.mark.parametrize("what", RUBBISH)
def test_rubbish_leaves_what_was_known_as_stale(what: str, form: str) -> None:
    clock, server = Clock(), server_of(aggregated(GV))
    made = source(server, clock)
    found = RUBBISH[what]
    if form == "aggregated" and isinstance(found, ControlResponse):
        headers = ((b"content-type", AGGREGATED_MEDIA_TYPE.encode()),)
        server.answers = {"/apis": ControlResponse(found.status, headers, found.body)}
    else:
        server.answers = {"/apis": answer(b"", 404), f"/apis/{GV}": found}
    with captured_logs() as events:
        clock.advance(POLL + 1)
    assert names(made.document(KEY)) == ["things"]
    assert not made.document(KEY).fresh
    assert [event["event"] for event in events] == ["api_service_discovery_unreadable"]
    server.answers = {"/apis": aggregated(GV, resources=("others",))}
    clock.advance(2)
    assert made.document(KEY) == ServiceDocument(made.document(KEY).resources, fresh=True)
    assert names(made.document(KEY)) == ["others"]


def test_an_outage_is_one_line_whatever_its_causes_are_and_rubbish_after_it_another() -> None:
    clock, server = Clock(), server_of(aggregated(GV))
    source(server, clock)

    def now(found: ControlResponse | MemberError) -> None:
        server.answers = {"/apis": found, f"/apis/{GV}": found}
        clock.pump([5.0] * 100)

    with captured_logs() as events:
        for cause in ("no whole answer on /apis within 5 s", "10.0.0.1:6443 refused the connection", "out for 7 s"):
            now(MemberError(cause))
    assert [event["cause"] for event in events] == ["no whole answer on /apis within 5 s"]
    with captured_logs() as events:
        now(answer(b"<html>", 200))
        now(MemberError("10.0.0.1:6443 refused the connection"))
        now(answer(b"", 500))
    assert len(events) == 1
    assert "not a discovery document" in events[0]["cause"]
    with captured_logs() as events:
        now(aggregated(GV))
        now(answer(b"", 500))
    assert ["answered 500" in event["cause"] for event in events] == [True]


@pytest.mark.parametrize("found", [None, MemberError("refused")], ids=["hangs", "refuses"])
def test_one_that_never_answered_is_stale_without_resources(found: MemberError | None) -> None:
    clock = Clock()
    made = source(server_of(found), clock)
    clock.advance(TIMEOUT + 0.1)
    assert made.document(KEY) == NEVER_READ


def test_one_that_hangs_is_given_up_and_asked_again() -> None:
    clock, server = Clock(), server_of(aggregated(GV))
    made = source(server, clock)
    server.answers = {"/apis": None}
    clock.advance(POLL + 1)
    assert made.document(KEY).fresh  # nothing is known to have changed yet
    clock.advance(TIMEOUT)
    assert not made.document(KEY).fresh
    server.answers = {"/apis": aggregated(GV)}
    clock.advance(2)
    assert made.document(KEY).fresh


def test_one_that_cannot_be_reached_is_stale_at_once_and_read_when_it_is_back() -> None:
    clock, server = Clock(), server_of(aggregated(GV))
    made = source(server, clock)
    told: list[bool] = []
    made.subscribe(lambda: told.append(made.document(KEY).fresh))
    server.set_unavailable(WallSeconds(1.0))
    assert told == [False]
    server.answers = {"/apis": aggregated(GV, resources=("others",))}
    clock.advance(5)
    server.set_unavailable(None)
    clock.advance(0)
    assert names(made.document(KEY)) == ["others"]


def test_it_is_read_once_a_second_at_most_however_many_ask() -> None:
    clock, server = Clock(), server_of(aggregated(GV))
    made = source(server, clock)
    for _ in range(100):
        made.renew(0.0)
    clock.advance(1.0)
    clock.advance(0.5)
    assert server.asked == ["/apis", "/apis"]


def test_renewing_asks_only_what_is_old() -> None:
    clock, server = Clock(), server_of(aggregated(GV))
    made = source(server, clock)
    clock.advance(1.4)
    assert made.is_recent(1.5)
    made.renew(1.5)
    assert len(server.asked) == 1
    clock.advance(0.2)
    assert not made.is_recent(1.5)
    made.renew(1.5)
    assert len(server.asked) == 2


def test_another_registration_is_read_at_once() -> None:
    clock, server = Clock(), server_of(aggregated(GV, "x.io/v2", etag='"1"'))
    made = source(server, clock)
    made.want([KEY, ("x.io", "v2")])
    clock.advance(1.0)
    assert server.conditions == ["", ""]
    assert made.document(("x.io", "v2")).fresh
    made.want([("x.io", "v2")])
    assert made.document(KEY) == NEVER_READ


def test_an_api_server_that_another_one_replaces_is_read_without_its_etag() -> None:
    clock, server = Clock(), server_of(aggregated(GV, etag='"1"'))
    made = source(server, clock)
    server.source = "elsewhere"
    made.moved()
    clock.advance(1.0)
    assert server.conditions == ["", ""]


LARGE: dict[str, Any] = {
    "aggregated": {"/apis": aggregated(GV)},
    "legacy": {"/apis": answer(b"", 404), f"/apis/{GV}": resource_list(GV, "things")},
}


@pytest.mark.parametrize("form", LARGE)
def test_large_documents_are_decoded_in_a_thread(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    def in_thread(function: Any, *arguments: Any) -> Any:
        called.append(function)
        return maybeDeferred(function, *arguments)

    monkeypatch.setattr(service_source, "_SMALL", 10)
    server = FakeAPIServer(**LARGE[form])
    made = ServiceSource(server, Clock(), lambda: 0.5, in_thread)
    made.want([KEY])
    assert made.document(KEY).fresh
    assert len(called) == 1


def test_a_legacy_document_is_no_larger_than_one_group_version_may_be() -> None:
    body = resource_list(GV, *(f"r{number}" for number in range(15_000)))
    with captured_logs() as events:
        made = source(server_of(answer(b"", 404), **{f"/apis/{GV}": body}), Clock())
    assert not made.document(KEY).fresh
    assert "bytes" in events[0]["cause"]


@pytest.mark.parametrize("found", [aggregated(GV), resource_list("other/v1")], ids=["good", "refused"])
def test_who_sends_what_takes_long_to_decode_is_asked_less(
    found: ControlResponse, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(range(1000))
    monkeypatch.setattr("time.thread_time", lambda: 0.5 * next(times))
    monkeypatch.setattr(service_source, "_SMALL", 10)
    clock = Clock()
    server = server_of(found, **{f"/apis/{GV}": resource_list("other/v1")})
    made = source(server, clock)
    before = len(server.asked)
    for _ in range(90):
        made.renew(0.0)
        clock.advance(0.1)
    assert len(server.asked) == before
    clock.advance(12.0)
    assert len(server.asked) > before


def test_a_hundred_group_versions_of_one_that_hangs_wait_for_one_answer() -> None:
    clock = Clock()
    wanted = [("x.io", f"v{number}") for number in range(1, 101)]
    server = server_of(answer(b"", 404), **{f"/apis/x.io/v{number}": None for number in range(1, 101)})
    source(server, clock, *wanted)
    clock.advance(TIMEOUT + 0.1)
    assert len(server.asked) == 2


def test_it_stops() -> None:
    clock, server = Clock(), server_of(None)
    made = source(server, clock)
    made.stop()
    assert not clock.getDelayedCalls()
