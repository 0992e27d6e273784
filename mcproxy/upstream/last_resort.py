"""Requests to an endpoint that is out, where no endpoint of the cluster is ready but this one may serve all the same.

An overloaded kube-apiserver answers requests while its /readyz is late, or fails for a reason that concerns few; its
clients would have no service for as long as every check fails. So, as Envoy does in panic mode and k3s' balancer with
nothing better, a request tries an endpoint that was ready, if only late, and to which no connection has failed since
(`HealthState.may_serve`). One that was never ready is not tried: an API server that starts answers 403 and 404 before
it has read its roles and custom resources, and clients would take that for the truth.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from twisted.logger import Logger

from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.trials import Trial

log = Logger(__name__)


def choose(
    cluster: str, endpoints: Sequence[Endpoint], exclude: Collection[Endpoint], now: float, trial: Trial | None
) -> Endpoint | None:
    """Return the endpoint that a request tries for want of a ready one, the one with the least load; None if none.

    `trial` is the request of a client; None for one of the proxy's own.
    """
    able = [each for each in endpoints if each.may_be_tried and each not in exclude and each.trials.admit(now)]
    if not able:
        return None
    chosen = min(able, key=lambda each: each.load)
    if trial is not None:
        chosen.trials.add(trial)
    if [each for each in able if each.trials.is_new_outage(each.changed_at)]:
        log.warn(
            "no endpoint is ready: requests try those that were, and still take connections",
            event="cluster_last_resort",
            cluster=cluster,
            endpoint=", ".join(each.name for each in able),
            cause=chosen.health.cause,
            todo="see why the checks fail while the API server serves; healthCheck.path and .timeout say what they ask",
            log_subject=("last resort", cluster),
            log_state=chosen.health.cause,
        )
    return chosen
