"""Limits that are divided among processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config import model
from mcproxy.daemon.processes.child import config_of_process, share
from tests.upstream.fakes import cluster_config


@given(limit=st.integers(1, 10_000), processes=st.integers(1, 64))
def test_parts_sum_up_to_the_limit_and_nobody_has_none(limit: int, processes: int) -> None:
    parts = [share(limit, position, processes) for position in range(processes)]
    assert min(parts) >= 1
    assert max(parts) - min(parts) <= 1
    assert sum(parts) == max(limit, processes)


def config(most: int, backend: model.Backend) -> model.Config:
    clusters = (cluster_config(connections=model.Connections(max_connections=most)), cluster_config(name="west"))
    return model.Config(clusters=clusters, servers=(model.Server(name="api", listeners=(), backend=backend),))


@pytest.mark.parametrize(
    ("backend", "parts"),
    [(model.ClusterBackend("east"), [4, 3, 3]), (model.AggregateBackendConfig("fleet", ("east",)), [3, 3, 2, 2])],
)
def test_the_keeper_has_its_part_where_there_is_one(backend: model.Backend, parts: list[int]) -> None:
    indices = [0, 1, 2, None][: len(parts)]
    made = [config_of_process(config(10, backend), index, 3) for index in indices]
    assert [each.clusters[0].connections.max_connections for each in made] == parts
    assert [each.clusters[1].connections.max_connections for each in made] == [0] * len(parts), "no limit stays none"


def test_nothing_else_changes() -> None:
    before = config(10, model.ClusterBackend("east"))
    assert config_of_process(before, 0, 1) == before
