"""Random traffic: no permit or count leaks, and no maximum is exceeded, across reloads too."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from mcproxy.proxy import sessions
from tests.proxy.harness import Harness
from tests.proxy.random_traffic import STATES, RandomTraffic

SEEDS = range(8)
MORE_SEEDS = range(8, 40)
STEPS = 90


@pytest.mark.slow
async def test_every_permit_and_count_is_given_back_whatever_becomes_of_requests(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_CHECK_INTERVAL", 0.05)
    monkeypatch.setattr(sessions, "_RELOAD_SPREAD", 0.05)
    left: Counter[str] = Counter()
    statuses: Counter[int] = Counter()
    for seed in (*SEEDS, *MORE_SEEDS):
        if seed in MORE_SEEDS and set(left) == STATES:  # else real time has had it that some state did not occur
            break
        traffic = RandomTraffic(harness, Random(seed))
        await traffic.serve()
        for _ in range(STEPS):
            await traffic.step()
        await traffic.finish()
        left += traffic.left_in
        statuses += traffic.statuses
    assert set(left) == STATES
    assert len(harness.service._sessions) == 0
    assert {101, 200, 401, 403, 429, 502, 503} >= set(statuses) >= {200, 429, 502}
