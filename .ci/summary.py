"""Adds up pytest's JUnit reports and prints `N passed, N failed`. Status 1 where a test failed or none passed.

usage: summary.py REPORT...     (a report that does not exist counts as one failure: its suite did not run)
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path


def counts(report: Path) -> tuple[int, int]:
    """Return how many tests of a report passed and failed; errors outside tests count as failed, skips as neither."""
    if not report.exists():
        print(f"{report} is missing: the suite did not run to its end")
        return 0, 1
    passed = failed = 0
    for suite in ElementTree.parse(report).iter("testsuite"):
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        passed += int(suite.get("tests", 0)) - bad - int(suite.get("skipped", 0))
        failed += bad
    return passed, failed


def main(reports: Sequence[str]) -> int:
    """Print the line; return the exit status."""
    each = [counts(Path(report)) for report in reports]
    passed, failed = (sum(column) for column in zip(*each, strict=True))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
