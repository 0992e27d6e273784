"""What a member serves: polled, by ETag where it can be, the last known while it cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.aggregate.reflector.member_calls import MemberError
from mcproxy.aggregate.reflector.member_discovery import POLL, POLL_LEGACY, MemberDiscovery
from mcproxy.kube.resource import GroupVersionResource
from mcproxy.upstream.control import ControlResponse
from tests.support.clock import Clock

GOLDEN = Path(__file__).parents[2] / "golden"
PODS = GroupVersionResource("", "v1", "pods")
DEPLOYMENTS = GroupVersionResource("apps", "v1", "deployments")
METRICS = GroupVersionResource("metrics.k8s.io", "v1beta1", "pods")


def golden(name: str) -> ControlResponse:
    response = json.loads((GOLDEN / name).read_text())["response"]
    headers = tuple((key.encode(), value.encode()) for key, value in response["headers"])
    return ControlResponse(response["status"], headers, response["body"].encode())


def document(groups: dict[str, list[str]], etag: str = '"1"', freshness: str = "Current") -> ControlResponse:
    """An aggregated document of v1 groups with these resources."""
    return versions({group: [("v1", names, freshness)] for group, names in groups.items()}, etag)


def versions(groups: dict[str, list[tuple[str, list[str], str]]], etag: str = '"1"') -> ControlResponse:
    """An aggregated document of groups with versions: their name, resources and freshness."""
    items = [
        {
            "metadata": {"name": group},
            "versions": [
                {
                    "version": version,
                    "freshness": freshness,
                    "resources": [
                        {
                            "resource": name,
                            "scope": "Namespaced",
                            "responseKind": {"group": "", "version": "", "kind": name.title()},
                            "singularResource": name,
                            "verbs": ["get", "list", "watch"],
                        }
                        for name in names
                    ],
                }
                for version, names, freshness in listed
            ],
        }
        for group, listed in groups.items()
    ]
    body = json.dumps({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items})
    media_type = b"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    return ControlResponse(200, ((b"Content-Type", media_type), (b"Etag", etag.encode())), body.encode())


class FakeServer:
    """Answers by path; an exception is raised. Knows what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {"/api": document({}), "/apis": document({}), **answers}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.held: Deferred[None] | None = None

    async def get(self, path: str, *, headers: tuple[tuple[str, str], ...] = (), max_body: int) -> ControlResponse:
        self.asked.append((path, dict(headers)))
        if self.held is not None:
            await self.held
        answer = self.answers.get(path, ControlResponse(404, (), b"404 page not found\n"))
        if isinstance(answer, Exception):
            raise answer
        etag = dict(answer.headers).get(b"Etag", b"").decode()
        if etag and dict(headers).get("if-none-match") == etag:
            return ControlResponse(304, (), b"")
        assert isinstance(answer, ControlResponse)
        return answer


class Fixture:
    def __init__(self, *, jitter: Any = 0.5, **answers: Any) -> None:
        self.clock = Clock()
        self.server = FakeServer()
        self.server.answers.update({f"/{name}": answer for name, answer in answers.items()})
        self.discovery = MemberDiscovery("east", self.server.get, self.clock, lambda: jitter)
        self.changes = 0
        self.discovery.subscribe(self._changed)
        self.discovery.start()

    def _changed(self) -> None:
        self.changes += 1

    def paths(self) -> list[str]:
        asked, self.server.asked = self.server.asked, []
        return [path for path, _ in asked]


def test_the_documents_of_a_real_cluster() -> None:
    fixture = Fixture(api=golden("discovery/api-aggregated-v2.json"), apis=golden("discovery/apis-aggregated-v2.json"))
    assert fixture.discovery.fresh
    assert fixture.discovery.resources[PODS].namespaced
    assert fixture.discovery.resources[DEPLOYMENTS].kind == "Deployment"
    assert fixture.changes == 1
    sent = dict(fixture.server.asked)["/apis"]
    assert "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList" in sent["accept"]
    assert sent["accept"].endswith(",application/json")


def test_a_poll_sends_the_etag_and_a_304_changes_nothing() -> None:
    fixture = Fixture(apis=document({"apps": ["deployments"]}))
    before = fixture.discovery.groups
    fixture.paths()
    fixture.clock.advance(POLL)
    assert [(path, headers["if-none-match"]) for path, headers in fixture.server.asked] == [
        ("/api", '"1"'),
        ("/apis", '"1"'),
    ]
    assert fixture.discovery.groups is before
    assert fixture.changes == 1


@pytest.mark.parametrize(("random", "wait"), [(0.0, 0.9), (0.5, 1.0), (0.999_999, 1.1)])
def test_members_are_not_polled_at_one_time(random: float, wait: float) -> None:
    fixture = Fixture(jitter=random)
    fixture.paths()
    fixture.clock.advance(wait * POLL - 0.01)
    assert fixture.paths() == []
    fixture.clock.advance(0.02)
    assert fixture.paths() == ["/api", "/apis"]


def test_a_definition_that_comes_and_goes() -> None:
    widgets = GroupVersionResource("example.com", "v1", "widgets")
    fixture = Fixture(apis=document({"apps": ["deployments"]}))
    fixture.server.answers["/apis"] = document({"apps": ["deployments"], "example.com": ["widgets"]}, '"2"')
    fixture.clock.advance(POLL)
    assert widgets in fixture.discovery.resources
    fixture.server.answers["/apis"] = document({"apps": ["deployments"]}, '"3"')
    fixture.clock.advance(POLL)
    assert widgets not in fixture.discovery.resources
    assert fixture.changes == 3


def test_what_was_known_stays_while_the_member_is_away() -> None:
    fixture = Fixture(apis=document({"apps": ["deployments"]}))
    fixture.server.answers["/apis"] = MemberError("no answer")
    fixture.clock.advance(POLL)
    assert DEPLOYMENTS in fixture.discovery.resources
    assert (fixture.discovery.fresh, fixture.discovery.known) == (False, True)
    fixture.paths()
    fixture.clock.advance(1)  # retried sooner than a poll
    assert fixture.paths() == ["/api", "/apis"]
    fixture.server.answers["/apis"] = document({"apps": ["deployments"]})
    fixture.discovery.poll_soon()
    fixture.clock.advance(1)
    assert fixture.discovery.fresh


def test_an_api_service_that_is_down_keeps_its_resources() -> None:
    fixture = Fixture(apis=document({"metrics.k8s.io": ["pods"], "apps": ["deployments"]}))
    fixture.server.answers["/apis"] = document({"metrics.k8s.io": []}, '"2"', "Stale")
    fixture.clock.advance(POLL)
    assert GroupVersionResource("metrics.k8s.io", "v1", "pods") in fixture.discovery.resources
    assert DEPLOYMENTS not in fixture.discovery.resources
    assert fixture.discovery.groups[-1].versions[0].freshness == "Stale"


def test_of_a_group_only_the_version_that_is_stale_and_empty_keeps_its_resources() -> None:
    """The others are as they are said to be now: what is gone of them is gone."""
    fixture = Fixture(
        apis=versions(
            {
                "other.io": [("v2", ["strangers"], "Current")],
                "x.io": [
                    ("v1", ["as", "bs"], "Current"),
                    ("v2", ["as", "cs"], "Current"),
                    ("v3", ["ds"], "Current"),
                    ("v4", ["es", "fs"], "Current"),
                ],
                "zoo.io": [("v2", ["animals"], "Current")],
            }
        )
    )
    fixture.server.answers["/apis"] = versions(
        {
            "x.io": [
                ("v1", ["as"], "Current"),
                ("v2", [], "Stale"),
                ("v3", [], "Current"),
                ("v4", ["es"], "Stale"),
                ("v5", [], "Stale"),
            ],
            "zoo.io": [("v1", [], "Current"), ("v2", [], "Current")],
        },
        '"2"',
    )
    fixture.clock.advance(POLL)
    found = {
        (group.metadata.name, version.version): ([each.resource for each in version.resources], version.freshness)
        for group in fixture.discovery.groups
        for version in group.versions
    }
    assert found == {
        ("x.io", "v1"): (["as"], "Current"),
        ("x.io", "v2"): (["as", "cs"], "Stale"),
        ("x.io", "v3"): ([], "Current"),
        ("x.io", "v4"): (["es"], "Stale"),
        ("x.io", "v5"): ([], "Stale"),
        ("zoo.io", "v1"): ([], "Current"),
        ("zoo.io", "v2"): ([], "Current"),
    }
    fixture.server.answers["/apis"] = versions({"x.io": [("v2", ["cs"], "Current")]}, '"3"')
    fixture.clock.advance(POLL)
    assert [gvr.resource for gvr in fixture.discovery.resources] == ["cs"]


def test_legacy_documents_are_read_group_by_group_and_less_often() -> None:
    fixture = Fixture(
        **{
            "api": golden("discovery/api-legacy.json"),
            "api/v1": golden("discovery/api-v1.json"),
            "apis": golden("discovery/apis-legacy.json"),
            "apis/apps/v1": golden("discovery/apis-apps-v1.json"),
        }
    )
    assert fixture.discovery.resources[PODS].short_names == ("po",)
    assert fixture.discovery.resources[DEPLOYMENTS].subresource("scale") is not None
    asked = fixture.paths()
    assert asked[:3] == ["/api", "/api/v1", "/apis"]
    assert "/apis/batch/v1" in asked
    fixture.server.answers["/apis/apps/v1"] = ControlResponse(503, (), b"service unavailable\n")
    fixture.clock.advance(POLL)
    assert fixture.paths() == []
    fixture.clock.advance(POLL_LEGACY)
    assert fixture.paths() == asked
    assert DEPLOYMENTS in fixture.discovery.resources, "one group-version that failed took its resources away"


def test_garbage_changes_nothing() -> None:
    fixture = Fixture(apis=document({"apps": ["deployments"]}))
    media_type = document({}).headers[0]
    for body in (b"", b"nonsense", b"[" * 100_000, b'{"kind":"APIGroupDiscoveryList"}', b"\xff", b'{"items":[7]}'):
        fixture.server.answers["/apis"] = ControlResponse(200, (media_type,), body)
        fixture.clock.advance(POLL)
        assert DEPLOYMENTS in fixture.discovery.resources
        assert not fixture.discovery.fresh
    fixture.server.answers["/apis"] = ControlResponse(200, ((b"Content-Type", b"application/json"),), b"{}")
    fixture.clock.advance(POLL)
    assert DEPLOYMENTS in fixture.discovery.resources


def test_an_etag_that_no_header_may_have_is_not_sent_back() -> None:
    fixture = Fixture(apis=document({"apps": ["deployments"]}, '"a\r\nx: y"'))
    fixture.paths()
    fixture.clock.advance(POLL)
    assert "if-none-match" not in dict(fixture.server.asked)["/apis"]


def test_refreshing_is_bounded_and_never_served_by_an_older_read() -> None:
    fixture = Fixture()
    fixture.paths()
    done: list[object] = []
    for _ in range(50):
        fixture.discovery.refresh().addCallback(done.append)
    assert fixture.paths() == []
    fixture.clock.advance(1)
    assert fixture.paths() == ["/api", "/apis"]
    assert len(done) == 1  # the others asked while this read had begun
    fixture.clock.advance(1)
    assert fixture.paths() == ["/api", "/apis"]
    assert len(done) == 50


def test_renewing_shares_a_read_and_needs_none_while_the_last_is_new() -> None:
    fixture = Fixture()
    fixture.paths()
    done: list[object] = []
    for _ in range(50):
        fixture.discovery.renew(1.0).addCallback(done.append)
    assert len(done) == 50
    assert fixture.paths() == []
    fixture.clock.advance(1.5)
    fixture.server.held = Deferred()
    for _ in range(50):
        fixture.discovery.renew(1.0).addCallback(done.append)
    assert fixture.paths() == ["/api"]
    held, fixture.server.held = fixture.server.held, None
    held.callback(None)
    assert len(done) == 100
    assert fixture.paths() == ["/apis"]


def test_the_dearer_a_read_the_rarer_it_is_made() -> None:
    """Legacy documents take a request for each group-version: names that nobody has must not cost that each second."""
    fixture = Fixture(api=golden("discovery/api-legacy.json"), **{"api/v1": golden("discovery/api-v1.json")})
    fixture.paths()
    fixture.server.held = Deferred()
    fixture.clock.advance(1)
    fixture.discovery.refresh()
    fixture.clock.advance(0.5)  # that is how long it takes
    held, fixture.server.held = fixture.server.held, None
    held.callback(None)
    assert fixture.paths() == ["/api", "/api/v1", "/apis"]
    for _ in range(100):
        fixture.discovery.refresh()
    fixture.clock.advance(4.4)
    assert fixture.paths() == []
    fixture.clock.advance(0.2)
    assert fixture.paths() == ["/api", "/api/v1", "/apis"]


def test_however_often_it_is_told_to_poll_it_reads_once_a_second() -> None:
    fixture = Fixture()
    fixture.paths()
    for _ in range(100):
        fixture.discovery.poll_soon()
        fixture.clock.advance(0.05)
    assert len(fixture.paths()) in (8, 10)  # two documents a second


def test_the_end_leaves_no_timer() -> None:
    fixture = Fixture()
    fixture.discovery.refresh().addErrback(lambda _: None)
    fixture.discovery.stop()
    assert fixture.clock.getDelayedCalls() == []
    assert fixture.discovery.known


API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"


def api_services(**priorities: tuple[int, int]) -> ControlResponse:
    items = [
        {
            "metadata": {"name": f"{version}.x.io"},
            "spec": {"group": "x.io", "version": version, "groupPriorityMinimum": group, "versionPriority": own},
        }
        for version, (group, own) in priorities.items()
    ]
    return ControlResponse(200, (), json.dumps({"kind": "APIServiceList", "items": items}).encode())


def test_priorities_are_read_with_each_poll_once_they_are_wanted() -> None:
    fixture = Fixture()
    fixture.server.answers[API_SERVICES] = api_services(v1=(1000, 100))
    assert API_SERVICES not in fixture.paths()
    fixture.discovery.want_priorities()
    fixture.clock.advance(1)
    fixture.discovery.want_priorities()
    assert fixture.paths().count(API_SERVICES) == 1
    assert fixture.discovery.priorities["x.io", "v1"].group_priority_minimum == 1000
    before = fixture.changes
    fixture.clock.advance(POLL)
    assert fixture.changes == before
    fixture.server.answers[API_SERVICES] = api_services(v1=(1000, 7))
    fixture.clock.advance(POLL)
    assert fixture.discovery.priorities["x.io", "v1"].version_priority == 7
    assert fixture.changes == before + 1


def test_priorities_that_are_not_shown_or_no_priorities() -> None:
    fixture = Fixture()
    fixture.discovery.want_priorities()
    known = api_services(v1=(1000, 100))
    for answer, stays in (
        (MemberError("no answer"), True),
        (ControlResponse(503, (), b""), True),
        (ControlResponse(403, (), b"{}"), False),
        (ControlResponse(404, (), b"404 page not found\n"), False),
        (ControlResponse(200, (), b"[" * 100_000), False),
        (ControlResponse(200, (), b'{"items": [{"spec": {"group": "x.io", "version": "v1"}}]}'), False),
        (ControlResponse(200, (), known.body.replace(b"1000", b"1" + b"0" * 30)), False),
    ):
        fixture.server.answers[API_SERVICES] = known
        fixture.clock.advance(1.2 * POLL)
        assert fixture.discovery.priorities
        fixture.server.answers[API_SERVICES] = answer
        fixture.clock.advance(1.2 * POLL)
        assert bool(fixture.discovery.priorities) is stays
    assert fixture.discovery.fresh


def test_a_member_whose_documents_cannot_be_read_is_not_asked_for_priorities() -> None:
    """It may hang: the next attempt at its documents would wait for that, too."""
    fixture = Fixture()
    fixture.server.answers[API_SERVICES] = api_services(v1=(1000, 100))
    fixture.discovery.want_priorities()
    fixture.clock.advance(1)
    fixture.server.answers["/apis"] = MemberError("no answer")
    fixture.clock.advance(1.2 * POLL)
    fixture.paths()
    fixture.clock.advance(1.2 * POLL)
    asked = fixture.paths()
    assert "/apis" in asked
    assert API_SERVICES not in asked
    assert fixture.discovery.priorities
    fixture.server.answers["/apis"] = document({})
    fixture.clock.advance(2 * POLL)
    assert API_SERVICES in fixture.paths()
