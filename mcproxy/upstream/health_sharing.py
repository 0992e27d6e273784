"""Shares the results of a cluster's health checks between the processes of a daemon.

The leader checks, as the only process of a daemon does (`health_checker`), and publishes each result. The other
processes count the results as their own, so that all reach the same states. A process without a result yet adopts the
whole state that the leader had after its newest result. So the next leader continues from the state of the former one,
and one failed first check does not put a ready endpoint out.

A result identifies its endpoint by cluster and URL, which stay when a reload renames an endpoint, and by the settings
on which its connections depend (`setup`). While the processes change to a new configuration one after another, each
process ignores results of checks with other certificates than its own.

Failed connections of requests count in the process in which they failed. If an endpoint goes out in one process because
it refuses connections, it goes out in all processes. If connections timed out, it goes out only in that process, which
may have been stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from hashlib import blake2b
from typing import Any, Protocol

from mcproxy.config import model
from mcproxy.net.causes import code_of, read_cause
from mcproxy.upstream.credentials import CredentialSource
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.health_checker import HealthChecker
from mcproxy.upstream.health_state import EndpointHealth, Health, HealthRecord
from mcproxy.upstream.upstream_context import UpstreamContext

_INTERVALS = 3  # number of check intervals after which a result is too old to adopt
_LEADERLESS = 15.0  # seconds; longer than the wait for a stopped leader
_REQUEST_AGAIN = 1.0  # seconds without a result after which a check can be requested from the leader again

EndpointKey = tuple[str, str]
"""The cluster's name and the endpoint's URL, with ``#2`` and so on if the cluster has the same URL several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one health check, and the leader's state of the endpoint after it.

    `failure`, `silent`, `refused` and `unconnected` are the arguments of `Endpoint.record_check`.
    """

    endpoint: EndpointKey
    setup: str
    credential: str
    """A digest of the check's credential, equal for equal credentials; the credential cannot be derived from it."""
    failure: str | None
    silent: bool
    refused: bool
    unconnected: bool
    warned: bool
    """Whether the missing right of the cluster's credential to read the health was logged."""
    after: EndpointHealth

    def aged(self, seconds: float) -> CheckResult:
        """Return the result as it is `seconds` later, with its periods extended."""
        health = self.after.health
        if health.refused_for is not None:
            health = replace(health, refused_for=health.refused_for + seconds)
        return replace(self, after=replace(self.after, health=health, since=self.after.since + seconds))

    def to_fields(self) -> dict[str, Any]:
        """Return the result as fields of a message in JSON."""
        health = self.after.health
        return {
            "cluster": self.endpoint[0],
            "url": self.endpoint[1],
            "setup": self.setup,
            "credential": self.credential,
            "failure": self.failure,
            "failureCode": code_of(self.failure or "").value,
            "silent": self.silent,
            "refused": self.refused,
            "unconnected": self.unconnected,
            "warned": self.warned,
            "after": {
                "status": health.status.value,
                "cause": health.cause,
                "code": code_of(health.cause).value,
                "failures": health.failures,
                "successes": health.successes,
                "answeredOK": health.answered_ok,
                "refusedFor": health.refused_for,
                "mayServe": health.may_serve,
                "since": self.after.since,
                "silent": self.after.silent,
                "answeredFailure": self.after.answered_failure,
                "silentChecks": self.after.silent_checks,
            },
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> CheckResult:
        """Return the result that `to_fields` has encoded."""
        after, failure = fields["after"], fields["failure"]
        return cls(
            endpoint=(fields["cluster"], fields["url"]),
            setup=fields["setup"],
            credential=fields["credential"],
            failure=None if failure is None else read_cause(failure, fields.get("failureCode", "")),
            silent=fields["silent"],
            refused=fields["refused"],
            unconnected=fields.get("unconnected", False),  # a process of an older version does not send it
            warned=fields["warned"],
            after=EndpointHealth(
                health=HealthRecord(
                    status=Health(after["status"]),
                    cause=read_cause(after["cause"], after.get("code", "")),  # an older version sends no code
                    failures=after["failures"],
                    successes=after["successes"],
                    answered_ok=after["answeredOK"],
                    refused_for=after["refusedFor"],
                    may_serve=after.get("mayServe", False),
                ),
                since=after["since"],
                silent=after["silent"],
                answered_failure=after["answeredFailure"],
                silent_checks=after["silentChecks"],
            ),
        )


class HealthExchange(Protocol):
    """The connection to the other processes. Each subscription returns a function that ends it."""

    @property
    def leads(self) -> bool:
        """Whether this process is the leader, which works for all processes; this can change at any time."""

    @property
    def checks(self) -> bool:
        """Whether this process makes the checks: it is the leader, or has lost the other processes."""

    def on_role(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Subscribe to changes of `leads` and `checks`."""

    def publish(self, result: CheckResult) -> None:
        """Send the result of this process's check to all other processes."""

    def configured(self, config: model.Config) -> None:
        """Forget the endpoints that are not in `config`, which is in force now."""

    def last(self, endpoint: EndpointKey, within: float) -> CheckResult | None:
        """Return the newest result for an endpoint, from any process, with its periods until now.

        Returns None if there is no result from the last `within` seconds.
        """

    def on_result(self, endpoint: EndpointKey, notify: Callable[[CheckResult], None]) -> Callable[[], None]:
        """Subscribe to the results that other processes publish for an endpoint."""

    def publish_failure(self, endpoint: EndpointKey, setup: str, cause: str) -> None:
        """Notify all other processes that the endpoint is out here, because it refuses connections of requests."""

    def on_failure(self, endpoint: EndpointKey, notify: Callable[[str, str], None]) -> Callable[[], None]:
        """Subscribe to the notices of `publish_failure` from other processes, with `setup` and cause."""

    def request_check(self, endpoint: EndpointKey) -> None:
        """Request an early check from the process that makes the checks."""

    def on_check_request(self, endpoint: EndpointKey, notify: Callable[[], None]) -> Callable[[], None]:
        """Subscribe to other processes' requests for an early check."""


class SharedHealthChecker(HealthChecker):
    """The checks of one cluster: this process makes them while it is the leader, and otherwise receives the results."""

    def __init__(
        self,
        config: model.ClusterConfig,
        endpoints: Sequence[Endpoint],
        credentials: CredentialSource,
        context: UpstreamContext,
        exchange: HealthExchange,
    ) -> None:
        super().__init__(config, endpoints, credentials, context)
        self.exchange = exchange
        self.clock = context.reactor
        keys = endpoint_keys(config)
        self._followed = {
            endpoint: FollowedEndpoint(endpoint, key, self) for endpoint, key in zip(endpoints, keys, strict=True)
        }
        self._checking = False
        self._credential: tuple[object, str] = (None, "")  # the newest credential and its fingerprint
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
        """Note the credential, with a fingerprint that other processes can compare."""
        certificate = self.credentials.certificate
        credential = (authorization, certificate)
        if credential != self._credential[0]:
            self._credential = credential, fingerprint(credential)
        self._followed[endpoint].credential = self._credential[1]
        endpoint.health.use_credential(self._credential[1])

    def record(
        self, endpoint: Endpoint, failure: str | None, *, silent: bool, refused: bool, unconnected: bool
    ) -> None:
        super().record(endpoint, failure, silent=silent, refused=refused, unconnected=unconnected)
        followed = self._followed[endpoint]
        self.exchange.publish(
            CheckResult(
                endpoint=followed.key,
                setup=endpoint.setup,
                credential=followed.credential,
                failure=failure,
                silent=silent,
                refused=refused,
                unconnected=unconnected,
                warned=self.warned,
                after=endpoint.export_state(),
            )
        )


class FollowedEndpoint:
    """One endpoint whose check results come from another process while this process does not check."""

    def __init__(self, endpoint: Endpoint, key: EndpointKey, owner: SharedHealthChecker) -> None:
        self.key = key
        self.credential = ""  # fingerprint of the credential of this process's newest check
        self._endpoint = endpoint
        self._owner = owner
        self._requested_at = float("-inf")

    def start(self) -> list[Callable[[], None]]:
        """Adopt the known state, and follow results until the returned functions are called."""
        self.follow()
        exchange = self._owner.exchange
        settings = self._owner.settings
        last = exchange.last(self.key, _INTERVALS * (settings.interval + settings.timeout) + _LEADERLESS)
        if last is not None and last.setup == self._endpoint.setup:
            self._owner.warned = last.warned
            if self._endpoint.health.status is Health.UNCHECKED:
                self._endpoint.adopt_state(last.after, last.credential)
        self._endpoint.publish_failure = self._publish_failure
        return [
            exchange.on_result(self.key, self._received),
            exchange.on_check_request(self.key, self._endpoint.request_check),
            exchange.on_failure(self.key, self._failed_elsewhere),
        ]

    def follow(self) -> None:
        """Send requests for an early check to the leader from now on."""
        self._endpoint.check_soon = self._request_check

    def stop(self) -> None:
        if self._endpoint.check_soon == self._request_check:  # no successor has taken over the endpoint
            self._endpoint.check_soon = None
        if self._endpoint.publish_failure == self._publish_failure:
            self._endpoint.publish_failure = None

    def _publish_failure(self, cause: str) -> None:
        self._owner.exchange.publish_failure(self.key, self._endpoint.setup, cause)

    def _failed_elsewhere(self, setup: str, cause: str) -> None:
        if setup == self._endpoint.setup:
            self._endpoint.record_failure_elsewhere(cause)

    def _request_check(self) -> None:
        """Request a check once per result, because any number of failed connections needs only one check."""
        now = self._owner.clock.seconds()
        if now >= self._requested_at + _REQUEST_AGAIN:
            self._requested_at = now
            self._owner.exchange.request_check(self.key)

    def _received(self, result: CheckResult) -> None:
        endpoint = self._endpoint
        if self._owner.exchange.checks or result.setup != endpoint.setup:
            return
        self._requested_at = float("-inf")
        self._owner.warned = result.warned
        if endpoint.health.status is Health.UNCHECKED:
            endpoint.adopt_state(result.after, result.credential)
            return
        endpoint.health.follow(result.credential, result.after.health.refused_for, self._owner.clock.seconds())
        endpoint.record_check(
            result.failure, silent=result.silent, refused=result.refused, unconnected=result.unconnected
        )
        if result.after.health.may_serve:
            endpoint.health.answered_late()


def endpoint_keys(config: model.ClusterConfig) -> list[EndpointKey]:
    """Return the keys of a cluster's endpoints, in the order of the endpoints."""
    seen: Counter[str] = Counter()
    keys = []
    for endpoint in config.endpoints:
        seen[endpoint.url] += 1
        count = seen[endpoint.url]
        keys.append((config.name, endpoint.url if count == 1 else f"{endpoint.url}#{count}"))
    return keys


def fingerprint(value: Any) -> str:
    """Return 32 hexadecimal digits, equal for equal values in every process of a daemon (unlike `hash()` and `repr`).

    The values are parts of configurations. They contain secrets, so a fingerprint is not logged, and it is sent only to
    the daemon's other processes.
    """
    digest = blake2b(digest_size=16)
    _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Add a value with its type and length to a digest, so that no two values have the same bytes."""
    if isinstance(value, model.Secret):
        _add(digest, ("secret", value.reveal()))
    elif isinstance(value, Enum):
        _add(digest, (type(value).__name__, value.name))
    elif is_dataclass(value):
        _add(digest, (type(value).__name__, *(getattr(value, field.name) for field in fields(value))))
    elif isinstance(value, tuple | list):
        digest.update(b"(%d" % len(value))
        for item in value:
            _add(digest, item)
    elif isinstance(value, str | bytes):
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        digest.update(b"%c%d:" % (b"s" if isinstance(value, str) else b"b", len(data)))
        digest.update(data)
    elif value is None or isinstance(value, bool | int | float):
        _add(digest, repr(value).encode())
    else:
        raise TypeError(f"no fingerprint of {type(value).__name__}")
