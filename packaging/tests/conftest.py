"""What the tests of packages share: what `make dist binary deb` has built."""

from __future__ import annotations

import json
import os
import platform
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from empty_root import EmptyRoot

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
TRAILER = struct.Struct("<QQ32s8s")


@pytest.fixture(scope="session", autouse=True)
def _in_a_network_of_its_own() -> None:
    """Nothing but loopback is there, so nothing of what follows can have come from elsewhere."""
    assert set(os.listdir("/sys/class/net")) >= {"lo"}
    with open("/proc/net/dev") as devices:
        assert [line.split(":")[0].strip() for line in devices.readlines()[2:]] == ["lo"], "run `make package-test`"


@pytest.fixture(scope="session")
def binary() -> Path:
    """The single-file program."""
    (built,) = (path for path in DIST.glob(f"mcproxy-*-linux-{platform.machine()}") if path.suffix != ".making")
    return built


@pytest.fixture
def root(tmp_path: Path, binary: Path) -> Iterator[EmptyRoot]:
    """An empty root with the program."""
    empty = EmptyRoot(tmp_path / "root", binary)
    yield empty
    empty.remove()


@pytest.fixture(scope="session")
def figures() -> Iterator[dict[str, float]]:
    """What was measured; printed, and left in build/package-figures.json."""
    found: dict[str, float] = {}
    yield found
    (ROOT / "build" / "package-figures.json").write_text(json.dumps(found, indent=2) + "\n")


def another_version(binary: Path, target: Path) -> Path:
    """Write a program that is the same and does not know it: another version, by its hash."""
    data = bytearray(binary.read_bytes())
    start, length, digest, magic = TRAILER.unpack(data[-TRAILER.size :])
    data[-TRAILER.size :] = TRAILER.pack(start, length, digest[::-1], magic)
    target.write_bytes(data)
    target.chmod(0o755)
    return target
