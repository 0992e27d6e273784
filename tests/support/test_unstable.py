"""The plugin that names unstable tests, on a suite of three in a run of its own, with xdist and without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = """
import pytest

tries = 0

@pytest.fixture(scope="module")
def shared():
    return []

@pytest.fixture(scope="session")
def of_the_session():
    return []

def test_good(shared):
    shared.append("good")

def test_that_passes_at_the_second_try(shared, of_the_session):
    global tries
    tries += 1
    shared.append("tried")
    of_the_session.append("tried")
    assert tries == 2, "the first try"
    assert shared == ["tried"], "a second try has fixtures of its own"
    assert len(of_the_session) == 2

def test_bad():
    assert False, "always"
"""
PLUGIN = """
from pathlib import Path
from tests.support.unstable import FreshFixtures, Unstable

def pytest_configure(config):
    config.pluginmanager.register(FreshFixtures())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Unstable(Path({folder!r})))
"""


@pytest.mark.parametrize("processes", ["0", "1"])
def test_what_passes_at_a_second_try_is_named_and_what_never_passes_fails(tmp_path: Path, processes: str) -> None:
    folder = tmp_path / "unstable"
    folder.mkdir()
    (folder / "of-an-earlier-run.txt").touch()
    (tmp_path / "test_three.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text(PLUGIN.format(folder=str(folder)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", processes, "--reruns", "2", "-p", "no:cacheprovider",
         "-p", "no:twisted", "-p", "no:hypothesispytest",
         "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    named = [line for line in done.stdout.splitlines() if line.startswith("unstable: ")]
    assert named == ["unstable: test_three.py::test_that_passes_at_the_second_try"]
    below = done.stdout.split(f"{named[0]}\n")[1]
    assert below.startswith("    E   ")
    assert "the first try" in below.splitlines()[0]
    assert "1 failed, 2 passed, 3 rerun" in done.stdout
    assert "tried again: test_three.py::test_bad\n    E   " in done.stdout
    bad, other = sorted(folder.iterdir())
    assert "always" in bad.read_text()
    assert "the first try" in other.read_text()
