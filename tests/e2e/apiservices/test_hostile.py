"""An API server that hangs, fails or sends rubbish harms nobody but its own clients."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.apiservices.environment import GADGETS, THINGS, WIDGETS, APIServices
from tests.e2e.http_client import Answer, Client

MODES = ["hang", "500", "redirect", "html", "truncated", "deep", "endless", "thousand", "foreign"]
QUICK = 3.0
"""Seconds for what takes milliseconds, on a machine that may be busy; each hostile answer takes longer."""
CORE = "/api/v1/namespaces/demo/pods"


def quick(services: APIServices, user: str, path: str) -> Answer:
    """Ask; who is held up is so each time, while a busy machine delays some answers."""
    took: list[float] = []
    while not took or (took[-1] >= QUICK and len(took) < 4):
        begun = time.monotonic()
        answer = services.ask(user, path)
        took.append(time.monotonic() - begun)
    assert took[-1] < QUICK, (path, took)
    return answer


@pytest.mark.parametrize("mode", MODES)
def test_core_and_the_other_api_server_are_served_as_ever(well: APIServices, mode: str) -> None:
    before = {path: well.ask("admin", path).json for path in (CORE, "/apis/apps/v1", "/api/v1", GADGETS)}
    well.things.misbehave(mode)
    with ThreadPoolExecutor(8) as threads:  # its own clients wait, or get what it sends
        with_it = [threads.submit(_abandoned, well) for _ in range(8)]
        for _ in range(3):
            for path, known in before.items():
                answer = quick(well, "admin", path)
                found = answer.json
                if path in (CORE, GADGETS):
                    found["metadata"] = known["metadata"]  # its version may be a later one
                assert (answer.status, found) == (200, known), path
        for each in with_it:
            each.result()
    well.things.misbehave("")
    assert well.ask("admin", WIDGETS).status in (200, 503)
    assert well.daemon.process.poll() is None


def _abandoned(services: APIServices) -> None:
    """Ask the hostile API server, and leave soon."""
    with Client(services.address()) as client:
        client.socket.settimeout(0.3)
        client.send("GET", f"/apis/{THINGS}/v1alpha1", [("Authorization", "Bearer admin")])
        until = time.monotonic() + 0.3
        with contextlib.suppress(OSError):
            while client.socket.recv(1 << 16) and time.monotonic() < until:
                pass


def test_it_stands_still_and_goes_on(well: APIServices) -> None:
    well.things.pause(paused=True)
    assert quick(well, "alice", CORE).status == 200
    assert quick(well, "maker", GADGETS).status == 200
    well.things.pause(paused=False)


def test_it_goes_and_comes_back(well: APIServices) -> None:
    well.things.stop()
    gone = quick(well, "alice", WIDGETS)
    assert (gone.status, gone.json["kind"], gone.json["reason"]) == (503, "Status", "ServiceUnavailable")
    assert quick(well, "alice", CORE).status == 200
    well.things.start()
    deadline = time.monotonic() + 60
    while well.ask("alice", WIDGETS).status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
