"""What processes that share the health of endpoints tell each other, and the way there.

One of them, the leader, makes the checks; the others follow its results. A result names its endpoint by cluster and
URL, which a reload that renames an endpoint does not change, and by what its connections depend on (`setup`): while the
processes swap a configuration one after the other, a result that was got with other certificates than a process uses is
not taken for its own endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mcproxy.config import model
from mcproxy.upstream.health_state import Health, HealthRecord

EndpointKey = tuple[str, str]
"""The cluster's name and the endpoint's URL, with ``#2`` and so on where a cluster has the same URL again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointState:
    """What a process knows of an endpoint, but for the failed connections of its own requests.

    The times are periods until now, in seconds: the clocks of two processes are not compared.
    """

    health: HealthRecord
    since: float
    """How long it has had its status."""
    silent: bool
    answered_failure: bool
    silent_checks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one health check, and what the leader knows of the endpoint after it.

    `failure`, `silent` and `refused` are the arguments of `Endpoint.record_check`.
    """

    endpoint: EndpointKey
    setup: str
    credential: str
    """Stands for the credential of the check: equal for equal ones, and nothing can be derived from it."""
    failure: str | None
    silent: bool
    refused: bool
    warned: bool
    """Whether it is logged that the cluster's credential lacks the right to read the health."""
    after: EndpointState

    def aged(self, seconds: float) -> CheckResult:
        """Return the same, `seconds` later."""
        health = self.after.health
        if health.refused_for is not None:
            health = replace(health, refused_for=health.refused_for + seconds)
        return replace(self, after=replace(self.after, health=health, since=self.after.since + seconds))

    def to_fields(self) -> dict[str, Any]:
        """Return it as fields of a message in JSON."""
        health = self.after.health
        return {
            "cluster": self.endpoint[0],
            "url": self.endpoint[1],
            "setup": self.setup,
            "credential": self.credential,
            "failure": self.failure,
            "silent": self.silent,
            "refused": self.refused,
            "warned": self.warned,
            "after": {
                "status": health.status.value,
                "cause": health.cause,
                "failures": health.failures,
                "successes": health.successes,
                "answeredOK": health.answered_ok,
                "refusedFor": health.refused_for,
                "since": self.after.since,
                "silent": self.after.silent,
                "answeredFailure": self.after.answered_failure,
                "silentChecks": self.after.silent_checks,
            },
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> CheckResult:
        """Return what `to_fields` made the fields of."""
        after = fields["after"]
        return cls(
            endpoint=(fields["cluster"], fields["url"]),
            setup=fields["setup"],
            credential=fields["credential"],
            failure=fields["failure"],
            silent=fields["silent"],
            refused=fields["refused"],
            warned=fields["warned"],
            after=EndpointState(
                health=HealthRecord(
                    status=Health(after["status"]),
                    cause=after["cause"],
                    failures=after["failures"],
                    successes=after["successes"],
                    answered_ok=after["answeredOK"],
                    refused_for=after["refusedFor"],
                ),
                since=after["since"],
                silent=after["silent"],
                answered_failure=after["answeredFailure"],
                silent_checks=after["silentChecks"],
            ),
        )


class HealthExchange(Protocol):
    """The way to the other processes. What is subscribed to ends with a call of what was returned."""

    @property
    def leads(self) -> bool:
        """Whether this process does what one alone has to do for all; may change at any time."""

    @property
    def checks(self) -> bool:
        """Whether this process makes the checks: it leads, or there is no way to the others any more."""

    def on_role(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Subscribe to changes of `leads` and `checks`."""

    def publish(self, result: CheckResult) -> None:
        """Tell all others a result of this process's own check."""

    def configured(self, config: model.Config) -> None:
        """Forget the endpoints that `config`, which is in force now, does not have."""

    def last(self, endpoint: EndpointKey, within: float) -> CheckResult | None:
        """Return the newest result for an endpoint, of whatever process, its times as of now.

        None if there is none of the last `within` seconds.
        """

    def on_result(self, endpoint: EndpointKey, notify: Callable[[CheckResult], None]) -> Callable[[], None]:
        """Subscribe to the results that others publish for an endpoint."""

    def tell_out(self, endpoint: EndpointKey, setup: str, cause: str) -> None:
        """Tell all others that the endpoint has gone out here, since it refuses the connections of requests."""

    def on_out(self, endpoint: EndpointKey, notify: Callable[[str, str], None]) -> Callable[[], None]:
        """Subscribe to what others tell so: `setup` and cause."""

    def ask(self, endpoint: EndpointKey) -> None:
        """Ask the process that checks for an early check."""

    def on_ask(self, endpoint: EndpointKey, notify: Callable[[], None]) -> Callable[[], None]:
        """Subscribe to other processes' wishes for an early check."""
