"""Random faults of clients and pods on an Ingress listener: every count is given back, no half body looks whole.

The seed is printed; `MCPROXY_INGRESS_SEED=7 pytest tests/services/ingress/test_random_traffic.py -m slow` repeats what
was drawn with it.
"""

from __future__ import annotations

import os
import random

import pytest

from mcproxy.services.ingress import endpoint_health
from tests.services.ingress.random_pods import FATES
from tests.services.ingress.random_traffic import CLIENT_FATES, RandomIngressTraffic
from tests.services.ingress.whole import Whole

STEPS = 100
LONG = 800
KNOWN_STATUSES = {0, 101, 200, 502, 503, 504}
"""0: the connection or the stream was broken off."""


@pytest.fixture(autouse=True)
def short_outs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods that have failed are tried again within the test."""
    monkeypatch.setattr(endpoint_health, "FIRST_OUT", 0.2)
    monkeypatch.setattr(endpoint_health, "LONGEST_OUT", 0.4)


async def run(
    whole: Whole, seed: int, steps: int, wanted: frozenset[tuple[str, str]] = frozenset()
) -> RandomIngressTraffic:
    """Have random traffic for some steps, and until all wanted fates were met; look at what it leaves."""
    print(f"seed {seed}")
    traffic = RandomIngressTraffic(whole, seed)
    await traffic.serve()
    for step in range(20 * steps):
        if step >= steps and wanted <= set(traffic.fates):
            break
        await traffic.step()
    await traffic.finish()
    print(traffic.statuses, traffic.fates)
    assert set(traffic.statuses) <= KNOWN_STATUSES
    return traffic


@pytest.mark.slow
async def test_whatever_becomes_of_requests_nothing_is_left_of_them(whole: Whole, bugs: list[str]) -> None:
    traffic = await run(whole, 1, STEPS)
    assert bugs == []
    assert set(traffic.statuses) >= {200, 502}  # 0 is a matter of luck within so few steps


@pytest.mark.slow
async def test_every_fate_of_clients_and_pods(whole: Whole, bugs: list[str]) -> None:
    seed = int(os.environ.get("MCPROXY_INGRESS_SEED", random.randrange(1 << 30)))
    wanted = {(version, fate) for (version, _), fates in FATES.items() for fate in fates}
    wanted |= {("client", fate) for fate in CLIENT_FATES}
    traffic = await run(whole, seed, LONG, frozenset(wanted))
    assert bugs == []
    assert wanted <= set(traffic.fates)
    assert set(traffic.statuses) >= KNOWN_STATUSES - {503}
