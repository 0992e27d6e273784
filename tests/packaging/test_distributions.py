"""What is installed: exactly the package's files, however the checkout looks, which is left as it was."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
made = runpy.run_path(str(ROOT / "packaging/manual.py"))["made"]
MADE_FOLDERS = {".git", ".venv", ".tools", "build", "dist", "__pycache__", ".hypothesis"}


def project_files() -> set[str]:
    """What git has, with what is new in the checkout; in an unpacked source distribution, all that is not made."""
    if (ROOT / ".git").exists():
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
        return {name for name in names if name and (ROOT / name).exists()}
    return {
        str(file.relative_to(ROOT))
        for file in ROOT.rglob("*")
        if file.is_file() and file.name != "PKG-INFO" and not _is_made(file.relative_to(ROOT))
    }


def _is_made(file: Path) -> bool:
    return any(part in MADE_FOLDERS or part.endswith((".egg-info", "_cache")) for part in file.parts)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project's files, with what a former build left: a stale module, and one that lists it."""
    copy = tmp_path_factory.mktemp("packaging") / "checkout"
    for name in project_files():
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    for stale in ("build/lib/mcproxy/stale.py", "mcproxy.egg-info/SOURCES.txt", "mcproxy/__pycache__/stale.pyc"):
        (copy / stale).parent.mkdir(parents=True, exist_ok=True)
        (copy / stale).write_text("mcproxy/stale.py\n")
    return copy


@pytest.fixture(scope="module")
def checkout_wheel(checkout: Path) -> dict[str, bytes]:
    """The contents by name of the wheel that is built from the checkout."""
    return wheel(checkout, checkout.with_name("of-checkout"))


@pytest.fixture(scope="module")
def source_distribution(checkout: Path) -> Path:
    """The archive that is built from the checkout."""
    return sdist(checkout, checkout.with_name("dist"))


def pip(*arguments: str | Path) -> None:
    """Run pip with this environment's own build backend, without any index."""
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", arguments[0], *options, *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def wheel(source: Path, directory: Path) -> dict[str, bytes]:
    """The contents by name of the wheel that is built from a folder or a source distribution."""
    pip("wheel", "--wheel-dir", directory, source)
    (built,) = directory.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def sdist(source: Path, directory: Path) -> Path:
    program = f"import hatchling.build as backend; print(backend.build_sdist({str(directory)!r}))"
    directory.mkdir()
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=60, check=True)
    return directory / done.stdout.strip()


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder with its size and time of change."""
    return {str(path.relative_to(folder)): _state(path.lstat()) for path in sorted(folder.rglob("*"))}


def _state(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


#: What a wheel has beside the package, below share/, by its name in the checkout.
SHARED = {
    "CHANGELOG.md": "doc/mcproxy/CHANGELOG.md",
    "README.md": "doc/mcproxy/README.md",
    "etc/mcproxy.yaml": "mcproxy/etc/mcproxy.yaml",
    "man/mcproxy.8": "man/man8/mcproxy.8",
    "man/mcproxy.yaml.5": "man/man5/mcproxy.yaml.5",
    "packaging/logrotate": "mcproxy/logrotate",
    "packaging/mcproxy.sysusers": "mcproxy/sysusers.conf",
    "packaging/mcproxy.tmpfiles": "mcproxy/tmpfiles.conf",
    "schema/mcproxy.schema.json": "mcproxy/mcproxy.schema.json",
    "systemd/mcproxy.service": "mcproxy/systemd/mcproxy.service",
    "systemd/mcproxy.socket": "mcproxy/systemd/mcproxy.socket",
}


@pytest.mark.slow
def test_a_wheel_has_what_an_operator_needs_beside_the_program(checkout_wheel: dict[str, bytes]) -> None:
    shared = {
        name.partition(".data/data/share/")[2]: content for name, content in checkout_wheel.items() if ".data/" in name
    }
    for source, name in SHARED.items():
        assert shared[name] == (ROOT / source).read_bytes(), name
    folders = {f"mcproxy/{name}" for name in project_files() if name.startswith(("etc/", "systemd/"))}
    docs = {f"doc/mcproxy/{name}" for name in project_files() if name.startswith("docs/")}
    html = {name for name in shared if name.startswith("doc/mcproxy/html/")}
    assert set(shared) == folders | docs | html | set(SHARED.values())
    assert {f"doc/mcproxy/html/{name}" for name in made()} == html


def test_a_wheel_has_the_packages_files_and_nothing_stale(checkout_wheel: dict[str, bytes]) -> None:
    package = {name for name in checkout_wheel if ".dist-info/" not in name and ".data/" not in name}
    assert package == {name for name in project_files() if name.startswith(("mcproxy/", "kubesim/"))}
    for name in package:
        assert checkout_wheel[name] == (ROOT / name).read_bytes(), name


@pytest.mark.slow
def test_installing_leaves_the_checkout_as_it_was_and_what_is_installed_runs_from_anywhere(
    checkout: Path, tmp_path: Path
) -> None:
    installed, before = tmp_path / "installed", state(checkout)
    pip("install", "--no-compile", "--target", installed, checkout)
    assert state(checkout) == before
    assert not (installed / "mcproxy" / "stale.py").exists()
    program = "import mcproxy.cli.main; print(mcproxy.__file__); raise SystemExit(mcproxy.cli.main.main(['--version']))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    where, version = done.stdout.split("\n", 1)
    assert where == str(installed / "mcproxy" / "__init__.py")
    assert version.startswith("mcproxy ")
    assert (installed / "bin" / "mcproxy").exists()
    assert (installed / "share" / "man" / "man8" / "mcproxy.8").exists()


def test_a_source_distribution_has_every_file_of_the_project(source_distribution: Path) -> None:
    with tarfile.open(source_distribution) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names - {"PKG-INFO"} == project_files()
    for folder in ("bench", "docs", "etc", "man", "packaging", "requirements", "schema", "systemd", "tests/golden"):
        assert any(name.startswith(f"{folder}/") for name in names), folder


@pytest.mark.slow
def test_a_wheel_of_the_source_distribution_is_the_same_as_one_of_the_checkout(
    source_distribution: Path, checkout_wheel: dict[str, bytes], tmp_path: Path
) -> None:
    assert wheel(source_distribution, tmp_path) == checkout_wheel


@pytest.fixture
def makefile(tmp_path: Path) -> Path:
    """A folder with nothing but what the rule of `.venv` needs."""
    folder = tmp_path / "make"
    folder.mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    return folder


@pytest.mark.parametrize("version", ["(3, 10, 13)", "(3, 14, 0)"])
def test_make_with_an_unsuitable_python_stops_before_it_makes_anything(makefile: Path, version: str) -> None:
    program = makefile / "python-of-another-age"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = {version}; exec(sys.argv[1])" "$2"\n'
    )
    program.chmod(0o755)
    done = subprocess.run(
        ["make", "lint", f"PYTHON={program}"], cwd=makefile, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert f"{program} does not suit: mcproxy needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert not (makefile / ".venv").exists()


def test_make_without_any_suitable_python_is_an_error(makefile: Path) -> None:
    command = ["make", "lint", "PYTHON="]
    done = subprocess.run(command, cwd=makefile, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "mcproxy needs Python 3.11, 3.12 or 3.13: install one" in done.stderr
    assert not (makefile / ".venv").exists()
