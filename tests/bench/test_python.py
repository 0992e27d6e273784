"""Which Python mcproxy is measured with: an optimised build where there is one, and a warning where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import python
from bench.processes import Failed
from bench.python import Python, build_of, choose, describe


@pytest.mark.parametrize(
    ("flags", "prefix", "optimised"),
    [
        ("'--prefix=/root/.pyenv' '--enable-shared' -O3", "/root/.pyenv", False),
        ("'--enable-optimizations' '--with-lto'", "/usr/local", True),
        ("-fprofile-use -fprofile-correction", "/opt/python", True),
        ("'--prefix=/usr' '--without-ensurepip'", "/usr", True),
    ],
)
def test_a_build_is_optimised_when_its_flags_say_so_or_it_is_the_distributions(
    flags: str, prefix: str, optimised: bool
) -> None:
    assert build_of(flags, prefix)[1] is optimised


def test_a_plain_build_is_a_warning_that_names_the_option() -> None:
    plain = Python(Path("/opt/python3"), "3.12.1", "plain build, not optimised", optimised=False)
    assert "/opt/python3 is a plain build of Python 3.12.1" in plain.warning()
    assert "--python" in plain.warning()
    assert Python(Path("/usr/bin/python3"), "3.12.1", "", optimised=True).warning() == ""


def test_this_python_says_its_own_version() -> None:
    own = describe(Path(sys.executable))
    assert own.version == sys.version.split()[0]
    assert own.supported


@pytest.mark.parametrize(("version", "supported"), [("3.10.9", False), ("3.11.0", True), ("3.14.0a1", False)])
def test_supported_versions(version: str, supported: bool) -> None:
    assert Python(Path("x"), version, "", optimised=True).supported is supported


def test_what_is_no_python_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="is no Python that runs"):
        describe(Path("/bin/true"))
    with pytest.raises(Failed, match="is no Python that runs"):
        describe(tmp_path / "missing")


def known(monkeypatch: pytest.MonkeyPatch, *, own: bool, system: bool, version: str = "3.11.2") -> None:
    """Two Pythons: this one and the system's, optimised or not; the system's can have an environment made."""
    this = Python(Path(sys.executable), "3.11.7", "", own)
    found = {
        this.program: this,
        python.SYSTEM: Python(python.SYSTEM, version, "", system),
        Path("/made"): Python(Path("/made"), version, "", system),
        Path("/given"): Python(Path("/given"), "3.13.0", "", optimised=False),
    }
    monkeypatch.setattr(python, "describe", found.__getitem__)
    monkeypatch.setattr(python, "environment", lambda which, cache: Path("/made"))
    monkeypatch.setattr(python, "SYSTEM", python.SYSTEM if python.SYSTEM.exists() else Path(sys.executable))


@pytest.mark.parametrize(
    ("own", "system", "version", "chosen"),
    [
        (True, True, "3.11.2", sys.executable),
        (False, True, "3.11.2", "/made"),
        (False, True, "3.9.2", sys.executable),
        (False, False, "3.11.2", sys.executable),
    ],
)
def test_this_python_if_it_is_optimised_else_the_systems_if_that_suits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: bool, system: bool, version: str, chosen: str
) -> None:
    known(monkeypatch, own=own, system=system, version=version)
    assert choose(None, tmp_path).program == Path(chosen)


def test_a_given_python_is_taken_whatever_its_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known(monkeypatch, own=True, system=True)
    assert choose(Path("/given"), tmp_path).program == Path("/given")


def test_an_environment_that_cannot_be_made_leaves_this_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known(monkeypatch, own=False, system=True)

    def fail(which: Python, cache: Path) -> Path:
        raise Failed("no virtual environment")

    monkeypatch.setattr(python, "environment", fail)
    assert choose(None, tmp_path).program == Path(sys.executable)
    assert "no virtual environment" in capsys.readouterr().err
