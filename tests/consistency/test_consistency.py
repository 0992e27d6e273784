"""Half a minute of the consistency tester, the same faults each time (at night ten minutes, with others)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consistency.__main__ import told
from tests.consistency.faults import FAULTS, drawn
from tests.consistency.run import Options, Run

SECONDS = 30.0
"""How long there are faults; to start and to end everything takes some more."""
SEED = 1
"""Draws which faults, when and where: they do not depend on what they found."""


@pytest.mark.slow
def test_replicas_agree_with_the_members_own_histories(tmp_path: Path) -> None:
    report = Run(tmp_path, Options(SECONDS, SEED))()
    assert not report.wrong, f"make consistency ARGS='--seed {SEED}' repeats it\n{told(report)}"


def test_a_seed_repeats_the_faults_whatever_they_found() -> None:
    def some(seed: str) -> list[tuple[str, float]]:
        found = []
        for name, chance in drawn(seed, tuple(FAULTS)):
            found.append((name, chance.random()))
            if len(found) == 60:
                return found
        return found

    assert some("7 connections") == some("7 connections")
    assert some("7 connections") != some("8 connections")
    assert {name for name, _ in some("7")[: len(FAULTS)]} == set(FAULTS)
