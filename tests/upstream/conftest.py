"""The reactor that pytest-twisted runs, for tests with real sockets and processes."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def reactor() -> Any:
    from twisted.internet import reactor

    return reactor
