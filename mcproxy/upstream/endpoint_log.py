"""Logs changes of an endpoint's health: it went out, the cause has changed, it accepts requests again.

Every process with the endpoint writes these lines; `log_subject` and `log_state` ensure that only the first of equal
lines is logged (`daemon.processes.common_log`).
"""

from __future__ import annotations

from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.upstream.health_state import Health, HealthState
from mcproxy.upstream.remedies import Keys, remedy

log = Logger(__name__)


class EndpointLog:
    """The logged state of one endpoint."""

    __slots__ = ("_cause", "_cluster", "_health", "_keys", "_other_cause", "_other_causes")

    def __init__(self, cluster: str, keys: Keys, health: HealthState) -> None:
        self._cluster = cluster
        self._keys = keys
        self._health = health
        self.logged()

    def logged(self) -> None:
        """Note that the endpoint's present status and cause were logged."""
        self._cause = self._health.cause
        self._other_cause = ""  # the cause of the newest checks, if it differs from the logged one
        self._other_causes = 0  # number of checks in a row with this cause

    def checked(self, failure: str | None, config: model.EndpointConfig) -> None:
        """Log a new cause of an endpoint that is out, after as many checks in a row as put an endpoint out.

        For example, if an API server returns with another certificate, the cause in the first line is outdated.
        """
        health = self._health
        if failure is None or health.status is not Health.FAILED or failure == self._cause:
            self._other_cause, self._other_causes = "", 0
            return
        self._other_causes = self._other_causes + 1 if failure == self._other_cause else 1
        self._other_cause = failure
        if self._other_causes >= health.unhealthy_after and not config.disabled:
            self.status(config, False, "cause", failure)

    def status(self, config: model.EndpointConfig, ready: bool, *what: str) -> None:
        """Log the present status and its cause. `ready`: it accepts requests. `what`: "cause", or another cause."""
        self.logged()
        name, cluster, cause = config.name, self._cluster, self._health.cause
        subject = ("endpoint", cluster, config.url, *what[:1])
        if self._health.status is Health.READY:
            if ready:
                log.info(
                    "an endpoint takes requests",
                    event="endpoint_ready",
                    endpoint=name,
                    cluster=cluster,
                    log_subject=subject,
                    log_state="ready",
                )
            else:
                log.info(
                    "an endpoint is healthy, but disabled",
                    event="disabled_endpoint_ready",
                    endpoint=name,
                    cluster=cluster,
                    log_subject=subject,
                    log_state="disabled",
                )
        elif config.disabled:
            log.info(
                "a disabled endpoint is not healthy",
                event="disabled_endpoint_out",
                endpoint=name,
                cluster=cluster,
                cause=cause,
                log_subject=subject,
                log_state="out",
            )
        else:
            log.warn(
                "an endpoint is out of service until its health checks succeed",
                event="endpoint_out",
                endpoint=name,
                cluster=cluster,
                cause=cause,
                todo=remedy(cause, self._keys),
                log_subject=subject,
                log_state=what[1] if what else "out",
            )
