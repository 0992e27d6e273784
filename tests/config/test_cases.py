"""Files with faults, each with the exact lines that it gets: cases/NAME.yaml and cases/NAME.expected.

DIR in an expected line is the folder of the case.
"""

from pathlib import Path

import pytest

from mcproxy.config.load import load
from mcproxy.config.problem import ConfigErrors
from tests.config.pki import NOW

CASES = Path(__file__).with_name("cases")
NAMES = sorted(case.stem for case in CASES.glob("*.yaml"))
ENVIRON = {"SPACES": "a secret with spaces", "PATH": "/usr/bin:/bin"}


def outcome(folder: Path, name: str) -> list[str]:
    try:
        loaded = load(str(folder / f"{name}.yaml"), environ=ENVIRON, now=NOW)
    except ConfigErrors as errors:
        problems, warnings = errors.problems, errors.warnings
    else:
        problems, warnings = (), loaded.warnings
    lines = [f"error: {problem}" for problem in problems] + [f"warning: {warning}" for warning in warnings]
    return [line.replace(str(folder), "DIR") for line in lines]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_with_faults_gets_exactly_the_expected_lines(folder: Path, name: str) -> None:
    assert outcome(folder, name) == (CASES / f"{name}.expected").read_text().splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_every_line_has_a_place_and_a_remedy(folder: Path, name: str) -> None:
    for line in outcome(folder, name):
        kind, _, text = line.partition(": ")
        assert kind in ("error", "warning")
        place, _, message = text.partition(": ")
        assert [part.isdigit() for part in place.rsplit(":", 2)[1:]] == [True, True]
        assert "; " in message


def test_there_are_at_least_60_files_with_errors() -> None:
    expected = [(CASES / f"{name}.expected").read_text() for name in NAMES]
    assert sum(text.startswith("error: ") for text in expected) >= 60
