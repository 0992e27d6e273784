"""The last known availability of all API services ("registrations") in one process. It has no timers and no I/O.

The `prober` sets the availability. Worker processes get it from the keeper process, and keep the last state while there
is no keeper. A reload keeps the conditions of unchanged registrations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, TypeVar

from mcproxy.config import model
from mcproxy.kube.healthz import Check
from mcproxy.kube.status import StatusError, retry_after

# -- the Available condition ----------------------------------------------------------------------------------
#
# The Available condition of a registration, with kube-aggregator's reasons and messages. Pure.
#
# Source: kube-aggregator, `pkg/controllers/status/remote/remote_available_controller.go` and
# `pkg/apis/apiregistration/v1/helper`: only the status of a response counts, and each status except 2xx is a failure.


TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
PASSED = "Passed"
FAILED = "FailedDiscoveryCheck"
MISSING_ENDPOINTS = "MissingEndpoints"
NOT_CHECKED = "NotChecked"

_LONGEST = 1024  # maximum characters of a message
_RETRY_AFTER = 1  # second; an API service that clients request is probed at the same interval


class Registration(NamedTuple):
    """A group-version and the cluster entry that serves it. One probe serves all servers with the same registration."""

    group: str
    version: str
    cluster: str

    @classmethod
    def of(cls, service: model.APIService) -> Registration:
        """Return the registration of an entry of `servers[].apiServices`."""
        return cls(service.group, service.version, service.cluster)

    @property
    def name(self) -> str:
        """The name of the registration's APIService object."""
        return f"{self.version}.{self.group}"

    @property
    def path(self) -> str:
        """The path to probe, which every API server must serve."""
        return f"/apis/{self.group}/{self.version}"


class Verdict(NamedTuple):
    """The result of a probe."""

    status: str
    reason: str
    message: str
    answered: int = 0
    """The status of the failed response; 0 without a response."""

    @property
    def failed(self) -> bool:
        """Whether the group-version is not available."""
        return self.status == FALSE


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of one registration."""

    status: str
    reason: str
    message: str
    since: float
    """lastTransitionTime, in seconds since 1970."""
    created: float
    """When this daemon first saw the registration, in seconds since 1970; kept over reloads and by later processes."""

    @property
    def unavailable(self) -> bool:
        """Whether requests are refused; they are not refused while the state is unknown."""
        return self.status == FALSE

    def after(self, verdict: Verdict, now: float) -> Condition:
        """Return the condition after another probe; `now` is in seconds since 1970."""
        message = verdict.message[:_LONGEST]
        if verdict.status == self.status:
            return replace(self, reason=verdict.reason, message=message)
        return Condition(verdict.status, verdict.reason, message, now, self.created)

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of a message in JSON."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Condition:
        """Return the condition from the result of `to_fields`."""
        return cls(*(fields[name] for name in cls.__slots__))


def not_checked(now: float) -> Condition:
    """Return the condition before the first probe: Unknown, which lets requests pass."""
    return Condition(UNKNOWN, NOT_CHECKED, "the API server has not been asked yet", now, now)


def of_status(status: int, where: str) -> Verdict:
    """Return the verdict of a response status; `where` is the probed URL."""
    if 200 <= status < 300:
        return Verdict(TRUE, PASSED, "all checks passed")
    return failure(where, f"bad status from {where}: {status}", status)


def failure(where: str, cause: str, answered: int = 0) -> Verdict:
    """Return the verdict on an API server without a valid response."""
    return Verdict(FALSE, FAILED, f"failing or missing response from {where}: {cause}", answered)


def without_endpoint(cluster: str, causes: Mapping[str, str]) -> Verdict:
    """Return the verdict if no endpoint accepts requests; `causes` has the cause of each endpoint."""
    reasons = "; ".join(f"{endpoint}: {cause}" for endpoint, cause in causes.items())
    return Verdict(FALSE, MISSING_ENDPOINTS, f'no endpoint of cluster "{cluster}" is ready: {reasons}')


T = TypeVar("T")

_UNREADY = {
    FAILED: "its probes fail",
    MISSING_ENDPOINTS: "no endpoint of its cluster is ready",
    NOT_CHECKED: "it has not been probed yet",
}
"""The texts of /readyz checks by the reason of a condition. No text contains an address."""

_MAX_FLOOR_CLIENTS = 1024
"""Maximum number of remembered clients of a server; they matter only until the backend's version increases."""

Notify = Callable[[Registration, Condition], None]
"""Called with each changed condition."""


class Availability:
    """The conditions of all registrations."""

    def __init__(self, wall: Callable[[], float]) -> None:
        """`wall` returns the wall-clock time, in seconds since 1970."""
        self._wall = wall
        self._conditions: dict[Registration, Condition] = {}
        self._services: dict[str, tuple[model.APIService, ...]] = {}
        self._floors: dict[str, int] = {}
        self._floor_clients: dict[str, dict[str, None]] = {}
        self._begun: dict[str, float] = {}
        self._listeners: list[Notify] = []
        self._configured: list[Callable[[], None]] = []
        self._suspecting: list[Callable[[Registration], None]] = []

    def get(self, registration: Registration) -> Condition:
        """Return the condition; Unknown before the first probe."""
        known = self._conditions.get(registration)
        return not_checked(self._wall()) if known is None else known

    def refuses(self, registration: Registration) -> Condition | None:
        """Return the condition if it requires refusing requests, else None."""
        known = self._conditions.get(registration)
        return known if known is not None and known.unavailable else None

    def refusal(self, service: model.APIService) -> StatusError | None:
        """Return the refusal of a request to an unavailable API service, and request a probe; None: it is not refused.

        So clients that retry reach the API server soon after it returns, even after a long outage.
        """
        registration = Registration.of(service)
        condition = self.refuses(registration)
        if condition is None:
            return None
        self.suspect(registration)
        why = f"{condition.reason}: {condition.message}"
        return retry_after(503, f"the API service {service.object_name} is unavailable: {why}", _RETRY_AFTER)

    def suspect(self, registration: Registration) -> None:
        """Request an early probe: the condition refused a client's request, or a request showed that it is wrong."""
        for notify in tuple(self._suspecting):
            notify(registration)

    def on_suspicion(self, notify: Callable[[Registration], None]) -> Callable[[], None]:
        """Subscribe to `suspect`; the result unsubscribes."""
        return _subscribed(self._suspecting, notify)

    def take(self, registration: Registration, verdict: Verdict) -> None:
        """Apply the result of a probe."""
        self.set(registration, self.get(registration).after(verdict, self._wall()))

    def set(self, registration: Registration, condition: Condition) -> None:
        """Store a condition, and call the listeners if it has changed."""
        if self._conditions.get(registration) == condition:
            return
        self._conditions[registration] = condition
        for notify in tuple(self._listeners):
            notify(registration, condition)

    def forget(self) -> None:
        """Forget all conditions, since there is no prober any more."""
        now = self._wall()
        for registration, before in tuple(self._conditions.items()):
            self.set(registration, replace(not_checked(now), created=before.created))

    def use(self, services: Mapping[str, Sequence[model.APIService]]) -> None:
        """Apply a configuration: the API services of each server, by the server's name.

        The conditions of remaining registrations are kept, all others are forgotten.
        """
        now = self._wall()
        registrations = dict.fromkeys(Registration.of(each) for served in services.values() for each in served)
        self._conditions = {each: self._conditions.get(each) or not_checked(now) for each in registrations}
        for name in self._floors.keys() | self._begun.keys() | services.keys():
            names = {each.object_name for each in services.get(name, ())}
            if names != {each.object_name for each in self._services.get(name, ())}:
                self._floors.pop(name, None)
                self._floor_clients.pop(name, None)
                self._begun[name] = now
        self._services = {name: tuple(served) for name, served in services.items()}
        for configured in tuple(self._configured):
            configured()

    def floor(self, server: str) -> int | None:
        """Return the backend's resource version after which clients know all API services of a server; None if unknown.

        A client with an older version may know removed API services, or miss new ones. The same is true for a client
        with exactly this version, unless it got the version here (`got_minimum_version`): the backend may have had this
        version since before the change.
        """
        return self._floors.get(server)

    def set_floor(self, server: str, version: int, client: str = "") -> None:
        """Record that the backend had this version after the present API services of a server came into force. Only the
        first recorded version counts.

        `client` gets this version now together with the present API services; "" if no client gets it.
        """
        if self._floors.setdefault(server, version) == version and client:
            clients = self._floor_clients.setdefault(server, {})
            clients.pop(client, None)
            clients[client] = None
            if len(clients) > _MAX_FLOOR_CLIENTS:
                del clients[next(iter(clients))]

    def got_minimum_version(self, server: str, client: str) -> bool:
        """Whether a client has got exactly the version of `floor` from this process."""
        return client in self._floor_clients.get(server, {})

    def begun(self, server: str) -> float:
        """Return the time since which a server has its present API services, in seconds since 1970."""
        return self._begun.get(server, 0.0)

    def services(self, server: str) -> tuple[model.APIService, ...]:
        """Return the API services of a server in force."""
        return self._services.get(server, ())

    @property
    def servers(self) -> Mapping[str, tuple[model.APIService, ...]]:
        """The API services of each server with API services."""
        return self._services

    def on_configured(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Subscribe to configurations that come into force; the result unsubscribes."""
        return _subscribed(self._configured, notify)

    def all(self) -> Iterator[tuple[Registration, Condition]]:
        """Yield all conditions, in the order of the configuration."""
        yield from self._conditions.items()

    def subscribe(self, notify: Notify) -> Callable[[], None]:
        """Subscribe to changes; the result unsubscribes."""
        return _subscribed(self._listeners, notify)


def _subscribed(subscribers: list[T], notify: T) -> Callable[[], None]:
    subscribers.append(notify)

    def unsubscribe() -> None:
        if notify in subscribers:
            subscribers.remove(notify)

    return unsubscribe


def api_service_checks(known: Iterable[tuple[Registration, Condition]]) -> Iterator[Check]:
    """Yield a check for each API service, whose failure does not make /readyz fail."""
    for registration, condition in known:
        yield Check(f"apiservice/{registration.name}", _UNREADY.get(condition.reason, ""), needed=False)
