"""Every target installs from a lock file, with hashes, which has all that pyproject.toml asks for, for each Python."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "requirements"
PYTHONS = ("3.11.2", "3.12.1", "3.13.0")
MACHINES = ("x86_64", "aarch64")

#: The extras that each lock file is for; without the project, `None`.
EXTRAS: dict[str, tuple[str, ...] | None] = {
    "run": (),
    "demo": ("demo",),
    "all": ("demo", "import", "otel"),
    "native": ("native",),
    "test": ("test",),
    "build": None,
    "package": None,
    "lock": None,
}

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@dataclass(frozen=True)
class Locked:
    """One entry of a lock file."""

    requirement: Requirement
    hashes: int

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        (specifier,) = self.requirement.specifier
        assert specifier.operator == "=="
        return specifier.version

    def applies(self, environment: dict[str, str]) -> bool:
        return self.requirement.marker is None or self.requirement.marker.evaluate(environment)


def entries(name: str) -> list[Locked]:
    """Return the entries of a lock file."""
    text = re.sub(r"(?m)^\s*#.*\n?", "", (FOLDER / f"{name}.lock").read_text()).replace("\\\n", " ")
    return [
        Locked(Requirement(line.partition(" --hash")[0]), len(re.findall(r"--hash=sha256:[0-9a-f]{64}(?:\s|$)", line)))
        for line in text.splitlines()
        if line.strip()
    ]


def asked(extras: tuple[str, ...]) -> Iterator[Requirement]:
    """Yield what the project asks for with these extras; an extra may name others of the project."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    for requirement in (Requirement(text) for texts in lists for text in texts):
        if requirement.name == PROJECT["name"]:
            yield from asked(tuple(requirement.extras))
        else:
            yield requirement


def test_the_lock_files_are_those_that_are_known() -> None:
    assert {file.stem for file in FOLDER.glob("*.lock")} == set(EXTRAS)


@pytest.mark.parametrize("name", EXTRAS)
def test_each_entry_is_one_version_with_hashes(name: str) -> None:
    for entry in entries(name):
        assert entry.version, entry
        assert entry.hashes >= 1, entry


@pytest.mark.parametrize(("name", "extras"), [(name, extras) for name, extras in EXTRAS.items() if extras is not None])
def test_a_lock_file_has_what_the_project_asks_for(name: str, extras: tuple[str, ...]) -> None:
    """Change pyproject.toml, then `make lock`."""
    locked = entries(name)
    for python in PYTHONS:
        for machine in MACHINES:
            environment = {
                **{str(key): str(value) for key, value in default_environment().items()},
                "python_full_version": python,
                "python_version": python.rpartition(".")[0],
                "platform_machine": machine,
            }
            here = {entry.name: entry.version for entry in locked if entry.applies(environment)}
            for requirement in asked(extras):
                if requirement.marker is None or requirement.marker.evaluate(environment):
                    version = here.get(canonicalize_name(requirement.name))
                    assert version is not None, (python, machine, requirement)
                    assert requirement.specifier.contains(version, prereleases=True), (requirement, version)


def test_all_lock_files_have_the_same_versions() -> None:
    test = {(entry.name, entry.version) for entry in entries("test")}
    names = {name for name, _ in test}
    for name in EXTRAS:
        assert {(entry.name, entry.version) for entry in entries(name) if entry.name in names} <= test, name


def test_what_is_installed_here_is_what_the_lock_file_says() -> None:
    """Also that nothing was installed from elsewhere, as this environment is made by `make`."""
    installed = {canonicalize_name(found.name): found.version for found in importlib.metadata.distributions()}
    for entry in entries("test"):
        if entry.name in installed:
            assert installed[canonicalize_name(entry.name)] == entry.version


TARGETS = (
    "demo",
    "lint",
    "suite",
    "soak",
    "bench",
    "format",
    "lock",
    "native",
    "dist",
    "binary",
    "deb",
    "package-test",
)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_installs_from_a_lock_file_with_hashes(target: str, tmp_path: Path) -> None:
    command = ["make", "--dry-run", "--always-make", target, f"VENV={tmp_path}/none", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert installs
    for line in installs:
        assert ("--require-hashes" in line and "--requirement requirements/" in line) or (
            "--no-deps" in line and "--no-index" in line and line.endswith("--editable .")
        ), line
