"""The clusters that all tests of several processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.workers.site import Site


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("workers"))
    try:
        yield site.start()
    finally:
        site.stop()
