"""The loads of `bench replicas` are for four replicas, and always more than the limit."""

import pytest

from bench import replica, replicas


@pytest.mark.parametrize("load", replicas.LOADS, ids=lambda load: load.name)
def test_a_load_offers_more_than_the_limit_at_any_time(load: replicas.Load) -> None:
    assert len(load.offered) == 4
    (phases,) = {len(offered) for offered in load.offered}
    assert replica.SECONDS % phases == 0
    for phase in range(phases):
        assert sum(offered[phase] for offered in load.offered) >= 1.5
