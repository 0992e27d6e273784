"""API servers beside an aggregate of two clusters, behind two workers: as beside one cluster, and beside its caches."""

from __future__ import annotations

import pytest

from tests.e2e.apiservices.environment import GADGETS, OTHERS, RULED, THINGS, WIDGETS, APIServices
from tests.e2e.http_client import ask
from tests.e2e.processes import wait_until

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
TIMES = 6
"""Requests on connections of their own: each worker gets some."""


@pytest.mark.slow
def test_objects_of_the_members_and_of_an_api_server_are_one_api(fleet_services: APIServices) -> None:
    services = fleet_services
    services.things.forget()
    for _ in range(TIMES):
        maps = services.ask("admin", "/api/v1/configmaps").json["items"]
        assert {each["metadata"]["labels"]["mcproxy.io/cluster"] for each in maps} == {"east", "west"}
        assert services.ask("alice", WIDGETS).json["kind"] == "WidgetList"
    made = services.ask("maker", WIDGETS, "POST", {"metadata": {"name": "beside"}, "spec": {"size": 3}})
    assert (made.status, made.json["metadata"].get("labels")) == (201, None)  # nobody's member
    assert services.ask("maker", f"{WIDGETS}/beside", "DELETE").status == 200
    users = {entry["user"]["name"] for entry in services.things.seen(WIDGETS)}
    assert users == {"alice", "maker"}


def test_the_primary_decides_about_users_of_api_servers(fleet_services: APIServices) -> None:
    for _ in range(TIMES):
        refused = fleet_services.ask("stranger", WIDGETS)
        assert (refused.status, refused.json["reason"]) == (403, "Forbidden")


def test_api_services_are_not_below_the_members(fleet_services: APIServices) -> None:
    fleet_services.things.forget()
    assert fleet_services.ask("admin", f"/clusters/west{WIDGETS}").status == 404
    assert fleet_services.things.seen(WIDGETS) == []


def test_reviews_are_answered_by_the_proxy_or_the_primary(fleet_services: APIServices) -> None:
    services = fleet_services
    for _ in range(TIMES):
        known = services.ask("api-server", TOKENS, "POST", {"spec": {"token": "alice"}})
        assert (known.status, known.json["status"]["user"]["username"]) == (201, "alice")
    unknown = services.ask("api-server", TOKENS, "POST", {"spec": {"token": "nonsense"}})
    assert (unknown.status, unknown.json["status"]["error"]) == (201, "invalid bearer token")
    assert services.ask("alice", TOKENS, "POST", {"spec": {"token": "alice"}}).status == 403
    secrets = {"verb": "list", "version": "v1", "resource": "secrets"}
    for user, group, allowed in (("maker", "makers", False), ("root", "system:masters", True), ("alice", "dev", False)):
        spec = {"user": user, "groups": [group], "resourceAttributes": secrets}
        answer = services.ask("api-server", ACCESS, "POST", {"spec": spec}, server_name=RULED)
        assert (answer.status, answer.json["status"]["allowed"]) == (201, allowed)


def test_api_servers_that_delegate_are_answered(fleet_services: APIServices) -> None:
    services = fleet_services
    for user, status in (("maker", 200), ("stranger", 403), ("nonsense", 401)):
        headers = [("Authorization", f"Bearer {user}")]
        assert ask(services.direct(services.others), GADGETS, headers=headers).status == status
        assert ask(services.direct(services.things), WIDGETS, headers=headers).status == status


@pytest.mark.slow
def test_kubectl_finds_the_members_and_the_api_servers(fleet_services: APIServices, kubectl: str) -> None:
    program = fleet_services.kubectl(kubectl)
    wait_until("all resources", lambda: "gadgets" in program("api-resources", "-o", "name").stdout)
    names = program.good("api-resources", "-o", "name").split()
    assert {"configmaps", "deployments.apps", f"widgets.{THINGS}", f"gadgets.{OTHERS}"} <= set(names)
    assert "how large a widget is" in program.good("explain", "widget.spec.size")
    assert {line.split()[0] for line in program.good("get", "configmaps", "--no-headers").splitlines()}
    assert program.good("get", "widgets,gadgets", "-A", "-o", "name") == ""

    def states() -> dict[str, str]:
        found = (line.split() for line in program.good("get", "apiservices", "--no-headers").splitlines())
        return {name: state for name, _, state, *_ in found if name.endswith("example.com")}

    both = {f"v1alpha1.{THINGS}": "True", f"v1alpha1.{OTHERS}": "True"}
    wait_until("both are available", lambda: states() == both)
    fleet_services.others.stop()
    wait_until("one is not", lambda: states() == {**both, f"v1alpha1.{OTHERS}": "False"})
    for _ in range(TIMES):  # each worker knows
        refused = fleet_services.ask("maker", GADGETS)
        assert (refused.status, refused.json["reason"]) == (503, "ServiceUnavailable")
        assert fleet_services.ask("maker", WIDGETS).status == 200
    fleet_services.others.start()
    wait_until("it is again", lambda: states() == both)


def test_an_api_server_that_hangs_holds_up_no_cache(fleet_services: APIServices) -> None:
    services = fleet_services
    services.things.misbehave("hang")
    try:
        for _ in range(TIMES):
            assert services.ask("admin", "/api/v1/configmaps?limit=1").status == 200
            assert services.ask("maker", GADGETS).status == 200
        assert services.ask("admin", f"/apis/{THINGS}x/v1").status == 404
    finally:
        services.things.misbehave("")
