"""Counting with callgrind: its format is read, and what is missing is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench import callgrind
from bench.processes import Failed

PROFILE = """\
# callgrind format
version: 1
events: Ir
fl=(1) main.c
fn=(1) main
10 5
cfn=(2) handle
calls=3 20
11 900
fn=(2)
20 300
cfi=(2) parse.c
cfn=(3) parse
calls=6 1
+1 480
cfn=(4) handle'2
calls=3 20
* 120

fn=(4)
20 120

fl=(2)
fn=(3)
1 480
"""


def test_a_profile_has_what_functions_cost_with_and_without_those_they_call() -> None:
    profile = callgrind.parse(PROFILE.splitlines(keepends=True))
    assert profile.total == 905
    assert profile.own == {"main": 5, "handle": 420, "parse": 480}
    assert profile.inclusive == {"main": 905, "handle": 900, "parse": 480}  # its recursion is not counted twice
    assert profile.calls == {"handle": 6, "parse": 6}


def test_the_top_leaves_out_what_is_above_all_others() -> None:
    profile = callgrind.parse(PROFILE.splitlines(keepends=True))
    assert profile.top(5) == [("handle", 900, 420), ("parse", 480, 480)]
    assert profile.top(1, by_own=True) == [("parse", 480, 480)]


def test_a_missing_valgrind_is_told_with_what_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Failed, match=r"not found: valgrind, cc\. Install it with: \.ci/tools cc valgrind"):
        callgrind.library(tmp_path)
