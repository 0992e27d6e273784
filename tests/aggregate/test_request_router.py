"""Which room answers which request to an aggregate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mcproxy.aggregate.authorization import MemberAuthorizer
from mcproxy.aggregate.discovery.merge_cache import NOTHING, VisibleClusters
from mcproxy.aggregate.live_aggregate import RequestRouter
from mcproxy.aggregate.view.scope import Difference
from mcproxy.config import model
from mcproxy.identity.authorization.access_review import Decision
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from tests.support.aggregated_request import FakeRequest
from tests.support.clock import DATE, Clock
from tests.support.fake_members import FakeDiscovery, FakeMember

ALICE = UserInfo("alice", ("dev", "system:authenticated"))
NAMES = ("east", "west")
PODS = GroupVersionResource("", "v1", "pods")
METRICS = GroupVersionResource("metrics.k8s.io", "v1beta1", "pods")
WIDGETS = GroupVersionResource("demo.example.com", "v1", "widgets")


CLUSTER_WIDE = (GroupVersionResource("", "v1", "nodes"), GroupVersionResource("", "v1", "namespaces"))


def resource(gvr: GroupVersionResource) -> APIResource:
    return APIResource(gvr, "Any", "any", namespaced=gvr not in CLUSTER_WIDE, verbs=frozenset({"get", "list"}))


class Named:
    def __init__(self, name: str, namespaces: Sequence[str] = ()) -> None:
        """`namespaces` are those in scope; none: all."""
        self.name = name
        self.namespaces = namespaces

    def covers(self, namespace: str) -> bool:
        return not namespace or not self.namespaces or namespace in self.namespaces


class FakeView:
    def __init__(self, gvr: GroupVersionResource, *, is_pinned: bool = False) -> None:
        self.resource = resource(gvr)
        self.members = tuple(Named(name) for name in NAMES)
        self.is_pinned = is_pinned
        self.others: list[tuple[str, Difference]] = []

    def pinned(self) -> FakeView:
        pinned = FakeView(self.resource.gvr, is_pinned=True)
        pinned.others, pinned.members = self.others, self.members
        return pinned

    def differing(self, namespace: str) -> list[tuple[str, Difference]]:
        return self.others


class Rooms:
    """All rooms; `called` says what was asked of which."""

    def __init__(self, refused: Sequence[str] = ()) -> None:
        self.clock = Clock()
        self.called: list[Any] = []
        self.pinned: list[bool] = []
        self.left_out: list[Any] = []
        self.views = {gvr: FakeView(gvr) for gvr in (PODS, WIDGETS, *CLUSTER_WIDE)}
        self.undiscovered: list[Any] = []
        self.members = [FakeMember(name, FakeDiscovery(resource(PODS))) for name in NAMES]
        self.refused = refused
        self.is_discovery = True
        self.asked: list[tuple[str, Attributes]] = []

    # the views
    def view(self, gvr: GroupVersionResource) -> Any:
        return self.views.get(gvr)

    def unwatchable(self, gvr: GroupVersionResource) -> APIResource | None:
        return resource(gvr) if gvr == METRICS else None

    def names(self, gvr: GroupVersionResource) -> bool:
        return gvr[:2] in (PODS[:2], METRICS[:2], WIDGETS[:2]) and gvr.resource != "secrets"

    def in_scope(self, gvr: GroupVersionResource) -> Sequence[FakeMember]:
        return self.members

    def known(self, gvr: GroupVersionResource) -> bool:
        return gvr in (METRICS, *self.views) or any(gvr in each.discovery.resources for each in self.members)

    # the rooms
    async def get(self, request: Any, view: Any, allowed: Any, left_out: Any) -> None:
        self.pinned.append(view.is_pinned)
        self.called.append(("get", allowed))
        self.left_out.append(left_out)

    async def list(self, request: Any, view: Any, allowed: Any, left_out: Any, known_field: Any) -> None:
        self.pinned.append(view.is_pinned)
        self.called.append(("list", allowed))
        self.left_out.append(left_out)

    async def read_uncached(self, request: Any, resource: Any) -> None:
        self.called.append("fan_out")

    async def self_review(self, request: Any) -> None:
        self.called.append("self_review")

    def handler(self, primary: str | None = "east") -> RequestRouter:
        return RequestRouter(
            cast(Any, self.clock),
            cast(Any, self),
            authorization=MemberAuthorizer(model.ReadsConfig(), self.reviewer),
            discovery=cast(Any, Discovery(self)),
            reads=cast(Any, self),
            watches=cast(Any, Watch(self)),
            writes=cast(Any, Writes(self)),
            primary=primary,
            wait_until=self.clock.seconds() + 10.0,
        )

    def reviewer(self, member: str) -> Any:
        return Reviewer(self, member)


class Reviewer:
    def __init__(self, rooms: Rooms, member: str) -> None:
        self.rooms = rooms
        self.member = member

    def decide(self, user: UserInfo, attributes: Attributes) -> Decision:
        self.rooms.asked.append((self.member, attributes))
        return Decision(self.member not in self.rooms.refused)


class Discovery:
    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms

    async def serve(self, request: Any, shown: VisibleClusters = NOTHING) -> bool:
        self.rooms.called.append(("discovery", tuple(shown.clusters)))
        return self.rooms.is_discovery

    async def known_field(self, request: Any, resource: Any) -> None:
        return None


class Watch:
    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms

    async def serve(self, request: Any, view: Any, reads: Any, known_field: Any) -> None:
        self.rooms.pinned.append(view.is_pinned)
        self.rooms.called.append("watch")
        _, left_out = await reads.allowed(request, [member.name for member in view.members], "watch", request.info)
        self.rooms.left_out.append(left_out)


class Writes:
    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms

    async def serve(self, request: Any, resource: Any, view: Any) -> None:
        self.rooms.pinned += [] if view is None else [view.is_pinned]
        self.rooms.called.append(("write", request.info.verb, request.info.subresource, view is not None))

    async def read_uncached(self, request: Any, resource: Any) -> None:
        self.rooms.called.append("fan_out")

    async def self_review(self, request: Any) -> None:
        self.rooms.called.append("self_review")

    async def write_beyond(self, request: Any, cluster: str) -> None:
        await request.forward(cluster, request.target)


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
        (b"GET", b"/api/v1/pods?fieldSelector=metadata.name%3Da", ("list", NAMES)),
        (b"GET", b"/api/v1/pods?watch=1&fieldSelector=metadata.name%3Da", "watch"),
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
        (b"GET", b"/version", ("discovery", ())),
        (b"GET", b"/livez/ping", ("discovery", ())),
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


@pytest.mark.parametrize("query", [b"", b"?watch=1"])
def test_a_member_without_the_namespace_in_its_scope_gives_no_right_there(query: bytes) -> None:
    """An informer would take the empty list for the end of all objects."""
    rooms = Rooms(refused=["west"])
    rooms.views[PODS].members = (Named("east", ["other"]), Named("west", ["demo"]))
    [refusal] = handled(rooms, request(NAMESPACE + query))
    assert (refusal.code, refusal.reason) == (403, "Forbidden")
    assert {name for name, _ in rooms.asked} == {"west"}
    assert handled(rooms, request(b"/api/v1/pods" + query)) == [None]


def test_where_no_member_has_the_namespace_in_its_scope_all_are_asked() -> None:
    rooms = Rooms()
    rooms.views[PODS].members = (Named("east", ["other"]), Named("west", ["others"]))
    assert handled(rooms, request(NAMESPACE)) == [None]
    assert rooms.called == [("list", NAMES)]


@pytest.mark.parametrize(
    ("target", "method", "pinned"),
    [
        (NAMESPACE, b"GET", True),
        (NAMESPACE + b"/web", b"GET", True),
        (NAMESPACE + b"/web", b"PATCH", True),
        (NAMESPACE + b"?watch=1", b"GET", False),
    ],
)
def test_an_answer_has_the_members_and_their_places_of_one_time_and_a_watch_those_of_each(
    target: bytes, method: bytes, pinned: bool
) -> None:
    rooms = Rooms()
    handled(rooms, request(target, method))
    assert rooms.pinned == [pinned]


def test_discovery_shows_what_members_that_allow_it_have() -> None:
    rooms = Rooms(refused=["west"])
    handled(rooms, request(b"/apis"))
    assert rooms.called == [("discovery", ("east",))]
    assert rooms.asked[0] == ("east", Attributes("get", path="/apis", is_resource=False))
    rooms = Rooms(refused=NAMES)
    [refusal] = handled(rooms, request(b"/openapi/v2"))
    assert (refusal.code, refusal.message) == (403, 'forbidden: User "alice" cannot get path "/openapi/v2"')


@pytest.mark.parametrize(
    ("refused", "shown"),
    [
        ((), ("east", "west", "hub")),
        (("hub",), NAMES),
        (("east",), ("west", "hub")),
        (NAMES, ("hub",)),
        ((*NAMES, "hub"), None),
    ],
)
@pytest.mark.parametrize("path", [b"/apis", b"/apis/g.io/v1", b"/openapi/v2", b"/openapi/v3/apis/g.io/v1?hash=H", b"/"])
def test_a_primary_that_is_no_member_is_asked_too(
    refused: Sequence[str], shown: Sequence[str] | None, path: bytes
) -> None:
    rooms = Rooms(refused=refused)
    results = handled(rooms, request(path), primary="hub")
    attributes = Attributes("get", path=path.decode().partition("?")[0], is_resource=False)
    assert rooms.asked == [(name, attributes) for name in ("east", "west", "hub")]
    assert rooms.called == ([] if shown is None else [("discovery", shown)])
    assert [getattr(result, "code", None) for result in results] == [403 if shown is None else None]


def test_a_primary_where_the_user_is_nobody_is_not_shown() -> None:
    rooms = Rooms()
    handled(rooms, FakeRequest(b"/apis", ALICE, NAMES, foreign=("hub",)), primary="hub")
    assert rooms.called == [("discovery", NAMES)]


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
    west = rooms.members[1].discovery
    west.fresh, west.silent = False, True
    asked = request(b"/apis/demo.example.com/v1/others")
    result = handled(rooms, asked)
    rooms.clock.pump([1.0] * 13)
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


GADGETS = GroupVersionResource("demo.example.com", "v1", "gadgets")
GADGET = b"/apis/demo.example.com/v1/namespaces/demo/gadgets"
EACH_VERB = [
    (b"GET", GADGET),
    (b"GET", GADGET + b"/a"),
    (b"GET", GADGET + b"?watch=1"),
    (b"POST", GADGET),
    (b"PUT", GADGET + b"/a"),
    (b"PATCH", GADGET + b"/a"),
    (b"DELETE", GADGET + b"/a"),
    (b"DELETE", GADGET),
    (b"GET", GADGET + b"/a/status"),
    (b"PUT", GADGET + b"/a/scale"),
    (b"POST", GADGET + b"/a/eviction"),
]


class GrowingRooms(Rooms):
    """The views follow the members' discovery."""

    def view(self, gvr: GroupVersionResource) -> Any:
        if any(gvr in each.discovery.resources for each in self.members):
            return FakeView(gvr)
        return super().view(gvr)


@pytest.mark.parametrize(("method", "target"), EACH_VERB)
def test_what_a_member_has_only_just_got_is_served_and_never_the_primarys(method: bytes, target: bytes) -> None:
    rooms = GrowingRooms()
    rooms.members[1].discovery.coming = [resource(PODS), resource(GADGETS)]
    asked = request(target, method)
    assert handled(rooms, asked) == [None]
    assert len(rooms.called) == 1
    assert asked.forwarded == []
    refreshed = rooms.members[1].discovery.refreshed
    assert handled(rooms, request(target, method)) == [None]
    assert rooms.members[1].discovery.refreshed == refreshed  # it is known now


@pytest.mark.parametrize(("method", "target"), EACH_VERB)
def test_what_no_member_has_is_404_and_never_the_primarys(method: bytes, target: bytes) -> None:
    rooms = GrowingRooms()
    asked = request(target, method)
    [refusal] = handled(rooms, asked)
    assert (refusal.code, refusal.message) == (404, "the server could not find the requested resource")
    assert asked.forwarded == rooms.called == []
    assert [each.discovery.refreshed for each in rooms.members] == [1, 1]


@pytest.mark.parametrize(("method", "target"), EACH_VERB)
@pytest.mark.parametrize("state", ["down", "silent", "not read"])
def test_what_a_member_that_cannot_be_asked_may_have_is_503(state: str, method: bytes, target: bytes) -> None:
    rooms = GrowingRooms()
    west = rooms.members[1]
    west.unavailable_since = DATE if state == "down" else None
    west.discovery.silent = state == "silent"
    west.discovery.fresh = state != "not read"
    asked = request(target, method)
    result = handled(rooms, asked)
    rooms.clock.advance(3.1)
    [refusal] = result
    assert (refusal.code, refusal.message) == (
        503,
        "it is not known which clusters have gadgets.demo.example.com: west cannot be reached",
    )
    assert (b"Retry-After", b"5") in refusal.headers
    assert asked.forwarded == rooms.called == []


def test_what_members_have_beside_the_scope_is_the_primarys_without_a_look() -> None:
    """Bindings are named by `resource: "*"`, but cannot be listed."""
    rooms = Rooms()
    bindings = GroupVersionResource("", "v1", "bindings")
    rooms.members[0].discovery.set(resource(PODS), resource(bindings))
    asked = request(b"/api/v1/namespaces/demo/bindings", b"POST")
    assert handled(rooms, asked) == [None]
    assert asked.forwarded == [("east", b"/api/v1/namespaces/demo/bindings")]
    assert rooms.members[0].discovery.refreshed == 0


def test_documents_of_discovery_are_renewed_for_who_asks() -> None:
    rooms = Rooms()
    for target in (b"/api", b"/apis", b"/apis/demo.example.com/v1"):
        assert handled(rooms, request(target)) == [None]
    assert [each.discovery.refreshed for each in rooms.members] == [3, 3]
    rooms.members[0].unavailable_since = DATE  # the last known ones do
    rooms.members[1].discovery.silent = True
    result = handled(rooms, request(b"/apis"))
    assert result == []
    rooms.clock.advance(1.1)
    assert result == [None]
    assert rooms.members[0].discovery.refreshed == 3


def test_a_client_that_goes_away_waits_for_no_discovery() -> None:
    rooms = GrowingRooms()
    rooms.members[1].discovery.silent = True
    handling = Deferred.fromCoroutine(rooms.handler().handle(request(GADGET)))
    ended: list[Any] = []
    handling.addErrback(lambda failure: ended.append(failure.type))
    handling.cancel()
    assert ended == [CancelledError]


def test_errors_of_a_room_are_the_answer() -> None:
    rooms = Rooms()

    async def refuse(*_: Any) -> None:
        raise StatusError(410, "too old")

    cast(Any, rooms).list = refuse
    [refusal] = handled(rooms, request(NAMESPACE))
    assert refusal.code == 410


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("abc", 'time: invalid duration "abc"'),
        ("5", 'time: missing unit in duration "5"'),
        ("5x", 'time: unknown unit "x" in duration "5x"'),
        ("1s5", 'time: missing unit in duration "1s5"'),
        ("-", 'time: invalid duration "-"'),
        ("%22%0A", 'time: invalid duration "\\"\\x0a"'),
        ("99999999999h", 'time: invalid duration "99999999999h"'),
    ],
)
def test_a_timeout_that_is_none_is_400_in_the_words_of_a_cluster(text: str, problem: str) -> None:
    """apiserver `WithRequestDeadline`; long-running requests have no deadline, so nobody reads it there."""
    rooms = Rooms()
    [refusal] = handled(rooms, request(NAMESPACE + b"?timeout=" + text.encode()))
    assert (refusal.code, refusal.message) == (400, f"invalid timeout specified in the request URL - {problem}")
    assert rooms.called == []
    for good in (b"32s", b"1h2m0.5s", b"0", b"-1s", b"", b"%2B5ms"):
        assert handled(rooms, request(NAMESPACE + b"?timeout=" + good)) == [None]
    assert handled(rooms, request(NAMESPACE + b"?watch=1&timeout=" + text.encode())) == [None]


@pytest.mark.parametrize("verb", [b"", b"/web", b"?watch=1"])
def test_members_that_have_the_resource_otherwise_are_named_to_those_who_may_read_there(verb: bytes) -> None:
    for refused, told in (((), ["hub"]), (("hub",), []), (("west",), ["west", "hub"])):
        rooms = Rooms(refused=refused)
        rooms.views[PODS].others = [("hub", Difference("it serves pods in version v2, not in v1", None))]
        handled(rooms, request(b"/api/v1/namespaces/demo/pods" + verb, members=(*NAMES, "hub")))
        [left_out] = rooms.left_out
        assert [each.member for each in left_out] == told
        assert all(each.why.startswith("it serves pods") for each in left_out if each.member == "hub")
        assert not any(each.undecided for each in left_out)
