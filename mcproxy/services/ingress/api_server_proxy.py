"""`via: APIServer`: a service behind the API server of its cluster, whose `proxy` subresource finds the pods.

    /path  ->  /api/v1/namespaces/NAMESPACE/services/[https:]NAME:PORT/proxy/path, as the proxy itself

The API server takes the request for one of the proxy's own, so nothing of the client may be an identity there: all
fields that Kubernetes reads as one are removed, the client's Authorization too, which no pod gets this way (the API
server would not pass it on either). Path and query stay behind `proxy/`: the router has refused dot segments in
whatever spelling. What the API server adds for clients of its own is taken off responses: the prefix in Location and in
links of HTML, and the fields that name its audit event and its queues. An answer of its own is replaced
(`api_server_responses`).

Source: k8s.io/apimachinery `pkg/util/proxy/{transport,upgradeaware}.go`, k8s.io/kubernetes
`pkg/registry/core/service/proxy.go`. It uses HTTP/1.1 to pods, so gRPC does not pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mcproxy.http.client_stream import ClientStream, ResponseSink
from mcproxy.http.messages import RequestHead
from mcproxy.identity.client_identity_headers import split_identity_headers
from mcproxy.kube.status import StatusError
from mcproxy.net.connect_errors import ConnectError, ConnectFailed
from mcproxy.services.ingress.api_server_responses import ResponseRewriter
from mcproxy.services.ingress.forward_target import TargetGone
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.endpoint import Endpoint, EndpointGone

log = Logger(__name__)

#: Endpoints of a cluster to which one request tries to connect.
_MAX_CONNECTS = 3
#: What `split_identity_headers` removes beside identities, and the ingress has made itself (`forwarded_headers`).
_FORWARDED = re.compile(rb"(?im)^(?:x-forwarded-(?:for|proto|host)|x-real-ip|forwarded):[^\n]*\n")
# The API server could decode only these to find links; without any it rewrites what it can read, and so do we. With a
# client's Audit-ID anybody could put lines beside those of others in its audit log.
_NOT_FOR_IT = re.compile(rb"(?im)^(?:accept-encoding|audit[-_]id):[^\n]*\n")
_CREDENTIALS = re.compile(rb"(?im)^(?:authorization|sec[-_]websocket[-_]protocol):[^\n]*\n")


class ServiceBehindAPIServer:
    """A service in a cluster, a `Target`. `cluster` returns the cluster in force, None if there is none any more."""

    __slots__ = ("_cluster", "_gone", "_refused", "in_flight", "prefix")

    def __init__(
        self,
        cluster: Callable[[], Cluster | None],
        namespace: str,
        service: str,
        port: int | str,
        refused: Callable[[int, str], None] = lambda status, message: None,
    ) -> None:
        """`service` may begin with `https:`. `refused` is called with status and message of a Status."""
        self._cluster = cluster
        self._refused = refused
        self._gone = False
        self.in_flight = 0
        self.prefix = f"/api/v1/namespaces/{namespace}/services/{service}:{port}/proxy".encode()

    @property
    def takes_requests(self) -> bool:
        return not self._gone

    def leave(self) -> None:
        """Take no more requests."""
        self._gone = True

    def take(self, *, upgrade: bool) -> ClientStream | None:
        """Return a stream of HTTP/1.1, for what a pod answers could end a connection that others share."""
        cluster = self._cluster()
        if cluster is None or not cluster.credentials.is_ready:
            return None
        endpoint = cluster.pick()
        if endpoint is None:
            return None
        stream = endpoint.control_pool.take(upgrade=True)
        try:
            return None if stream is None else _Proxied(stream, cluster, endpoint, self.prefix, self._refused)
        except CredentialError:
            return None  # `open` says why

    def open(self, *, upgrade: bool) -> Deferred[ClientStream]:
        return Deferred.fromCoroutine(self._open())

    async def _open(self) -> ClientStream:
        cluster = self._cluster()
        if self._gone or cluster is None:
            raise TargetGone("the service is no endpoint any more")
        try:
            await cluster.credentials.ready()
        except CredentialError:  # its source has logged why
            raise ConnectFailed(f'the proxy has no usable credential for cluster "{cluster.name}"') from None
        tried: list[Endpoint] = []
        problem: ConnectError = ConnectFailed(f'no endpoint of cluster "{cluster.name}" is ready')
        while len(tried) < _MAX_CONNECTS and (endpoint := cluster.pick(tried)) is not None:
            try:
                stream = await endpoint.control_pool.open(upgrade=True)
            except ConnectError as error:
                if not isinstance(error, EndpointGone):
                    endpoint.record_connect_failure(error)
                problem = error
                tried.append(endpoint)
                continue
            endpoint.record_connect_success()
            try:
                return _Proxied(stream, cluster, endpoint, self.prefix, self._refused)
            except CredentialError:
                stream.cancel()
                raise ConnectFailed(f'the proxy has no usable credential for cluster "{cluster.name}"') from None
        raise problem

    def __repr__(self) -> str:
        return f"<ServiceBehindAPIServer {self.prefix.decode()}>"


class _Proxied:
    """A `ClientStream` whose request is the proxy's own, to a service."""

    __slots__ = (
        "_authority",
        "_inner",
        "_own_fields",
        "_path",
        "_prefix",
        "_preserves_host",
        "_refused",
        "cancel",
        "doubt",
        "end_body",
        "pause",
        "resume",
        "send_body",
        "sibling",
    )

    refusable = False
    multiplexed = False

    def __init__(
        self,
        inner: ClientStream,
        cluster: Cluster,
        endpoint: Endpoint,
        prefix: bytes,
        refused: Callable[[int, str], None],
    ) -> None:
        """Raises CredentialError."""
        self._refused = refused
        authorization = cluster.credentials.authorization()
        own = endpoint.own_fields
        self._own_fields = own if authorization is None else (*own, cluster.authorization_field(authorization))
        self._inner = inner
        self._authority = endpoint.host_header
        self._preserves_host = cluster.config.preserve_host
        self._path = endpoint.path_prefix + prefix
        self._prefix = prefix
        self.send_body = inner.send_body
        self.end_body = inner.end_body
        self.cancel = inner.cancel
        self.pause = inner.pause
        self.resume = inner.resume
        self.sibling = inner.sibling
        self.doubt = inner.doubt

    @property
    def began(self) -> bool:
        return self._inner.began

    def send_head(
        self,
        head: RequestHead,
        target: bytes,
        authority: bytes,
        fields: tuple[bytes, ...],
        sink: ResponseSink,
        timeout: float,
    ) -> None:
        if not target.startswith(b"/"):  # OPTIONS *
            target = b"/"
        self._inner.send_head(
            head,
            self._path + target,
            authority if self._preserves_host else self._authority,
            (request_fields(b"".join(fields)), *self._own_fields),
            ResponseRewriter(sink, self._prefix, self._refused),
            timeout,
        )


def request_fields(fields: bytes) -> bytes:
    """Return the fields of a client's request that are passed on, and those that the ingress made of its origin."""
    forwarded = b"".join(_FORWARDED.findall(fields))
    try:
        kept = split_identity_headers(fields).fields
    except StatusError:  # several Authorization fields, or many subprotocols with a token among them
        kept = split_identity_headers(_CREDENTIALS.sub(b"", fields)).fields
    return _NOT_FOR_IT.sub(b"", kept) + forwarded
