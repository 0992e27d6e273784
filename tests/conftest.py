"""What all tests share: the reactor that the daemon uses, and a look at what a test leaves behind."""

import gc
import os
import sys
from collections.abc import Generator, Iterator

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from hypothesis import HealthCheck, settings
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from zope.interface import implementer

from mcproxy.net import reactor as lean

# Hundreds of daemons, clusters and commands are started, and compiling what they import takes half of their
# start: it is done once, though the environment (that of an image for containers, say) forbids to keep the result.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Modules and the 18,000 tests themselves live as long as the process. To search them for cycles while they are made
# takes a fifth of the collection, and to search them again with each test's garbage a tenth of the suite.
gc.disable()

pytest_plugins = ["tests.support.unstable"]

# Before pytest-twisted chooses one: tests run on the reactor that the daemon runs on.
reactor = lean.install()

# How long an example takes says something of the machine's load, nothing of the code; how many are thrown away or grow
# too long is chance. With HYPOTHESIS_EXAMPLES=500, as at night (.ci/night), each property that does not say how many it
# needs is tried with so many examples. By day the examples are the same in each run, so that what fails is due to the
# change that is tested (hypothesis does so in its profile "ci"); new ones are looked for at night.
NIGHT = "HYPOTHESIS_EXAMPLES" in os.environ
EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "50"))
BY_CHANCE = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile(
    "mcproxy", deadline=None, max_examples=EXAMPLES, suppress_health_check=BY_CHANCE, derandomize=not NIGHT
)
settings.load_profile("mcproxy")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what was collected out of all later searches for cycles."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _open_things() -> set[object]:
    watched = (*reactor.getReaders(), *reactor.getWriters())  # type: ignore[no-untyped-call]
    return {*reactor.getDelayedCalls(), *watched}


@pytest.fixture
def nothing_left_open() -> Iterator[None]:
    """Fail a test that leaves timers, sockets or pipes with the reactor. Ask for it with `usefixtures`.

    Closing takes some turns of the reactor, and threads theirs, so leftovers get ten seconds to go away.
    """
    from twisted.internet.task import deferLater

    pytest_twisted.blockon(deferLater(reactor, 0))  # what the reactor opens when it first runs is its own
    before = _open_things()
    yield
    for _ in range(1000):
        left = _open_things() - before
        if not left:
            return
        pytest_twisted.blockon(deferLater(reactor, 0.01))
    pytest.fail(f"left with the reactor: {left}")


@pytest.fixture
def bugs() -> Iterator[list[str]]:
    """The tracebacks in the log meanwhile."""
    found: list[str] = []

    @implementer(ILogObserver)
    def look(event: LogEvent) -> None:
        if "log_failure" in event:
            found.append(formatEvent(event) + str(event["log_failure"]))

    globalLogPublisher.addObserver(look)
    yield found
    globalLogPublisher.removeObserver(look)
