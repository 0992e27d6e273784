"""Continuous integration: which Pythons it runs the suite on, what it goes on after, and its closing line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SAME = (
    "tests/bench tests/consistency tests/demo tests/docs tests/fuzz tests/proxy/admin/page tests/cli/test_demo.py"
    " tests/test_ci.py"
)
"""What is not run on other Pythons."""
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


def pythons(environ: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [ROOT / ".ci" / "pythons"], env=environ, capture_output=True, text=True, timeout=250, check=True
    )
    return done.stdout.splitlines()


def of_minor(found: list[str], minor: int) -> str:
    return next((path for path in found if f"3.{minor}" in path), "")


def test_a_python_on_path_comes_before_others(tmp_path: Path, environ: dict[str, str]) -> None:
    python(tmp_path / "bin" / "python3.12", "3.12.1")
    python(tmp_path / "home" / ".pyenv" / "versions" / "3.12.9" / "bin" / "python", "3.12.9")
    assert of_minor(pythons(environ), 12) == str(tmp_path / "bin" / "python3.12")


def test_the_newest_of_pyenvs_is_taken(tmp_path: Path, environ: dict[str, str]) -> None:
    for patch in (2, 10, 9):
        python(tmp_path / "home" / ".pyenv" / "versions" / f"3.13.{patch}" / "bin" / "python", "3.13.0")
    assert of_minor(pythons(environ), 13).endswith("/3.13.10/bin/python")


def test_what_does_not_run_or_cannot_make_environments_is_passed_over(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "bin" / "python3.13").write_text(
        "#!/bin/sh\necho 'pyenv: python3.13: command not found' >&2; exit 127\n"
    )
    (tmp_path / "bin" / "python3.13").chmod(0o755)
    python(tmp_path / "bin" / "python3.12", "3.12.1", makes_environments=False)
    versions = tmp_path / "home" / ".pyenv" / "versions"
    python(versions / "3.13.0" / "bin" / "python", "3.13.0")
    found = pythons(environ)
    assert of_minor(found, 13) == str(versions / "3.13.0" / "bin" / "python")
    assert str(tmp_path / "bin" / "python3.12") not in found


def test_only_supported_versions_are_named(tmp_path: Path, environ: dict[str, str]) -> None:
    for version in ("3.10", "3.14"):
        python(tmp_path / "bin" / f"python{version}", version)
    assert not any("3.10" in path or "3.14" in path for path in pythons(environ))


@pytest.fixture
def checkout(tmp_path: Path, environ: dict[str, str]) -> Path:
    """The scripts alone, with a `make` that writes down how it is called and reports one test for each suite.

    Of Python 3.12 one test fails.
    """
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / ".ci", checkout / ".ci", ignore=shutil.ignore_patterns("results", "__pycache__"))
    python(checkout / ".venv" / "bin" / "python", "3.11.7")
    make = tmp_path / "bin" / "make"
    good, bad = (REPORT.format(tests=10, failures=failures, errors=0) for failures in (0, 1))
    make.write_text(
        f"""#!/bin/sh
echo "${{MCPROXY_PURE:--}} $*" >> {checkout}/calls
case $* in *--junit-xml*) ;; *) exit 0 ;; esac
file=${{*##*--junit-xml }}; file=${{file%% *}}
case $file in *3.12.xml) echo '{bad}' > "$file"; exit 2 ;; *) echo '{good}' > "$file" ;; esac
"""
    )
    make.chmod(0o755)
    for version in ("3.11", "3.12", "3.13"):
        python(tmp_path / "bin" / f"python{version}", version)
    return checkout


def run(checkout: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(checkout / ".ci" / "run")]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=250, check=False)


def test_each_python_has_its_suite_and_a_failure_keeps_none_from_running(
    checkout: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    done = run(checkout, environ)
    assert (checkout / "calls").read_text().splitlines() == [
        "1 test ARGS=--junit-xml .ci/results/default.xml",
        "1 fuzz RUNS=5000",
        "1 soak TIME=1m",
        "- native",
        "0 suite ARGS=--junit-xml .ci/results/default-compiled.xml",
        "0 fuzz RUNS=5000",
        "0 soak TIME=1m",
        "- native-clean",
        "- package-test ARGS=--junit-xml .ci/results/packages.xml",
        *of_another_python("3.12", tmp_path),
        *of_another_python("3.13", tmp_path),
    ]
    assert done.stdout.splitlines()[-6:] == [
        "Python 3.11, pure: 10 passed, 0 failed",
        "Python 3.11, compiled: 10 passed, 0 failed",
        "Python 3.11, packages: 10 passed, 0 failed",
        "Python 3.12, compiled: 9 passed, 1 failed",
        "Python 3.13, compiled: 10 passed, 0 failed",
        "49 passed, 1 failed",
    ]
    assert done.returncode == 1


def of_another_python(version: str, tmp_path: Path) -> list[str]:
    """Return how `make` is called for it."""
    where = f"VENV=.venv-{version} PYTHON={tmp_path}/bin/python{version}"
    ignored = "".join(f" --ignore {path}" for path in SAME.split())
    return [
        f"- native {where}",
        f"0 suite {where} ARGS=--junit-xml .ci/results/{version}.xml{ignored}",
        "- native-clean",
    ]


def test_what_is_not_run_on_other_pythons_exists() -> None:
    assert all((ROOT / path).exists() for path in SAME.split())


def test_a_build_that_fails_is_a_failure_and_keeps_nothing_else_from_running(
    checkout: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    make = tmp_path / "bin" / "make"
    make.write_text(
        make.read_text().replace("case $*", '[ "$*" = native ] && exit 2\ncase $*').replace("*3.12.xml", "-")
    )
    done = run(checkout, environ)
    assert "Python 3.11, compiled: no report, the suite did not run" in done.stdout
    assert done.stdout.splitlines()[-1] == "40 passed, 1 failed"
    assert done.returncode == 1


def test_all_green_is_status_0(checkout: Path, environ: dict[str, str], tmp_path: Path) -> None:
    make = tmp_path / "bin" / "make"
    make.write_text(make.read_text().replace("*3.12.xml", "never"))
    done = run(checkout, environ)
    assert done.stdout.splitlines()[-1] == "50 passed, 0 failed"
    assert done.returncode == 0


def summary(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / "summary.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


def test_errors_count_as_failures_and_a_suite_without_report_too(tmp_path: Path) -> None:
    report = tmp_path / "3.13.xml"
    report.write_text(REPORT.format(tests=5, failures=1, errors=2))
    done = summary(str(report), f"{tmp_path}/default.xml=3.11")
    assert done.stdout.splitlines() == [
        "Python 3.13: 2 passed, 3 failed",
        "Python 3.11: no report, the suite did not run",
        "2 passed, 4 failed",
    ]
    assert done.returncode == 1


def test_no_test_at_all_is_no_success(tmp_path: Path) -> None:
    report = tmp_path / "3.13.xml"
    report.write_text(REPORT.format(tests=0, failures=0, errors=0))
    assert summary(str(report)).returncode == 1


def test_a_night_goes_on_after_a_find_and_fails(tmp_path: Path, environ: dict[str, str]) -> None:
    make, asked = tmp_path / "bin" / "make", tmp_path / "asked"
    make.write_text(f'#!/bin/sh\necho "$*" >> {asked}\n[ "$1" != fuzz ]\n')
    make.chmod(0o755)
    assert subprocess.run([ROOT / ".ci/night"], env=environ, timeout=60).returncode == 1
    assert asked.read_text().splitlines() == [
        "suite ARGS=-m hypothesis --timeout 600 HYPOTHESIS_EXAMPLES=500",
        "fuzz RUNS=1000000",
        "soak TIME=30m",
        "consistency TIME=10m",
        "consistency TIME=10m ARGS=--workers",
    ]
