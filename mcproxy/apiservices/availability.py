"""The last known availability of all registrations, in one process. It has no clock and does no I/O.

The prober (`prober`) sets it; a worker has what the keeper has sent last, and keeps it while the keeper is away. A
reload keeps the conditions of registrations that it does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from mcproxy.apiservices import condition as conditions
from mcproxy.apiservices.condition import Condition, Registration, Verdict, not_checked
from mcproxy.config import model
from mcproxy.kube.healthz import Check

T = TypeVar("T")

_UNREADY = {
    conditions.FAILED: "its probes fail",
    conditions.MISSING_ENDPOINTS: "no endpoint of its cluster is ready",
    conditions.NOT_CHECKED: "it has not been probed yet",
}
"""What checks of /readyz say, by the reason of a condition. No cause names an address."""

_MOST_TOLD = 1024
"""Clients of a server that are remembered: it matters only until the backend's version increases, which is often."""

Notify = Callable[[Registration, Condition], None]
"""Is called with each condition that has changed."""


class Availability:
    """The conditions, by registration."""

    def __init__(self, wall: Callable[[], float]) -> None:
        """`wall` returns the time of day, in seconds since 1970."""
        self._wall = wall
        self._conditions: dict[Registration, Condition] = {}
        self._services: dict[str, tuple[model.APIService, ...]] = {}
        self._floors: dict[str, int] = {}
        self._told: dict[str, dict[str, None]] = {}
        self._begun: dict[str, float] = {}
        self._listeners: list[Notify] = []
        self._configured: list[Callable[[], None]] = []
        self._suspecting: list[Callable[[Registration], None]] = []

    def get(self, registration: Registration) -> Condition:
        """Return the condition; Unknown for one that was never probed."""
        known = self._conditions.get(registration)
        return not_checked(self._wall()) if known is None else known

    def refuses(self, registration: Registration) -> Condition | None:
        """Return the condition if requests are to be refused because of it, else None."""
        known = self._conditions.get(registration)
        return known if known is not None and known.unavailable else None

    def suspect(self, registration: Registration) -> None:
        """A client was refused because of the condition, or has met what contradicts it: it is to be probed soon."""
        for notify in tuple(self._suspecting):
            notify(registration)

    def on_suspicion(self, notify: Callable[[Registration], None]) -> Callable[[], None]:
        """Subscribe to `suspect`; the result unsubscribes."""
        return _subscribed(self._suspecting, notify)

    def take(self, registration: Registration, verdict: Verdict) -> None:
        """Count the result of a probe."""
        self.set(registration, self.get(registration).after(verdict, self._wall()))

    def set(self, registration: Registration, condition: Condition) -> None:
        """Store a condition, and call the listeners if it has changed."""
        if self._conditions.get(registration) == condition:
            return
        self._conditions[registration] = condition
        for notify in tuple(self._listeners):
            notify(registration, condition)

    def forget(self) -> None:
        """Forget all conditions: there is no prober any more."""
        now = self._wall()
        for registration, before in tuple(self._conditions.items()):
            self.set(registration, replace(not_checked(now), created=before.created))

    def use(self, services: Mapping[str, Sequence[model.APIService]]) -> None:
        """Follow a configuration: the API services of each server that has some, by its name.

        What is known of registrations that stay, stays; of others it is forgotten.
        """
        now = self._wall()
        registrations = dict.fromkeys(Registration.of(each) for served in services.values() for each in served)
        self._conditions = {each: self._conditions.get(each) or not_checked(now) for each in registrations}
        for name in self._floors.keys() | self._begun.keys() | services.keys():
            names = {each.object_name for each in services.get(name, ())}
            if names != {each.object_name for each in self._services.get(name, ())}:
                self._floors.pop(name, None)
                self._told.pop(name, None)
                self._begun[name] = now
        self._services = {name: tuple(served) for name, served in services.items()}
        for configured in tuple(self._configured):
            configured()

    def floor(self, server: str) -> int | None:
        """Return the version of the backend after which clients know all API services of a server; None: not known.

        A version from before may be of a client that knows others, since removed or not there yet; and so may this
        version itself, unless it was told that client (`was_told`): the backend may have had it for long.
        """
        return self._floors.get(server)

    def set_floor(self, server: str, version: int, client: str = "") -> None:
        """The backend had this version at some time since the API services of a server are what they are.

        `client`: who is told it now, with the API services of now; "" if nobody is.
        """
        if self._floors.setdefault(server, version) == version and client:
            told = self._told.setdefault(server, {})
            told.pop(client, None)
            told[client] = None
            if len(told) > _MOST_TOLD:
                del told[next(iter(told))]

    def was_told(self, server: str, client: str) -> bool:
        """Whether a client was told the floor itself."""
        return client in self._told.get(server, {})

    def begun(self, server: str) -> float:
        """Return since when a server has the API services that it has, in seconds since 1970."""
        return self._begun.get(server, 0.0)

    def services(self, server: str) -> tuple[model.APIService, ...]:
        """Return the API services of a server, in force now."""
        return self._services.get(server, ())

    @property
    def servers(self) -> Mapping[str, tuple[model.APIService, ...]]:
        """The API services of each server that has some."""
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
    """Yield a check of /readyz for each API service, which fails only itself."""
    for registration, condition in known:
        yield Check(f"apiservice/{registration.name}", _UNREADY.get(condition.reason, ""), needed=False)
