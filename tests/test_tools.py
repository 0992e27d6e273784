"""`.ci/tools` uses what is on PATH, and prints what to install if it cannot install anything itself."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDED = ("sed", "head", "id", "sh", "env")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A PATH with little on it: no apt-get, no sudo, no kubectl."""
    for name in NEEDED:
        where = subprocess.run(["sh", "-c", f"command -v {name}"], capture_output=True, text=True, check=True).stdout
        (tmp_path / name).symlink_to(where.strip())
    return tmp_path


def kubectl(path: Path, version: str) -> None:
    program = path / "kubectl"
    program.write_text(f'#!/bin/sh\necho \'{{"clientVersion": {{"gitVersion": "{version}"}}}}\'\n')
    program.chmod(0o755)


def tools(path: Path, *names: str) -> tuple[int, str]:
    done = subprocess.run(
        ["sh", str(ROOT / ".ci" / "tools"), *names],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(path)},
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(("version", "status"), [("v1.20.2", 0), ("v1.36.0-site", 0), ("v1.19.16", 1), ("v1.x", 1)])
def test_kubectl_is_taken_from_version_1_20_on(path: Path, version: str, status: int) -> None:
    kubectl(path, version)
    assert tools(path, "kubectl")[0] == status


def test_all_missing_tools_are_in_one_sentence(path: Path) -> None:
    kubectl(path, "v1.32.4")
    status, message = tools(path, "kubectl", "nginx", "wrk")
    assert status == 1
    assert "please install nginx wrk" in message
