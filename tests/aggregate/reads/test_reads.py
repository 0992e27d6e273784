"""Gets and lists over members' caches: the rows of "Reads from cache"."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from twisted.internet.defer import CancelledError
from twisted.logger import capturedLogs

from mcproxy.aggregate.cache.object import CachedObject
from mcproxy.aggregate.reads.freshness import Freshness
from mcproxy.aggregate.reads.list_page import Lister
from mcproxy.aggregate.reads.response_body import ResponseBody
from mcproxy.aggregate.selection import Selection
from mcproxy.config.model.aggregates import Unavailable
from tests.aggregate.objects import NODES, WIDGETS, pod
from tests.aggregate.reads.harness import Fleet, Response, query

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
    return tuple(int(text[place : place + 20]) for place in range(6, len(text), 20))


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
    left_out = [("east", "it cannot be asked whether this is allowed")]
    found = fleet(freshness=Freshness(unavailable=Unavailable.FAIL))
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


def test_a_cache_that_does_not_catch_up_counts_as_unavailable_after_3_seconds() -> None:
    found = fleet()
    found.present["west"] = 21
    request, done = found.begin(PATH)
    found.clock.advance(2.9)
    assert not done.called
    found.clock.advance(0.2)
    response = found.finish(request, done)
    assert response.names == ["east/a", "east/b", "west/b", "west/c"]
    assert response.warnings == ["cluster west: unavailable since 2023-11-14T22:13:20Z, showing its last known objects"]


@pytest.mark.parametrize("error", [None, ConnectionError("refused")])
def test_a_member_that_does_not_answer_holds_nobody_back_for_longer(error: Exception | None) -> None:
    found = fleet()
    found.probe_errors["west"] = error
    request, done = found.begin(PATH)
    found.clock.advance(3.1)
    assert "unavailable since" in found.finish(request, done).warnings[0]


def test_max_staleness_saves_the_question_while_the_last_sign_is_young() -> None:
    found = fleet(freshness=Freshness(max_staleness=5.0))
    found.read(PATH)
    assert found.probed == []
    found.clock.advance(6)
    found.stores["west"].progress(21)
    found.read(PATH)
    assert found.probed == ["east"]


def test_rv_0_asks_nobody_and_has_no_limit() -> None:
    found = fleet()
    response = found.read(query(PATH, resourceVersion="0", limit=1))
    assert response.names == ["east/a", "east/b", "west/b", "west/c"]
    assert "continue" not in response.json()["metadata"]
    assert found.probed == []


@pytest.mark.parametrize("match", ["", "NotOlderThan"])
def test_rv_waits_until_it_is_reached(match: str) -> None:
    found = fleet()
    text = found.view.format.whole((10, 21))
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
    text = found.view.format.whole((10, 21))
    request, done = found.begin(query(PATH, resourceVersion=text, **({"resourceVersionMatch": match} if match else {})))
    found.clock.advance(3.1)
    with pytest.raises(Exception, match="Too large resource version") as caught:
        found.finish(request, done)
    error: Any = caught.value
    assert (error.code, error.reason) == (504, "Timeout")
    assert error.details["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert error.details["retryAfterSeconds"] == 1
    assert error.message == f"Timeout: Too large resource version: {text}, current: {found.view.format.whole((10, 20))}"


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
    text = found.view.format.whole((9, 20))
    error = found.refusal(query(PATH, resourceVersion=text, resourceVersionMatch="Exact"))
    assert (error.code, error.reason) == (410, "Expired")
    assert error.message == "The resourceVersion for the provided list is too old."


def test_rv_exact_without_a_member_is_without_its_objects() -> None:
    found = fleet()
    text = found.view.format.whole((10, 0))
    response = found.read(query(PATH, resourceVersion=text, resourceVersionMatch="Exact"))
    assert response.names == ["east/a", "east/b"]
    assert response.json()["metadata"]["resourceVersion"] == text


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
    assert fleet().refusal(query(PATH, resourceVersion=other.view.format.whole((1, 2)))).code == 410


# -- members that are not there ---------------------------------------------------------------------------------------


def unsynced(unavailable: Unavailable = Unavailable.STALE) -> Fleet:
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


def test_a_member_that_was_never_reached_is_left_out_with_a_warning() -> None:
    found = Fleet(("east",), undiscovered=["west"])
    found.fill("east", [pod("a", version=3)], 10)
    response = found.read(PATH)
    assert response.names == ["east/a"]
    assert response.warnings == ["cluster west: its objects are left out: it was never reached"]


@pytest.mark.parametrize(
    ("unavailable", "names", "rest"),
    [
        (Unavailable.STALE, ["east/a", "east/b", "west/b", "west/c"], ", showing its last known objects"),
        (Unavailable.PARTIAL, ["east/a", "east/b"], ""),
    ],
)
def test_a_member_that_is_down(unavailable: Unavailable, names: list[str], rest: str) -> None:
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
    found = fleet(freshness=Freshness(unavailable=Unavailable.FAIL))
    found.stores["west"].unavailable("connection refused")
    error = found.refusal(target)
    assert (error.code, error.reason) == (503, "ServiceUnavailable")


def test_no_member_at_all_is_503_and_not_an_empty_list() -> None:
    found = Fleet(("east",), freshness=Freshness(initial_sync_timeout=0.0))
    assert found.refusal(PATH).code == 503
    found = fleet(freshness=Freshness(unavailable=Unavailable.PARTIAL))
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


def test_a_get_is_as_fresh_as_a_list() -> None:
    found = fleet()
    found.read(query(PATH + "/a", resourceVersion="0"))
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
    request.exchange.lost()
    found.clock.advance(0)
    assert done.called
    assert not request.connection.done


def test_a_client_that_goes_away_is_no_mistake_to_report() -> None:
    """Whoever may list could fill the log with tracebacks."""
    found = big()
    request, done = found.begin(ALL, slow=True)
    found.clock.advance(0)
    with capturedLogs() as logs:
        done.cancel()  # as the pipeline does first
        request.exchange.lost()
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


def test_an_error_while_a_body_is_made_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    found = big()
    request, done = found.begin(ALL, slow=True)

    def broken(*_: object) -> list[bytes]:
        raise ValueError("a mistake")

    handler = request.exchange.handler
    assert isinstance(handler, ResponseBody)
    monkeypatch.setattr(Lister, "_slices", broken)
    for store in found.stores.values():
        assert store.synced
    with capturedLogs() as logs:
        handler.resume_response()
        for _ in range(10):
            found.clock.advance(0)
            handler.resume_response()
    assert done.called
    assert request.connection.aborted
    assert "internal_error" in [log.get("event") for log in logs]
    assert not request.response.complete


@pytest.mark.parametrize("resource_version", ["", "12"])
def test_a_client_that_goes_away_while_it_waits_ends_the_wait(resource_version: str) -> None:
    found = fleet()
    found.present["west"] = 99
    text = found.view.format.whole((10, 99)) if resource_version else ""
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
    request.exchange.lost()
    found.stores["west"].progress(10**7)
    found.clock.advance(0)
    assert done.called
    assert not request.connection.writes


def test_a_long_selector_does_not_keep_the_reactor(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    matched = Selection.filter

    def filtered(self: Selection, objects: Sequence[CachedObject]) -> list[CachedObject]:
        sizes.append(len(objects))
        return matched(self, objects)

    monkeypatch.setattr(Selection, "filter", filtered)
    found = big()
    found.read(query(ALL, labelSelector=",".join(f"a{number}!=b" for number in range(500))))
    assert max(sizes) <= 40
    sizes.clear()
    found.read(query(ALL, fieldSelector=",".join(f"spec.a{number}!=b" for number in range(40))))
    assert max(sizes) <= 10
    assert sum(sizes) == 4000
