"""What the end-to-end tests share: kubectl, and one environment of clusters and proxy for all that only look at it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.environment import Environment
from tests.e2e.identity_environment import IdentityEnvironment

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
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """Clusters and a proxy that all tests use which leave them as they were."""
    environment = Environment(tmp_path_factory.mktemp("environment"))
    try:
        yield environment.start()
    finally:
        environment.stop()


@pytest.fixture(scope="session")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """Clusters whose connections may be broken, and that send bookmarks often; the proxy may be given other files."""
    environment = Environment(tmp_path_factory.mktemp("disturbed"), options=("--bookmark-seconds", "0.3"))
    try:
        yield environment.start()
    finally:
        environment.stop()


@pytest.fixture(scope="session")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityEnvironment]:
    """Clusters and a proxy that authenticates, for tests that leave them as they were."""
    environment = IdentityEnvironment(tmp_path_factory.mktemp("identities"))
    try:
        yield environment.start()
    finally:
        environment.stop()
