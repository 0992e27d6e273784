"""The eviction subresource and PodDisruptionBudgets."""

from __future__ import annotations

from typing import Any

import pytest

from kubesim.apimachinery.status import StatusError
from kubesim.handlers import subresources

NOW = "2026-11-21T10:00:00Z"


def budget(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "web", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"observedGeneration": 1, "currentHealthy": 3, "desiredHealthy": 3, **status},
    }


def running_pod(**labels: str) -> dict[str, Any]:
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": "p", "labels": labels}, "status": {"phase": "Running", "conditions": ready}}


def test_an_eviction_that_a_budget_forbids_is_429() -> None:
    with pytest.raises(StatusError) as caught:
        subresources.evict(running_pod(app="web"), [budget(disruptionsAllowed=0)], NOW)
    assert caught.value.code == 429
    assert caught.value.headers == ()
    assert caught.value.details == {
        "causes": [
            {
                "reason": "DisruptionBudget",
                "message": "The disruption budget web needs 3 healthy pods and has 3 currently",
            }
        ]
    }


def test_an_eviction_before_the_budget_is_observed_has_retry_after() -> None:
    with pytest.raises(StatusError) as caught:
        subresources.evict(running_pod(app="web"), [budget(observedGeneration=0)], NOW)
    assert caught.value.headers == ((b"Retry-After", b"10"),)


def test_an_eviction_uses_up_the_budget() -> None:
    new = subresources.evict(running_pod(app="web"), [budget(disruptionsAllowed=1)], NOW)
    assert new is not None
    assert (new["status"]["disruptionsAllowed"], new["status"]["disruptedPods"]) == (0, {"p": NOW})
    assert subresources.evict(running_pod(app="other"), [budget(disruptionsAllowed=0)], NOW) is None
