"""Gets and lists over members' caches: the rows of "Reads from cache"."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import deferLater

from mcproxy.aggregate.cache.cached_object import EventType
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.freshness import Freshness
from mcproxy.aggregate.reads.list_page import Lister, StoreState
from mcproxy.aggregate.reads.response_body import SLICE, Pieces, ResponseBody
from mcproxy.aggregate.reflector.member_calls import MemberError, MemberSlow, MemberUnreachable
from mcproxy.aggregate.request import LeftOut
from mcproxy.aggregate.resource_version.formats import read_long, read_packed, version_format
from mcproxy.aggregate.selection import parse_selection
from mcproxy.aggregate.view.conflicts import Conflicts
from mcproxy.config.model import ConflictRule
from mcproxy.config.model.aggregates import UnavailableMembers
from mcproxy.kube.status import StatusError
from tests.aggregate.objects import NAMESPACES, NODES, PODS, WIDGETS, pod
from tests.aggregate.reads.harness import Fleet, ReadRequest, Response, query
from tests.support.clock import Clock
from tests.support.logged import captured_logs

PATH = "/api/v1/namespaces/demo/pods"
ALL = "/api/v1/pods"


def fleet(**options: Any) -> Fleet:
    """East has a, b and prod/z at version 10, west b and c at 20."""
    found = Fleet(**options)
    found.fill("east", [pod("a", version=3), pod("b", version=4), pod("z", "prod", version=5)], 10)
    found.fill("west", [pod("b", version=11), pod("c", version=12, labels={"app": "c"})], 20)
    return found


def parts(text: str) -> tuple[int, ...]:
    """The numbers of a resource version: lead, then one for each member."""
    found = read_packed(text) or read_long(text)
    assert found is not None
    return found.lead, *found.versions


def version(found: Response) -> tuple[int, ...]:
    return parts(found.json()["metadata"]["resourceVersion"])


# -- lists --------------------------------------------------------------------------------------------------------


def test_a_list_has_the_objects_of_all_members_in_order() -> None:
    found = fleet().read(ALL)
    assert found.status == 200
    assert found.field("Content-Type") == ["application/json"]
    assert found.names == ["east/a", "east/b", "east/z", "west/b", "west/c"]
    assert version(found) == (20, 10, 20)
    assert [parts(item["metadata"]["resourceVersion"]) for item in found.json()["items"]] == [
        (3, 3, 0),
        (4, 4, 0),
        (5, 5, 0),
        (11, 0, 11),
        (12, 0, 12),
    ]
    annotations = [item["metadata"]["annotations"] for item in found.json()["items"]]
    assert annotations[0] == {"resource.karmada.io/cached-from-cluster": "east"}
    assert annotations[-1] == {"resource.karmada.io/cached-from-cluster": "west"}
    assert found.warnings == []


def test_a_list_of_a_namespace() -> None:
    assert fleet().read(PATH).names == ["east/a", "east/b", "west/b", "west/c"]
    assert fleet().read("/api/v1/namespaces/prod/pods").names == ["east/z"]
    assert fleet().read("/api/v1/namespaces/none/pods").json()["items"] == []


def test_an_aggregate_of_one_member_has_its_versions() -> None:
    found = Fleet(("east",))
    found.fill("east", [pod("a", version=3)], 10)
    body = found.read(PATH).json()
    assert (body["metadata"], body["items"][0]["metadata"]["resourceVersion"]) == ({"resourceVersion": "10"}, "3")


def test_small_bodies_have_a_length_and_others_are_chunked() -> None:
    small, big = fleet().read(query(PATH, labelSelector="app=c")), fleet()
    assert small.field("Content-Length") == [str(len(small.body))]
    big.apply("west", "ADDED", pod("d", version=21, spec={"x": "y" * 3000}))
    found = big.read(PATH)
    assert found.chunked
    assert found.complete
    assert found.names[-1] == "west/d"


def test_members_that_the_user_may_not_read_are_left_out_with_a_warning() -> None:
    found = fleet().read(PATH, allowed=("west",), left_out=[("east", "no right to list pods")])
    assert found.names == ["west/b", "west/c"]
    assert found.warnings == ["cluster east: its objects are left out: no right to list pods"]
    assert version(found) == (20, 0, 20)


def test_what_members_warn_of_is_passed_on_once_with_lists_and_gets() -> None:
    """A deprecated version, for one; the recorded answer is replayed in tests/e2e/test_aggregate_golden.py."""
    found = fleet()
    found.stores["east"].warnings = ("v1alpha1 is deprecated", "of east")
    found.stores["west"].warnings = ("v1alpha1 is deprecated",)
    assert found.read(PATH).warnings == ["v1alpha1 is deprecated", "of east"]
    assert found.read(PATH + "/c").warnings == ["v1alpha1 is deprecated", "of east"]
    assert found.read(PATH, allowed=("west",)).warnings == ["v1alpha1 is deprecated"]
    assert dict(found.refusal(PATH + "/none").headers)[b"Warning"] == b'299 - "of east"'


@pytest.mark.parametrize("target", [PATH, PATH + "/c"])
def test_fail_is_503_too_where_a_member_cannot_be_asked_for_the_right(target: str) -> None:
    left_out = [LeftOut("east", "it cannot be asked whether this is allowed", undecided=True)]
    found = fleet(freshness=Freshness(unavailable=UnavailableMembers.FAIL))
    refusal = found.refusal(target, allowed=("west",), left_out=left_out)
    assert (refusal.code, refusal.message.partition(":")[0]) == (503, "cluster east is unavailable")


def test_which_members_served_is_noted() -> None:
    found = fleet()
    request, done = found.begin(PATH)
    found.finish(request, done)
    assert request.served == [(("east", "west"), True)]


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ({"labelSelector": "app=c"}, ["west/c"]),
        ({"labelSelector": "mcproxy.io/cluster=east"}, ["east/a", "east/b"]),
        ({"labelSelector": "mcproxy.io/cluster notin (east)"}, ["west/b", "west/c"]),
        ({"fieldSelector": "metadata.name=b"}, ["east/b", "west/b"]),
        ({"fieldSelector": "metadata.namespace=prod"}, []),
        ({"fieldSelector": "metadata.name=b,metadata.name=c"}, []),
        ({"labelSelector": "app=c", "fieldSelector": "metadata.name=b"}, []),
    ],
)
def test_selectors(parameters: dict[str, str], names: list[str]) -> None:
    found = fleet().read(query(PATH, **parameters))
    assert found.names == names
    assert isinstance(found.json()["items"], list)


def test_selectors_over_all_namespaces() -> None:
    assert fleet().read(query(ALL, fieldSelector="metadata.namespace=prod")).names == ["east/z"]
    assert fleet().read(query(ALL, fieldSelector="metadata.name=z")).names == ["east/z"]
    assert fleet().read(query(ALL, fieldSelector="metadata.namespace=prod,metadata.name=z")).names == ["east/z"]
    assert fleet().read(query(ALL, fieldSelector="metadata.namespace=prod,metadata.name=a")).names == []


def test_a_path_that_the_schema_does_not_have() -> None:
    error = fleet().refusal(query(PATH, fieldSelector="spec.bogus=x"), known_field=lambda _: False)
    assert (error.code, error.message) == (400, "field label not supported: spec.bogus")


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"resourceVersion": "abc"}, 400),
        ({"resourceVersion": "-1"}, 400),
        ({"limit": "x"}, 400),
        ({"labelSelector": "a in ("}, 400),
        ({"fieldSelector": "x"}, 400),
        ({"continue": "!!"}, 400),
        ({"continue": "e30"}, 400),
        ({"continue": "eyJ2IjoidjkiLCJydiI6MSwic3RhcnQiOiJ4In0"}, 400),
        ({"resourceVersionMatch": "Exact"}, 422),
        ({"resourceVersionMatch": "Newer", "resourceVersion": "1"}, 422),
        ({"sendInitialEvents": "true"}, 422),
    ],
)
def test_invalid_options(parameters: dict[str, str], code: int) -> None:
    assert fleet().refusal(query(PATH, **parameters)).code == code


@pytest.mark.parametrize("method", [b"HEAD", b"OPTIONS"])
def test_other_methods_are_405(method: bytes) -> None:
    assert fleet().refusal(PATH, method=method).code == 405
    assert fleet().refusal(PATH + "/a", method=method).code == 405


def test_protobuf_alone_is_406_and_with_json_beside_it_json() -> None:
    protobuf = "application/vnd.kubernetes.protobuf"
    assert fleet().refusal(PATH, Accept=protobuf).code == 406
    assert fleet().read(PATH, Accept=f"{protobuf},application/json").names[0] == "east/a"


# -- resource versions -----------------------------------------------------------------------------------------------


def test_rv_unset_asks_each_member_and_waits_for_its_cache() -> None:
    found = fleet()
    found.present["west"] = 21
    request, done = found.begin(PATH)
    assert found.probed == ["east", "west"]
    assert not done.called
    found.clock.advance(1)
    found.apply("west", "ADDED", pod("d", version=21))
    assert found.finish(request, done).names[-1] == "west/d"


@pytest.mark.parametrize("names", [("west",), ("west", "east")])
@pytest.mark.parametrize("target", [PATH, f"{PATH}/c"])
def test_a_read_that_waits_over_a_reload_is_answered_with_one_layout(target: str, names: tuple[str, ...]) -> None:
    found = fleet()
    live, found.view = found.view, found.view.pinned()
    before = found.read(target).json()
    found.present["west"] = 21
    request, done = found.begin(target)
    found.clock.advance(1)
    history = found.history.changed(names)
    parts = {member.name: member for member in live.members}
    members = tuple(replace(parts[name], index=place) for place, name in enumerate(names))
    state = replace(live.state, members=members, history=history, format=version_format(history.present))
    live.update(state)
    found.stores["west"].progress(21)
    answer = found.finish(request, done).json()
    if "items" not in before:
        assert answer == before
    else:
        assert answer["items"] == before["items"]
        assert version(found.finish(*found.begin(target))) == (21, 10, 21)


def test_a_cache_that_does_not_catch_up_counts_as_unavailable_after_3_seconds() -> None:
    found = fleet()
    found.present["west"] = 21
    request, done = found.begin(PATH)
    found.clock.advance(2.9)
    assert not done.called
    found.clock.advance(0.2)
    response = found.finish(request, done)
    assert response.names == ["east/a", "east/b", "west/b", "west/c"]
    text = "cluster west: its newest changes have not arrived in time, showing its last known objects"
    assert response.warnings == [text]


def test_a_member_that_is_put_back_while_others_are_waited_for_is_left_out_with_its_part_of_the_version() -> None:
    """Without a Warning that says so, and without its objects, the list would say that they are all gone."""
    found = fleet()
    found.present["east"] = 11
    request, done = found.begin(PATH)
    found.stores["west"].put_back()
    found.stores["east"].progress(11)
    response = found.finish(request, done)
    assert (response.names, version(response)) == (["east/a", "east/b"], (11, 11, 0))
    assert response.warnings == ["cluster west: its objects are left out, they could not be listed yet"]


def test_a_get_warns_of_a_cache_that_does_not_catch_up_as_a_list_does() -> None:
    found = fleet()
    found.present["west"] = 21
    request, done = found.begin(PATH + "/c")
    found.clock.advance(3.1)
    response = found.finish(request, done)
    assert response.status == 200
    text = "cluster west: its newest changes have not arrived in time, showing its last known objects"
    assert response.warnings == [text]


@pytest.mark.parametrize("policy", [UnavailableMembers.STALE, UnavailableMembers.PARTIAL])
@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (MemberSlow("no answer within 3 s"), "did not answer in time"),
        (MemberError("connection lost"), "did not answer"),
        (MemberError("may not", status=403), "the proxy may not list pods there"),
        (MemberError("who are you", status=401), "the proxy may not list pods there"),
        (MemberError("etcd has no leader", status=503), "answered 503"),
    ],
)
def test_a_warning_tells_why_a_member_did_not_say_how_far_it_is(
    error: MemberError, cause: str, policy: UnavailableMembers
) -> None:
    found = fleet(freshness=Freshness(unavailable=policy))
    found.probe_errors["west"] = error
    stale = policy is UnavailableMembers.STALE
    shown = "showing its last known objects" if stale else "its objects are left out"
    assert found.read(PATH).warnings == [f"cluster west: {cause}, {shown}"]


def test_a_member_that_cannot_be_reached_is_unavailable_since_a_date() -> None:
    """The probe fails before the watch does: the time is that of the day, not of the clock that never jumps."""
    found = fleet()
    found.probe_errors["west"] = MemberUnreachable("connection refused")
    found.members["west"].unavailable_since = found.clock.wall_seconds()  # as `Member` notes it
    found.clock.advance(60)
    text = "cluster west: unavailable since 2023-11-14T22:13:20Z, showing its last known objects"
    assert found.read(PATH).warnings == [text]


def test_a_member_that_does_not_let_the_proxy_watch_is_not_unavailable() -> None:
    found = fleet()
    found.stores["west"].unavailable("the cluster does not let the proxy watch pods (403)", refused=True)
    text = "cluster west: the proxy may not list pods there, showing its last known objects"
    assert found.read(PATH).warnings == [text]
    found.stores["west"].unavailable("connection refused")
    assert found.read(PATH).warnings == [
        text.replace("the proxy may not list pods there", "unavailable since 2023-11-14T22:13:20Z")
    ]
    never = Fleet(("east", "west"), freshness=Freshness(initial_sync_timeout=0.0))
    never.fill("east", [pod("a", version=3)], 10)
    never.stores["west"].unavailable("the cluster does not let the proxy list pods (403)", refused=True)
    text = "cluster west: its objects are left out: the proxy may not list pods there"
    assert never.read(PATH).warnings == [text]


def test_max_staleness_saves_the_question_while_the_last_sign_is_young() -> None:
    found = fleet(freshness=Freshness(max_staleness=5.0))
    found.read(PATH)
    assert found.probed == []
    found.clock.advance(6)
    found.stores["west"].progress(21)
    found.read(PATH)
    assert found.probed == ["east"]


@pytest.mark.parametrize("zero", ["0", "00"])
def test_rv_0_asks_nobody_and_has_no_limit(zero: str) -> None:
    found = fleet()
    response = found.read(query(PATH, resourceVersion=zero, limit=1))
    assert response.names == ["east/a", "east/b", "west/b", "west/c"]
    assert "continue" not in response.json()["metadata"]
    assert found.probed == []


@pytest.mark.parametrize("match", ["", "NotOlderThan"])
def test_rv_waits_until_it_is_reached(match: str) -> None:
    found = fleet()
    text = found.view.format.list_version((10, 21))
    parameters = {"resourceVersion": text, **({"resourceVersionMatch": match} if match else {})}
    request, done = found.begin(query(PATH, **parameters))
    found.clock.advance(2)
    assert not done.called
    found.stores["west"].progress(22)
    assert version(found.finish(request, done)) == (22, 10, 22)
    assert found.probed == []


@pytest.mark.parametrize("match", ["", "NotOlderThan", "Exact"])
def test_an_rv_that_is_not_reached_is_504(match: str) -> None:
    found = fleet()
    text = found.view.format.list_version((10, 21))
    request, done = found.begin(query(PATH, resourceVersion=text, **({"resourceVersionMatch": match} if match else {})))
    found.clock.advance(3.1)
    with pytest.raises(Exception, match="Too large resource version") as caught:
        found.finish(request, done)
    error: Any = caught.value
    assert (error.code, error.reason) == (504, "Timeout")
    assert error.details["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert error.details["retryAfterSeconds"] == 1
    assert (
        error.message
        == f"Timeout: Too large resource version: {text}, current: {found.view.format.list_version((10, 20))}"
    )


@pytest.mark.parametrize("target", [PATH, f"{PATH}/c"])
def test_a_member_that_goes_back_while_others_are_waited_for_is_504(target: str) -> None:
    found = fleet()
    text = found.view.format.list_version((11, 20))
    request, done = found.begin(query(target, resourceVersion=text))
    found.stores["west"].clear()
    found.fill("west", [pod("c", version=14)], 15)
    found.stores["east"].progress(11)
    with pytest.raises(StatusError, match="Too large resource version") as caught:
        found.finish(request, done)
    assert caught.value.code == 504


def test_rv_exact_is_the_state_at_that_time() -> None:
    found = fleet()
    before = found.read(PATH)
    text = before.json()["metadata"]["resourceVersion"]
    found.apply("west", "DELETED", pod("c", version=21))
    found.apply("east", "ADDED", pod("aa", version=22))
    exact = found.read(query(PATH, resourceVersion=text, resourceVersionMatch="Exact"))
    assert exact.body == before.body
    assert found.read(query(PATH, resourceVersion=text, limit=10)).body == before.body
    newer = found.read(query(PATH, resourceVersion=text, resourceVersionMatch="NotOlderThan", limit=10))
    assert newer.names == ["east/a", "east/aa", "east/b", "west/b"]


def test_rv_exact_before_the_log_is_410() -> None:
    found = fleet()
    text = found.view.format.list_version((9, 20))
    error = found.refusal(query(PATH, resourceVersion=text, resourceVersionMatch="Exact"))
    assert (error.code, error.reason) == (410, "Expired")
    assert error.message == "The resourceVersion for the provided list is too old."


@pytest.mark.parametrize("match", [{"resourceVersionMatch": "Exact"}, {"limit": 9}, {}])
def test_a_member_without_a_part_in_the_lists_version_has_its_present_state(match: Any) -> None:
    found = fleet()
    whole = found.read(PATH)
    text = found.view.format.list_version((10, 0))
    response = found.read(query(PATH, resourceVersion=text, **match))
    assert response.names == whole.names
    assert response.json()["metadata"]["resourceVersion"] == whole.json()["metadata"]["resourceVersion"]
    assert response.warnings == []


@pytest.mark.parametrize("target", [PATH + "/c", query(PATH, fieldSelector="metadata.name=c")])
def test_a_plain_number_does_not_tell_whether_a_member_that_refuses_has_the_object(target: str) -> None:
    both, neither = fleet(), Fleet()
    neither.fill("east", [], 12)
    neither.fill("west", [], 12)
    target += ("&" if "?" in target else "?") + "resourceVersion=12"
    refusals = [found.refusal(target, allowed=["east"]) for found in (both, neither)]
    assert [(error.code, error.message) for error in refusals] == [(410, refusals[1].message)] * 2


def test_a_plain_number_is_the_owners_where_one_object_is_named() -> None:
    found = fleet()
    assert found.refusal(query(PATH, resourceVersion="10")).code == 410
    response = found.read(query(PATH, resourceVersion="12", fieldSelector="metadata.name=c"))
    assert response.names == ["west/c"]
    assert found.read(query(PATH + "/c", resourceVersion="12")).json()["metadata"]["name"] == "c"


def test_a_version_of_other_members_is_410() -> None:
    other = Fleet(("east", "north"))
    assert fleet().refusal(query(PATH, resourceVersion=other.view.format.list_version((1, 2)))).code == 410


# -- members that are not there ---------------------------------------------------------------------------------------


def unsynced(unavailable: UnavailableMembers = UnavailableMembers.STALE) -> Fleet:
    found = Fleet(freshness=Freshness(unavailable=unavailable))
    found.fill("east", [pod("a", version=3)], 10)
    return found


def test_a_member_that_has_never_synced_is_waited_for() -> None:
    found = unsynced()
    request, done = found.begin(PATH)
    found.clock.advance(9)
    assert not done.called
    found.fill("west", [pod("b", version=5)], 20)
    assert found.finish(request, done).names == ["east/a", "west/b"]


def test_then_it_is_left_out_with_a_warning() -> None:
    found = unsynced()
    request, done = found.begin(PATH)
    found.clock.advance(10.1)
    response = found.finish(request, done)
    assert (response.names, version(response)) == (["east/a"], (10, 10, 0))
    assert response.warnings == ["cluster west: its objects are left out, they could not be listed yet"]
    assert found.read(PATH).names == ["east/a"]  # the timeout is after the start, not for each request


def test_a_member_whose_cache_was_emptied_long_after_the_start_is_waited_for_again() -> None:
    """It was put back, and its watches have ended with 410: whoever lists anew must not take it for empty."""
    found = unsynced()
    request, done = found.begin(PATH)
    found.clock.advance(5)
    west = found.fill("west", [pod("b", version=5)], 20)
    found.finish(request, done)
    found.clock.advance(3600)
    west.clear()
    request, done = found.begin(PATH)
    found.clock.advance(5)
    assert not done.called
    found.fill("west", [pod("c", version=3)], 10)
    assert found.finish(request, done).names == ["east/a", "west/c"]


def test_a_member_that_was_never_reached_is_left_out_with_a_warning() -> None:
    found = Fleet(("east",), undiscovered=["west"])
    found.fill("east", [pod("a", version=3)], 10)
    response = found.read(PATH)
    assert response.names == ["east/a"]
    assert response.warnings == ["cluster west: its objects are left out: it was never reached"]


@pytest.mark.parametrize(
    ("unavailable", "names", "rest"),
    [
        (UnavailableMembers.STALE, ["east/a", "east/b", "west/b", "west/c"], ", showing its last known objects"),
        (UnavailableMembers.PARTIAL, ["east/a", "east/b"], ""),
    ],
)
def test_a_member_that_is_down(unavailable: UnavailableMembers, names: list[str], rest: str) -> None:
    found = fleet(freshness=Freshness(unavailable=unavailable))
    found.stores["west"].unavailable("connection refused")
    found.clock.advance(60)
    response = found.read(PATH)
    assert response.names == names
    assert response.warnings == [f"cluster west: unavailable since 2023-11-14T22:13:20Z{rest}"]
    assert version(response) == ((20, 10, 20) if rest else (10, 10, 0))
    assert found.probed == ["east"]


@pytest.mark.parametrize("target", [PATH, PATH + "/a", query(PATH, resourceVersion="0")])
def test_fail_is_503(target: str) -> None:
    found = fleet(freshness=Freshness(unavailable=UnavailableMembers.FAIL))
    found.stores["west"].unavailable("connection refused")
    error = found.refusal(target)
    assert (error.code, error.reason) == (503, "ServiceUnavailable")


def test_no_member_at_all_is_503_and_not_an_empty_list() -> None:
    found = Fleet(("east",), freshness=Freshness(initial_sync_timeout=0.0))
    assert found.refusal(PATH).code == 503
    found = fleet(freshness=Freshness(unavailable=UnavailableMembers.PARTIAL))
    found.stores["west"].unavailable("x")
    found.stores["east"].unavailable("x")
    assert found.refusal(PATH).code == 503


def test_a_namespace_outside_the_scope_is_an_empty_list_with_a_warning() -> None:
    found = Fleet(("east",), namespaces={"east": ["demo"]})
    found.fill("east/demo", [pod("a", version=3)], 10)
    response = found.read("/api/v1/namespaces/prod/pods")
    assert response.json()["items"] == []
    assert response.warnings == ["namespace prod is not read from any cluster's cache here"]
    assert found.refusal("/api/v1/namespaces/prod/pods/a").code == 404


# -- get --------------------------------------------------------------------------------------------------------------


def test_a_get_is_the_object_with_its_owners_part_as_version() -> None:
    found = fleet().read(PATH + "/c")
    body = found.json()
    assert list(body) == ["kind", "apiVersion", "metadata"]
    assert body["metadata"]["labels"] == {"app": "c", "mcproxy.io/cluster": "west"}
    assert parts(body["metadata"]["resourceVersion"]) == (12, 0, 12)
    assert found.body.endswith(b"}\n")


def test_a_get_of_what_is_nowhere_is_404() -> None:
    error = fleet().refusal(PATH + "/none")
    assert (error.code, error.message) == (404, 'pods "none" not found')


def test_a_get_of_what_a_member_left_out_may_have_says_so() -> None:
    error = fleet().refusal(PATH + "/c", allowed=("east",), left_out=[("west", "no right")])
    assert error.code == 404
    assert error.headers == ((b"Warning", b'299 - "cluster west: its objects are left out: no right"'),)


def test_of_several_members_with_the_name_the_first_answers_with_a_warning() -> None:
    found = fleet().read(PATH + "/b")
    assert found.json()["metadata"]["labels"]["mcproxy.io/cluster"] == "east"
    assert found.warnings == ['pods "b" is of cluster east; there is one of that name in west, too']
    assert fleet().read(PATH + "/b", allowed=("west",)).warnings == []


def choosing(to: str, *namespaces: str, resource: str = "*") -> Conflicts:
    """A rule of an aggregate whose primary is west."""
    rule = ConflictRule(api_groups=("*",), resources=(resource,), namespaces=namespaces, to=to)
    return Conflicts((rule,), "west")


@pytest.mark.parametrize(
    ("rules", "cluster", "warned"),
    [
        (choosing("east"), "east", False),
        (choosing("west"), "west", False),
        (choosing("Primary"), "west", False),
        (choosing("west", "demo"), "west", False),
        (choosing("west", "prod"), "east", True),
    ],
)
def test_of_several_members_with_the_name_the_one_of_the_rule_answers(
    rules: Conflicts, cluster: str, warned: bool
) -> None:
    found = fleet(conflicts=rules).read(PATH + "/b")
    assert found.json()["metadata"]["labels"]["mcproxy.io/cluster"] == cluster
    assert bool(found.warnings) == warned


def test_a_rule_for_a_member_that_the_user_may_not_read_or_that_has_none_does_not_count() -> None:
    found = fleet(conflicts=choosing("west")).read(PATH + "/b", allowed=("east",))
    assert found.json()["metadata"]["labels"]["mcproxy.io/cluster"] == "east"
    assert found.warnings == []
    assert fleet(conflicts=choosing("west")).read(PATH + "/a").warnings == []


def test_a_plain_version_is_that_of_the_member_of_the_rule() -> None:
    """As a client has it that has read the object in one cluster."""
    target = query(PATH, fieldSelector="metadata.name=b", resourceVersion="15", resourceVersionMatch="NotOlderThan")
    assert fleet(conflicts=choosing("west")).read(target).names == ["east/b", "west/b"]
    found = fleet()
    outcome: list[Any] = []
    found.begin(target)[1].addBoth(outcome.append)
    found.clock.advance(4)
    assert [failure.value.code for failure in outcome] == [504]  # it is taken for east's, which has not reached it


def test_namespaces_of_one_name_are_no_news() -> None:
    """It came with nearly every command of kubectl: every cluster has a namespace `default`."""
    found = Fleet(resource=NAMESPACES)
    for member in ("east", "west"):
        found.fill(member, [pod("default", "", version=3)], 10)
    answer = found.read("/api/v1/namespaces/default")
    assert answer.json()["metadata"]["labels"]["mcproxy.io/cluster"] == "east"
    assert answer.warnings == []


def test_a_get_is_as_fresh_as_a_list() -> None:
    found = fleet()
    for zero in ("0", "000"):
        found.read(query(PATH + "/a", resourceVersion=zero))
    assert found.probed == []
    found.present["west"] = 21
    request, done = found.begin(PATH + "/d")
    found.apply("west", "ADDED", pod("d", version=21))
    assert found.finish(request, done).json()["metadata"]["name"] == "d"


def test_cluster_wide_resources() -> None:
    found = Fleet(resource=NODES)
    node = pod("n1", version=3)
    del node["metadata"]["namespace"]
    found.fill("east", [node], 10)
    found.fill("west", [], 20)
    assert found.read("/api/v1/nodes").names == ["east/n1"]
    assert found.read("/api/v1/nodes/n1").json()["kind"] == "Node"
    assert found.read(query("/api/v1/nodes", fieldSelector="metadata.name=n1")).names == ["east/n1"]


# -- Table and PartialObjectMetadata ----------------------------------------------------------------------------------

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


def test_a_table_without_the_members_own_has_name_and_age() -> None:
    found = fleet()
    found.clock.advance(3600 * 24 * 3)
    table = found.read(query(PATH, resourceVersion="0"), Accept=TABLE).json()
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Age"]
    assert [row["cells"] for row in table["rows"]] == [["a", "3d"], ["b", "3d"], ["b", "3d"], ["c", "3d"]]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert parts(table["rows"][0]["object"]["metadata"]["resourceVersion"]) == (3, 3, 0)


def test_a_member_without_objects_whose_columns_are_not_known_adds_none_to_a_table() -> None:
    found = Fleet()
    found.fill("east", [pod("a")], 10)
    found.fill("west", [], 20)
    found.stores["east"].columns = b'[{"name":"Name","type":"string"},{"name":"Color","type":"string"}]'
    table = found.read(query(PATH, resourceVersion="0"), Accept=TABLE).json()
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Color"]
    assert [row["cells"] for row in table["rows"]] == [["a", None]]


def test_columns_that_change_while_a_table_is_sent() -> None:
    """The rows are of the state that the list began with, and so are their columns."""
    found = Fleet()
    found.fill("east", [pod(f"a{number:04}") for number in range(2000)], 10)
    found.fill("west", [pod("b")], 20)
    for name, columns in (("east", "A"), ("west", "B")):
        found.stores[name].columns = b'[{"name":"%b","type":"string"}]' % columns.encode()
    request, done = found.begin(query(ALL, resourceVersion="0"), slow=True, Accept=TABLE)
    for _ in range(10):
        found.clock.advance(0)
    assert not done.called
    replacement = found.stores["west"].replace()
    replacement.columns = b'[{"name":"C","type":"string"}]'
    replacement.commit(21)
    request.connection.on_write = None
    assert request.exchange.handler is not None
    request.exchange.handler.resume_response()
    table = found.finish(request, done).json()
    assert [column["name"] for column in table["columnDefinitions"]] == ["B", "A"]
    assert len(table["rows"]) == 2001


def test_a_table_of_one_object() -> None:
    table = fleet().read(query(PATH + "/a", includeObject="None"), Accept=TABLE).json()
    assert parts(table["metadata"]["resourceVersion"]) == (3, 3, 0)
    assert table["rows"] == [{"cells": ["a", "0s"], "object": None}]


def test_partial_object_metadata() -> None:
    found = fleet().read(PATH, Accept=PARTIAL).json()
    assert (found["kind"], found["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert [item["kind"] for item in found["items"]] == ["PartialObjectMetadata"] * 4
    single = fleet().read(PATH + "/a", Accept=PARTIAL.replace("List", "")).json()
    assert list(single) == ["kind", "apiVersion", "metadata"]
    assert single["kind"] == "PartialObjectMetadata"


def test_lists_of_custom_resources_are_sorted() -> None:
    found = Fleet(resource=WIDGETS)
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", **pod("w", version=3)}
    found.fill("east", [widget], 10)
    found.fill("west", [], 20)
    body = found.read("/apis/example.com/v1/widgets").json()
    assert list(body) == ["apiVersion", "items", "kind", "metadata"]
    assert list(body["metadata"]) == ["continue", "resourceVersion"]
    assert body["items"][0]["kind"] == "Widget"


# -- the body ---------------------------------------------------------------------------------------------------------


def big(count: int = 2000) -> Fleet:
    found = Fleet()
    for member in ("east", "west"):
        found.fill(
            member, [pod(f"p{index:05}", version=index + 1, spec={"x": "y" * 100}) for index in range(count)], 10**6
        )
    return found


def test_big_answers_are_compressed_in_a_thread_for_those_who_take_it() -> None:
    found = big()
    plain = found.read(ALL)
    assert "Content-Encoding" not in dict(plain.fields)
    assert found.threads == 0
    packed = found.read(ALL, Accept_Encoding="gzip")
    assert packed.field("Content-Encoding") == ["gzip"]
    assert packed.field("Vary") == ["Accept-Encoding"]
    assert gzip.decompress(packed.body) == plain.body
    assert found.threads > 2
    assert "Content-Encoding" not in dict(found.read(query(ALL, limit=10), Accept_Encoding="gzip").fields)
    assert "Content-Encoding" not in dict(found.read(ALL, Accept_Encoding="gzip;q=0").fields)


def test_a_client_that_does_not_read_gets_no_more_and_holds_no_more() -> None:
    found = big()
    request, done = found.begin(ALL, slow=True)
    for _ in range(100):
        found.clock.advance(0)
    assert not done.called
    assert len(request.connection.writes) == 1
    assert request.connection.writes[0] < 256 * 1024
    request.connection.on_write = None
    assert request.exchange.handler is not None
    request.exchange.handler.resume_response()
    response = found.finish(request, done)
    assert len(response.json()["items"]) == 4000
    assert max(request.connection.writes) < 256 * 1024


def test_a_client_that_goes_away_ends_the_work() -> None:
    found = big()
    request, done = found.begin(ALL)
    assert request.exchange.handler is not None
    request.exchange.handler.pause_response()
    found.clock.advance(0)
    request.exchange.cancel()
    found.clock.advance(0)
    assert done.called
    assert not request.connection.done


def test_a_client_that_goes_away_is_no_mistake_to_report() -> None:
    """Whoever may list could fill the log with tracebacks."""
    found = big()
    request, done = found.begin(ALL, slow=True)
    found.clock.advance(0)
    with captured_logs() as logs:
        done.cancel()  # as the pipeline does first
        request.exchange.cancel()
    assert done.called
    assert [log for log in logs if "log_failure" in log] == []


def test_changes_while_a_list_is_sent_are_not_in_it() -> None:
    found = big()
    request, done = found.begin(ALL)
    handler = request.exchange.handler
    assert handler is not None
    handler.pause_response()
    found.apply("west", "DELETED", pod("p01999", version=10**6 + 1))
    handler.resume_response()
    response = found.finish(request, done)
    assert response.names[-1] == "west/p01999"
    assert version(response)[1:] == (10**6, 10**6)
    assert json.loads(response.body)


def test_yaml_is_made_of_small_answers_alone() -> None:
    found = big()
    error = found.refusal(ALL, Accept="application/yaml")
    assert (error.code, error.reason) == (406, "NotAcceptable")
    small = found.read(query(ALL, limit=2), Accept="application/yaml")
    assert small.field("Content-Type") == ["application/yaml"]
    assert [item["metadata"]["name"] for item in yaml.safe_load(small.body)["items"]] == ["p00000", "p00001"]
    assert found.read(ALL, Accept="application/yaml;q=0.5,application/json").json()["kind"] == "PodList"


def test_pretty_is_for_small_answers_and_changes_nothing_else() -> None:
    found = big()
    target = query(ALL, limit=2)
    pretty = found.read(target + "&pretty=true").body
    assert pretty.startswith(b'{\n  "kind": "PodList",\n')
    assert json.loads(pretty) == found.read(target).json()
    assert found.read(target + "&pretty=false").body.startswith(b'{"kind"')
    whole = big(3000)
    assert whole.read(ALL + "?pretty=true").body == whole.read(ALL).body


def test_an_error_while_a_body_is_made_ends_the_connection() -> None:
    clock = Clock()
    request = ReadRequest(clock, ALL)

    def pieces() -> Iterator[Pieces]:
        for _ in range(2):
            yield Pieces([b"x" * SLICE], SLICE)
        raise ValueError("a mistake")

    body = ResponseBody(clock, request.exchange, lambda function, data: succeed(function(data)))
    with captured_logs() as logs:
        done = Deferred.fromCoroutine(body.send(b"", pieces(), gzip=False))
        clock.advance(0)
    assert done.called
    assert request.connection.aborted
    assert [log.get("event") for log in logs] == ["internal_error"]
    assert b"x" * SLICE in request.connection.wire
    assert not request.response.complete


@pytest.mark.parametrize("resource_version", ["", "12"])
def test_a_client_that_goes_away_while_it_waits_ends_the_wait(resource_version: str) -> None:
    found = fleet()
    found.present["west"] = 99
    text = found.view.format.list_version((10, 99)) if resource_version else ""
    request, done = found.begin(query(ALL, resourceVersion=text))
    outcome: list[Any] = []
    done.addBoth(outcome.append)
    done.cancel()
    assert outcome
    assert outcome[0].check(CancelledError)
    assert not request.connection.wire


def test_nothing_is_made_for_a_client_that_has_gone() -> None:
    found = big()
    found.present["west"] = 10**7
    request, done = found.begin(ALL)
    request.exchange.cancel()
    found.stores["west"].progress(10**7)
    found.clock.advance(0)
    assert done.called
    assert not request.connection.writes


@pytest.mark.parametrize(
    ("selectors", "most"),
    [
        ((",".join(f"a{number}!=b" for number in range(500)), ""), 40),
        (("", ",".join(f"spec.a{number}!=b" for number in range(40))), 10),
    ],
)
def test_a_long_selector_does_not_keep_the_reactor(selectors: tuple[str, str], most: int) -> None:
    """Each batch takes little time: the longer the selector, the fewer objects it has."""
    found = big()
    selection = parse_selection(*selectors, PODS.gvr)
    states = [StoreState(member, store.snapshot()) for member in found.view.members for store in member.stores]
    sizes = [len(objects) for _, objects in Lister(found.clock, states, "", selection).batches()]
    assert max(sizes) <= most
    assert sum(sizes) == 4000


# -- objects that cannot be taken apart ------------------------------------------------------------------------------


def with_unreadable(**options: Any) -> Fleet:
    """East also has demo/deep and demo/b, which cannot be read."""
    found = fleet(**options)
    found.stores["east"].leave_out(EventType.MODIFIED, "demo/deep", 11)
    found.stores["east"].leave_out(EventType.MODIFIED, "demo/b", 12)
    return found


def test_lists_warn_of_objects_that_cannot_be_read_where_the_user_may_list() -> None:
    found = with_unreadable()
    answer = found.read(PATH)
    assert answer.names == ["east/a", "west/b", "west/c"]
    assert answer.warnings == ["cluster east: 2 objects are left out, they cannot be read"]
    assert found.read("/api/v1/namespaces/prod/pods").warnings == []
    assert found.read(PATH, allowed=["west"]).warnings == []


def test_what_cannot_be_read_is_not_said_to_be_gone() -> None:
    found = with_unreadable()
    for target in (f"{PATH}/deep", query(PATH, fieldSelector="metadata.name=deep")):
        refusal = found.refusal(target)
        assert refusal.code == 503
        assert refusal.message == 'pods "deep" of cluster east cannot be read here'
        assert dict(refusal.headers)[b"Retry-After"] == b"1"
    assert found.refusal(f"{PATH}/none").code == 404
    assert found.refusal("/api/v1/namespaces/prod/pods/deep").code == 404
    assert found.refusal(f"{PATH}/deep", allowed=["west"]).code == 404
    assert found.read(f"{PATH}/b").status == 200  # that of west
    chosen = with_unreadable(conflicts=choosing("east"))
    assert chosen.refusal(f"{PATH}/b").code == 503


# -- members with a store for each namespace -------------------------------------------------------------------------


class ManyNamespaces(Fleet):
    """Each of 40 namespaces of east has a store of its own, at version 10. A probe takes 0.1 s."""

    def __init__(self) -> None:
        super().__init__(("east",), namespaces={"east": [f"ns-{number:02}" for number in range(40)]})
        for name, store in self.stores.items():
            self.fill(name, [pod("a", store.namespace, version=3)], 10)

    async def probe(self, store: Store, timeout: float) -> int:
        await deferLater(self.clock, 0.1)
        return await super().probe(store, timeout)


def test_all_stores_of_a_member_are_probed_at_once() -> None:
    found = ManyNamespaces()
    request, done = found.begin(ALL)
    found.clock.advance(0.1)
    response = found.finish(request, done)
    assert (len(response.names), response.warnings) == (40, [])


@pytest.mark.parametrize("match", [{}, {"resourceVersionMatch": "Exact"}, {"limit": 10}])
def test_all_stores_of_a_member_prove_a_version_at_once(match: dict[str, Any]) -> None:
    """A proof takes two of the three seconds, so two stores one after the other would be 504."""
    found = ManyNamespaces()

    def proves_later(store: Store) -> Callable[[], None]:
        def notify() -> None:
            found.clock.callLater(2.0, store.progress, 15)

        return notify

    for store in found.stores.values():
        store.waiters.notify = proves_later(store)
    request, done = found.begin(query(ALL, resourceVersion=15, **match))
    found.clock.advance(2.0)
    response = found.finish(request, done)
    assert (len(response.names), response.json()["metadata"]["resourceVersion"]) == (match.get("limit", 40), "15")


def test_one_store_that_does_not_reach_a_version_is_504() -> None:
    found = ManyNamespaces()
    *others, late = found.stores.values()
    for store in others:
        store.progress(15)
    request, done = found.begin(query(ALL, resourceVersion=15))
    found.clock.advance(2.9)
    assert not done.called
    assert late.version == 10
    found.clock.advance(0.2)
    with pytest.raises(StatusError, match="Too large resource version"):
        found.finish(request, done)
