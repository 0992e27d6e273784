"""The checks of /readyz: what fails, and what fails the whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mcproxy.config.model.aggregates import Unavailable
from mcproxy.daemon.readiness import checks_of
from mcproxy.daemon.readiness_of_caches import cache_checks
from mcproxy.kube.healthz import Check


def listener(name: str, *, accepting: bool = True) -> Any:
    return SimpleNamespace(config=SimpleNamespace(name=name), socket=SimpleNamespace(accepting=accepting))


def cluster(*endpoints: str) -> Any:
    states = [SimpleNamespace(ready=each == "ready", unchecked=each == "unchecked") for each in endpoints]
    return SimpleNamespace(endpoints=states)


def test_all_is_well() -> None:
    found = checks_of(False, [listener("a")], {"east": cluster("ready", "out")})
    assert found == [Check("shutdown", ""), Check("listener/a", ""), Check("cluster/east", "", False)]


def test_a_shutdown_and_a_listener_that_does_not_accept_fail_it() -> None:
    assert checks_of(True, [], {})[0].needed
    assert checks_of(True, [], {})[0].cause
    [_, check] = checks_of(False, [listener("a", accepting=False)], {})
    assert check == Check("listener/a", "it does not accept")


def test_one_cluster_of_several_may_be_away_but_not_all() -> None:
    east, west = "none of its 2 endpoints is ready", "its endpoints have not been checked yet"
    clusters = {"east": cluster("out", "out"), "west": cluster("unchecked")}
    assert checks_of(False, [], clusters)[1:] == [Check("cluster/east", east), Check("cluster/west", west)]
    clusters["north"] = cluster("ready")
    assert [check.needed for check in checks_of(False, [], clusters)[1:]] == [False, False, False]


SYNCED = SimpleNamespace(synced=True, unavailable_since=None)
STALE = SimpleNamespace(synced=True, unavailable_since=1.0)
NEVER = SimpleNamespace(synced=False, unavailable_since=None)


@pytest.mark.parametrize(
    ("stores", "undiscovered", "unavailable", "now", "cause", "needed"),
    [
        ([SYNCED], 0, Unavailable.STALE, 5.0, "", False),
        ([SYNCED, NEVER], 0, Unavailable.STALE, 5.0, "1 of 2 caches are not in sync yet", True),
        ([SYNCED, NEVER], 0, Unavailable.STALE, 15.0, "1 of 2 caches are not in sync yet", False),
        ([SYNCED, NEVER], 0, Unavailable.FAIL, 15.0, "1 of 2 caches are not in sync yet", True),
        ([NEVER, NEVER], 0, Unavailable.PARTIAL, 15.0, "2 of 2 caches are not in sync yet", True),
        ([], 2, Unavailable.STALE, 15.0, "what 2 of its clusters have is not known yet", True),
        ([SYNCED], 1, Unavailable.STALE, 5.0, "what 1 of its clusters have is not known yet", True),
        ([SYNCED], 1, Unavailable.STALE, 15.0, "what 1 of its clusters have is not known yet", False),
        ([SYNCED, STALE], 0, Unavailable.STALE, 5.0, "1 of 2 caches are not followed", False),
        ([SYNCED, STALE], 0, Unavailable.FAIL, 15.0, "1 of 2 caches are not followed", True),
    ],
)
def test_caches(
    stores: list[Any], undiscovered: int, unavailable: Unavailable, now: float, cause: str, needed: bool
) -> None:
    aggregate: Any = SimpleNamespace(
        stores=stores, undiscovered=range(undiscovered), initial_sync_ends=10.0, unavailable=unavailable
    )
    [check] = cache_checks({"fleet": aggregate}, now)
    assert (check.name, check.cause) == ("aggregate/fleet", cause)
    assert not cause or check.needed == needed
