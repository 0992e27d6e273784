"""One environment of a cluster, two API servers and a daemon for all tests of a daemon with one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.apiservices.environment import APIServices


@pytest.fixture(scope="package")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[APIServices]:
    """A cluster with two API servers; a test that changes how these behave changes it back."""
    environment = APIServices(tmp_path_factory.mktemp("apiservices"))
    try:
        yield environment.start()
    finally:
        environment.stop()


@pytest.fixture
def well(services: APIServices) -> Iterator[APIServices]:
    """The same, whose API servers behave again behind the test."""
    try:
        yield services
    finally:
        for server in services.servers.values():
            server.restore()


@pytest.fixture(scope="package")
def fleet_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[APIServices]:
    """An aggregate of two clusters with the API servers, behind two workers and a keeper."""
    environment = APIServices(tmp_path_factory.mktemp("fleet-services"), daemon=", workers: 2", aggregate=True)
    try:
        yield environment.start()
    finally:
        environment.stop()
