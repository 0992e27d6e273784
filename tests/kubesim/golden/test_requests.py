"""The recordings of a real kube-apiserver, replayed against the simulated cluster.

Each recorded request is sent to a cluster seeded as the recorded one was; status, headers that matter and body must be
the same. `differences.py` lists exceptions with reasons; an entry that matches is a failure too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kubesim.cluster import SimulatedCluster
from tests.kubesim.conftest import Lab
from tests.kubesim.golden import folders, golden_files
from tests.kubesim.golden.differences import DIFFERENCES
from tests.kubesim.golden.replay import compare, send
from tests.kubesim.raw_client import Target

Served = dict[tuple[str, str], tuple[SimulatedCluster, Callable[[str], Target]]]

CASES = [(folder, name) for folder in folders.FOLDERS for name in folders.ordered(folder)]


@pytest.fixture(scope="session")
def served() -> Served:
    """Clusters by folder and name, created on first use; the exchanges of a folder share one, in order."""
    return {}


def _target(lab: Lab, served: Served, folder: str, recording: dict[str, Any]) -> tuple[SimulatedCluster, Target]:
    key = (folder, recording["cluster"])
    if key not in served:
        cluster = folders.seed(folder, recording["cluster"])
        served[key] = (cluster, lab.serve(cluster))
    cluster, targets = served[key]
    return cluster, targets(folders.certificate(recording["auth"]))


@pytest.mark.parametrize(("folder", "name"), CASES, ids=[name for _, name in CASES])
def test_golden(lab: Lab, served: Served, folder: str, name: str) -> None:
    recording = golden_files.load(name)
    cluster, target = _target(lab, served, folder, recording)
    request = folders.prepare(name, recording, cluster)
    revisions = folder not in folders.EXACT_REVISIONS
    try:
        answer = lab.run(send(target, request, recording["response"], patient=name not in DIFFERENCES))
        found = compare(recording, answer, revisions=revisions)
    except (TimeoutError, asyncio.IncompleteReadError) as error:
        found = [f"no answer in time: {error!r}"]
    if name in DIFFERENCES:
        assert found, f"{name} is listed as different ({DIFFERENCES[name]}) but is reproduced: take it off the list"
    else:
        assert not found, "\n".join([name, recording["shows"], *found])


def test_differences_name_recordings() -> None:
    assert set(DIFFERENCES) <= {name for _, name in CASES}
