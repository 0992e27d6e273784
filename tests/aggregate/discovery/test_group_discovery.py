"""Discovery over HTTP: for one cluster as recorded of a kube-apiserver; for several what they have together."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
import yaml

from mcproxy.aggregate.discovery.merge_cache import VisibleClusters
from mcproxy.aggregate.view.scope import Scope
from mcproxy.config.model.aggregates import CachedResource, CreateRule, UnavailableMembers
from mcproxy.kube.discovery import AGGREGATED_ACCEPT, AGGREGATED_MEDIA_TYPE, read_aggregated
from tests.aggregate.discovery.recorded import GOLDEN, east, group, resource, west
from tests.aggregate.discovery.stage import (
    EverythingCached,
    FakeDiscovery,
    FakeSource,
    Response,
    ask,
    discovery_of,
    fleet,
    now,
    source,
)
from tests.support.clock import DATE, Clock
from tests.support.logged import captured_logs

HOSTED = {"192.0.2.10:16443": "fleet.example.com:6443"}
OWN = {"audit-id", "date", "x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"}
FRAMING = {"transfer-encoding", "content-length"}


def one() -> FakeSource:
    return source("east", east().groups)


def both() -> tuple[FakeSource, FakeSource]:
    return source("east", east().groups), source("west", west().groups)


def recording(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return content


def without_hashes(content: Any) -> Any:
    for entry in content.get("resources", ()) if isinstance(content, dict) else ():
        entry.pop("storageVersionHash", None)
    return content


RECORDED = sorted(
    f"discovery/{path.stem}"
    for path in (GOLDEN / "discovery").glob("*.json")
    if path.stem not in ("apis-aggregated-v2-west", "apis-accept-protobuf", "apis-anonymous")
)


@pytest.mark.parametrize("name", RECORDED)
def test_an_aggregate_of_one_cluster_answers_as_the_cluster(name: str) -> None:
    exchange = recording(name)
    request, recorded = exchange["request"], exchange["response"]
    fields = dict(request["headers"])
    served = discovery_of(one(), config=fleet(clusters=("east",), primary="east"))
    etag: dict[str, str] = {}
    if "If-None-Match" in fields and fields["If-None-Match"] != '"0000"':  # ours differs from the recorded one
        current = now(ask(served.serve, request["path"], fields["Accept"])).header("etag")
        assert current is not None
        etag["If_None_Match"] = current
    response = now(ask(served.serve, request["path"], fields.get("Accept"), method=request["method"], **etag))
    assert response.status == recorded["status"]
    expected = {key.lower(): value for key, value in recorded["headers"] if key.lower() not in OWN | FRAMING}
    got = {key: value for key, value in response.fields if key not in OWN | FRAMING}
    if "etag" in expected:
        expected["etag"] = got["etag"]
    assert got == expected
    body = recorded["body"]
    for theirs, ours in HOSTED.items():
        body = body.replace(theirs, ours)
    if name.endswith("yaml"):
        assert by_group(yaml.safe_load(response.body)) == by_group(yaml.safe_load(body))
    elif body.startswith("{"):
        assert by_group(json.loads(response.body)) == by_group(without_hashes(json.loads(body)))
    else:
        assert response.body == body.encode()


def by_group(content: dict[str, Any]) -> dict[str, Any]:
    """With groups of equal priority in one order."""
    if "groups" in content:
        content["groups"].sort(key=lambda group: group["name"])
    return content


def items(response: Response) -> dict[tuple[str, str], Any]:
    found = {}
    for item in json.loads(response.body)["items"]:
        for version in item["versions"]:
            found[item["metadata"].get("name", ""), version["version"]] = version
    return found


@pytest.mark.parametrize("accept", [AGGREGATED_ACCEPT, AGGREGATED_MEDIA_TYPE + ";profile=nopeer"])
def test_resources_of_one_member_are_listed(accept: str) -> None:
    served = discovery_of(*both())
    response = now(ask(served.serve, "/apis?timeout=32s", accept))
    assert response.header("content-type") == AGGREGATED_MEDIA_TYPE
    assert {("east.example.com", "v1beta1"), ("west.example.com", "v1beta1")} < set(items(response))
    legacy = now(ask(served.serve, "/apis/west.example.com/v1beta1"))
    assert [entry["name"] for entry in json.loads(legacy.body)["resources"]] == ["gizmos"]


def test_members_that_the_user_may_not_touch_are_not_shown() -> None:
    served = discovery_of(*both())
    assert now(ask(served.serve, "/apis/west.example.com", members=["east"])).status == 404
    assert now(ask(served.serve, "/apis/west.example.com", members=["east", "west"])).status == 200
    assert now(ask(served.serve, "/apis/east.example.com", members=["west"])).status == 404


def test_what_is_not_known_to_exist_is_no_404_while_a_cluster_could_not_be_asked_or_read() -> None:
    """Garbage collectors and informers take a 404 for a group that is gone."""
    served = discovery_of(*both())
    for path in ("/apis/none.example.com", "/apis/none.example.com/v1", "/apis/apps/v9", "/api/v9"):
        assert now(ask(served.serve, path)).status == 404
        assert now(ask(served.serve, path, members=VisibleClusters(("east", "west"), undecided=True))).status == 503
    east_, west_ = both()
    west_.discovery.known, west_.discovery.groups = False, ()
    west_.unavailable_since = DATE
    served = discovery_of(east_, west_)
    assert now(ask(served.serve, "/apis/west.example.com")).status == 503
    assert now(ask(served.serve, "/apis/west.example.com", members=["east"])).status == 404


def test_a_change_makes_new_documents_and_a_new_etag() -> None:
    east_, west_ = both()
    served = discovery_of(east_, west_)
    before = now(ask(served.serve, "/apis", AGGREGATED_ACCEPT))
    same = now(ask(served.serve, "/apis", AGGREGATED_ACCEPT))
    assert same.header("etag") == before.header("etag")
    west_.discovery.change(groups=west_.discovery.groups[:-1])
    after = now(ask(served.serve, "/apis", AGGREGATED_ACCEPT, If_None_Match=str(before.header("etag"))))
    assert after.status == 200
    assert after.header("etag") != before.header("etag")
    assert ("west.example.com", "v1beta1") not in items(after)


def test_the_resources_of_an_unreachable_member_stay() -> None:
    east_, west_ = both()
    served = discovery_of(east_, west_, config=fleet(unavailable=UnavailableMembers.PARTIAL))
    west_.go_away()
    found = items(now(ask(served.serve, "/apis", AGGREGATED_ACCEPT)))
    assert found["west.example.com", "v1beta1"]["freshness"] == "Stale"
    assert found["west.example.com", "v1beta1"]["resources"]
    assert found["apps", "v1"]["freshness"] == "Current"
    west_.unavailable_since = None
    west_.discovery.change(fresh=True)
    found = items(now(ask(served.serve, "/apis", AGGREGATED_ACCEPT)))
    assert found["west.example.com", "v1beta1"]["freshness"] == "Current"


def test_what_is_still_served_while_its_member_is_away_is_current() -> None:
    """client-go takes no resource of a stale group-version, so the last known objects could not be read by name."""
    only = one()
    served = discovery_of(only, config=fleet(clusters=("east",), unavailable=UnavailableMembers.STALE))
    only.go_away()
    assert {version["freshness"] for version in items(now(ask(served.serve, "/apis", AGGREGATED_ACCEPT))).values()} == {
        "Current"
    }


@pytest.mark.parametrize(
    ("rule", "creates"),
    [
        (CreateRule(api_groups=("",), resources=("pods",), to="east"), {"pods"}),
        (CreateRule(api_groups=("*",), resources=("secrets",), to="east"), {"secrets"}),
        (CreateRule(api_groups=("apps",), resources=("*",), to="east"), set()),
    ],
)
def test_create_follows_the_rules(rule: CreateRule, creates: set[str]) -> None:
    served = discovery_of(one(), config=fleet(clusters=("east",), create=(rule,)))
    resources = json.loads(now(ask(served.serve, "/api/v1")).body)["resources"]
    assert {entry["name"] for entry in resources if "create" in entry["verbs"] and "/" not in entry["name"]} == creates


def test_without_a_primary_only_the_scope_is_served() -> None:
    served = discovery_of(one(), scope=EverythingCached(("apps", "v1")))
    assert [group["name"] for group in json.loads(now(ask(served.serve, "/apis")).body)["groups"]] == ["apps"]
    assert json.loads(now(ask(served.serve, "/api")).body)["versions"] == []
    assert now(ask(served.serve, "/api/v1")).status == 404


@pytest.mark.parametrize("named", [False, True])
def test_secrets_are_in_scope_only_if_they_are_named(named: bool) -> None:
    entries = [CachedResource(group="", version="v1", resource="*")]
    entries += [CachedResource(group="", version="v1", resource="secrets", clusters=("east",))] if named else []
    served = discovery_of(*both(), scope=Scope(entries))
    names = {entry["name"] for entry in json.loads(now(ask(served.serve, "/api/v1")).body)["resources"]}
    assert ("secrets" in names) is named
    assert "pods" in names


def test_a_reload_is_followed() -> None:
    east_, west_ = both()
    served = discovery_of(east_, config=fleet(clusters=("east",)))
    assert now(ask(served.serve, "/apis/west.example.com")).status == 404
    served.update(fleet(), {"east": east_, "west": west_}, EverythingCached())
    assert now(ask(served.serve, "/apis/west.example.com")).status == 200
    served.update(fleet(clusters=("west",)), {"west": west_}, EverythingCached())
    assert now(ask(served.serve, "/apis/east.example.com")).status == 404
    assert (len(east_.discovery.listeners), len(west_.discovery.listeners)) == (0, 1)
    served.stop()
    assert not west_.discovery.listeners


def test_at_the_start_discovery_waits_for_the_members() -> None:
    clock = Clock()
    slow = FakeSource("west", FakeDiscovery(known=False, fresh=False))
    served = discovery_of(one(), slow, clock=clock)
    waiting = ask(served.serve, "/apis/west.example.com")
    clock.pump([0.1] * 20)
    assert not waiting.called
    slow.discovery.change(groups=west().groups, known=True, fresh=True)
    clock.advance(0.1)
    assert now(waiting).status == 200


def test_but_not_longer_than_they_are_given() -> None:
    clock = Clock()
    slow = FakeSource("west", FakeDiscovery(known=False, fresh=False))
    served = discovery_of(one(), slow, clock=clock)
    waiting = ask(served.serve, "/apis/example.com")
    clock.pump([0.1] * 101)
    assert now(waiting).status == 200
    assert now(ask(served.serve, "/apis/west.example.com")).status == 503


def test_nor_for_one_that_cannot_be_reached() -> None:
    gone = FakeSource("west", FakeDiscovery(known=False, fresh=False), unavailable_since=DATE)
    assert now(ask(discovery_of(one(), gone).serve, "/apis/example.com")).status == 200
    nobody = now(ask(discovery_of(gone).serve, "/apis"))
    assert nobody.status == 503
    assert json.loads(nobody.body)["details"] == {"retryAfterSeconds": 5}


def test_a_definition_that_was_just_installed_is_there() -> None:
    clock = Clock()
    east_, west_ = both()
    groups = west_.discovery.groups
    west_.discovery.groups = groups[:-1]
    served = discovery_of(east_, west_, clock=clock)
    assert now(ask(served.serve, "/apis/west.example.com")).status == 404
    west_.discovery.on_refresh = {"groups": groups}
    assert now(ask(served.serve, "/apis/west.example.com")).status == 404
    clock.advance(5)
    assert now(ask(served.serve, "/apis/west.example.com")).status == 200
    assert west_.discovery.refreshes == 2


def test_members_that_answer_late_are_not_waited_for() -> None:
    clock = Clock()
    east_, west_ = both()
    west_.discovery.slow = True
    served = discovery_of(east_, west_, clock=clock)
    waiting = ask(served.serve, "/apis/west.example.com")
    clock.advance(0.9)
    assert not waiting.called
    clock.advance(0.2)
    assert now(waiting).status == 200
    assert now(ask(served.serve, "/apis/west.example.com")).status == 200
    west_.go_away()
    clock.advance(10)
    assert now(ask(served.serve, "/apis/west.example.com")).status == 200
    assert west_.discovery.refreshes == 1


def test_shared_caches_may_not_keep_what_is_not_the_same_for_all() -> None:
    served = discovery_of(*both())
    whole = now(ask(served.serve, "/apis", AGGREGATED_ACCEPT))
    part = now(ask(served.serve, "/apis", AGGREGATED_ACCEPT, members=["east"]))
    assert (whole.header("cache-control"), part.header("cache-control")) == ("public", "no-cache, private")


def test_a_big_document_is_compressed() -> None:
    many = [group(f"g{number}.io", "v1", resource("things", "Thing")) for number in range(1000)]
    served = discovery_of(source("east", many))
    plain = now(ask(served.serve, "/apis", AGGREGATED_ACCEPT))
    zipped = now(ask(served.serve, "/apis", AGGREGATED_ACCEPT, Accept_Encoding="gzip"))
    assert gzip.decompress(zipped.body) == plain.body
    assert (zipped.header("content-encoding"), plain.header("content-encoding")) == ("gzip", None)
    assert zipped.header("etag") == plain.header("etag")
    assert [value for name, value in plain.fields if name == "vary"] == ["Accept-Encoding", "Accept"]


def test_a_conflict_is_logged_once() -> None:
    east_, west_ = both()
    other = json.loads((GOLDEN / "discovery/apis-aggregated-v2-west.json").read_text())["response"]["body"]
    west_.discovery.groups = read_aggregated(other.replace('"kind":"Widget"', '"kind":"Gadget"').encode())
    served = discovery_of(east_, west_)
    with captured_logs() as events:
        for _ in range(2):
            now(ask(served.serve, "/apis", AGGREGATED_ACCEPT))
            east_.discovery.change()
    assert [event["resource"] for event in events] == [
        f"widgets.example.com (example.com/{version})" for version in ("v1", "v1alpha1")
    ]
    assert {event["cluster"] for event in events} == {"east"}
    assert "namespaced Gadget in west" in events[0]["cause"]


@pytest.mark.parametrize("path", ["/metrics", "/logs", "/.well-known/openid-configuration", "/apis/a/v1/b", "/apix"])
def test_other_paths_are_not_served_here(path: str) -> None:
    found: list[Any] = []
    ask(discovery_of(one()).serve, path).addCallback(found.append)
    assert found == [None]


@pytest.mark.parametrize("path", ["/api/v1", "/apis/apps", "/apis/apps/v1"])
@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE"])
def test_405(path: str, method: str) -> None:
    assert now(ask(discovery_of(one()).serve, path, method=method, Content_Length="0")).status == 405


@pytest.mark.parametrize("path", ["/api", "/apis", "/apis/apps", "/apis/apps/v1"])
def test_protobuf_is_not_made(path: str) -> None:
    served = discovery_of(one()).serve
    alone = now(ask(served, path, "application/vnd.kubernetes.protobuf"))
    accepted = "only the following media types are accepted: application/json, application/yaml"
    assert (alone.status, json.loads(alone.body)["message"]) == (406, accepted)
    beside = now(ask(served, path, "application/vnd.kubernetes.protobuf,application/json"))
    assert (beside.status, beside.header("content-type")) == (200, "application/json")


def test_post_on_a_root_answers_as_get() -> None:
    assert now(ask(discovery_of(one()).serve, "/apis", method="POST", Content_Length="0")).status == 200
