import math
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from mcproxy.services.ingress import backend_endpoints
from tests.services.ingress.stand import Stand
from tests.services.ingress.whole import Whole


@pytest.fixture
def stand() -> Iterator[Stand]:
    stand = Stand()
    yield stand
    pytest_twisted.blockon(Deferred.fromCoroutine(stand.close()))


@pytest.fixture
def whole(nothing_left_open: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Whole]:
    """A whole proxy, which leaves the reactor as it found it."""
    from twisted.internet import reactor

    # A change of endpoints that a loaded machine holds up for 50 ms would have the next one wait.
    monkeypatch.setattr(backend_endpoints, "_LONG", math.inf)
    ready: Any = reactor
    pytest_twisted.blockon(deferLater(ready, 0))  # the first run installs the reactor's own readers
    whole = Whole(ready)
    yield whole
    pytest_twisted.blockon(Deferred.fromCoroutine(whole.close()))
