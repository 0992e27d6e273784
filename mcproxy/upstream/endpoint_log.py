"""The log lines about one endpoint's health: why it went out, that it takes requests again, and a new cause meanwhile.

Where several processes see the same endpoint they all come to these lines; `log_subject` and `log_state` let the first
one speak for all (`daemon.processes.common_log`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from mcproxy.upstream.health_state import Health
from mcproxy.upstream.remedies import remedy

if TYPE_CHECKING:
    from mcproxy.upstream.endpoint import Endpoint

log = Logger()


class EndpointLog:
    """What was logged of one endpoint."""

    __slots__ = ("_cause", "_endpoint", "_other_cause", "_other_causes")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.logged()

    def logged(self) -> None:
        """Note that the log tells the endpoint's status and cause of now."""
        self._cause = self._endpoint.health.cause
        self._other_cause = ""  # of the newest checks
        self._other_causes = 0  # checks in a row with it

    def checked(self, failure: str | None) -> None:
        """Log a new cause of an endpoint that is out, once as many checks in a row had it as take an endpoint out.

        An API server that comes back with another certificate is no longer what the first line said it was.
        """
        endpoint = self._endpoint
        if failure is None or endpoint.health.status is not Health.FAILED or failure == self._cause:
            self._other_cause, self._other_causes = "", 0
            return
        self._other_causes = self._other_causes + 1 if failure == self._other_cause else 1
        self._other_cause = failure
        if self._other_causes >= endpoint.health.unhealthy_after and not endpoint.config.disabled:
            self.status("cause", failure)

    def status(self, *what: str) -> None:
        """Log the status of now, and why. `what` is news beside the status: a new cause."""
        self.logged()
        endpoint = self._endpoint
        name, cluster, cause = endpoint.name, endpoint.cluster_name, endpoint.health.cause
        subject = ("endpoint", cluster, endpoint.config.url, *what[:1])
        if endpoint.health.status is Health.READY:
            if endpoint.ready:
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
        elif endpoint.config.disabled:
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
                "an endpoint is out; it comes back by itself when checks succeed",
                event="endpoint_out",
                endpoint=name,
                cluster=cluster,
                cause=cause,
                todo=remedy(cause, endpoint.keys),
                log_subject=subject,
                log_state=what[1] if what else "out",
            )
