"""Whatever becomes of requests: nothing is counted for ever, and no maximum is exceeded, across reloads too."""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.proxy.fates import PHASES, Fates
from tests.proxy.stage import Stage

SEEDS = range(8)
MORE_SEEDS = range(8, 40)
STEPS = 90


async def test_every_permit_and_count_is_given_back_whatever_becomes_of_requests(stage: Stage) -> None:
    left: Counter[str] = Counter()
    statuses: Counter[int] = Counter()
    for seed in (*SEEDS, *MORE_SEEDS):
        if seed in MORE_SEEDS and set(left) == PHASES:  # else real time has had it that some fate did not occur
            break
        fates = Fates(stage, Random(seed))
        await fates.serve()
        for _ in range(STEPS):
            await fates.step()
        await fates.finish()
        left += fates.left_in
        statuses += fates.statuses
    assert set(left) == PHASES
    assert {101, 200, 401, 403, 429, 502, 503} >= set(statuses) >= {200, 429, 502}
