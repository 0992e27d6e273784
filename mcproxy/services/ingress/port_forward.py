"""`via: PortForward`: connects to pods through the API server of their cluster, with the proxy's own credential.

    GET /api/v1/namespaces/NAMESPACE/pods/NAME/portforward, Upgrade: websocket, `SPDY/3.1+portforward.k8s.io`

Each connection of a pod's pool is a separate WebSocket (`pod_tunnel`), so that connections cannot block each other and
the pool controls their lifetime. The namespace is the backend's, and the name comes from an EndpointSlice of that
namespace, so no cluster can direct a request to a pod of another namespace.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.kube.status import read_status
from mcproxy.kube.websocket_frames import accept_key
from mcproxy.log_once import LogOnce
from mcproxy.net.connect import ClientTLS, connect_over
from mcproxy.net.connect_errors import ConnectError, ConnectFailed, ConnectTimeout
from mcproxy.services.ingress.pod_tunnel import PodTunnel
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control_stream import BodyTooLarge, ControlError, ControlStream
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.endpoint import Endpoint, EndpointGone

log = Logger(__name__)

PROTOCOL: Final = "SPDY/3.1+portforward.k8s.io"
_MAX_CONNECTS = 3
"""Maximum of endpoints of a cluster that are tried for one connection."""
_MAX_BODY = 64 * 1024
"""Maximum of bytes read of a refusal's body, for its message."""


class ForwardedPod(NamedTuple):
    """A pod that is reached through its cluster's API server."""

    cluster: str
    namespace: str
    name: str


class PortForwarder:
    """Opens connections to pods of all clusters of a process."""

    def __init__(self, reactor: Any, cluster: Callable[[str], Cluster | None]) -> None:
        """`cluster` returns the current cluster of a name, or None."""
        self._reactor = reactor
        self._cluster = cluster
        self._once = LogOnce()

    def connect(
        self,
        pod: ForwardedPod,
        port: int,
        protocol: IProtocol,
        *,
        tls: ClientTLS | None,
        timeout: float,
        alpn: tuple[bytes, ...],
    ) -> Deferred[None]:
        """Connect `protocol` to a port of a pod within `timeout` seconds (`net.connect.connect`).

        The Deferred fires when the kubelet has accepted the streams. If no process listens on the port, the
        connection breaks after that.
        """
        where = f"port {port} of pod {pod.namespace}/{pod.name} in cluster {pod.cluster}"

        def too_late(result: Any, seconds: float) -> Any:
            if isinstance(result, Failure) and not isinstance(result.value, CancelledError):
                return result
            raise ConnectTimeout(f"{where} took longer than {seconds:g} s to be forwarded")

        work = Deferred.fromCoroutine(self._connect(pod, port, where, protocol, tls, timeout, alpn))
        return work.addTimeout(timeout, self._reactor, too_late)

    async def _connect(
        self,
        pod: ForwardedPod,
        port: int,
        where: str,
        protocol: IProtocol,
        tls: ClientTLS | None,
        timeout: float,
        alpn: tuple[bytes, ...],
    ) -> None:
        response = await self._upgraded(pod, where, timeout)
        assert response.side is not None
        tunnel = PodTunnel(self._reactor, port, where, lambda cause: self._broken(pod, where, cause))
        end = tunnel.start(response.side)
        try:
            await tunnel.opened
        except BaseException:
            end.close()
            tunnel.abort()
            raise
        try:
            tunnel.user = await connect_over(
                self._reactor, end, protocol, where=where, tls=tls, timeout=timeout, alpn=alpn, on_close=tunnel.closed
            )
        except BaseException:  # `end` is closed already
            tunnel.abort()
            raise

    async def _upgraded(self, pod: ForwardedPod, where: str, timeout: float) -> ControlStream:
        """Request the upgrade; return the stream with the API server's 101. Raises ConnectError."""
        cluster = self._cluster(pod.cluster)
        if cluster is None:
            raise ConnectFailed(f"{where}: there is no such cluster any more")
        tried: list[Endpoint] = []
        problem: ConnectError = ConnectFailed(f"{where}: no endpoint of the cluster is ready")
        while len(tried) < _MAX_CONNECTS and (endpoint := cluster.pick(tried)) is not None:
            try:
                return await self._ask(cluster, endpoint, pod, where, timeout)
            except ControlError as error:
                raise ConnectFailed(f"{where}: {error.cause}") from None
            except CredentialError:  # the source of the credential has logged the cause
                raise ConnectFailed(f"{where}: the proxy has no usable credential for the cluster") from None
            except _Refused as refused:
                raise ConnectFailed(f"{where}: {refused}") from None
            except ConnectError as error:
                if not isinstance(error, EndpointGone):
                    endpoint.record_connect_failure(error)
                problem = error
                tried.append(endpoint)
        raise problem

    async def _ask(
        self, cluster: Cluster, endpoint: Endpoint, pod: ForwardedPod, where: str, timeout: float
    ) -> ControlStream:
        key = base64.b64encode(os.urandom(16)).decode()
        response = await cluster.control.stream(
            endpoint,
            f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/portforward",
            headers=(
                ("Sec-WebSocket-Key", key),
                ("Sec-WebSocket-Version", "13"),
                ("Sec-WebSocket-Protocol", PROTOCOL),
            ),
            head_timeout=timeout,
            upgrade=b"websocket",
        )
        if response.side is None:
            try:
                body = await response.read_all(_MAX_BODY)
            except BodyTooLarge:
                body = b""
            status = read_status(body)
            said = "" if status is None else f": {' '.join(status.message.split())[:300]}"
            raise _Refused(f"{endpoint.name} answered {response.status}{said}")
        accepted = response.header(b"sec-websocket-accept") == accept_key(key).encode()
        if not accepted or response.header(b"sec-websocket-protocol") != PROTOCOL.encode():
            response.close()
            raise _Refused(f"{endpoint.name} does not speak {PROTOCOL} (Kubernetes 1.30 and newer do)")
        return response

    def _broken(self, pod: ForwardedPod, where: str, cause: str) -> None:
        if self._once.allows((pod.cluster, pod.namespace, pod.name), self._reactor.seconds()):
            log.warn(
                "a forwarded connection to a pod broke; more of them in this minute are not logged",
                event="ingress_forward_broken",
                cluster=pod.cluster,
                endpoint=f"{pod.namespace}/{pod.name}",
                cause=f"{where}: {cause}",
                todo="nothing if the pod or the API server is just ending; else see whether the pod listens on that"
                " port, on localhost too",
                log_subject=("forwarded pod", pod.cluster, pod.namespace, pod.name),
            )


class _Refused(Exception):
    """The API server did not switch protocols."""
