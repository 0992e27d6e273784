"""What all tests share: the reactor that the daemon uses, and a look at what a test leaves behind."""

from collections.abc import Iterator

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from hypothesis import HealthCheck, settings

from mcproxy.net import reactor as lean

# Before pytest-twisted chooses one: tests run on the reactor that the daemon runs on.
reactor = lean.install()

# How long an example takes says something of the machine's load, nothing of the code.
settings.register_profile("mcproxy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mcproxy")


def _open_things() -> set[object]:
    watched = (*reactor.getReaders(), *reactor.getWriters())  # type: ignore[no-untyped-call]
    return {*reactor.getDelayedCalls(), *watched}


@pytest.fixture
def nothing_left_open() -> Iterator[None]:
    """Fail a test that leaves timers, sockets or pipes with the reactor. Ask for it with `usefixtures`.

    Closing takes some turns of the reactor, so leftovers get a second to go away.
    """
    from twisted.internet.task import deferLater

    pytest_twisted.blockon(deferLater(reactor, 0))  # what the reactor opens when it first runs is its own
    before = _open_things()
    yield
    for _ in range(100):
        left = _open_things() - before
        if not left:
            return
        pytest_twisted.blockon(deferLater(reactor, 0.01))
    pytest.fail(f"left with the reactor: {left}")
