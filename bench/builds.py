"""The two builds of mcproxy in one run: which of them stand in a checkout, and how they compare.

Where compiled modules stand beside the sources (`make native`), they run, and the sources run with MCPROXY_PURE=1 in
the environment. `cost` and `http2` have both builds in each round, as subjects: the pure ones end in `PURE_SUFFIX`.
Other sections are measured once with each build.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.report import Section, limit
from bench.stats import spread
from bench.subjects import PURE_SUFFIX, Mcproxy, Subject

COMPILED, PURE = "compiled", "pure"
BUILDS = (COMPILED, PURE)
_VARIABLE = "MCPROXY_PURE"
_MB = 1e6

_COMPARED = (
    ("aggregate-store", "ingest of an object", "us", 0.5),
    ("aggregate-store", "apply a change", "us", 0.0),
    ("aggregate-lists", "list by a field selector", "ms", 0.0),
    ("aggregate-watches", "deliveries a second of a core", "", 0.0),
    ("start", "memory of an idle daemon", "MB", 0.0),
)
"""Section, figure and its unit, and what it may be with the compiled build as a multiple of the pure one's (0: any)."""
DELIVERIES = 200_000.0
"""Deliveries of a change that the compiled build must reach, for each second of a core."""
MORE_MEMORY = 4.0
"""MB that an idle daemon may have more when compiled."""


def standing(tree: Path) -> tuple[str, ...]:
    """Return the builds that a checkout has, first the one that runs by itself."""
    return BUILDS if next(tree.glob("mcproxy__mypyc.*.so"), None) else (PURE,)


@contextmanager
def environment(build: str | None) -> Iterator[None]:
    """Let all programs that are started meanwhile run this build; None: the one that runs by itself."""
    before = os.environ.get(_VARIABLE)
    if build is not None:
        os.environ[_VARIABLE] = "1" if build == PURE else "0"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = before


def in_both(subjects: Sequence[Subject], builds: Sequence[str]) -> list[Subject]:
    """Return the subjects with mcproxy in each of `builds`; with one build, nothing is added."""
    found: list[Subject] = []
    for subject in subjects:
        if not isinstance(subject, Mcproxy):
            found.append(subject)
            continue
        found.append(dataclasses.replace(subject, build=builds[0]))
        if len(builds) > 1:
            found.append(dataclasses.replace(subject, build=PURE, name=subject.name + PURE_SUFFIX))
    return found


def build_of(subject: Subject) -> str:
    """Return the build that a subject says it runs, "" for none."""
    return subject.build if isinstance(subject, Mcproxy) else ""


def compare(measured: Mapping[tuple[str, str], Section]) -> Section | None:
    """Compare the figures of sections, by (section, build), that were measured with both builds; None: of none."""
    section = Section("Both builds", ["what", PURE, COMPILED, f"{COMPILED} / {PURE}"])
    for what, figure, unit, most in _COMPARED:
        found: dict[str, Any] = {build: _values(measured, what, build, figure) for build in BUILDS}
        if not all(found.values()):
            continue
        medians = {build: spread(found[build]).median for build in BUILDS}
        cells = [f"{spread(found[build]).show(1)} {unit}".strip() for build in (PURE, COMPILED)]
        section.rows.append([figure, *cells, f"{medians[COMPILED] / medians[PURE]:.2f}"])
        if most:
            ratio = medians[COMPILED] / medians[PURE]
            section.targets.append(limit(f"{figure}, {COMPILED} / {PURE}", [ratio], at_most=most))
        if unit == "MB":
            more = medians[COMPILED] - medians[PURE]
            section.targets.append(
                limit(f"{figure}, {COMPILED} more than {PURE}", [more], unit="MB", digits=1, at_most=MORE_MEMORY)
            )
        if not unit:
            section.targets.append(limit(f"{figure}, {COMPILED}", found[COMPILED], digits=0, at_least=DELIVERIES))
    return section if section.rows else None


def _values(measured: Mapping[tuple[str, str], Section], what: str, build: str, figure: str) -> Sequence[float]:
    section = measured.get((what, build))
    return () if section is None else section.figures.get(figure, ())
