"""Ingresses in the daemon: the connections to pods and the requests in flight, over all reloads.

They are in the processes that have listeners, each with its own balancing, health and active checks: a pod that fails
costs each worker one failed attempt, which is cheaper than an exchange of every change. The modules for ingresses are
imported when a configuration first has an Ingress listener.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mcproxy.config import model
from mcproxy.observe.metrics.families import INGRESS_EJECTIONS
from mcproxy.requests.batch import RequestBatch
from mcproxy.requests.in_flight import RequestsInFlight

if TYPE_CHECKING:
    from mcproxy.http.deadlines import Deadlines
    from mcproxy.observe.metrics.metrics import Metrics
    from mcproxy.observe.record import Recorder
    from mcproxy.observe.spans import Spans
    from mcproxy.services.endpoint_table import EndpointTable
    from mcproxy.services.ingress.ingress_request import IngressRequest
    from mcproxy.services.ingress.live_ingresses import Ingresses, IngressResources
    from mcproxy.services.ingress.pod_pools import Pods
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.upstream_context import UpstreamContext


class LazyIngresses:
    """The ingresses of a process, which have no cost without Ingress listeners."""

    def __init__(
        self,
        shared: UpstreamContext,
        deadlines: Deadlines,
        metrics: Metrics,
        table: EndpointTable,
        *,
        cluster: Callable[[str], Cluster | None],
        batch_size: int,
        secret: bytes,
    ) -> None:
        """`cluster` returns the cluster of a name that is in force, None if there is none.

        `secret` is that of affinity cookies where no listener has a certificate; the same in all workers.
        """
        self.in_flight: RequestsInFlight[IngressRequest] = RequestsInFlight(shared.reactor)
        self._shared = shared
        self._deadlines = deadlines
        self._metrics = metrics
        self._table = table
        self._cluster = cluster
        self._batch_size = batch_size
        self._secret = secret
        self._batch: RequestBatch[IngressRequest] | None = None
        self._pods: Pods | None = None
        self._resources: IngressResources | None = None

    def prepare(
        self,
        config: model.Config,
        previous: Ingresses | None,
        access_log: Recorder | None,
        spans: Spans | None = None,
    ) -> Ingresses | None:
        """Make the ingresses of a configuration next to those in force; None if there is no Ingress listener."""
        if not any(listener.serves is model.Serves.INGRESS for listener in config.listeners):
            return None
        from mcproxy.services.ingress.live_ingresses import Ingresses

        tracer = None
        if spans is not None:
            from mcproxy.services.ingress.request_spans import RequestTracer

            tracer = RequestTracer(spans)
        return Ingresses.build(config, previous, self._made(), access_log, tracer)

    def _made(self) -> IngressResources:
        if self._resources is None:
            from mcproxy.services.ingress.ingress_request import RequestIDs
            from mcproxy.services.ingress.live_ingresses import IngressResources
            from mcproxy.services.ingress.pod_pools import LiveTargets, Pods
            from mcproxy.services.ingress.port_forward import PortForwarder
            from mcproxy.services.ingress.request_events import IngressReporter

            shared = self._shared
            forwarder = PortForwarder(shared.reactor, self._cluster)
            self._pods = Pods(shared.connect, forwarder, shared.contexts, self._deadlines)
            self._batch = RequestBatch(shared.reactor, IngressReporter(), self._batch_size)
            self._metrics.read_at_flush(self._batch.flush)
            self._resources = IngressResources(
                clock=shared.reactor,
                table=self._table,
                targets=LiveTargets(self._pods, self._cluster),
                in_flight=self.in_flight,
                batch=self._batch,
                counts=self._metrics.of_ingresses,
                random=shared.random,
                request_ids=RequestIDs(),
                ejected=lambda *labels: self._metrics.counts.increase(INGRESS_EJECTIONS, labels),
                secret=self._secret,
            )
        return self._resources

    def stop(self) -> None:
        """End everything at once; to be called when the requests are cut."""
        if self._batch is not None:
            self._batch.close()
        if self._pods is not None:
            self._pods.close()
