"""Adds up pytest's JUnit reports: a line for each, then `N passed, N failed` for all. Status 1 where a test failed.

usage: summary.py REPORT[=NAME]...     (what does not exist is passed over, unless it has a name)
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path


def counts(report: Path) -> tuple[int, int]:
    """Return how many tests of a report passed and failed; errors outside tests count as failed, skips as neither."""
    passed = failed = 0
    for suite in ElementTree.parse(report).iter("testsuite"):
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        passed += int(suite.get("tests", 0)) - bad - int(suite.get("skipped", 0))
        failed += bad
    return passed, failed


def main(arguments: Sequence[str]) -> int:
    """Print the lines; return the exit status."""
    all_passed = all_failed = 0
    for argument in arguments:
        file, named, name = argument.partition("=")
        if not Path(file).exists():
            if named:
                print(f"Python {name}: no report, the suite did not run")
                all_failed += 1
            continue
        passed, failed = counts(Path(file))
        print(f"Python {name or Path(file).stem}: {passed} passed, {failed} failed")
        all_passed += passed
        all_failed += failed
    print(f"{all_passed} passed, {all_failed} failed")
    return 1 if all_failed or not all_passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
