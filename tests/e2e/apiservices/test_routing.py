"""A group-version is its owner's, over workers and beside an aggregate, and a reload that changes it is seen soon."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator

import pytest

from tests.e2e.apiservices.environment import GADGETS, THINGS, WIDGETS, APIServices
from tests.e2e.http_client import Client
from tests.e2e.processes import wait_until

ALICE = ("Authorization", "Bearer alice")
MAKER = ("Authorization", "Bearer maker")
REGISTERED = f"      - {{group: {THINGS}, version: v1alpha1, cluster: things, groupPriorityMinimum: 2000}}\n"
GOES_ON = 30.0
"""Seconds within which a change is seen, on a machine that may be busy; without one the watch lasts 120 s."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[APIServices]:
    """The API servers beside an aggregate, with two workers."""
    environment = APIServices(tmp_path_factory.mktemp("apiservices"), daemon=", workers: 2", aggregate=True)
    try:
        yield environment.start()
    finally:
        environment.stop()


def watching(fleet: APIServices, path: str) -> tuple[Client, http.client.HTTPResponse]:
    client = Client(fleet.address())
    response = client.begin("GET", f"{path}?watch=1&timeoutSeconds=120", [MAKER])
    assert response.status == 200, response.read()
    return client, response


@pytest.mark.slow
def test_what_an_owner_serves_is_not_the_members(fleet: APIServices) -> None:
    fleet.things.forget()
    assert fleet.ask("alice", WIDGETS).status == 200
    assert [each["user"]["name"] for each in fleet.things.seen(WIDGETS)] == ["alice"]
    assert fleet.ask("admin", f"/clusters/east{WIDGETS}").status == 404
    assert fleet.ask("admin", "/clusters/things/api").status == 404


def test_the_path_may_be_encoded_and_never_ambiguous(fleet: APIServices) -> None:
    fleet.things.forget()
    encoded = WIDGETS.replace(THINGS, THINGS.replace(".", "%2e"))
    assert fleet.ask("alice", encoded).status == 200
    assert fleet.ask("alice", encoded.replace("/widgets", "/others")).status in (403, 404)
    for path in (f"/{WIDGETS}", WIDGETS.replace("/apis", "/%61pis"), f"/apis/apps/v1/../..{WIDGETS[5:]}"):
        assert fleet.ask("admin", path).status == 400
    assert [each["path"] for each in fleet.things.seen() if "%61" in each["path"] or ".." in each["path"]] == []


@pytest.mark.slow
def test_a_reload_that_takes_a_registration_away_and_gives_it_back(fleet: APIServices) -> None:
    kept, response = watching(fleet, GADGETS)
    taken, gone = watching(fleet, WIDGETS)
    with kept, taken:
        without = fleet.daemon.file.read_text().replace(REGISTERED, "")
        fleet.daemon.file.write_text(without)
        fleet.daemon.reload_quickly()
        begun = time.monotonic()
        gone.read()  # raises IncompleteRead for an end that is not clean
        assert time.monotonic() - begun < GOES_ON
        assert fleet.ask("maker", WIDGETS).status == 404
        fleet.daemon.file.write_text(fleet.config())
        fleet.daemon.reload_quickly()
        # Its first probe is on the way, and until it is answered requests pass.
        wait_until("the owner serves it again", lambda: fleet.ask("maker", WIDGETS).status == 200, GOES_ON)
        widget = {"apiVersion": "others.example.com/v1alpha1", "kind": "Gadget", "metadata": {"name": "after"}}
        assert fleet.ask("maker", GADGETS, "POST", widget).status == 201
        while "after" not in (line := response.readline().decode()):
            assert line, "the other watch has ended"
        assert json.loads(line)["type"] == "ADDED"
