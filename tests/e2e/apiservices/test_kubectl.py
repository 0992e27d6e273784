"""kubectl over a cluster and two API servers, of which one comes, goes, sends rubbish and changes its resources."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.apiservices.environment import OTHERS, THINGS, APIServices
from tests.e2e.processes import Kubectl, wait_until

WIDGET = {
    "apiVersion": f"{THINGS}/v1alpha1",
    "kind": "Widget",
    "metadata": {"name": "one", "labels": {"made": "here"}},
    "spec": {"size": 7},
}


@pytest.fixture
def maker(services: APIServices, kubectl: str) -> Kubectl:
    """kubectl as who may do everything with the objects of the API servers."""
    return services.kubectl(kubectl, "maker")


@pytest.fixture
def admin(services: APIServices, kubectl: str) -> Kubectl:
    return services.kubectl(kubectl, "admin")


def soon(what: str, holds: Callable[[], Any]) -> None:
    """Fail unless it holds within the 2 s that the project promises, with patience for a machine that is busy."""
    wait_until(what, lambda: bool(holds()))


@pytest.mark.slow
def test_resources_of_all_servers_are_found(services: APIServices, admin: Kubectl) -> None:
    soon("the API servers' resources", lambda: "gadgets" in admin("api-resources", "-o", "name").stdout)
    found = admin.good("api-resources").splitlines()
    known = {(line.split()[0], line.split()[-1]) for line in found}
    assert {("widgets", "Widget"), ("gadgets", "Gadget"), ("pods", "Pod"), ("deployments", "Deployment")} <= known
    versions = admin.good("api-versions").split()
    assert {f"{THINGS}/v1alpha1", f"{OTHERS}/v1alpha1", "apps/v1", "v1"} <= set(versions)
    groups = [each["name"] for each in json.loads(admin.good("get", "--raw", "/apis"))["groups"]]
    assert groups.index(THINGS) < groups.index(OTHERS)  # by groupPriorityMinimum
    assert groups.count(THINGS) == groups.count("apps") == 1


def test_fields_are_explained(admin: Kubectl) -> None:
    assert "how large a widget is" in admin.good("explain", "widget.spec.size")
    assert "what is wanted" in admin.good("explain", "gadgets.spec")
    assert "containers" in admin.good("explain", "pod.spec")


@pytest.mark.slow
def test_objects_are_applied_shown_watched_and_deleted(maker: Kubectl, services: APIServices, kubectl: str) -> None:
    body = json.dumps(WIDGET)
    with services.kubectl(kubectl, "alice").begin("get", "widgets", "-w", "--output-watch-events") as watching:
        watching.wait_for("")
        assert "serverside-applied" in maker.good("apply", "--server-side", "-f", "-", stdin=body)
        watching.wait_for("ADDED")
        changed = json.dumps({**WIDGET, "spec": {"size": 8}})
        assert "configured" in maker.good("apply", "-f", "-", stdin=changed)
        watching.wait_for("MODIFIED")
        shown = maker.good("get", "widgets", "one").splitlines()
        assert [line.split() for line in shown] == [["NAME", "SIZE"], ["one", "8"]]
        assert json.loads(maker.good("get", "wid", "-l", "made=here", "-o", "json"))["items"][0]["spec"] == {"size": 8}
        assert "deleted" in maker.good("delete", "widgets", "one")
        watching.wait_for("DELETED")
        watching.process.terminate()
    refused = services.kubectl(kubectl, "alice")("delete", "widgets", "one")
    assert (refused.status, "Forbidden" in refused.stderr or "forbidden" in refused.stderr) == (1, True)


def test_unknown_fields_are_told_before_they_are_sent(maker: Kubectl, services: APIServices) -> None:
    services.things.forget()
    wrong = json.dumps({**WIDGET, "metadata": {"name": "wrong"}, "spec": {"colour": "red", "size": "large"}})
    # `--validate=strict` is the server's to refuse, as its OpenAPI says that it can; so it is told.
    maker("create", "--validate=strict", "-f", "-", stdin=wrong)
    created = [each for each in services.things.seen(f"/apis/{THINGS}") if each["method"] == "POST"]
    assert ["fieldValidation=Strict" in each["path"] for each in created] == [True]
    # Without that in its OpenAPI kubectl would look for itself, and does where it is told to.
    bad = maker("create", "--dry-run=client", "--validate=strict", "-f", "-", stdin='{"kind": "Widget"}')
    assert (bad.status, "apiVersion" in bad.stderr) == (1, True)
    maker("delete", "widgets", "wrong", "--ignore-not-found")


def _resources(services: APIServices) -> set[str]:
    document = services.ask("admin", f"/apis/{THINGS}/v1alpha1").json
    return {each["name"] for each in document.get("resources", [])}


def test_resources_change_at_runtime(well: APIServices, maker: Kubectl) -> None:
    well.things.have(
        {"name": "widgets", "kind": "Widget"}, {"name": "sprockets", "kind": "Sprocket", "text": "a wheel with teeth"}
    )
    assert "sprockets" in _resources(well)  # the owner's own document
    soon("the new resource", lambda: maker("get", "sprockets").status == 0)
    soon("its documentation", lambda: "a wheel with teeth" in maker("explain", "sprockets").stdout)
    well.things.have({"name": "widgets", "kind": "Widget"})
    soon("its end", lambda: "sprockets" not in maker("api-resources", "-o", "name").stdout)


@pytest.mark.slow
def test_one_that_goes_is_missed_by_its_own_clients_alone(well: APIServices, admin: Kubectl, maker: Kubectl) -> None:
    well.things.stop()
    begun = time.monotonic()
    assert admin("get", "pods").status == 0
    assert maker("get", "gadgets").status == 0
    assert time.monotonic() - begun < 60
    soon("the reason", lambda: _condition(admin, f"v1alpha1.{THINGS}")["status"] == "False")
    told = _condition(admin, f"v1alpha1.{THINGS}")
    assert told["reason"] in ("FailedDiscoveryCheck", "MissingEndpoints")
    assert _condition(admin, f"v1alpha1.{OTHERS}")["status"] == "True"
    begun = time.monotonic()
    missed = maker("get", "widgets")
    assert missed.status == 1
    assert time.monotonic() - begun < 60  # it does not ask again and again
    assert "ServiceUnavailable" in missed.stderr or "stale" in missed.stderr or "unavailable" in missed.stderr
    well.things.start()
    soon("its return", lambda: maker("get", "widgets").status == 0)
    soon("its condition", lambda: _condition(admin, f"v1alpha1.{THINGS}")["status"] == "True")


def _condition(kubectl: Kubectl, name: str) -> dict[str, Any]:
    service = json.loads(kubectl.good("get", "apiservices", name, "-o", "json"))
    (found,) = [each for each in service["status"]["conditions"] if each["type"] == "Available"]
    return dict(found)


@pytest.mark.parametrize("mode", ["hang", "html", "truncated", "deep", "endless", "thousand", "foreign"])
def test_discovery_of_the_others_is_whole_whatever_one_sends(well: APIServices, admin: Kubectl, mode: str) -> None:
    before = well.ask("admin", "/apis").json["groups"]
    assert THINGS in [each["name"] for each in before]
    well.things.misbehave(mode)
    begun = time.monotonic()
    while time.monotonic() < begun + 1.2:  # documents are read anew once a second while they are asked for
        assert well.ask("admin", "/apis").json["groups"] == before
    assert "apps/v1" in admin.good("get", "deployments", "-o", "json")
    assert time.monotonic() < begun + 60
    names = admin("api-resources", "-o", "name").stdout.split()
    assert {"pods", "deployments.apps", f"gadgets.{OTHERS}"} <= set(names)
    assert not any("g1.example.com" in name for name in names)


def test_registrations_are_shown_with_their_condition(services: APIServices, admin: Kubectl) -> None:
    def shown() -> dict[str, list[str]]:
        return {line.split()[0]: line.split()[1:3] for line in admin.good("get", "apiservices").splitlines()[1:]}

    # An API server that has misbehaved is asked again soon.
    soon("all are available", lambda: {shown()[f"v1alpha1.{group}"][1] for group in (THINGS, OTHERS)} == {"True"})
    refused = admin("delete", "apiservices", f"v1alpha1.{THINGS}")
    assert refused.status == 1
    assert services.ask("maker", f"/apis/{THINGS}/v1alpha1").status == 200
