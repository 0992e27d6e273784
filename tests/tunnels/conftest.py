"""Every test of tunnels must leave the reactor as it found it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from tests.tunnels.site import TunnelSite


@pytest.fixture
def reactor() -> Any:
    from twisted.internet import reactor

    pytest_twisted.blockon(deferLater(reactor, 0))  # the first run installs the reactor's own readers
    return reactor


@pytest.fixture
def site(reactor: Any, tmp_path: Path, nothing_left_open: None) -> Iterator[TunnelSite]:
    site = TunnelSite(reactor, tmp_path)
    yield site
    pytest_twisted.blockon(Deferred.fromCoroutine(site.close()))
