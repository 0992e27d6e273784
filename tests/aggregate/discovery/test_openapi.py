"""OpenAPI over HTTP: as recorded of one cluster; for several the documents of their owners, or merged ones."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred

from mcproxy.aggregate.discovery.discovery_handler import AggregateDiscovery
from mcproxy.aggregate.discovery.openapi import V2_PROTOBUF, V3_PROTOBUF
from mcproxy.aggregate.discovery.openapi_documents import read_index
from mcproxy.aggregate.reflector.member_calls import MemberError
from mcproxy.kube.discovery import APIResourceDiscovery
from mcproxy.kube.resource import GroupVersionResource
from mcproxy.upstream.control import ControlResponse
from tests.aggregate.discovery.recorded import body, east, group, resource, west
from tests.aggregate.discovery.stage import (
    EverythingCached,
    FakeSource,
    ask,
    discovery_of,
    fleet,
    now,
    recorded_response,
    source,
)
from tests.support.clock import DATE, Clock
from tests.support.logged import captured_logs

CRD = read_index(body("openapi/v3-root"))["apis/example.com/v1"]
PATH = "apis/example.com/v1"
INDEX = "/openapi/v3"


def recorded_east() -> FakeSource:
    """The recorded cluster with its index, and the document of its custom resources."""
    document = recorded_response("openapi/v3-crd")
    answers = {INDEX: recorded_response("openapi/v3-root"), f"{INDEX}/{PATH}?hash={CRD}": document}
    return source("east", east().groups, **answers)


def paths_of(kind: str, name: str, description: str = "") -> dict[str, Any]:
    """A small v3 document of one resource of x.io/v1."""
    prefix = "#/components/schemas/"
    return {
        "openapi": "3.0.0",
        "info": {},
        "paths": {f"/apis/x.io/v1/{name}": {"get": {"schema": {"$ref": prefix + kind}}}},
        "components": {
            "schemas": {kind: {"properties": {"meta": {"$ref": prefix + "Meta"}}}, "Meta": {"d": description}}
        },
    }


def small(name: str, *resources: APIResourceDiscovery, document: Any = None, hash_: str = "AB12") -> FakeSource:
    """A cluster that has some resources in x.io/v1, with a v3 document."""
    index = {"paths": {"apis/x.io/v1": {"serverRelativeURL": f"/openapi/v3/apis/x.io/v1?hash={hash_}"}}}
    query = f"?hash={hash_}" if hash_ else ""
    if not hash_:
        index["paths"]["apis/x.io/v1"]["serverRelativeURL"] = "/openapi/v3/apis/x.io/v1"
    return source(
        name,
        [group("x.io", "v1", *resources)],
        **{INDEX: ok(index), f"{INDEX}/apis/x.io/v1{query}": ok(document or {"openapi": "3.0.0", "d": name})},
    )


def ok(content: Any, **fields: str) -> ControlResponse:
    headers = tuple((name.encode(), value.encode()) for name, value in fields.items())
    return ControlResponse(200, headers, json.dumps(content).encode())


THINGS = resource("things", "Thing")
GADGETS = resource("gadgets", "Gadget")


def test_the_index_of_one_cluster_is_its_own() -> None:
    served = discovery_of(recorded_east(), config=fleet(clusters=("east",), primary="east"))
    response = now(ask(served.serve, "/openapi/v3?timeout=32s", "application/json, */*"))
    assert json.loads(response.body) == json.loads(body("openapi/v3-root"))
    assert response.header("content-type") == "text/plain; charset=utf-8"
    assert response.header("cache-control") == "no-cache, private"
    etag = response.header("etag")
    assert etag is not None
    unchanged = now(ask(served.serve, "/openapi/v3", If_None_Match=etag))
    assert (unchanged.status, unchanged.body) == (304, b"")


def test_the_index_of_two_members_has_the_documents_of_both() -> None:
    west_ = source("west", west().groups, **{INDEX: recorded_response("aggregated-down/openapi-v3")})
    found = read_index(now(ask(discovery_of(recorded_east(), west_).serve, INDEX)).body)
    assert {"apis/east.example.com/v1beta1", "apis/west.example.com/v1beta1", "apis/apps/v1", "apis"} <= set(found)
    assert found[PATH] == CRD


@pytest.mark.parametrize("zipped", [False, True])
def test_a_document_by_its_hash(zipped: bool) -> None:
    recorded = recorded_response("openapi/v3-crd")
    fields = {"Accept_Encoding": "gzip"} if zipped else {}
    response = now(ask(discovery_of(recorded_east()).serve, f"{INDEX}/{PATH}?hash={CRD}", **fields))
    assert response.status == 200
    assert (gzip.decompress(response.body) if zipped else response.body) == recorded.body
    assert response.header("content-encoding") == ("gzip" if zipped else None)
    expected = {key.decode().lower(): value.decode() for key, value in recorded.headers}
    for field in ("etag", "cache-control", "content-type"):
        assert response.header(field) == expected[field]
    assert response.header("expires") == "Tue, 21 Sep 2027 14:13:20 UTC"  # a year after the clock's date
    assert {value for name, value in response.fields if name == "vary"} == {"Accept-Encoding", "Accept"}


def test_head() -> None:
    response = now(ask(discovery_of(recorded_east()).serve, f"{INDEX}/{PATH}?hash={CRD}", method="HEAD"))
    assert (response.status, response.body) == (200, b"")
    assert response.header("content-length") == str(len(recorded_response("openapi/v3-crd").body))


def test_without_a_hash_it_may_not_be_kept_for_ever() -> None:
    response = now(ask(discovery_of(recorded_east()).serve, f"{INDEX}/{PATH}"))
    assert response.body == recorded_response("openapi/v3-crd").body
    assert (response.header("cache-control"), response.header("expires")) == ("no-cache, private", None)
    assert response.header("etag") == f'"{CRD}"'


def test_not_modified_asks_nobody() -> None:
    one = recorded_east()
    response = now(ask(discovery_of(one).serve, f"{INDEX}/{PATH}?hash={CRD}", If_None_Match=f'"{CRD}"'))
    assert (response.status, response.body, response.header("content-type")) == (304, b"", None)
    recorded = dict(recorded_response("openapi/v3-apps-v1-304").headers)
    assert response.header("cache-control") == recorded[b"Cache-Control"].decode()
    assert response.header("vary") == recorded[b"Vary"].decode()
    assert [path for path, _ in one.asked] == [INDEX]


def test_a_wrong_hash_is_redirected() -> None:
    response = now(ask(discovery_of(recorded_east()).serve, f"{INDEX}/{PATH}?hash=0123456789ABCDEF"))
    recorded = recorded_response("openapi/v3-apps-v1-wronghash")
    assert (response.status, response.body) == (recorded.status, recorded.body) == (301, b"")
    assert response.header("location") == f"/openapi/v3/{PATH}?hash={CRD}"
    expected = dict(recorded.headers)
    for field in (b"Cache-Control", b"Content-Type", b"Vary", b"Content-Length"):
        assert response.header(field.decode().lower()) == expected[field].decode()
    assert response.header("etag") == f'"{CRD}"'


@pytest.mark.parametrize("path", ["apis/nope/v1", "apis/example.com/v1/x", "nope"])
def test_404(path: str) -> None:
    response = now(ask(discovery_of(recorded_east()).serve, f"{INDEX}/{path}/"))
    recorded = recorded_response("openapi/v3-unknown")
    assert (response.status, response.body) == (recorded.status, recorded.body) == (404, b"")
    assert response.header("cache-control") == "no-cache, private"
    assert response.header("content-type") is None


def test_406_has_no_body() -> None:
    for path in (f"{INDEX}/{PATH}", "/openapi/v2"):
        response = now(ask(discovery_of(recorded_east()).serve, path, "text/html"))
        recorded = recorded_response("openapi/v2-406")
        assert (response.status, response.body) == (recorded.status, recorded.body)
        vary = [value for name, value in response.fields if name == "vary"]
        assert vary == [value.decode() for name, value in recorded.headers if name == b"Vary"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/openapi/v2", "/openapi/v3", "/openapi/v3/api/v1"])
def test_405(path: str, method: str) -> None:
    assert now(ask(discovery_of(recorded_east()).serve, path, method=method, Content_Length="0")).status == 405


def test_a_document_is_fetched_once() -> None:
    one = recorded_east()
    served = discovery_of(one)
    for _ in range(3):
        assert now(ask(served.serve, f"{INDEX}/{PATH}?hash={CRD}")).status == 200
    assert [path for path, _ in one.asked] == [INDEX, f"{INDEX}/{PATH}?hash={CRD}"]


def test_a_group_version_that_two_members_describe_together_is_merged() -> None:
    a = small("a", THINGS, document=paths_of("Thing", "things", "new"), hash_="A1")
    b = small("b", GADGETS, document=paths_of("Gadget", "gadgets", "old"), hash_="B1")
    served = discovery_of(a, b)
    hash_ = read_index(now(ask(served.serve, INDEX, members=["a", "b"])).body)["apis/x.io/v1"]
    assert hash_ not in ("A1", "B1")
    path = f"{INDEX}/apis/x.io/v1?hash={hash_}"
    response = now(ask(served.serve, path, members=["a", "b"]))
    document = json.loads(response.body)
    assert set(document["paths"]) == {"/apis/x.io/v1/things", "/apis/x.io/v1/gadgets"}
    assert set(document["components"]["schemas"]) == {"Thing", "Gadget", "Meta", "Meta_v2"}
    assert response.header("etag") == f'"{hash_}"'
    assert now(ask(served.serve, path, V3_PROTOBUF, members=["a", "b"])).status == 406
    assert now(ask(served.serve, path, f"{V3_PROTOBUF}, application/json", members=["a", "b"])).body == response.body
    own = now(ask(served.serve, path, members=["b"]))
    assert (own.status, own.header("location")) == (301, "/openapi/v3/apis/x.io/v1?hash=B1")


def test_another_cluster_with_the_same_document_helps_out() -> None:
    a, b = small("a", THINGS), small("b", THINGS)
    served = discovery_of(a, b)
    assert now(ask(served.serve, INDEX, members=["a", "b"])).status == 200
    a.answers[f"{INDEX}/apis/x.io/v1?hash=AB12"] = MemberError("connection reset")
    b.answers[INDEX] = a.answers[INDEX]
    served.update(fleet(clusters=("a", "b")), {"a": a, "b": b}, EverythingCached())
    a.discovery.fresh = False
    a.unavailable_since = DATE
    a.discovery.change()
    response = now(ask(served.serve, f"{INDEX}/apis/x.io/v1?hash=AB12", members=["a", "b"]))
    assert json.loads(response.body)["d"] == "b"


def test_the_last_known_document_is_served_while_its_owner_is_away() -> None:
    one = recorded_east()
    served = discovery_of(one)
    assert now(ask(served.serve, f"{INDEX}/{PATH}?hash={CRD}")).status == 200
    one.go_away()
    one.answers.clear()
    assert now(ask(served.serve, f"{INDEX}/{PATH}?hash={CRD}")).status == 200
    assert CRD.encode() in now(ask(served.serve, INDEX)).body


def test_a_document_that_cannot_be_read_is_503() -> None:
    one = recorded_east()
    one.answers[f"{INDEX}/{PATH}?hash={CRD}"] = MemberError("connection reset by 192.0.2.9")
    with captured_logs() as events:
        response = now(ask(discovery_of(one).serve, f"{INDEX}/{PATH}?hash={CRD}"))
    assert response.status == 503
    assert b"192.0.2.9" not in response.body
    (event,) = events
    assert (event["cause"], event["client"]) == ("connection reset by 192.0.2.9", "192.0.2.7")


@pytest.mark.parametrize("content", [b"no json", b"[]", b"\xff"])
def test_a_malformed_document_is_not_passed_on(content: bytes) -> None:
    one = recorded_east()
    one.answers[f"{INDEX}/{PATH}?hash={CRD}"] = ControlResponse(200, (), content)
    assert now(ask(discovery_of(one).serve, f"{INDEX}/{PATH}?hash={CRD}")).status == 503


def test_an_old_index_is_read_again() -> None:
    """The definition has changed at the cluster since its index was read."""
    one = small("a", THINGS, hash_="AA")
    served = discovery_of(one)
    assert read_index(now(ask(served.serve, INDEX, members=["a"])).body)["apis/x.io/v1"] == "AA"
    changed = small("a", THINGS, hash_="BB")
    one.answers = {**changed.answers, f"{INDEX}/apis/x.io/v1?hash=AA": ControlResponse(301, (), b"")}
    response = now(ask(served.serve, f"{INDEX}/apis/x.io/v1?hash=AA", members=["a"]))
    assert (response.status, response.header("location")) == (301, "/openapi/v3/apis/x.io/v1?hash=BB")
    assert now(ask(served.serve, f"{INDEX}/apis/x.io/v1", members=["a"])).status == 200


def test_a_cluster_that_never_agrees_with_its_index_is_not_asked_for_ever() -> None:
    one = small("a", THINGS, hash_="AA")
    one.answers[f"{INDEX}/apis/x.io/v1?hash=AA"] = ControlResponse(301, (), b"")
    assert now(ask(discovery_of(one).serve, f"{INDEX}/apis/x.io/v1?hash=AA", members=["a"])).status == 503
    assert len(one.asked) <= 6


def test_a_document_without_a_hash_is_read_each_time() -> None:
    one = small("a", THINGS, hash_="")
    served = discovery_of(one)
    for _ in range(2):
        response = now(ask(served.serve, f"{INDEX}/apis/x.io/v1?hash=XX", members=["a"]))
        assert response.status == 200
        digest = hashlib.sha512(response.body).hexdigest().upper()
        assert response.header("etag") == f'"{digest}"'
    assert [path for path, _ in one.asked].count(f"{INDEX}/apis/x.io/v1") == 2


def test_the_index_is_read_again_after_a_while_and_after_a_change() -> None:
    clock = Clock()
    one = recorded_east()
    served = discovery_of(one, clock=clock)
    for _ in range(3):
        now(ask(served.serve, INDEX))
    assert len(one.asked) == 1
    clock.advance(11)
    now(ask(served.serve, INDEX))
    assert len(one.asked) == 2
    one.discovery.change()
    now(ask(served.serve, INDEX))
    assert len(one.asked) == 3


def test_a_black_holed_member_does_not_hold_up_the_others() -> None:
    clock = Clock()
    hole = source("west", west().groups)
    hole.black_hole = True
    waiting = ask(discovery_of(recorded_east(), hole, clock=clock).serve, INDEX)
    assert not waiting.called
    clock.advance(3.1)
    assert CRD.encode() in now(waiting).body


def test_protobuf_is_the_owners() -> None:
    one = recorded_east()
    path = f"{INDEX}/{PATH}?hash={CRD}"
    one.answers[path] = ControlResponse(200, ((b"Content-Type", V3_PROTOBUF.encode()),), b"\x01\x02")
    served = discovery_of(one)
    for accept in (V3_PROTOBUF, "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"):
        response = now(ask(served.serve, path, accept))
        assert (response.status, response.body) == (200, b"\x01\x02")
        assert response.header("content-type") == V3_PROTOBUF
    one.answers[path] = ControlResponse(200, ((b"Content-Type", b"text/html"),), b"<html>")
    assert now(ask(discovery_of(one).serve, path, V3_PROTOBUF)).status == 406


# -- v2 ------------------------------------------------------------------------------------------------------------


def v2(name: str, *groups: str) -> FakeSource:
    paths = {f"/apis/{one}/v1/things": {"get": {"schema": {"$ref": "#/definitions/Thing"}}} for one in groups}
    content = {
        "swagger": "2.0",
        "info": {},
        "paths": {"/version/": {"get": {"d": name}}, **paths},
        "definitions": {"Thing": {"description": name}},
    }
    found = [group(one, "v1", resource("things", "Thing")) for one in groups]
    answer = ok(content, ETag=f'"{name.upper()}"')
    return source(name, found, **{"/openapi/v2": answer})


def test_the_v2_document_of_one_cluster_is_passed_on() -> None:
    one = v2("a", "x.io")
    served = discovery_of(one)
    response = now(ask(served.serve, "/openapi/v2", "*/*"))
    answer = one.answers["/openapi/v2"]
    assert isinstance(answer, ControlResponse)
    assert response.body == answer.body
    assert response.header("etag") == '"A"'
    assert [value for name, value in response.fields if name == "vary"] == ["Accept-Encoding", "Accept"]
    assert response.header("cache-control") == "no-cache, private"
    unchanged = now(ask(served.serve, "/openapi/v2", If_None_Match='"A"'))
    assert (unchanged.status, unchanged.body, unchanged.header("content-type")) == (304, b"", None)
    assert now(ask(served.serve, "/openapi/v2", method="HEAD")).header("content-length") == str(len(answer.body))
    assert len(one.asked) == 1


def test_v2_documents_are_merged() -> None:
    served = discovery_of(v2("a", "x.io", "z.io"), v2("b", "y.io", "x.io"))
    response = now(ask(served.serve, "/openapi/v2", Accept_Encoding="gzip", members=["a", "b"]))
    assert response.header("content-encoding") == "gzip"
    document = json.loads(gzip.decompress(response.body))
    assert set(document["paths"]) == {
        "/version/",
        "/apis/x.io/v1/things",
        "/apis/z.io/v1/things",
        "/apis/y.io/v1/things",
    }
    assert document["definitions"] == {"Thing": {"description": "a"}, "Thing_v2": {"description": "b"}}
    assert document["paths"]["/version/"]["get"]["d"] == "a"
    assert now(ask(served.serve, "/openapi/v2", V2_PROTOBUF, members=["a", "b"])).status == 406  # they give none
    same = now(ask(served.serve, "/openapi/v2", members=["a", "b"], If_None_Match=str(response.header("etag"))))
    assert same.status == 304


def test_v2_has_nothing_that_is_not_served() -> None:
    served = discovery_of(v2("a", "x.io", "secret.io"), scope=EverythingCached(("x.io", "v1")))
    document = json.loads(now(ask(served.serve, "/openapi/v2", members=["a"])).body)
    assert set(document["paths"]) == {"/version/", "/apis/x.io/v1/things"}


def test_v2_is_asked_for_again_with_its_etag() -> None:
    clock = Clock()
    one = v2("a", "x.io")
    served = discovery_of(one, clock=clock)
    now(ask(served.serve, "/openapi/v2"))
    clock.advance(61)
    before = one.answers["/openapi/v2"]
    one.answers["/openapi/v2"] = ControlResponse(304, (), b"")
    now(ask(served.serve, "/openapi/v2"))
    assert one.asked[-1][1]["if-none-match"] == '"A"'
    assert isinstance(before, ControlResponse)
    assert now(ask(served.serve, "/openapi/v2")).body == before.body


def test_v2_as_protobuf_is_the_clusters_own() -> None:
    one = v2("a", "x.io")
    served = discovery_of(one)
    now(ask(served.serve, "/openapi/v2"))
    one.answers["/openapi/v2"] = ControlResponse(200, ((b"Content-Type", V2_PROTOBUF.encode()),), b"\x01")
    response = now(ask(served.serve, "/openapi/v2", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"))
    assert (response.status, response.body, response.header("content-type")) == (200, b"\x01", V2_PROTOBUF)


def test_v2_as_protobuf_alone_is_of_the_cluster_that_describes_most() -> None:
    a, b = v2("a", "x.io"), v2("b", "y.io", "z.io")
    served = discovery_of(a, b)
    merged = now(ask(served.serve, "/openapi/v2"))
    for one in (a, b):
        answer = ControlResponse(200, ((b"Content-Type", V2_PROTOBUF.encode()),), one.name.encode())
        one.answers["/openapi/v2"] = answer
    response = now(ask(served.serve, "/openapi/v2", V2_PROTOBUF))
    assert (response.status, response.body, response.header("etag")) == (200, b"b", '"B"')
    both = now(ask(served.serve, "/openapi/v2", f"{V2_PROTOBUF}, application/json"))
    assert both.body == merged.body


def test_v2_of_nobody() -> None:
    one = source("a", [group("x.io", "v1", THINGS)], **{"/openapi/v2": MemberError("broken")})
    assert now(ask(discovery_of(one).serve, "/openapi/v2")).status == 503


def test_documents_are_made_off_the_reactor() -> None:
    """Until the thread is done there is no answer, and who asks meanwhile gets the same one."""
    pending: list[tuple[Deferred[Any], Any, tuple[Any, ...]]] = []

    def in_thread(function: Any, *args: Any) -> Deferred[Any]:
        deferred: Deferred[Any] = Deferred()
        pending.append((deferred, function, args))
        return deferred

    one = recorded_east()
    served = discovery_of(one, in_thread=in_thread)
    waiting = [ask(served.serve, f"{INDEX}/{PATH}?hash={CRD}") for _ in range(3)]
    assert not any(deferred.called for deferred in waiting)
    gone: list[Any] = []
    waiting[0].addErrback(gone.append)
    waiting[0].cancel()
    assert gone[0].check(CancelledError)
    ((deferred, function, args),) = pending
    maybeDeferred(function, *args).chainDeferred(deferred)
    assert [now(one).status for one in waiting[1:]] == [200, 200]


# -- field selectors -----------------------------------------------------------------------------------------------


def known_field(one: FakeSource, served: AggregateDiscovery, target: str, name: str = "widgets") -> Any:
    found: list[Any] = []

    async def serve(request: Any, _: object) -> bool:
        resource = one.discovery.resources[GroupVersionResource("example.com", "v1", name)]
        found.append(await served.known_field(request, resource))
        return False

    ask(serve, target)
    return found[0]


def test_fields_of_the_published_schema() -> None:
    one = recorded_east()
    served = discovery_of(one)
    target = "/apis/example.com/v1/widgets?fieldSelector=spec.size%3D1"
    for _ in range(2):
        known = known_field(one, served, target)
        assert (known("spec.size"), known("spec.nothing")) == (True, False)
    assert len(one.asked) == 2
    assert known_field(one, served, "/apis/example.com/v1/widgets") is None


def test_fields_are_unknown_while_the_schema_is() -> None:
    one = recorded_east()
    one.answers[f"{INDEX}/{PATH}?hash={CRD}"] = MemberError("broken")
    assert known_field(one, discovery_of(one), "/apis/example.com/v1/widgets?fieldSelector=a%3Db") is None
