"""Random fates of streams and connections over HTTP/2 and HTTP/1.1: every count is given back."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.proxy.harness import Harness
from tests.proxy.random_http2_traffic import CLIENT_FATES, CLUSTER_FATES, STATES, RandomHTTP2Traffic

SEEDS = range(4)
MORE_SEEDS = range(4, 40)
STEPS = 120
COMMON_STATUSES = {200, 429, 502}


@pytest.mark.slow
async def test_every_permit_stream_and_count_is_given_back_whatever_becomes_of_streams(
    harness: Harness, bugs: list[str]
) -> None:
    left: Counter[tuple[str, str]] = Counter()
    fates: Counter[tuple[str, str]] = Counter()
    statuses: Counter[int] = Counter()
    wanted = {("h2", fate) for fate in CLIENT_FATES} | {("cluster", fate) for fate in CLUSTER_FATES}

    def states() -> set[str]:
        return {state for version, state in left if version == "h2"}

    for seed in (*SEEDS, *MORE_SEEDS):
        if seed in MORE_SEEDS and states() == STATES and set(fates) >= wanted and set(statuses) >= COMMON_STATUSES:
            break
        traffic = RandomHTTP2Traffic(harness, Random(seed))
        await traffic.serve()
        for _ in range(STEPS):
            await traffic.step()
        await traffic.finish()
        assert bugs == []
        left += traffic.left_in
        fates += traffic.fates
        statuses += traffic.statuses
    assert states() == STATES
    assert set(fates) >= wanted
    assert {0, 503} | COMMON_STATUSES >= set(statuses) >= COMMON_STATUSES
