"""Which room answers which request to an aggregate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mcproxy.aggregate.authorization import MemberReads
from mcproxy.aggregate.handler import Handler
from mcproxy.config import model
from mcproxy.identity.authorization.access_review import Decision
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from tests.aggregate.fake_request import FakeRequest

ALICE = UserInfo("alice", ("dev", "system:authenticated"))
NAMES = ("east", "west")
PODS = GroupVersionResource("", "v1", "pods")
METRICS = GroupVersionResource("metrics.k8s.io", "v1beta1", "pods")
WIDGETS = GroupVersionResource("demo.example.com", "v1", "widgets")


CLUSTER_WIDE = (GroupVersionResource("", "v1", "nodes"), GroupVersionResource("", "v1", "namespaces"))


def resource(gvr: GroupVersionResource) -> APIResource:
    return APIResource(gvr, "Any", "any", namespaced=gvr not in CLUSTER_WIDE, verbs=frozenset({"get", "list"}))


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


class FakeView:
    def __init__(self, gvr: GroupVersionResource) -> None:
        self.resource = resource(gvr)
        self.members = tuple(Named(name) for name in NAMES)


class Rooms:
    """All rooms; `called` says what was asked of which."""

    def __init__(self, refused: Sequence[str] = ()) -> None:
        self.clock = Clock()
        self.called: list[Any] = []
        self.views = {gvr: FakeView(gvr) for gvr in (PODS, WIDGETS, *CLUSTER_WIDE)}
        self.undiscovered: list[Any] = []
        self.refused = refused
        self.is_discovery = True
        self.asked: list[tuple[str, Attributes]] = []

    # the views
    def view(self, gvr: GroupVersionResource) -> Any:
        return self.views.get(gvr)

    def unwatchable(self, gvr: GroupVersionResource) -> APIResource | None:
        return resource(gvr) if gvr == METRICS else None

    def names(self, gvr: GroupVersionResource) -> bool:
        return gvr.group in ("", "metrics.k8s.io", "demo.example.com") and gvr.resource != "secrets"

    # the rooms
    async def get(self, request: Any, view: Any, allowed: Any, left_out: Any) -> None:
        self.called.append(("get", allowed))

    async def list(self, request: Any, view: Any, allowed: Any, left_out: Any, known_field: Any) -> None:
        self.called.append(("list", allowed))

    async def fan_out(self, request: Any, resource: Any) -> None:
        self.called.append("fan_out")

    async def self_review(self, request: Any) -> None:
        self.called.append("self_review")

    def handler(self, primary: str | None = "east") -> Handler:
        return Handler(
            cast(Any, self.clock),
            self,
            authorization=MemberReads(model.Reads(), self.reviewer),
            discovery=Discovery(self),
            reads=self,
            watches=Watch(self),
            writes=Writes(self),
            primary=primary,
            wait_until=10.0,
        )

    def reviewer(self, member: str) -> Any:
        return Reviewer(self, member)


class Reviewer:
    def __init__(self, rooms: Rooms, member: str) -> None:
        self.rooms = rooms
        self.member = member

    def known(self, user: UserInfo, attributes: Attributes) -> Decision:
        self.rooms.asked.append((self.member, attributes))
        return Decision(self.member not in self.rooms.refused)

    async def review(self, user: UserInfo, attributes: Attributes) -> Decision:
        raise AssertionError("everything is known")


class Discovery:
    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms

    async def serve(self, request: Any) -> bool:
        self.rooms.called.append(("discovery", request.members))
        return self.rooms.is_discovery

    async def known_field(self, request: Any, resource: Any) -> None:
        return None


class Watch:
    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms

    async def serve(self, request: Any, view: Any, reads: Any, known_field: Any) -> None:
        self.rooms.called.append("watch")


class Writes:
    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms

    async def serve(self, request: Any, resource: Any, view: Any) -> None:
        self.rooms.called.append(("write", request.info.verb, request.info.subresource, view is not None))

    async def fan_out(self, request: Any, resource: Any) -> None:
        self.rooms.called.append("fan_out")

    async def self_review(self, request: Any) -> None:
        self.rooms.called.append("self_review")


def handled(rooms: Rooms, request: FakeRequest, primary: str | None = "east") -> list[Any]:
    """Handle a request; the list gets None, or the error, when that is done."""
    result: list[Any] = []
    handling = Deferred.fromCoroutine(rooms.handler(primary).handle(request))
    handling.addCallbacks(result.append, lambda failure: result.append(failure.value))
    return result


def request(target: bytes, method: bytes = b"GET", members: Sequence[str] = NAMES) -> FakeRequest:
    return FakeRequest(target, ALICE, members, method=method)


NAMESPACE = b"/api/v1/namespaces/demo/pods"
WIDGET = b"/apis/demo.example.com/v1/namespaces/demo/widgets/a"
METRIC = b"/apis/metrics.k8s.io/v1beta1/namespaces/demo/pods"
REVIEW = b"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.mark.parametrize(
    ("method", "target", "called"),
    [
        (b"GET", NAMESPACE + b"/web", ("get", NAMES)),
        (b"GET", NAMESPACE, ("list", NAMES)),
        (b"GET", b"/api/v1/pods?limit=5", ("list", NAMES)),
        (b"GET", NAMESPACE + b"?watch=1", "watch"),
        (b"GET", b"/api/v1/watch/namespaces/demo/pods", "watch"),
        (b"POST", NAMESPACE, ("write", "create", "", True)),
        (b"PUT", NAMESPACE + b"/web", ("write", "update", "", True)),
        (b"PATCH", NAMESPACE + b"/web", ("write", "patch", "", True)),
        (b"DELETE", NAMESPACE + b"/web", ("write", "delete", "", True)),
        (b"DELETE", NAMESPACE, ("write", "deletecollection", "", True)),
        (b"GET", NAMESPACE + b"/web/log?follow=1", ("write", "get", "log", True)),
        (b"GET", NAMESPACE + b"/web/exec", ("write", "create", "exec", True)),
        (b"GET", NAMESPACE + b"/web/status", ("write", "get", "status", True)),
        (b"POST", NAMESPACE + b"/web/eviction", ("write", "create", "eviction", True)),
        (b"POST", WIDGET, ("write", "create", "", True)),
        (b"GET", b"/api/v1/nodes", ("list", NAMES)),
        (b"GET", b"/api/v1/namespaces/demo", ("get", NAMES)),
        (b"GET", b"/api/v1/watch/namespaces/demo", "watch"),
        (b"PUT", b"/api/v1/namespaces/demo/finalize", ("write", "update", "finalize", True)),
        (b"GET", METRIC, "fan_out"),
        (b"GET", METRIC + b"/web", "fan_out"),
        (b"DELETE", METRIC + b"/web", ("write", "delete", "", False)),
        (b"POST", REVIEW, "self_review"),
        (b"POST", b"/apis/authentication.k8s.io/v1/selfsubjectreviews", "self_review"),
        (b"GET", b"/api", ("discovery", NAMES)),
        (b"GET", b"/apis/apps/v1", ("discovery", NAMES)),
        (b"GET", b"/openapi/v3?x=y", ("discovery", NAMES)),
        (b"GET", b"/", ("discovery", NAMES)),
        (b"GET", b"/version", ("discovery", NAMES)),
        (b"GET", b"/livez/ping", ("discovery", NAMES)),
    ],
)
def test_each_request_goes_to_its_room(method: bytes, target: bytes, called: Any) -> None:
    rooms = Rooms()
    asked = request(target, method)
    assert handled(rooms, asked) == [None]
    assert rooms.called == [called]
    assert asked.forwarded == []


@pytest.mark.parametrize(
    ("method", "target"),
    [
        (b"OPTIONS", NAMESPACE),
        (b"HEAD", NAMESPACE),
        (b"HEAD", NAMESPACE + b"/web"),
        (b"TRACE", NAMESPACE),
        (b"PUT", NAMESPACE),
        (b"PATCH", NAMESPACE),
        (b"POST", NAMESPACE + b"/web"),
        (b"GET", METRIC + b"?watch=1"),
    ],
)
def test_methods_that_a_cluster_has_no_route_for_are_405(method: bytes, target: bytes) -> None:
    rooms = Rooms()
    [refusal] = handled(rooms, request(target, method))
    assert (refusal.code, refusal.reason) == (405, "MethodNotAllowed")
    assert refusal.message == "the server does not allow this method on the requested resource"
    assert rooms.called == []


@pytest.mark.parametrize(
    ("method", "target"),
    [
        (b"GET", b"/api/v1/namespaces/demo/nodes"),
        (b"GET", b"/api/v1/namespaces/demo/nodes?watch=1"),
        (b"GET", b"/api/v1/watch/namespaces/demo/nodes"),
        (b"GET", b"/api/v1/namespaces/demo/nodes/a"),
        (b"GET", b"/api/v1/namespaces/demo/namespaces"),
        (b"GET", b"/api/v1/namespaces/demo/namespaces/other"),
        (b"DELETE", b"/api/v1/namespaces/demo/nodes"),
        (b"PATCH", b"/api/v1/namespaces/demo/nodes/a"),
    ],
)
def test_a_right_in_a_namespace_shows_nothing_that_is_cluster_wide(method: bytes, target: bytes) -> None:
    rooms = Rooms()
    asked = request(target, method)
    [refusal] = handled(rooms, asked)
    assert (refusal.code, refusal.message) == (404, "the server could not find the requested resource")
    assert rooms.called == asked.forwarded == []


@pytest.mark.parametrize(
    "target",
    [
        b"/api/v1/namespaces/demo/secrets/a",
        b"/api/v2/pods",
        b"/apis/batch/v1/jobs",
        b"/apis/authorization.k8s.io/v1/subjectaccessreviews",
        b"/api/v1/proxy/namespaces/demo/pods/web",
        b"/metrics",
        b"/.well-known/openid-configuration",
    ],
)
def test_what_is_outside_the_scope_is_the_primarys_or_404(target: bytes) -> None:
    rooms = Rooms()
    asked = request(target)
    assert handled(rooms, asked) == [None]
    assert asked.forwarded == [("east", target)]
    [refusal] = handled(rooms, request(target), primary=None)
    assert (refusal.code, refusal.reason) == (404, "NotFound")
    assert rooms.called == []


def test_a_path_that_discovery_does_not_know_is_the_primarys() -> None:
    rooms = Rooms()
    rooms.is_discovery = False
    asked = request(b"/openapi/v9")
    handled(rooms, asked)
    assert asked.forwarded == [("east", b"/openapi/v9")]


def test_reads_have_the_objects_of_members_that_allow_it() -> None:
    rooms = Rooms(refused=["east"])
    handled(rooms, request(NAMESPACE))
    assert rooms.called == [("list", ("west",))]
    rooms = Rooms(refused=NAMES)
    [refusal] = handled(rooms, request(NAMESPACE + b"/web"))
    assert (refusal.code, refusal.message.split(":")[0]) == (403, 'pods "web" is forbidden')
    assert rooms.called == []


def test_discovery_shows_what_members_that_allow_it_have() -> None:
    rooms = Rooms(refused=["west"])
    handled(rooms, request(b"/apis"))
    assert rooms.called == [("discovery", ("east",))]
    assert rooms.asked[0] == ("east", Attributes("get", path="/apis", is_resource=False))
    rooms = Rooms(refused=NAMES)
    [refusal] = handled(rooms, request(b"/openapi/v2"))
    assert (refusal.code, refusal.message) == (403, 'forbidden: User "alice" cannot get path "/openapi/v2"')


def test_probes_and_version_are_for_everybody() -> None:
    rooms = Rooms(refused=NAMES)
    assert handled(rooms, request(b"/readyz")) == [None]
    assert rooms.asked == []


def test_a_resource_that_may_be_of_a_member_never_reached_is_waited_for_and_then_503() -> None:
    rooms = Rooms()
    rooms.undiscovered = [Named("west")]
    jobs = b"/apis/demo.example.com/v1/gadgets"
    result = handled(rooms, request(jobs))
    rooms.clock.advance(1)
    assert result == []
    rooms.views[GroupVersionResource("demo.example.com", "v1", "gadgets")] = FakeView(WIDGETS)
    rooms.undiscovered = []
    rooms.clock.advance(1)
    assert result == [None]
    assert rooms.called == [("list", NAMES)]
    rooms.undiscovered = [Named("west")]
    asked = request(b"/apis/demo.example.com/v1/others")
    result = handled(rooms, asked)
    rooms.clock.pump([1.0] * 10)
    [refusal] = result
    assert (refusal.code, refusal.reason) == (503, "ServiceUnavailable")
    assert asked.forwarded == []  # the primary alone must not pass for all of them


def test_a_member_never_reached_is_waited_for_no_longer_than_a_start_may_take() -> None:
    rooms = Rooms()
    rooms.undiscovered = [Named("west")]
    result = handled(rooms, request(NAMESPACE))
    rooms.clock.pump([1.0] * 9)
    assert result == []
    rooms.clock.advance(1.1)
    assert result == [None]
    assert rooms.called == [("list", NAMES)]
    asked = request(b"/apis/batch/v1/jobs")
    assert handled(rooms, asked) == [None]
    assert asked.forwarded


def test_errors_of_a_room_are_the_answer() -> None:
    rooms = Rooms()

    async def refuse(*_: Any) -> None:
        raise StatusError(410, "too old")

    cast(Any, rooms).list = refuse
    [refusal] = handled(rooms, request(NAMESPACE))
    assert refusal.code == 410
