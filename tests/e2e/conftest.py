"""What the end-to-end tests share: kubectl, and one estate of clusters and proxy for all that only look at it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.estate import Estate
from tests.e2e.identity_estate import IdentityEstate

LEAST_KUBECTL = 20


@pytest.fixture(scope="session")
def kubectl() -> str:
    """The path of kubectl 1.20 or newer."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.fail("these tests run kubectl: install it (`.ci/tools kubectl` does, if it may) and put it on PATH")
    shown = subprocess.run([program, "version", "--client", "-o", "json"], capture_output=True, check=True).stdout
    version = json.loads(shown)["clientVersion"]
    minor = int("".join(filter(str.isdigit, version["minor"])))
    if minor < LEAST_KUBECTL:
        pytest.fail(f"kubectl is {version['gitVersion']}: install 1.{LEAST_KUBECTL} or newer and put it on PATH")
    return program


@pytest.fixture(scope="session")
def estate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    """Clusters and a proxy that all tests use which leave them as they were."""
    estate = Estate(tmp_path_factory.mktemp("estate"))
    try:
        yield estate.start()
    finally:
        estate.stop()


@pytest.fixture(scope="session")
def restless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    """Clusters whose connections may be broken, and that send bookmarks often; the proxy may be given other files."""
    estate = Estate(tmp_path_factory.mktemp("restless"), options=("--bookmark-seconds", "0.3"))
    try:
        yield estate.start()
    finally:
        estate.stop()


@pytest.fixture(scope="session")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityEstate]:
    """Clusters and a proxy that authenticates, for tests that leave them as they were."""
    estate = IdentityEstate(tmp_path_factory.mktemp("identities"))
    try:
        yield estate.start()
    finally:
        estate.stop()
