"""Connection pools of pods: one for each address, port and connection settings, shared by the backends that use it.

Each pod has a reference count of its users. When the last one releases it, because no EndpointSlice lists it any more,
idle connections close at once and busy ones after their request. Waiting requests are sent to another target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IProtocol
from twisted.logger import Logger

from mcproxy.config.model import BackendProtocol, BackendTLS, UpstreamProtocol, Via
from mcproxy.http.client_stream import ClientStream
from mcproxy.http.connection_pool import ConnectionPool
from mcproxy.http.deadlines import Deadlines
from mcproxy.log_once import LogOnce
from mcproxy.net.connect import ClientTLS
from mcproxy.net.tls_contexts import SessionCache
from mcproxy.services.endpoint_table import PodEndpoint
from mcproxy.services.ingress.api_server_proxy import ServiceBehindAPIServer
from mcproxy.services.ingress.backend_endpoints import MemberKey
from mcproxy.services.ingress.forward_target import Target, TargetGone
from mcproxy.services.ingress.port_forward import ForwardedPod, PortForwarder
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.pending_requests import PendingRequests
from mcproxy.upstream.tls import ClientContexts
from mcproxy.upstream.upstream_context import Connector

log = Logger(__name__)

#: Maximum of idle connections to a pod, and the seconds for which one is kept idle (nginx' keepalive_timeout).
MAX_IDLE = 256
IDLE_TIMEOUT = 60.0
#: Maximum size of a response's head in bytes; pods are less trusted than a kube-apiserver.
MOST_HEAD = 64 * 1024

_QUIET = 10.0  # seconds between two log lines about one pod's violations of the protocol


@dataclass(frozen=True, slots=True)
class PodTLS:
    """TLS settings for pods. `ca`: PEM, or None for the system's authorities. `server_name`: the name to verify."""

    ca: bytes | None
    server_name: str
    verify: bool = True


@dataclass(frozen=True, slots=True)
class PodConnections:
    """Connection settings of a pod. Without TLS, `AUTO` means HTTP/1.1, and `HTTP2` means prior knowledge."""

    protocol: UpstreamProtocol = UpstreamProtocol.HTTP1
    tls: PodTLS | None = None
    connect_timeout: float = 5.0  # seconds, for TCP and TLS


class PodKey(NamedTuple):
    """The settings on which a pod's connections depend."""

    address: str  # an IP address
    port: int
    connections: PodConnections
    forwarded: ForwardedPod | None = None  # None: connect to its address


class Pod:
    """A `Target`: one port of a pod."""

    __slots__ = ("_connect", "_deadlines", "_gone", "_pending", "_pool", "_violated", "in_flight", "key", "users")

    def __init__(
        self,
        key: PodKey,
        deadlines: Deadlines,
        connect: Callable[[IProtocol, tuple[bytes, ...]], Deferred[None]],
        violated: Callable[[str], None],
    ) -> None:
        self.key = key
        self.in_flight = 0
        self.users = 0  # number of acquisitions that are not released yet
        self._gone = False
        self._pending = PendingRequests()
        self._connect = connect
        self._deadlines = deadlines
        self._violated = violated
        self._pool: ConnectionPool | None = None  # None until the first request, because many pods never get one

    def _made_pool(self) -> ConnectionPool:
        if self._pool is None:
            connections = self.key.connections
            protocol = connections.protocol
            if connections.tls is None and protocol is UpstreamProtocol.AUTO:
                protocol = UpstreamProtocol.HTTP1
            self._pool = ConnectionPool(
                self._open_connection,
                self._deadlines,
                protocol=protocol,
                max_idle=MAX_IDLE,
                max_connections=0,
                idle_timeout=IDLE_TIMEOUT,
                violated=self._violated,
                prior_knowledge=connections.tls is None,
                sends_trailers=True,
                most_head=MOST_HEAD,
                first_limit=1,  # gRPC servers reset streams beyond their limit as violations instead of refusing them
            )
        return self._pool

    @property
    def name(self) -> str:
        """Address and port of the pod for logs; with `via: PortForward` name and port."""
        forwarded = self.key.forwarded
        if forwarded is not None:
            return f"{forwarded.namespace}/{forwarded.name}:{self.key.port}"
        address = self.key.address
        return f"[{address}]:{self.key.port}" if ":" in address else f"{address}:{self.key.port}"

    @property
    def takes_requests(self) -> bool:
        return not self._gone

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the connections and the requests on them, by version (`ConnectionPool.counts`)."""
        return {} if self._pool is None else self._pool.counts()

    def take(self, *, upgrade: bool) -> ClientStream | None:
        return None if self._pool is None else self._pool.take(upgrade=upgrade)

    def open(self, *, upgrade: bool) -> Deferred[ClientStream]:
        if self._gone:
            return fail(self._is_gone())
        return self._pending.wait(self._made_pool().open(upgrade=upgrade))

    def leave(self) -> None:
        """Accept no more requests; requests in flight continue."""
        self._gone = True
        if self._pool is not None:
            self._pool.close()
        self._pending.release(self._is_gone)

    def _open_connection(self, protocol: IProtocol, alpn: tuple[bytes, ...]) -> Deferred[None]:
        if self._pending.releasing:  # the pool opens this connection for the next waiting request
            return fail(self._is_gone())
        return self._connect(protocol, alpn)

    def _is_gone(self) -> TargetGone:
        return TargetGone(f"{self.name} is not an endpoint any more")

    def __repr__(self) -> str:
        return f"<Pod {self.name}>"


class PodPools:
    """The pods of all ingresses of a process; kept across reloads."""

    def __init__(
        self, connect: Connector, forwarder: PortForwarder, contexts: ClientContexts, deadlines: Deadlines
    ) -> None:
        self._connect = connect
        self._forwarder = forwarder
        self._contexts = contexts
        self._deadlines = deadlines
        self._pods: dict[PodKey, Pod] = {}
        self._once = LogOnce(_QUIET)

    def __len__(self) -> int:
        return len(self._pods)

    def seconds(self) -> float:
        """Return the time by the pods' clock."""
        return self._deadlines.seconds()

    def acquire(self, key: PodKey) -> Pod:
        """Return the pod, and count one more user."""
        pod = self._pods.get(key)
        if pod is None:
            pod = self._pods[key] = self._new(key)
        pod.users += 1
        return pod

    def release(self, pod: Pod) -> None:
        """Count one user less; a pod without users accepts no more requests."""
        pod.users -= 1
        if not pod.users:
            del self._pods[pod.key]
            pod.leave()

    def close(self) -> None:
        """Close all connections as they become idle, since the process is ending."""
        pods, self._pods = self._pods, {}
        for pod in pods.values():
            pod.leave()

    def _new(self, key: PodKey) -> Pod:
        tls, timeout = key.connections.tls, key.connections.connect_timeout
        client_tls = None
        if tls is not None:
            context = self._contexts.get(tls.ca, None, verify=tls.verify)
            client_tls = ClientTLS(context, tls.server_name, tls.verify, SessionCache())

        def connect(protocol: IProtocol, alpn: tuple[bytes, ...]) -> Deferred[None]:
            if key.forwarded is not None:
                forward = self._forwarder.connect
                return forward(key.forwarded, key.port, protocol, tls=client_tls, timeout=timeout, alpn=alpn)
            return self._connect(key.address, key.port, protocol, tls=client_tls, timeout=timeout, alpn=alpn)

        pod = Pod(key, self._deadlines, connect, lambda cause: self._violated(pod, cause))
        return pod

    def _violated(self, pod: Pod, cause: str) -> None:
        """Log that a protocol violation by the pod has ended an HTTP/2 connection."""
        if not self._once.allows(pod.name, self._deadlines.seconds()):
            return
        log.warn(
            "an HTTP/2 connection to a pod was ended",
            event="pod_http2_ended",
            endpoint=pod.name,
            cause=cause,
            todo="see whether it speaks HTTP/2 on that port; else `protocol: HTTP1` of the backend, or another"
            " appProtocol of the Service's port",
        )


# -- protocols ------------------------------------------------------------------------------------------------
#
# Chooses the protocol of connections to a backend's endpoints: the HTTP version, and whether to use TLS.


# Values of appProtocol of Service ports: from KEP-3726, from IANA, and the older ones of Istio and Contour.
_HTTP2 = frozenset({"kubernetes.io/h2c", "h2c", "http2", "grpc"})
_TLS = frozenset({"https", "kubernetes.io/wss", "wss", "h2", "grpcs"})
_HTTP2_OVER_TLS = frozenset({"h2", "grpcs"})
_HTTP1_OVER_TLS = frozenset({"kubernetes.io/wss", "wss"})


def pod_connections(key: MemberKey, app_protocol: str | None) -> PodConnections:
    """Return the connection settings for the pods of a backend.

    The port's `appProtocol` is the default of the configured protocol. A port with `https` uses TLS even without a
    configured `tls`; then the system's authorities must have signed the certificate, for the Service's name.
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
    """Makes the targets of endpoints: pods, and services behind API servers (`backend_endpoints.Targets`)."""

    def __init__(self, pods: PodPools, cluster: Callable[[str], Cluster | None]) -> None:
        """`cluster` returns the current cluster of a name, or None."""
        self._pods = pods
        self._cluster = cluster
        self._once = LogOnce()

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
        """Release the target of a removed endpoint; it accepts no more requests."""
        if isinstance(target, Pod):
            self._pods.release(target)
        elif isinstance(target, ServiceBehindAPIServer):
            target.leave()

    def _refused(self, cluster: str, service: str, status: int, message: str) -> None:
        """Log that an API server has answered instead of a service; clients do not see this."""
        if self._once.allows((cluster, service, status), self._pods.seconds()):
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
