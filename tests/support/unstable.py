"""A pytest plugin: names the tests that passed only when they were tried again (pytest-rerunfailures).

At the end of a run each of them has a line `unstable: NAME`, the beginning of its first error below it, and a file with
the whole of that in .ci/results/unstable. A test that never passed is a failure like any other, and has the same below
`tried again: NAME`.

A second try has fixtures of its own, those of its module too: it would meet what the first one has left otherwise.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import cast

import pytest

FOLDER = Path(__file__).parents[2] / ".ci" / "results" / "unstable"
_LINES = 8  # of an error that are shown


class Unstable:
    """Collects the reports of one run; `folder` is made anew when the run begins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first_errors: dict[str, str] = {}
        self._failed: set[str] = set()
        shutil.rmtree(folder, ignore_errors=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome: str = report.outcome  # also "rerun", which pytest-rerunfailures adds
        if outcome == "rerun":
            self._first_errors.setdefault(report.nodeid, report.longreprtext)
        elif report.failed:
            self._failed.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, error in sorted(self._first_errors.items()):
            terminalreporter.write_line(f"{'tried again' if name in self._failed else 'unstable'}: {name}")
            for line in re.findall(r"^E .*", error, re.MULTILINE)[:_LINES]:
                terminalreporter.write_line(f"    {line}")
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)[:200]}.txt").write_text(f"{name}\n\n{error}\n")


class FreshFixtures:
    """Ends the fixtures of a test that failed, but for those of the whole session."""

    def __init__(self) -> None:
        self._failed: pytest.Item | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            self._failed = item
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        try:
            if self._failed is item:  # before pytest-rerunfailures puts by what is to outlast the next try
                self._failed = None
                item.session._setupstate.teardown_exact(cast(pytest.Item, item.session))
        finally:
            yield


def pytest_configure(config: pytest.Config) -> None:
    """Watch the run where its reports come together: in the process that xdist's workers report to."""
    config.pluginmanager.register(FreshFixtures())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Unstable(FOLDER))
