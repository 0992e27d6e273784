"""Continuous integration: the parts of the gate and of the night, what they go on after, and their closing lines."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REPORT = '<testsuites><testsuite tests="{tests}" failures="{failures}" errors="{errors}" skipped="0"/></testsuites>'


def python(path: Path, version: str, *, makes_environments: bool = True) -> None:
    """A program that answers as a Python of this version would, to the questions that the scripts ask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    major, minor = version.split(".")[:2]
    path.write_text(
        f"""#!/bin/sh
case $2 in
    *ensurepip*"({major}, {minor})"*) exit {0 if makes_environments else 1} ;;
    *print*) echo {major}.{minor} ;;
    *) exec {sys.executable} "$@" ;;
esac
"""
    )
    path.chmod(0o755)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with a PATH of our own first, and a home without Pythons."""
    (tmp_path / "bin").mkdir()
    return {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path / "home")}


class TestPythons:
    """`.ci/pythons`: one interpreter of each version."""

    def pythons(self, environ: dict[str, str]) -> list[str]:
        done = subprocess.run(
            [ROOT / ".ci" / "pythons"], env=environ, capture_output=True, text=True, timeout=250, check=True
        )
        return done.stdout.splitlines()

    def of_minor(self, found: list[str], minor: int) -> str:
        return next((path for path in found if f"3.{minor}" in path), "")

    def test_one_on_path_comes_before_others(self, tmp_path: Path, environ: dict[str, str]) -> None:
        python(tmp_path / "bin" / "python3.12", "3.12.1")
        python(tmp_path / "home" / ".pyenv" / "versions" / "3.12.9" / "bin" / "python", "3.12.9")
        assert self.of_minor(self.pythons(environ), 12) == str(tmp_path / "bin" / "python3.12")

    def test_the_newest_of_pyenvs_is_taken(self, tmp_path: Path, environ: dict[str, str]) -> None:
        for patch in (2, 10, 9):
            python(tmp_path / "home" / ".pyenv" / "versions" / f"3.13.{patch}" / "bin" / "python", "3.13.0")
        assert self.of_minor(self.pythons(environ), 13).endswith("/3.13.10/bin/python")

    def test_what_does_not_run_or_cannot_make_environments_is_passed_over(
        self, tmp_path: Path, environ: dict[str, str]
    ) -> None:
        (tmp_path / "bin" / "python3.13").write_text(
            "#!/bin/sh\necho 'pyenv: python3.13: command not found' >&2; exit 127\n"
        )
        (tmp_path / "bin" / "python3.13").chmod(0o755)
        python(tmp_path / "bin" / "python3.12", "3.12.1", makes_environments=False)
        versions = tmp_path / "home" / ".pyenv" / "versions"
        python(versions / "3.13.0" / "bin" / "python", "3.13.0")
        found = self.pythons(environ)
        assert self.of_minor(found, 13) == str(versions / "3.13.0" / "bin" / "python")
        assert str(tmp_path / "bin" / "python3.12") not in found

    def test_only_supported_versions_are_named(self, tmp_path: Path, environ: dict[str, str]) -> None:
        for version in ("3.10", "3.14"):
            python(tmp_path / "bin" / f"python{version}", version)
        assert not any("3.10" in path or "3.14" in path for path in self.pythons(environ))


class Checkout:
    """The scripts alone, with a `make` that writes down how it is called; its suite reports ten tests."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder = folder / "checkout"
        self._environ = environ
        self._make = folder / "bin" / "make"
        shutil.copytree(ROOT / ".ci", self._folder / ".ci", ignore=shutil.ignore_patterns("results", "__pycache__"))
        python(self._folder / ".venv" / "bin" / "python", "3.11.7")
        for version in ("3.11", "3.12", "3.13"):
            python(folder / "bin" / f"python{version}", version)
        self.break_nothing()

    def break_nothing(self) -> None:
        self._write_make(failures=0, broken="nothing")

    def break_target(self, broken: str) -> None:
        """Fail whatever `make` is asked for that has these words in it; where that is the suite, one of its tests."""
        self._write_make(failures=1 if broken == "suite" else 0, broken=broken)

    def _write_make(self, *, failures: int, broken: str) -> None:
        report = REPORT.format(tests=10, failures=failures, errors=0)
        self._make.write_text(
            f"""#!/bin/sh
echo "${{MCPROXY_PURE:--}} ${{HYPOTHESIS_EXAMPLES:--}} $*" >> {self._folder}/calls
case $* in suite) mkdir -p .ci/results && echo '{report}' > .ci/results/suite.xml ;; esac
case $* in *"{broken}"*) exit 2 ;; esac
"""
        )
        self._make.chmod(0o755)

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        (self._folder / "calls").unlink(missing_ok=True)
        command = ["sh", str(self._folder / ".ci" / script), *arguments]
        return subprocess.run(command, env=self._environ, capture_output=True, text=True, timeout=250, check=False)

    @property
    def calls(self) -> Sequence[str]:
        return (self._folder / "calls").read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path, environ: dict[str, str]) -> Checkout:
    return Checkout(tmp_path, environ)


def table(output: str) -> dict[str, str]:
    """Return what became of each part, by its name."""
    rows = output.split("== parts\n")[1].splitlines()
    return {row.split()[0]: re.sub(r" +\d+ min \d\d s$", "", row.split(maxsplit=1)[1]) for row in rows if " " in row}


class TestRun:
    """`.ci/run`, the gate."""

    def test_it_lints_runs_the_suite_of_the_sources_and_tries_the_wheel(self, checkout: Checkout) -> None:
        done = checkout.run("run")
        assert checkout.calls == [
            "1 - .venv/made-for-test",
            "1 - -j 2 lint .venv/compiled-tests",
            "1 - suite",
            "1 - wheel-test",
        ]
        assert re.search(r"^suite +passed +0 min 0\d s$", done.stdout, re.MULTILINE)
        assert done.stdout.splitlines()[-1] == "10 passed, 0 failed"
        assert done.returncode == 0

    @pytest.mark.parametrize("broken", ["lint", "wheel-test"])
    def test_a_part_that_fails_keeps_no_other_from_running(self, checkout: Checkout, broken: str) -> None:
        checkout.break_target(broken)
        done = checkout.run("run")
        assert len(checkout.calls) == 4
        assert [name for name, result in table(done.stdout).items() if result == "failed"] == [broken.split("-")[0]]
        assert done.stdout.splitlines()[-1] == "10 passed, 0 failed"
        assert done.returncode == 1

    def test_a_test_that_fails_is_in_the_last_line(self, checkout: Checkout) -> None:
        checkout.break_target("suite")
        done = checkout.run("run")
        assert done.stdout.splitlines()[-1] == "9 passed, 1 failed"
        assert done.returncode == 1

    def test_the_report_of_an_earlier_run_does_not_count(self, checkout: Checkout, tmp_path: Path) -> None:
        checkout.run("run")
        (tmp_path / "bin" / "make").write_text("#!/bin/sh\nexit 2\n")
        done = checkout.run("run")
        assert done.stdout.splitlines()[-1] == "0 passed, 1 failed"
        assert done.returncode == 1


class TestNight:
    """`.ci/night`, in parts."""

    PARTS = ("slow", "pythons", "packages", "native", "properties", "fuzz", "soak", "consistency")

    @staticmethod
    def native_on(version: str, tmp_path: Path) -> list[str]:
        """Return the calls for the compiled build on another Python."""
        there = f"VENV=.venv-{version} PYTHON={tmp_path}/bin/python{version}"
        rooms = "tests/http tests/proxy tests/net tests/aggregate tests/e2e"
        return [f"- - native {there}", f"0 - suite {there} ARGS={rooms}"]

    def test_it_runs_all_parts(self, checkout: Checkout, tmp_path: Path) -> None:
        done = checkout.run("night")
        assert checkout.calls == [
            "- - suite ARGS=-m slow --junit-xml .ci/results/slow.xml",
            *(f"- - suite VENV=.venv-{of} PYTHON={tmp_path}/bin/python{of}" for of in ("3.12", "3.13")),
            "- - package-test",
            "- - native",
            "0 - suite",
            "0 - fuzz RUNS=5000",
            "0 - soak TIME=1m",
            *self.native_on("3.12", tmp_path),
            *self.native_on("3.13", tmp_path),
            "- - native-clean",
            "- 500 suite ARGS=-m hypothesis --timeout 600",
            "- - fuzz RUNS=1000000",
            "- - soak TIME=30m",
            "- - consistency TIME=10m",
            "- - consistency TIME=10m ARGS=--workers",
            "- - consistency TIME=10m ARGS=--workers --tunnel",
        ]
        assert table(done.stdout) == dict.fromkeys(self.PARTS, "passed")
        assert done.returncode == 0

    def test_a_part_that_was_not_asked_for_is_not_run_and_not_counted_as_passed(self, checkout: Checkout) -> None:
        done = checkout.run("night", "soak", "fuzz")
        assert checkout.calls == ["- - fuzz RUNS=1000000", "- - soak TIME=30m"]
        assert table(done.stdout) == {part: "passed" if part in ("fuzz", "soak") else "not run" for part in self.PARTS}
        assert done.returncode == 0

    def test_it_goes_on_after_a_find_and_fails(self, checkout: Checkout) -> None:
        checkout.break_target("fuzz")
        done = checkout.run("night", "native", "fuzz", "consistency")
        ended = table(done.stdout)
        assert (ended["native"], ended["fuzz"], ended["consistency"]) == ("failed", "failed", "passed")
        assert "- - native-clean" in checkout.calls
        assert done.returncode == 1

    def test_a_build_that_fails_is_a_failure_and_runs_no_suite(self, checkout: Checkout, tmp_path: Path) -> None:
        checkout.break_target("native")
        done = checkout.run("night", "native")
        assert table(done.stdout)["native"] == "failed"
        others = [self.native_on(of, tmp_path)[0] for of in ("3.12", "3.13")]
        assert checkout.calls == ["- - native", *others, "- - native-clean"]
        assert done.returncode == 1

    def test_no_other_python_is_a_failure(self, checkout: Checkout, tmp_path: Path, environ: dict[str, str]) -> None:
        (tmp_path / "checkout" / ".ci" / "pythons").write_text("#!/bin/sh\n")
        done = checkout.run("night", "pythons")
        assert table(done.stdout)["pythons"] == "failed"
        assert done.returncode == 1

    def test_an_unknown_part_runs_nothing(self, checkout: Checkout, tmp_path: Path) -> None:
        done = checkout.run("night", "fuzz", "sock")
        assert done.returncode == 2
        assert "usage: .ci/night [PART...], of: " in done.stderr
        assert not (tmp_path / "checkout" / "calls").exists()


def test_errors_count_as_failures_and_a_suite_without_report_too(tmp_path: Path) -> None:
    report = tmp_path / "suite.xml"
    report.write_text(REPORT.format(tests=5, failures=1, errors=2))
    done = summary(str(report), f"{tmp_path}/other.xml")
    assert done.stdout.splitlines() == [
        f"{tmp_path}/other.xml is missing: the suite did not run to its end",
        "2 passed, 4 failed",
    ]
    assert done.returncode == 1


def summary(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / "summary.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


def test_no_test_at_all_is_no_success(tmp_path: Path) -> None:
    report = tmp_path / "3.13.xml"
    report.write_text(REPORT.format(tests=0, failures=0, errors=0))
    assert summary(str(report)).returncode == 1


def test_what_was_unstable_under_load_is_counted(checkout: Checkout, tmp_path: Path) -> None:
    counter = tmp_path / "runs"
    (tmp_path / "bin" / "make").write_text(
        f"""#!/bin/sh
echo run >> {counter}
mkdir -p .ci/results/unstable
echo "why" > .ci/results/unstable/tests-a.py-$(wc -l < {counter}).txt
echo "unstable: tests/a.py::test_a"
[ "$(wc -l < {counter})" = 2 ] && echo "FAILED tests/b.py::test_b - AssertionError: no"
exit 1
"""
    )
    done = checkout.run("unstable", "3", "make")
    assert done.stdout.splitlines()[-2:] == [
        "      3 unstable: tests/a.py::test_a",
        "      1 FAILED tests/b.py::test_b",
    ]
    assert len(list((tmp_path / "checkout/.ci/results/under-load").glob("*.txt"))) == 3
