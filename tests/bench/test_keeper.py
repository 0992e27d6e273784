"""A small list from one process, and the same from a keeper through a worker."""

from __future__ import annotations

import random

import pytest

from bench.keeper import measure_lists
from bench.lab import open_lab
from bench.report import Section


@pytest.mark.slow
def test_the_list_is_the_same_through_the_keeper() -> None:
    section = Section("lists", [])
    with open_lab() as lab:
        measure_lists(lab, section, 60, 1, random.Random(1))
    assert [row[0] for row in section.rows] == ["list of 0 MB, one process, ms", "the same through the keeper, ms"]
