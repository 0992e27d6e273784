"""The Available condition of a registration, with kube-aggregator's reasons and words. Pure.

Source: kube-aggregator, `pkg/controllers/status/remote/remote_available_controller.go` and
`pkg/apis/apiregistration/v1/helper`: of an answer only the status counts, and what is not 2xx is a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from mcproxy.config import model

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
PASSED = "Passed"
FAILED = "FailedDiscoveryCheck"
MISSING_ENDPOINTS = "MissingEndpoints"
NOT_CHECKED = "NotChecked"

_LONGEST = 1024  # characters of a message


class Registration(NamedTuple):
    """What is probed: a group-version at its owner. Servers that register the same share the probe."""

    group: str
    version: str
    cluster: str

    @classmethod
    def of(cls, service: model.APIService) -> Registration:
        """Return that of an entry of `servers[].apiServices`."""
        return cls(service.group, service.version, service.cluster)

    @property
    def name(self) -> str:
        """The name of its APIService object."""
        return f"{self.version}.{self.group}"

    @property
    def path(self) -> str:
        """The path that is probed: an API server must serve it."""
        return f"/apis/{self.group}/{self.version}"


class Verdict(NamedTuple):
    """What a probe has shown."""

    status: str
    reason: str
    message: str
    answered: int = 0
    """The status of the answer that was a failure; 0 without one."""

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
    """When the registration was first seen, likewise: by this daemon, over reloads and whichever process follows it."""

    @property
    def unavailable(self) -> bool:
        """Whether requests are refused. They are not while nothing is known."""
        return self.status == FALSE

    def after(self, verdict: Verdict, now: float) -> Condition:
        """Return the condition after another probe; `now` is in seconds since 1970."""
        message = verdict.message[:_LONGEST]
        if verdict.status == self.status:
            return replace(self, reason=verdict.reason, message=message)
        return Condition(verdict.status, verdict.reason, message, now, self.created)

    def to_fields(self) -> dict[str, Any]:
        """Return it as fields of a message in JSON."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Condition:
        """Return what `to_fields` made the fields of."""
        return cls(*(fields[name] for name in cls.__slots__))


def not_checked(now: float) -> Condition:
    """Return the condition before the first probe. Requests pass: what is not known is no reason to refuse them."""
    return Condition(UNKNOWN, NOT_CHECKED, "the API server has not been asked yet", now, now)


def of_status(status: int, where: str) -> Verdict:
    """Return what an answer's status shows; `where` was asked."""
    if 200 <= status < 300:
        return Verdict(TRUE, PASSED, "all checks passed")
    return failure(where, f"bad status from {where}: {status}", status)


def failure(where: str, cause: str, answered: int = 0) -> Verdict:
    """Return the verdict on an API server that did not answer as it should."""
    return Verdict(FALSE, FAILED, f"failing or missing response from {where}: {cause}", answered)


def without_endpoint(cluster: str, causes: Mapping[str, str]) -> Verdict:
    """Return the verdict while no endpoint takes requests; `causes` says of each endpoint why."""
    reasons = "; ".join(f"{endpoint}: {cause}" for endpoint, cause in causes.items())
    return Verdict(FALSE, MISSING_ENDPOINTS, f'no endpoint of cluster "{cluster}" is ready: {reasons}')
