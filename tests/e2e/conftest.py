"""What the end-to-end tests share: kubectl, and one environment of clusters and proxy for all that only look at it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.aggregate_environment import AggregateEnvironment
from tests.e2e.environment import Environment
from tests.e2e.http2_routes import HTTP2Routes
from tests.e2e.identity_environment import IdentityEnvironment
from tests.proxy.conftest import reactor as reactor

LEAST_KUBECTL = 20
OPENAPI_V3_KUBECTL = 29


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
def kubectls(kubectl: str) -> tuple[str, ...]:
    """kubectl, and the oldest other version that is installed beside it (kubectl.1.29), if there is one.

    Before 1.29 it asks for OpenAPI v2 as protobuf, which the simulated cluster does not have.
    """
    minors = {int(path.name.split(".")[2]): str(path) for path in Path(kubectl).resolve().parent.glob("kubectl.1.*")}
    oldest = min((minor for minor in minors if minor >= OPENAPI_V3_KUBECTL), default=None)
    return (kubectl,) if oldest is None else (kubectl, minors[oldest])


@pytest.fixture(scope="package")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """Clusters and a proxy that all tests use which leave them as they were."""
    environment = Environment(tmp_path_factory.mktemp("environment"))
    try:
        yield environment.start()
    finally:
        environment.stop()


@pytest.fixture(scope="package")
def http2_routes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HTTP2Routes]:
    """A cluster behind a proxy, over each combination of HTTP versions; tests leave it as it was."""
    routes = HTTP2Routes(tmp_path_factory.mktemp("http2"))
    try:
        yield routes.start()
    finally:
        routes.stop()


@pytest.fixture(scope="package")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """Clusters whose connections may be broken, and that send bookmarks often; the proxy may be given other files."""
    environment = Environment(tmp_path_factory.mktemp("disturbed"), options=("--bookmark-seconds", "0.3"))
    try:
        yield environment.start()
    finally:
        environment.stop()


@pytest.fixture(scope="package")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregateEnvironment]:
    """Two clusters as one aggregate, for tests that leave them as they were."""
    environment = AggregateEnvironment(tmp_path_factory.mktemp("fleet"))
    try:
        yield environment.start()
    finally:
        environment.stop()


@pytest.fixture(scope="package")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityEnvironment]:
    """Clusters and a proxy that authenticates, for tests that leave them as they were."""
    environment = IdentityEnvironment(tmp_path_factory.mktemp("identities"))
    try:
        yield environment.start()
    finally:
        environment.stop()
