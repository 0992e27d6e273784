"""The health checks of a cluster where several processes share the results (`health_exchange`).

The leader checks, as one process alone does (`health`), and publishes each result. The others count the results as
their own, so that all come to the same states; a process that has no result yet takes over the whole state that the
leader had after its newest one. Thus whoever leads next goes on where the former leader was, and a first check that
fails takes nothing out that was in.

Failed connections of requests count where they were tried. An endpoint that goes out in one process since it refuses
them goes out in all; not if they timed out: that process may have stood still, which says nothing to others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from mcproxy.config import model
from mcproxy.upstream.credentials import CredentialSource
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.fingerprint import fingerprint
from mcproxy.upstream.health import HealthChecker
from mcproxy.upstream.health_exchange import CheckResult, EndpointKey, HealthExchange
from mcproxy.upstream.health_state import Health
from mcproxy.upstream.shared import Shared

_INTERVALS = 3  # after which a result is no longer taken over
_LEADERLESS = 15.0  # seconds; longer than a leader that stands still is waited for
_ASK_AGAIN = 1.0  # seconds without a result after which the leader may be asked again


class SharedHealthChecker(HealthChecker):
    """The checks of one cluster: made here while this process is the one that checks, else followed."""

    def __init__(
        self,
        config: model.Cluster,
        endpoints: Sequence[Endpoint],
        credentials: CredentialSource,
        shared: Shared,
        exchange: HealthExchange,
    ) -> None:
        super().__init__(config, endpoints, credentials, shared)
        self.exchange = exchange
        self.clock = shared.reactor
        keys = endpoint_keys(config)
        self._followed = {
            endpoint: FollowedEndpoint(endpoint, key, self) for endpoint, key in zip(endpoints, keys, strict=True)
        }
        self._checking = False
        self._credential: tuple[object, str] = (None, "")  # the newest one and its fingerprint
        self._unsubscribe: list[Callable[[], None]] = []

    def start(self) -> None:
        for followed in self._followed.values():
            self._unsubscribe += followed.start()
        self._unsubscribe.append(self.exchange.on_role(self._role_changed))
        self._role_changed()

    def stop(self) -> None:
        unsubscribe, self._unsubscribe = self._unsubscribe, []
        for each in unsubscribe:
            each()
        self._checking = False
        super().stop()
        for followed in self._followed.values():
            followed.stop()

    def _role_changed(self) -> None:
        checks = self.exchange.checks
        if checks == self._checking:
            return
        self._checking = checks
        if checks:
            super().start()
        else:
            super().stop()
            for followed in self._followed.values():
                followed.follow()

    def use_credential(self, endpoint: Endpoint, authorization: bytes | None) -> None:
        """As in one process, with a value that other processes can compare."""
        certificate = self.credentials.certificate
        credential = (authorization, certificate)
        if credential != self._credential[0]:
            self._credential = credential, fingerprint(credential)
        self._followed[endpoint].credential = self._credential[1]
        endpoint.health.use_credential(self._credential[1])

    def record(self, endpoint: Endpoint, failure: str | None, *, silent: bool, refused: bool) -> None:
        super().record(endpoint, failure, silent=silent, refused=refused)
        followed = self._followed[endpoint]
        self.exchange.publish(
            CheckResult(
                endpoint=followed.key,
                setup=endpoint.setup,
                credential=followed.credential,
                failure=failure,
                silent=silent,
                refused=refused,
                warned=self.warned,
                after=endpoint.export_state(),
            )
        )


class FollowedEndpoint:
    """One endpoint whose checks another process makes, unless this one does."""

    def __init__(self, endpoint: Endpoint, key: EndpointKey, owner: SharedHealthChecker) -> None:
        self.key = key
        self.credential = ""  # of the newest check that was made here
        self._endpoint = endpoint
        self._owner = owner
        self._asked_at = float("-inf")

    def start(self) -> list[Callable[[], None]]:
        """Take over what is known, and follow; what is returned ends it."""
        self.follow()
        exchange = self._owner.exchange
        settings = self._owner.settings
        last = exchange.last(self.key, _INTERVALS * (settings.interval + settings.timeout) + _LEADERLESS)
        if last is not None and last.setup == self._endpoint.setup:
            self._owner.warned = last.warned
            if self._endpoint.health.status is Health.UNCHECKED:
                self._endpoint.adopt_state(last.after, last.credential)
        self._endpoint.tell_out = self._tell_out
        return [
            exchange.on_result(self.key, self._received),
            exchange.on_ask(self.key, self._endpoint.request_check),
            exchange.on_out(self.key, self._out_elsewhere),
        ]

    def follow(self) -> None:
        """Send wishes for an early check to the leader from now on."""
        self._endpoint.check_soon = self._ask

    def stop(self) -> None:
        if self._endpoint.check_soon == self._ask:  # not if a successor has taken the endpoint over
            self._endpoint.check_soon = None
        if self._endpoint.tell_out == self._tell_out:
            self._endpoint.tell_out = None

    def _tell_out(self, cause: str) -> None:
        self._owner.exchange.tell_out(self.key, self._endpoint.setup, cause)

    def _out_elsewhere(self, setup: str, cause: str) -> None:
        if setup == self._endpoint.setup:
            self._endpoint.record_out_elsewhere(cause)

    def _ask(self) -> None:
        """Ask once for each result: any number of failed connections wants one check."""
        now = self._owner.clock.seconds()
        if now >= self._asked_at + _ASK_AGAIN:
            self._asked_at = now
            self._owner.exchange.ask(self.key)

    def _received(self, result: CheckResult) -> None:
        endpoint = self._endpoint
        if self._owner.exchange.checks or result.setup != endpoint.setup:
            return
        self._asked_at = float("-inf")
        self._owner.warned = result.warned
        if endpoint.health.status is Health.UNCHECKED:
            endpoint.adopt_state(result.after, result.credential)
            return
        endpoint.health.follow(result.credential, result.after.health.refused_for, self._owner.clock.seconds())
        endpoint.record_check(result.failure, silent=result.silent, refused=result.refused)


def endpoint_keys(config: model.Cluster) -> list[EndpointKey]:
    """Return the keys of a cluster's endpoints, in their order."""
    seen: Counter[str] = Counter()
    keys = []
    for endpoint in config.endpoints:
        seen[endpoint.url] += 1
        count = seen[endpoint.url]
        keys.append((config.name, endpoint.url if count == 1 else f"{endpoint.url}#{count}"))
    return keys
