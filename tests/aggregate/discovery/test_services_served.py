"""A backend and its API services as clients see them: the rows of kube-aggregator's behaviour, over the HTTP engine.

The backend is the recorded cluster, alone or with another one as an aggregate.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from twisted.internet.defer import maybeDeferred

from mcproxy.aggregate.discovery.api_services import GroupVersion, ServedGroupVersion
from mcproxy.aggregate.discovery.discovery_handler import AggregateDiscovery
from mcproxy.aggregate.discovery.merge_cache import VisibleClusters
from mcproxy.aggregate.discovery.service_sources import Services, ServiceSources
from mcproxy.aggregate.reflector.member_calls import MemberError
from mcproxy.aggregate.reflector.member_discovery import Priority
from mcproxy.kube.discovery import AGGREGATED_ACCEPT, AGGREGATED_MEDIA_TYPE, read_aggregated
from mcproxy.net.wall_time import WallSeconds
from tests.aggregate.discovery import recorded
from tests.aggregate.discovery.fake_api_server import FakeAPIServer, aggregated, answer
from tests.aggregate.discovery.stage import (
    EverythingCached,
    FakeSource,
    Response,
    ask,
    fleet,
    now,
    recorded_response,
    source,
)
from tests.support.clock import Clock
from tests.support.logged import captured_logs
from tests.support.stub import Stub

JSON = "application/json"
V2 = AGGREGATED_MEDIA_TYPE
V2BETA1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
METRICS, THINGS = ("metrics.k8s.io", "v1beta1"), ("things.example.com", "v1")


class Everybody(Stub):  # type: ignore[misc]
    """Lets users discover all but `hidden`; `undecided` cannot be asked about."""

    def __init__(self) -> None:
        self.hidden: set[GroupVersion] = set()
        self.undecided: set[GroupVersion] = set()

    async def of(self, request: Any, registered: Any) -> tuple[frozenset[GroupVersion], frozenset[GroupVersion]]:
        keys = {each.group_version for each in registered}
        return frozenset(keys - self.hidden - self.undecided), frozenset(self.undecided)


def definition(kind: str, group: str, version: str) -> dict[str, Any]:
    kinds = [{"group": group, "version": version, "kind": kind}]
    return {"type": "object", "description": f"of {group}", "x-kubernetes-group-version-kind": kinds}


class Stage:
    """Two API servers beside the recorded backend."""

    def __init__(self, backend: str = "one cluster") -> None:
        self.clock = Clock()
        self.metrics, self.things = FakeAPIServer("metrics"), FakeAPIServer("things")
        for server, key in ((self.metrics, METRICS), (self.things, THINGS)):
            path = f"apis/{key[0]}/{key[1]}"
            server.answers = {
                "/apis": aggregated("/".join(key), etag='"1"'),
                "/openapi/v3": answer(
                    {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash=H{server.name}"}}}
                ),
                f"/openapi/v3/{path}?hash=H{server.name}": answer(
                    {"openapi": "3.0.0", "paths": {}, "x-of": server.name}
                ),
                "/openapi/v2": answer(
                    {"swagger": "2.0", "paths": {}, "definitions": {f"{server.name}.Thing": definition("Thing", *key)}}
                ),
            }
        self.backend = backend
        self.registered = [
            ServedGroupVersion(*METRICS, "metrics", 100, 100),
            ServedGroupVersion(*THINGS, "things", 2000, 10),
        ]
        self.everybody = Everybody()
        self.sources = ServiceSources(self.clock, lambda: 0.5, maybeDeferred)
        self.core = self._cluster("core", recorded.east().groups)
        self.discovery = AggregateDiscovery(self.clock, maybeDeferred)
        self.update()

    def _cluster(self, name: str, groups: Any) -> FakeSource:
        spec = {
            "swagger": "2.0",
            "info": {"title": "Kubernetes"},
            "paths": {"/api/v1/pods": {"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/Pod"}}}}}},
            "definitions": {"Pod": definition("Pod", "", "v1")},
        }
        index = json.loads(recorded_response("openapi/v3-root").body)
        return source(name, groups, **{"/openapi/v3": answer(index), "/openapi/v2": answer(spec)})

    def update(self) -> None:
        wanted: dict[str, list[GroupVersion]] = {}
        for each in self.registered:
            wanted.setdefault(each.cluster, []).append(each.group_version)
        self.sources.update({"metrics": self.metrics, "things": self.things}, wanted)
        services = Services(self.registered, self.sources)
        if self.backend == "one cluster":
            config, sources = fleet(clusters=(), primary="core"), {"core": self.core}
            scope = EverythingCached(("no.io", "v1"))
        else:
            west = self._cluster("west", recorded.west().groups)
            config, sources = fleet(clusters=("core", "west"), primary="core"), {"core": self.core, "west": west}
            scope = EverythingCached()
        self.discovery.update(config, sources, scope, services, self.everybody)

    def get(self, path: str, accept: str | None = JSON, **fields: Any) -> Response:
        waiting = ask(self.discovery.serve, path, accept, members=("core", "west"), **fields)
        self.clock.advance(0.3)
        self.clock.advance(0)
        return now(waiting)

    def groups(self) -> dict[str, dict[str, Any]]:
        items = json.loads(self.get("/apis", V2).body)["items"]
        return {item["metadata"]["name"]: item for item in items}


@pytest.fixture(params=["one cluster", "an aggregate"])
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(request.param)


@pytest.fixture
def alone() -> Stage:
    return Stage()


def test_apis_lists_all_by_priority(stage: Stage) -> None:
    listed = list(stage.groups())
    assert listed[listed.index("things.example.com") + 1] in ("east.example.com", "example.com")
    assert listed[-1] == "metrics.k8s.io"
    legacy = [group["name"] for group in json.loads(stage.get("/apis").body)["groups"]]
    assert sorted(legacy) == sorted(listed)
    custom = [name for name in legacy if name in ("example.com", "east.example.com")]
    assert custom == sorted(custom, reverse=True)  # v1.example.com is before v1beta1.east.example.com


def test_the_backends_groups_are_as_recorded(alone: Stage) -> None:
    found = alone.groups()
    for item in json.loads(recorded_response("discovery/apis-aggregated-v2").body)["items"]:
        assert found[item["metadata"]["name"]]["versions"] == item["versions"]


@pytest.mark.parametrize(
    ("path", "accept", "recording"),
    [
        ("/api", V2, "discovery/api-aggregated-v2"),
        ("/api", AGGREGATED_ACCEPT, "discovery/api-aggregated-v2"),
        ("/apis", V2BETA1, "discovery/apis-accept-v2beta1-only"),
        ("/apis/apps", JSON, "discovery/apis-apps"),
        ("/apis/no.such.group", JSON, "discovery/unknown-group"),
        ("/openapi/v2", "application/yaml", "openapi/v2-406"),
    ],
)
def test_as_recorded(alone: Stage, path: str, accept: str, recording: str) -> None:
    expected = recorded_response(recording)
    response = alone.get(path, accept)
    assert (response.status, response.body) == (expected.status, expected.body)


def test_a_group_of_an_api_service(stage: Stage) -> None:
    body = json.loads(stage.get("/apis/metrics.k8s.io").body)
    version = {"groupVersion": "metrics.k8s.io/v1beta1", "version": "v1beta1"}
    assert body == {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": "metrics.k8s.io",
        "versions": [version],
        "preferredVersion": version,
    }


def test_etag_vary_and_304(stage: Stage) -> None:
    first = stage.get("/apis", V2)
    etag = first.header("etag")
    assert etag is not None
    assert etag.startswith('"')
    assert "Accept" in [value for name, value in first.fields if name == "vary"]
    assert stage.get("/apis", V2, If_None_Match=etag).status == 304
    stage.metrics.answers["/apis"] = aggregated("metrics.k8s.io/v1beta1", resources=("nodes", "pods"))
    stage.clock.advance(2)
    again = stage.get("/apis", V2, If_None_Match=etag)
    assert again.status == 200
    assert again.header("etag") != etag
    assert [one["resource"] for one in stage.groups()["metrics.k8s.io"]["versions"][0]["resources"]] == [
        "nodes",
        "pods",
    ]


@pytest.mark.parametrize("how", ["is away", "fails", "hangs"])
def test_an_api_server_that_cannot_be_asked_is_stale_with_what_it_had(stage: Stage, how: str) -> None:
    before = stage.groups()["metrics.k8s.io"]["versions"][0]["resources"]
    if how == "is away":
        stage.metrics.set_unavailable(WallSeconds(1.0))
    stage.metrics.answers["/apis"] = None if how == "hangs" else MemberError("refused")
    stage.clock.advance(2)
    stage.get("/apis")
    stage.clock.advance(6)
    found = stage.groups()
    assert found["metrics.k8s.io"]["versions"][0] == {"version": "v1beta1", "resources": before, "freshness": "Stale"}
    assert found["things.example.com"]["versions"][0]["freshness"] == "Current"
    assert "metrics.k8s.io" in stage.get("/apis").body.decode()
    assert stage.get("/apis/metrics.k8s.io").status == 200
    stage.metrics.set_unavailable(None)
    stage.metrics.answers["/apis"] = aggregated("metrics.k8s.io/v1beta1")
    stage.clock.advance(2)
    stage.get("/apis")
    stage.clock.advance(2)
    assert stage.groups()["metrics.k8s.io"]["versions"][0]["freshness"] == "Current"


def test_one_that_hangs_does_not_delay_discovery(alone: Stage) -> None:
    alone.metrics.answers["/apis"] = None
    alone.clock.advance(2)
    alone.get("/apis")  # waits for a moment, once
    for _ in range(10):
        alone.clock.advance(2)
        assert now(ask(alone.discovery.serve, "/apis", V2, members=("core",))).status == 200


def test_a_registered_group_version_hides_the_backends(alone: Stage) -> None:
    alone.registered = [ServedGroupVersion("apps", "v1", "things", 100, 100)]
    alone.things.answers["/apis"] = aggregated("apps/v1", resources=("others",))
    with captured_logs() as events:
        alone.update()
        alone.clock.advance(2)
        found = alone.groups()["apps"]["versions"]
    assert [one["resource"] for one in found[0]["resources"]] == ["others"]
    assert len(found) == 1
    assert [event["event"] for event in events] == ["api_service_hides_backend"]
    with captured_logs() as events:
        alone.update()
        alone.groups()
    assert not events


def test_a_registration_that_comes_and_goes_is_seen_at_once(stage: Stage) -> None:
    stage.groups()
    both = stage.registered
    stage.registered = both[:1]
    stage.update()
    assert "things.example.com" not in stage.groups()
    assert stage.get("/apis/things.example.com").status == 404
    stage.registered = both
    stage.update()
    assert stage.groups()["things.example.com"]["versions"][0]["freshness"] == "Current"


# -- who sees what ----------------------------------------------------------------------------------------------------


def test_what_a_user_may_not_discover_is_in_no_form(stage: Stage) -> None:
    stage.everybody.hidden = {METRICS}
    for path, accept in (("/apis", JSON), ("/apis", V2), ("/openapi/v3", JSON), ("/openapi/v2", JSON), ("/", JSON)):
        response = stage.get(path, accept)
        assert response.status == 200
        assert b"metrics" not in response.body.replace(b"/metrics", b"")
        assert b"things" in response.body
    assert stage.get("/apis/metrics.k8s.io").status == 404
    assert stage.get("/openapi/v3/apis/metrics.k8s.io/v1beta1").status == 404
    assert stage.get("/apis", V2).header("cache-control") == "no-cache, private"


def test_what_cannot_be_decided_is_left_out_and_no_404(stage: Stage) -> None:
    stage.everybody.undecided = {METRICS}
    assert "metrics.k8s.io" not in stage.groups()
    assert stage.get("/apis/metrics.k8s.io").status == 503
    assert stage.get("/openapi/v3/apis/metrics.k8s.io/v1beta1").status == 503
    assert stage.get("/apis/no.such.group").status == 404


# -- OpenAPI ----------------------------------------------------------------------------------------------------------


def test_openapi_v3_is_the_union_and_each_document_its_owners(stage: Stage) -> None:
    paths = json.loads(stage.get("/openapi/v3").body)["paths"]
    assert paths["apis/metrics.k8s.io/v1beta1"]["serverRelativeURL"].endswith("?hash=Hmetrics")
    assert "apis/apps/v1" in paths
    document = stage.get("/openapi/v3/apis/metrics.k8s.io/v1beta1?hash=Hmetrics")
    assert json.loads(document.body)["x-of"] == "metrics"
    assert document.header("etag") == '"Hmetrics"'
    assert document.header("cache-control") == "public, immutable"
    count = len(stage.metrics.asked)
    stage.get("/openapi/v3/apis/metrics.k8s.io/v1beta1?hash=Hmetrics")
    assert [path for path in stage.metrics.asked[count:] if "/openapi/v3/apis" in path] == []
    old = stage.get("/openapi/v3/apis/metrics.k8s.io/v1beta1?hash=OLD")
    assert (old.status, old.header("location")) == (301, "/openapi/v3/apis/metrics.k8s.io/v1beta1?hash=Hmetrics")


def test_an_index_with_documents_of_others_says_nothing_of_them(stage: Stage) -> None:
    core = json.loads(stage.get("/openapi/v3").body)["paths"]
    hash_ = core["api/v1"]["serverRelativeURL"].rpartition("=")[2]
    evil = {
        path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={hash_}"}
        for path in ("api/v1", "apis/apps/v1", "version")
    }
    index = json.loads(stage.metrics.answers["/openapi/v3"].body)  # type: ignore[union-attr]
    stage.metrics.answers["/openapi/v3"] = answer({"paths": {**evil, **index["paths"]}})
    stage.metrics.answers[f"/openapi/v3/api/v1?hash={hash_}"] = answer({"openapi": "3.0.0", "x-of": "evil"})
    stage.clock.advance(2)
    assert json.loads(stage.get("/openapi/v3").body)["paths"] == core
    stage.core.answers[f"/openapi/v3/api/v1?hash={hash_}"] = MemberError("refused")
    assert stage.get(f"/openapi/v3/api/v1?hash={hash_}").status == 503
    assert not [path for path in stage.metrics.asked if "api/v1" in path]


def test_an_api_server_that_comes_and_goes_has_the_backend_asked_nothing_more(stage: Stage) -> None:
    stage.get("/openapi/v3")
    stage.get("/openapi/v2")
    before = len([path for path, _ in stage.core.asked if path.startswith("/openapi")])
    for since in (WallSeconds(1.0), None) * 3:
        stage.things.set_unavailable(since)
        stage.get("/openapi/v3")
        stage.get("/openapi/v2")
        stage.clock.advance(0.1)
    assert len([path for path, _ in stage.core.asked if path.startswith("/openapi")]) == before


def test_a_second_registration_of_an_api_server_has_its_openapi_although_nothing_changes_there(stage: Stage) -> None:
    index = {f"apis/{group}/v1": {"serverRelativeURL": f"/openapi/v3/apis/{group}/v1?hash=A"} for group in ("a", "b")}
    stage.things.answers["/openapi/v3"] = answer({"paths": index}, ETag='"1"')
    stage.registered = [ServedGroupVersion("a", "v1", "things", 100, 100)]
    stage.update()
    assert "apis/a/v1" in json.loads(stage.get("/openapi/v3").body)["paths"]
    stage.registered = [*stage.registered, ServedGroupVersion("b", "v1", "things", 100, 100)]
    stage.update()
    stage.clock.advance(2.0)
    assert {"apis/a/v1", "apis/b/v1"} <= set(json.loads(stage.get("/openapi/v3").body)["paths"])


def test_openapi_v2_has_all_in_gzip_and_with_an_etag(stage: Stage) -> None:
    response = stage.get("/openapi/v2", Accept_Encoding="gzip")
    found = json.loads(gzip.decompress(response.body))
    assert {"Pod", "metrics.Thing", "things.Thing"} <= set(found["definitions"])
    etag = response.header("etag")
    assert stage.get("/openapi/v2", If_None_Match=str(etag)).status == 304


def test_an_openapi_document_that_changes_is_seen_within_two_seconds(alone: Stage) -> None:
    alone.get("/openapi/v2")
    changed = {**definition("Thing", *METRICS), "description": "changed"}
    alone.metrics.answers["/openapi/v2"] = answer(
        {"swagger": "2.0", "paths": {}, "definitions": {"metrics.Thing": changed}}
    )
    index = {"paths": {"apis/metrics.k8s.io/v1beta1": {"serverRelativeURL": "/openapi/v3/x?hash=NEW"}}}
    alone.metrics.answers["/openapi/v3"] = answer(index)
    alone.clock.advance(2)
    assert b"changed" in alone.get("/openapi/v2").body
    assert b"hash=NEW" in alone.get("/openapi/v3").body


def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each document take a second to decode."""
    times = iter(range(1000))
    monkeypatch.setattr("time.thread_time", lambda: float(next(times)))


def test_a_v2_document_that_takes_long_is_decoded_seldom(alone: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch)
    for number in range(20):
        changed = {**definition("Thing", *METRICS), "description": f"changed {number}"}
        alone.metrics.answers["/openapi/v2"] = answer(
            {"swagger": "2.0", "paths": {}, "definitions": {"metrics.Thing": changed}}
        )
        assert alone.get("/openapi/v2").status == 200
        alone.clock.advance(2)
    assert alone.metrics.asked.count("/openapi/v2") in (4, 5)
    assert b"changed" in alone.get("/openapi/v2").body


@pytest.mark.parametrize("query", ["", "?hash=A"])
def test_a_v3_document_that_takes_long_is_decoded_seldom(
    alone: Stage, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    slow(monkeypatch)
    path = "apis/metrics.k8s.io/v1beta1"
    found = []
    for number in range(20):
        more = f"{query}{number}" if query else ""
        index = {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}{more}"}}}
        alone.metrics.answers["/openapi/v3"] = answer(index)
        alone.metrics.answers[f"/openapi/v3/{path}{more}"] = answer({"openapi": "3.0.0", "paths": {}})
        found.append(alone.get(f"/openapi/v3/{path}").status)
        alone.clock.advance(2)
    assert len([each for each in alone.metrics.asked if each.startswith("/openapi/v3/")]) in (4, 5)
    assert set(found) == ({200, 503} if query else {200})


@pytest.mark.parametrize("found", [None, MemberError("refused"), answer(b"<html>"), answer(b"", 500)])
def test_openapi_without_an_api_server_is_that_of_the_others(alone: Stage, found: Any) -> None:
    alone.metrics.answers.update({"/openapi/v2": found, "/openapi/v3": found})
    definitions = json.loads(alone.get("/openapi/v2").body)["definitions"]
    assert "metrics.Thing" not in definitions
    assert {"Pod", "things.Thing"} <= set(definitions)
    assert b"apis/apps/v1" in alone.get("/openapi/v3").body


def test_two_hundred_api_services_make_one_document(alone: Stage) -> None:
    servers = {f"s{number}": FakeAPIServer(f"s{number}") for number in range(200)}
    for name, server in servers.items():
        server.answers = {"/apis": aggregated(f"{name}.io/v1", etag='"1"')}
    alone.sources.update(servers, {name: [(f"{name}.io", "v1")] for name in servers})
    registered = [ServedGroupVersion(f"{name}.io", "v1", name, 1000, 100) for name in servers]
    config, scope = fleet(clusters=(), primary="core"), EverythingCached(("no.io", "v1"))
    alone.discovery.update(config, {"core": alone.core}, scope, Services(registered, alone.sources), alone.everybody)
    found = read_aggregated(alone.get("/apis", V2).body)
    assert len([group for group in found if group.versions[0].freshness == "Current"]) >= 200


def test_shown_is_what_may_be_seen() -> None:
    shown = VisibleClusters(("core",), services=frozenset({METRICS}), undecided_services=frozenset({THINGS}))
    assert shown.may_have("things.example.com")
    assert not shown.may_have("metrics.k8s.io")


def test_the_backends_own_priorities_come_and_go(stage: Stage) -> None:
    first = list(stage.groups())
    moved = next(iter(recorded.east().groups)).metadata.name or "apps"
    stage.core.discovery.change(priorities={(moved, "v1"): Priority(moved, "v1", 1, 1)})
    stage.clock.advance(10)
    assert list(stage.groups())[-1] == moved
    stage.core.discovery.change(priorities={})
    stage.clock.advance(10)
    assert list(stage.groups()) == first


TWO = "two.example.com"


def two_backends(state: str) -> tuple[dict[str, Any], str]:
    """Return the recorded group of two versions on two API servers: its aggregated item and the APIGroup."""
    folder = recorded.GOLDEN / "aggregator" / "two-backends"
    whole, group = (
        json.loads((folder / f"{state}-{name}.json").read_text())["response"]["body"]
        for name in ("apis-aggregated", "group")
    )
    (item,) = [each for each in json.loads(whole)["items"] if each["metadata"].get("name") == TWO]
    return item, group


def test_two_versions_of_a_group_on_two_api_servers(stage: Stage) -> None:
    both, _ = two_backends("both")
    kind = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2"}
    for server, version in ((stage.things, both["versions"][0]), (stage.metrics, both["versions"][1])):
        document = {**kind, "items": [{"metadata": {"name": TWO}, "versions": [version]}]}
        server.answers["/apis"] = answer(document, content_type=AGGREGATED_MEDIA_TYPE)
    stage.registered = [
        ServedGroupVersion(TWO, "v1", "metrics", 1000, 10),
        ServedGroupVersion(TWO, "v2", "things", 1000, 20),
    ]

    def shows(state: str) -> None:
        item, group = two_backends(state)
        for version in item["versions"]:  # what is down is shown with its last known resources, there without any
            if version["freshness"] == "Stale":
                version["resources"] = both["versions"][0]["resources"]
        assert stage.groups()[TWO]["versions"] == item["versions"]
        assert stage.get(f"/apis/{TWO}").body.decode() == group

    stage.update()
    stage.clock.advance(2)
    shows("both")
    stage.things.answers["/apis"] = MemberError("refused")
    stage.clock.advance(2)
    stage.get("/apis")
    stage.clock.advance(2)
    shows("b-down")
    del stage.registered[1]
    stage.update()
    shows("v2-deleted")
