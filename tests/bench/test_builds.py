"""Both builds in one run: which stand, what runs them, and what is compared between them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import builds
from bench.builds import COMPILED, PURE
from bench.pki import make_identity
from bench.report import Section
from bench.subjects import Mcproxy, Nginx, Place


def section(**figures: float) -> Section:
    return Section("", [], figures={name.replace("_", " "): [value] for name, value in figures.items()})


def test_the_compiled_build_stands_where_its_library_does(tmp_path: Path) -> None:
    assert builds.standing(tmp_path) == (PURE,)
    (tmp_path / "mcproxy__mypyc.cpython-311-x86_64-linux-gnu.so").touch()
    assert builds.standing(tmp_path) == (COMPILED, PURE)


def test_mcproxy_is_a_subject_in_each_build_and_the_first_keeps_its_name() -> None:
    found = builds.in_both([Nginx(), Mcproxy()], (COMPILED, PURE))
    assert [(subject.name, builds.build_of(subject)) for subject in found] == [
        ("nginx", ""),
        ("mcproxy", COMPILED),
        ("mcproxy-pure", PURE),
    ]
    assert [subject.name for subject in builds.in_both([Nginx(), Mcproxy()], (PURE,))] == ["nginx", "mcproxy"]


@pytest.mark.parametrize(("build", "value"), [(COMPILED, "0"), (PURE, "1")])
def test_a_subject_and_a_section_say_their_build_by_the_environment(
    place: Place, monkeypatch: pytest.MonkeyPatch, build: str, value: str
) -> None:
    monkeypatch.delenv("MCPROXY_PURE", raising=False)
    assert Mcproxy(build=build).argv(place)[:2] == ["env", f"MCPROXY_PURE={value}"]
    with builds.environment(build):
        assert os.environ["MCPROXY_PURE"] == value
    with builds.environment(None):
        assert "MCPROXY_PURE" not in os.environ


def test_figures_of_both_builds_are_compared_and_have_targets() -> None:
    found = builds.compare(
        {
            ("aggregate-store", PURE): section(ingest_of_an_object=20),
            ("aggregate-store", COMPILED): section(ingest_of_an_object=11),
            ("aggregate-watches", PURE): section(deliveries_a_second_of_a_core=100_000),
            ("aggregate-watches", COMPILED): section(deliveries_a_second_of_a_core=210_000),
            ("start", PURE): section(memory_of_an_idle_daemon=60),
            ("start", COMPILED): section(memory_of_an_idle_daemon=63),
        }
    )
    assert found is not None
    assert [row[3] for row in found.rows] == ["0.55", "2.10", "1.05"]
    assert {target.what: target.met for target in found.targets} == {
        "ingest of an object, compiled / pure": False,
        "deliveries a second of a core, compiled": True,
        "memory of an idle daemon, compiled more than pure": True,
    }
    assert builds.compare({("start", PURE): section(memory_of_an_idle_daemon=60)}) is None


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, make_identity(tmp_path / "tls", "localhost", "localhost"), 1, 2)
