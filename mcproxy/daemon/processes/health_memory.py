"""The newest result of each endpoint's checks, by its key, with times that go on."""

from __future__ import annotations

from collections.abc import Iterator

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.upstream.health_exchange import CheckResult, EndpointKey
from mcproxy.upstream.health_sharing import endpoint_keys


class HealthMemory:
    """What is known of all endpoints, those that this process does not know (yet, or any more) included."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._results: dict[EndpointKey, tuple[float, CheckResult]] = {}

    def put(self, result: CheckResult, age: float = 0.0) -> None:
        """Keep a result whose times are as of now, and which another process got `age` seconds ago."""
        self._results[result.endpoint] = self._clock.seconds() - age, result.aged(-age) if age else result

    def get(self, endpoint: EndpointKey, within: float) -> CheckResult | None:
        """Return the newest result, its times as of now; None if it is older than `within` seconds."""
        since, result = self._results.get(endpoint, (0.0, None))
        age = max(0.0, self._clock.seconds() - since)
        return None if result is None or age > within else result.aged(age)

    def all(self) -> Iterator[tuple[float, CheckResult]]:
        """Yield for each endpoint how old its newest result is, and the result, its times as of now."""
        now = self._clock.seconds()
        for since, result in self._results.values():
            age = max(0.0, now - since)
            yield age, result.aged(age)

    def keep(self, config: model.Config) -> None:
        """Forget what `config` does not have. To be called when it is in force everywhere."""
        known = {key for cluster in config.clusters for key in endpoint_keys(cluster)}
        self._results = {key: entry for key, entry in self._results.items() if key in known}
