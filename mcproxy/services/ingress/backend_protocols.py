"""The protocol of connections to the endpoints of a backend: the HTTP version, and whether TLS is used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from twisted.logger import Logger

from mcproxy.config.model import BackendProtocol, BackendTLS, UpstreamProtocol, Via
from mcproxy.log_once import LogOnce
from mcproxy.services.endpoint_table import PodEndpoint
from mcproxy.services.ingress.api_server_proxy import ServiceBehindAPIServer
from mcproxy.services.ingress.backend_members import MemberKey
from mcproxy.services.ingress.forward_target import Target
from mcproxy.services.ingress.pod_pools import Pod, PodConnections, PodKey, Pods, PodTLS
from mcproxy.services.ingress.port_forward import ForwardedPod
from mcproxy.upstream.cluster import Cluster

log = Logger(__name__)

# appProtocol of Service ports: the names of KEP-3726, of IANA, and those that Istio and Contour gave them before.
_HTTP2 = frozenset({"kubernetes.io/h2c", "h2c", "http2", "grpc"})
_TLS = frozenset({"https", "kubernetes.io/wss", "wss", "h2", "grpcs"})
_HTTP2_OVER_TLS = frozenset({"h2", "grpcs"})
_HTTP1_OVER_TLS = frozenset({"kubernetes.io/wss", "wss"})


def pod_connections(key: MemberKey, app_protocol: str | None) -> PodConnections:
    """Return how the pods of a backend are connected to.

    `appProtocol` counts where the file does not say it. A port that is `https` has TLS without a `tls` in the file too:
    then the certificate must be valid for the Service's name by the system's authorities, since nothing else is known.
    """
    named = (app_protocol or "").lower()
    tls = key.tls
    if tls is None and (
        key.protocol is BackendProtocol.HTTPS or (key.protocol is BackendProtocol.AUTO and named in _TLS)
    ):
        tls = BackendTLS()
    protocol = UpstreamProtocol.HTTP1
    if key.protocol in (BackendProtocol.HTTP2, BackendProtocol.GRPC):
        protocol = UpstreamProtocol.HTTP2
    elif key.protocol is BackendProtocol.HTTPS:
        protocol = UpstreamProtocol.AUTO
    elif key.protocol is BackendProtocol.AUTO:
        if named in _HTTP2 or named in _HTTP2_OVER_TLS:
            protocol = UpstreamProtocol.HTTP2
        elif tls is not None and named not in _HTTP1_OVER_TLS:
            protocol = UpstreamProtocol.AUTO
    if tls is None:
        return PodConnections(protocol=protocol, connect_timeout=key.connect_timeout)
    return PodConnections(
        protocol=protocol,
        tls=PodTLS(
            ca=None if tls.ca is None else tls.ca.data,
            server_name=tls.server_name or f"{key.key.service}.{key.key.namespace}.svc",
            verify=not tls.insecure_skip_verify,
        ),
        connect_timeout=key.connect_timeout,
    )


class LiveTargets:
    """Pods, and services behind API servers, as targets (`backend_members.Targets`)."""

    def __init__(self, pods: Pods, cluster: Callable[[str], Cluster | None]) -> None:
        """`cluster` returns the cluster of a name that is in force, None if there is none."""
        self._pods = pods
        self._cluster = cluster
        self._throttle = LogOnce()

    def acquire(self, key: MemberKey, pod: PodEndpoint, app_protocol: str | None) -> Target:
        """Return the target of an endpoint; `release` must follow."""
        if key.via is Via.API_SERVER:
            cluster, namespace, service, port, *_ = key.key
            connections = pod_connections(key, app_protocol)
            named = service if connections.tls is None else f"https:{service}"
            refused = partial(self._refused, cluster, f"{namespace}/{service}")
            return ServiceBehindAPIServer(partial(self._cluster, cluster), namespace, named, port, refused)
        forwarded = None
        if key.via is Via.PORT_FORWARD and pod.pod is not None:
            forwarded = ForwardedPod(key.key.cluster, key.key.namespace, pod.pod)
        return self._pods.acquire(PodKey(pod.address, pod.port, pod_connections(key, app_protocol), forwarded))

    def release(self, target: Target) -> None:
        """The endpoint is gone: its target takes no further request."""
        if isinstance(target, Pod):
            self._pods.release(target)
        elif isinstance(target, ServiceBehindAPIServer):
            target.leave()

    def _refused(self, cluster: str, service: str, status: int, message: str) -> None:
        """An API server has answered in place of a service, which clients are not told."""
        if self._throttle.allows((cluster, service, status), self._pods.seconds()):
            log.warn(
                "an API server did not pass a request on to its service; more of them in this minute are not logged",
                event="ingress_no_answer",
                cluster=cluster,
                service=service,
                status=status,
                cause=message,
                todo="see `cause`; 403 is a right that the proxy lacks: `mcproxy rbac` prints what it needs",
                log_subject=("API server", cluster, service),
            )
