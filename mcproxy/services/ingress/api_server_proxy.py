"""`via: APIServer`: reaches a service through the `proxy` subresource of its cluster's API server, which finds pods.

    /path  ->  /api/v1/namespaces/NAMESPACE/services/[https:]NAME:PORT/proxy/path, with mcproxy's own credential

mcproxy is the user of these requests, so all client fields that Kubernetes reads as an identity are removed. Pods do
not receive the client's Authorization this way (the API server would not pass it on either). A path cannot leave
`proxy/`, because the router refuses dot segments in any spelling. The API server's additions to responses are removed:
the prefix in Location and in links of HTML, and the fields that name its audit event and its queues. A response that
the API server itself generated is replaced.

Source: k8s.io/apimachinery `pkg/util/proxy/{transport,upgradeaware}.go`, k8s.io/kubernetes
`pkg/registry/core/service/proxy.go`. The API server uses HTTP/1.1 to pods, so gRPC does not pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mcproxy.http.client_stream import ClientStream, ResponseSink
from mcproxy.http.messages import CHUNKED, REASON_PHRASES, RequestHead, ResponseHead
from mcproxy.identity.client_identity_headers import split_identity_headers
from mcproxy.kube.status import StatusError
from mcproxy.net.connect_errors import ConnectError, ConnectFailed
from mcproxy.services.ingress.forward_target import TargetGone
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.endpoint import Endpoint, EndpointGone

log = Logger(__name__)

# -- responses of the API server itself -----------------------------------------------------------------------
#
# Removes the API server's additions from the service's responses, and replaces the API server's own responses. Pure.
#
# A Status can contain facts that a client of an ingress must not learn: the name of the proxy's user and its missing
# right (403), the addresses of unreachable pods (503). Such a body is replaced by a sentence. The first bytes identify
# it: API servers encode a Status as JSON (indented for browsers and curl), YAML, Protobuf or CBOR, according to the
# client's Accept.
#
# Source: k8s.io/apimachinery `pkg/runtime/serializer`, k8s.io/apiserver `pkg/endpoints/handlers/responsewriters`.


MOST_KEPT = 4096
"""Maximum of bytes of a Status that are kept for the log."""
_BEGINNINGS = (
    b'{"kind":"Status","apiVersion":"v1",',
    b"apiVersion:v1code:",  # YAML has sorted fields
    b"k8s\x00",  # the envelope of Protobuf
    b"\xd9\xd9\xf7",  # CBOR, self-described
)
_MESSAGE = re.compile(rb'"message":\s*"((?:[^"\\]|\\.){0,400})')
_LEFT = re.compile(rb"(?im)^(?:date|retry-after):[^\n]*\n")
_UNDECIDED = 512  # bytes that suffice to recognize a Status, because no Status begins with so many spaces
_OF_THE_API_SERVER = re.compile(rb"(?im)^(?:audit-id|x-kubernetes-pf-[a-z-]+):[^\n]*\n")
_LOCATION = re.compile(rb"(?im)^((?:content-)?location:[ \t]*(?:https?://[^/\r\n]*)?)([^\r\n]*)")


class ResponseRewriter:
    """The sink of a response, which removes the additions of the API server and passes everything else on."""

    __slots__ = (
        "_body",
        "_head",
        "_prefix",
        "_refused",
        "_removal",
        "_sink",
        "_status",
        "pause_request",
        "response_failed",
        "response_interim",
        "resume_request",
    )

    def __init__(self, sink: ResponseSink, prefix: bytes, refused: Callable[[int, str], None]) -> None:
        self._sink = sink
        self._prefix = prefix
        self._refused = refused
        self._removal: Removal | None = None
        self._head: ResponseHead | None = None  # the head, until the sender (service or API server) is known
        self._body = b""  # the body's beginning until the sender is known; then the kept part of a Status
        self._status = 0  # the status code of the API server's own response
        self.response_interim = sink.response_interim
        self.response_failed = sink.response_failed
        self.pause_request = sink.pause_request
        self.resume_request = sink.resume_request

    def _adapt(self, head: ResponseHead) -> bool:
        """Rewrite the head; return whether the body is HTML with links to rewrite."""
        head.fields = response_fields(head.fields, self._prefix)
        kind = head.header(b"content-type") or b""
        return kind.lower().startswith(b"text/html") and head.header(b"content-encoding") is None

    def response_head(self, head: ResponseHead) -> None:
        if head.status >= 400 and head.length:
            self._head = head
        else:
            self._pass_on(head)

    def _pass_on(self, head: ResponseHead) -> None:
        if self._adapt(head) and head.length:
            self._removal = Removal(self._prefix)
            head.length = CHUNKED
            head.declared_length = None
        self._sink.response_head(head)

    def response_whole(self, head: ResponseHead, body: bytes) -> None:
        if head.status >= 400 and begins_status(body):
            head.fields, replaced = answer_in_place(head.status, head.fields)
            self._refused(head.status, message_of(body[:MOST_KEPT]))
            body = replaced
            head.length = head.declared_length = len(body)
        elif self._adapt(head):
            body = body.replace(self._prefix, b"")
            head.length = head.declared_length = len(body)
            if not body:
                self._sink.response_head(head)
                self._sink.response_end([])
                return
        self._sink.response_whole(head, body)

    def response_data(self, data: bytes) -> None:
        head = self._head
        if self._status:
            self._body += data[: MOST_KEPT - len(self._body)]
            return
        if head is not None:
            data = self._body = self._body + data
            found = begins_status(data)
            if found is None:
                return
            self._head = None
            if found:
                self._status = head.status
                self._body = data[:MOST_KEPT]
                head.fields, body = answer_in_place(head.status, head.fields)
                head.length = head.declared_length = len(body)
                self._sink.response_head(head)
                self._sink.response_data(body)
                return
            self._body = b""
            self._pass_on(head)
        if self._removal is not None:
            data = self._removal.feed(data)
        if data:
            self._sink.response_data(data)

    def response_flush(self) -> None:
        if self._head is None:
            self._sink.response_flush()

    def response_end(self, trailers: Any) -> None:
        if self._status:
            self._refused(self._status, message_of(self._body))
            self._sink.response_end([])
            return
        head, self._head = self._head, None
        if head is not None:
            self._pass_on(head)
            if self._body:
                self._sink.response_data(self._body if self._removal is None else self._removal.feed(self._body))
        if self._removal is not None and (rest := self._removal.held):
            self._sink.response_data(rest)
        self._sink.response_end(trailers)

    def response_upgraded(self, head: ResponseHead, side: Any) -> None:
        self._adapt(head)
        self._sink.response_upgraded(head, side)


def response_fields(fields: bytes, prefix: bytes) -> bytes:
    """Return the fields of a response without the additions of the API server."""
    fields = _OF_THE_API_SERVER.sub(b"", fields)
    return _LOCATION.sub(lambda match: match[1] + (match[2].replace(prefix, b"", 1) or b"/"), fields)


class Removal:
    """Removes a byte string (the word) from a stream; `held` is the stream's end while a word can begin there."""

    __slots__ = ("_word", "held")

    def __init__(self, word: bytes) -> None:
        self._word = word
        self.held = b""

    def feed(self, data: bytes) -> bytes:
        """Add data; return the bytes that can be passed on."""
        word = self._word
        *before, last = (self.held + data).split(word)  # only the last part can end with the beginning of a word
        self.held = b""
        for size in range(min(len(word) - 1, len(last)), 0, -1):
            if last.endswith(word[:size]):
                self.held = last[-size:]
                last = last[:-size]
                break
        return b"".join([*before, last])


def begins_status(body: bytes) -> bool | None:
    """Return whether a body with this beginning is a Status; None: more bytes are needed."""
    read = b"".join(body[:_UNDECIDED].split())
    if any(read.startswith(each) for each in _BEGINNINGS):
        return True
    if len(body) < _UNDECIDED and any(each.startswith(read) for each in _BEGINNINGS):
        return None
    return False


def answer_in_place(status: int, fields: bytes) -> tuple[bytes, bytes]:
    """Return the fields and the body of the response that replaces a Status with these fields."""
    phrase = REASON_PHRASES.get(status, b"Unknown")
    body = b"%d %b: the cluster did not pass the request on to the service\n" % (status, phrase)
    own = b"Content-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
    return own + b"".join(_LEFT.findall(fields)), body


def message_of(body: bytes) -> str:
    """Return the printable message of a Status, for the log."""
    found = _MESSAGE.search(body)
    text = (found[1] if found is not None else b"").replace(b'\\"', b'"').decode("utf-8", "replace")
    return "".join(each if each.isprintable() else " " for each in text)


#: Maximum of the API server's endpoints to which one request tries to connect.
_MAX_CONNECTS = 3
# : Fields that the ingress has set (`forwarded_headers`) and that `split_identity_headers` removes along with
# identities.
_FORWARDED = re.compile(rb"(?im)^(?:x-forwarded-(?:for|proto|host)|x-real-ip|forwarded):[^\n]*\n")
# Accept-Encoding: the API server rewrites links only in bodies that it can decode. Audit-ID: by choosing one, a
# client could confuse its entries in the audit log with entries of others.
_NOT_FOR_IT = re.compile(rb"(?im)^(?:accept-encoding|audit[-_]id):[^\n]*\n")
_CREDENTIALS = re.compile(rb"(?im)^(?:authorization|sec[-_]websocket[-_]protocol):[^\n]*\n")


class ServiceBehindAPIServer:
    """A `Target`: a service in a cluster. `cluster` returns the current cluster, or None after its removal."""

    __slots__ = ("_cluster", "_gone", "_refused", "in_flight", "prefix")

    def __init__(
        self,
        cluster: Callable[[], Cluster | None],
        namespace: str,
        service: str,
        port: int | str,
        refused: Callable[[int, str], None] = lambda status, message: None,
    ) -> None:
        """`service` can begin with `https:`. `refused` is called with the code and message of a replaced Status."""
        self._cluster = cluster
        self._refused = refused
        self._gone = False
        self.in_flight = 0
        self.prefix = f"/api/v1/namespaces/{namespace}/services/{service}:{port}/proxy".encode()

    @property
    def takes_requests(self) -> bool:
        return not self._gone

    def leave(self) -> None:
        """Accept no more requests."""
        self._gone = True

    def take(self, *, upgrade: bool) -> ClientStream | None:
        """Return an HTTP/1.1 stream: a pod's response could end an HTTP/2 connection that carries other requests."""
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
            return None  # `open` will fail too, and raise the cause

    def open(self, *, upgrade: bool) -> Deferred[ClientStream]:
        return Deferred.fromCoroutine(self._open())

    async def _open(self) -> ClientStream:
        cluster = self._cluster()
        if self._gone or cluster is None:
            raise TargetGone("the service is not an endpoint any more")
        try:
            await cluster.credentials.ready()
        except CredentialError:  # the source of the credential has logged the cause
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
    """A `ClientStream` that sends a request to a service with the proxy's own credential."""

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
    """Return a client's fields to pass on, with the ingress' own X-Forwarded-*, X-Real-IP and Forwarded."""
    forwarded = b"".join(_FORWARDED.findall(fields))
    try:
        kept = split_identity_headers(fields).fields
    except StatusError:  # there are several Authorization fields, or many subprotocols with a token among them
        kept = split_identity_headers(_CREDENTIALS.sub(b"", fields)).fields
    return _NOT_FOR_IT.sub(b"", kept) + forwarded
