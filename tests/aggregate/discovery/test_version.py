"""/version of an aggregate: the primary's, else the lowest of the members that can be reached."""

from __future__ import annotations

import json

import pytest

from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.reflector.member_calls import MemberError
from mcproxy.upstream.control import ControlResponse
from tests.aggregate.discovery.stage import FakeSource, ask, discovery_of, fleet, now, recorded_response, source
from tests.support.clock import DATE, Clock


def cluster(name: str, version: str, **more: str) -> FakeSource:
    body = json.dumps({"major": "1", "gitVersion": version, **more}).encode()
    return source(name, (), **{"/version": ControlResponse(200, (), body)})


def served(*sources: FakeSource, primary: str | None = None, clock: Clock | None = None) -> str:
    members = tuple(one.name for one in sources if not one.name.startswith("hub"))
    found = discovery_of(*sources, config=fleet(clusters=members, primary=primary), clock=clock)
    response = now(ask(found.serve, "/version?timeout=32s"))
    assert response.status == 200
    version: str = json.loads(response.body)["gitVersion"]
    return version


def as_source(member: Member) -> Member:
    """Checked by mypy: a member of the reflector's room is what this one needs."""
    return member


def test_the_document_is_passed_on_as_it_is() -> None:
    one = source("east", (), **{"/version": recorded_response("probes/version")})
    for path in ("/version", "/version/"):
        response = now(ask(discovery_of(one).serve, path))
        assert response.body == recorded_response("probes/version").body
        assert response.header("content-type") == "application/json"
        assert response.header("cache-control") == "no-cache, private"


def test_the_primarys() -> None:
    assert served(cluster("east", "v1.30.0"), cluster("hub", "v1.36.2"), primary="hub") == "v1.36.2"


@pytest.mark.parametrize(
    ("versions", "lowest"),
    [
        (["v1.36.2", "v1.9.12", "v1.35.0"], "v1.9.12"),
        (["v1.33.10", "v1.33.9-gke.1500"], "v1.33.9-gke.1500"),
        (["v1.36.2", "nonsense"], "v1.36.2"),
    ],
)
def test_the_lowest_of_the_members(versions: list[str], lowest: str) -> None:
    assert served(*(cluster(f"m{index}", version) for index, version in enumerate(versions))) == lowest


def test_a_member_that_cannot_be_reached_does_not_count() -> None:
    old = cluster("east", "v1.20.0")
    old.unavailable_since = DATE
    assert served(old, cluster("west", "v1.36.0")) == "v1.36.0"
    assert not old.asked


def test_the_members_where_the_primary_has_never_told() -> None:
    hub = cluster("hub", "v1.36.2")
    hub.answers["/version"] = MemberError("broken")
    assert served(cluster("east", "v1.30.0"), hub, primary="hub") == "v1.30.0"


def test_a_black_holed_member_is_not_waited_for_long() -> None:
    clock = Clock()
    hole = cluster("east", "v1.20.0")
    hole.black_hole = True
    found = discovery_of(hole, cluster("west", "v1.36.0"), clock=clock)
    waiting = ask(found.serve, "/version")
    clock.advance(2.9)
    assert not waiting.called
    clock.advance(0.2)
    assert b"v1.36.0" in now(waiting).body


def test_it_is_asked_once_a_minute_and_the_last_answer_stays() -> None:
    clock = Clock()
    one = cluster("east", "v1.36.0")
    found = discovery_of(one, clock=clock)
    for _ in range(3):
        now(ask(found.serve, "/version"))
    assert len(one.asked) == 1
    clock.advance(61)
    one.answers["/version"] = cluster("east", "v1.37.0").answers["/version"]
    now(ask(found.serve, "/version"))
    assert b"v1.37.0" in now(ask(found.serve, "/version")).body
    assert len(one.asked) == 2
    one.unavailable_since = DATE
    clock.advance(600)
    assert b"v1.37.0" in now(ask(found.serve, "/version")).body
    assert len(one.asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        ControlResponse(403, (), b'{"gitVersion":"v1.36.0"}'),
        ControlResponse(200, (), b"not json"),
        ControlResponse(200, (), b'{"gitVersion":7}'),
        ControlResponse(200, (), b"\xff"),
        MemberError("broken"),
    ],
)
def test_nothing_is_passed_on_that_is_no_version(answer: ControlResponse | Exception) -> None:
    response = now(ask(discovery_of(source("east", (), **{"/version": answer})).serve, "/version"))
    assert response.status == 503
    assert json.loads(response.body)["message"] == "no cluster has told its version yet"


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT"])
def test_405(method: str) -> None:
    response = now(ask(discovery_of(cluster("east", "v1")).serve, "/version", method=method, Content_Length="0"))
    assert response.status == 405
