"""The connections to pods: one pool for each address, port and way of connecting, shared by all backends that use it.

A pod belongs to those who have acquired it. When the last one releases it, since it is in no EndpointSlice any more,
its idle connections close, those with a request after it, and what waits for a connection goes elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IProtocol
from twisted.logger import Logger

from mcproxy.config.model import UpstreamProtocol
from mcproxy.http.client_stream import ClientStream
from mcproxy.http.connection_pool import ConnectionPool
from mcproxy.http.deadlines import Deadlines
from mcproxy.log_once import LogOnce
from mcproxy.net.connect import ClientTLS
from mcproxy.net.tls_sessions import SessionCache
from mcproxy.services.ingress.forward_target import TargetGone
from mcproxy.services.ingress.port_forward import ForwardedPod, PortForwarder
from mcproxy.upstream.pending_requests import PendingRequests
from mcproxy.upstream.tls import ClientContexts
from mcproxy.upstream.upstream_context import Connector

log = Logger(__name__)

#: Idle connections to a pod, and how long one is kept (seconds): nginx's keepalive_timeout of upstreams.
MAX_IDLE = 256
IDLE_TIMEOUT = 60.0
#: Limit of a response's head (bytes); pods are not as trusted as a kube-apiserver.
MOST_HEAD = 64 * 1024

_QUIET = 10.0  # seconds between two log lines about one pod's violations of the protocol


@dataclass(frozen=True, slots=True)
class PodTLS:
    """TLS to pods. `ca` is PEM, None for the system's authorities; the chain is verified for `server_name`."""

    ca: bytes | None
    server_name: str
    verify: bool = True


@dataclass(frozen=True, slots=True)
class PodConnections:
    """How a pod is connected to. Without TLS, `AUTO` is HTTP/1.1 and `HTTP2` begins with prior knowledge."""

    protocol: UpstreamProtocol = UpstreamProtocol.HTTP1
    tls: PodTLS | None = None
    connect_timeout: float = 5.0  # seconds, for TCP and TLS


class PodKey(NamedTuple):
    """The settings on which a pod's connections depend."""

    address: str  # an IP address
    port: int
    connections: PodConnections
    forwarded: ForwardedPod | None = None  # None: at its address


class Pod:
    """One pod's port, a `Target`."""

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
        self.users = 0  # that have acquired it
        self._gone = False
        self._pending = PendingRequests()
        self._connect = connect
        self._deadlines = deadlines
        self._violated = violated
        self._pool: ConnectionPool | None = None  # until the first request: a cluster may name thousands that get none

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
                repeats_heads=True,
                first_limit=1,  # gRPC servers reset what is beyond their limit as an offence, not as refused
            )
        return self._pool

    @property
    def name(self) -> str:
        """Address and port, for logs; where it is forwarded its name and port."""
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
        """Take no more requests; those that run go on."""
        self._gone = True
        if self._pool is not None:
            self._pool.close()
        self._pending.release(self._is_gone)

    def _open_connection(self, protocol: IProtocol, alpn: tuple[bytes, ...]) -> Deferred[None]:
        if self._pending.releasing:  # the pool would open it for the next of those that wait
            return fail(self._is_gone())
        return self._connect(protocol, alpn)

    def _is_gone(self) -> TargetGone:
        return TargetGone(f"{self.name} is no endpoint any more")

    def __repr__(self) -> str:
        return f"<Pod {self.name}>"


class Pods:
    """The pods of all ingresses of a process; kept across reloads."""

    def __init__(
        self, connect: Connector, forwarder: PortForwarder, contexts: ClientContexts, deadlines: Deadlines
    ) -> None:
        self._connect = connect
        self._forwarder = forwarder
        self._contexts = contexts
        self._deadlines = deadlines
        self._pods: dict[PodKey, Pod] = {}
        self._throttle = LogOnce(_QUIET)

    def __len__(self) -> int:
        return len(self._pods)

    def seconds(self) -> float:
        """Return the time of the clock of all pods."""
        return self._deadlines.seconds()

    def acquire(self, key: PodKey) -> Pod:
        """Return the pod, which is kept until it is released as often."""
        pod = self._pods.get(key)
        if pod is None:
            pod = self._pods[key] = self._new(key)
        pod.users += 1
        return pod

    def release(self, pod: Pod) -> None:
        """Give a pod back; with its last user it takes no more requests."""
        pod.users -= 1
        if not pod.users:
            del self._pods[pod.key]
            pod.leave()

    def close(self) -> None:
        """Close all connections as they become idle: the process ends."""
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
        """An HTTP/2 connection has ended because of what the pod sent, or did not send."""
        if not self._throttle.allows(pod.name, self._deadlines.seconds()):
            return
        log.warn(
            "an HTTP/2 connection to a pod was ended",
            event="pod_http2_ended",
            endpoint=pod.name,
            cause=cause,
            todo="see whether it speaks HTTP/2 on that port; else `protocol: HTTP1` of the backend, or another"
            " appProtocol of the Service's port",
        )
