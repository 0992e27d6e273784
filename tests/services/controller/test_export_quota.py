"""How many ServiceExports of a cluster count, and which."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config import model
from mcproxy.services.cache_scopes import FollowedKind
from mcproxy.services.controller import object_index
from mcproxy.services.controller.object_index import ExportQuota
from mcproxy.services.exports.object_keys import ServiceKey
from tests.services.controller_bench import Bench
from tests.services.objects import service_of

KEYS = [ServiceKey("demo", f"s{number}") for number in range(8)]
TIMES = (0.0, 1.0, 2.0, 3.0)
steps = st.lists(st.tuples(st.booleans(), st.sampled_from(KEYS), st.sampled_from(TIMES)), max_size=30)


@given(steps)
def test_the_oldest_count_whatever_came_first_and_each_change_is_told(
    changes: list[tuple[bool, ServiceKey, float]],
) -> None:
    quota, there = ExportQuota(limit=3), dict[ServiceKey, float]()
    for added, key, created in changes:
        before = {each for each in KEYS if each in quota}
        if added:
            told = quota.add(key, created)
            there[key] = created or float("inf")
        else:
            told = quota.remove(key)
            there.pop(key, None)
        after = {each for each in KEYS if each in quota}
        assert after == set(sorted(there, key=lambda each: (there[each], each))[:3])
        assert (before ^ after) - {key} == set(told) - {key}
        assert len(quota) == len(there)


def test_thousands_cost_no_square() -> None:
    quota = ExportQuota(limit=10)
    for number in range(20_000):
        quota.add(ServiceKey("demo", f"s{number:05}"), 1.0)
    assert [key.service for key in (ServiceKey("demo", f"s{number:05}") for number in range(20)) if key in quota] == [
        f"s{number:05}" for number in range(10)
    ]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(object_index.ExportQuota.__init__, "__defaults__", (2,))
    made = Bench("west", "east", kinds=tuple(FollowedKind))
    yield made
    made.close()


def test_the_oldest_exports_of_a_cluster_are_imported_and_the_next_one_when_one_goes(bench: Bench) -> None:
    west, east = bench.clusters["west"], bench.clusters["east"]
    for name in ("a", "b", "c"):
        west.put(FollowedKind.SERVICES, service_of(name))
        west.put(FollowedKind.EXPORTS, {"metadata": {"name": name, "namespace": "demo"}})
    replica = bench.replica(discovery=model.ServiceDiscovery(enabled=True, clusters=("west", "east")))
    bench.list()
    bench.run(5)
    assert imports(east) == ["a", "b"]
    assert [each.kind.value for each in replica.controller.problems()] == ["TooMany"]
    conditions = west.objects[FollowedKind.EXPORTS, "demo", "c"]["status"]["conditions"]
    assert [(each["type"], each["status"]) for each in conditions] == [("Valid", "True"), ("Ready", "False")]
    west.remove(FollowedKind.EXPORTS, "demo", "a")
    bench.run(5)
    assert imports(east) == ["b", "c"]
    assert not replica.controller.problems()


def imports(cluster: Any) -> list[str]:
    return sorted(name for kind, _, name in cluster.objects if kind is FollowedKind.IMPORTS)
