"""Relays a cluster's response to the client, with the necessary changes, and ends it early if necessary.

`ResponseRelay` is the sink of the upstream's response and the handler of the client's exchange. Everything about the
sending of the request is in its subclass (`forward`).

The HTTP engines call its methods while they process input. An exception would end the connection, which other requests
share over HTTP/2. So each of these methods handles its own exceptions (`_broken`).
"""

from __future__ import annotations

import re
from abc import ABCMeta, abstractmethod

from mcproxy.http.client_stream import ConnectionClosed
from mcproxy.http.messages import Header, ResponseHead
from mcproxy.http.request_relay import RequestRelay
from mcproxy.http.tunnel import TunnelSide
from mcproxy.kube.status import StatusError
from mcproxy.kube.watch_framing import EventBoundary
from mcproxy.proxy.cors import replace_fields
from mcproxy.proxy.request import Request
from mcproxy.proxy.upstream_errors import can_forge_refusal

_LOCATION = re.compile(rb"(?im)^((?:Content-)?Location:[ \t]*)/(?!/)")
_MAX_HELD = 8192  # maximum bytes of a 403 that are read before it is passed on; a Status has a few hundred bytes


class ResponseRelay(RequestRelay, metaclass=ABCMeta):
    """One response, streamed to the client with back-pressure."""

    __slots__ = (
        "_boundary",
        "_finishing",
        "_held",
        "_impersonates",
        "_request",
    )

    def __init__(self, request: Request, *, impersonates: bool) -> None:
        """`impersonates`: the request has impersonation headers, so a 403 may be about the proxy."""
        super().__init__(request.exchange)
        self._request = request
        self._boundary: EventBoundary | None = None
        self._finishing = False
        self._impersonates = impersonates
        #: A 403 whose body must be read first: it shows whether the user or the proxy was refused.
        self._held: tuple[ResponseHead, list[bytes]] | None = None

    @abstractmethod
    def _handled_unauthorized(self) -> bool:
        """Handle a 401 that rejects the proxy's own credential; return whether it was one."""

    @abstractmethod
    def _handled_redirect(self) -> bool:
        """Refuse a redirect of a server that must not redirect; return whether it was one."""

    @abstractmethod
    def _handled_impersonation_refusal(self, body: bytes) -> bool:
        """Handle a 403 that refuses the proxy the right to impersonate; return whether it was one."""

    def _broken(self, error: Exception) -> None:
        """End the request after an exception: with 500, or by breaking off a response that has begun."""
        self._request.fail(error)
        self._cancel_upstream()

    # -- the upstream -------------------------------------------------------------------------------------------

    def response_head(self, head: ResponseHead) -> None:
        try:
            if head.status == 401 and self._handled_unauthorized():
                return
            if 300 <= head.status < 400 and is_redirect(head) and self._handled_redirect():
                return
            info = self._request.info
            if info is not None and info.verb == "watch" and head.status == 200 and head.length < 0:
                self._boundary = EventBoundary(head.header(b"content-type"), head.header(b"content-encoding"))
            elif head.status == 403 and self._impersonates and self._may_be_for_the_proxy(head):
                self._held = head, []
                return
            self._respond(head)
        except Exception as error:
            self._broken(error)

    def _may_be_for_the_proxy(self, head: ResponseHead) -> bool:
        """Whether the body of a 403 must be read first."""
        return 0 != head.length <= _MAX_HELD and not self._may_be_forged

    @property
    def _may_be_forged(self) -> bool:
        """Whether the text of a 403 can come from a server below `proxy`, or from the client's path."""
        info = self._request.info
        return self._is_below_proxy or (info is not None and can_forge_refusal(info))

    @property
    def _is_below_proxy(self) -> bool:
        info = self._request.info
        return info is None or "proxy" in (info.verb, info.subresource)

    def _respond(self, head: ResponseHead) -> None:
        request = self._request
        fields = self._fields_of(head)
        self._exchange.respond(head.status, head.reason, fields, head.length, head.declared_length)
        if request.info is not None and request.info.long_running:
            request.begin_session()

    def _fields_of(self, head: ResponseHead) -> bytes:
        """Return the response fields for the client."""
        request = self._request
        request.upstream_status = head.status
        fields = request.with_audit_id(head.fields)
        if request.location_prefix:
            fields = restore_prefix(fields, request.location_prefix)
        if request.response_fields:
            fields = replace_fields(fields, request.response_fields)
        return fields

    def response_whole(self, head: ResponseHead, body: bytes) -> None:
        self._stream = None
        try:
            self._request.answered_at = self._exchange.connection.seconds()
            if head.status == 401 and self._handled_unauthorized():
                return
            if 300 <= head.status < 400 and is_redirect(head) and self._handled_redirect():
                return
            if head.status == 403 and self._impersonates and self._handled_impersonation_refusal(body):
                return
            self._exchange.answer(head.status, self._fields_of(head), body, head.reason)
        except Exception as error:
            self._broken(error)

    def response_data(self, data: bytes) -> None:
        try:
            if self._held is not None:
                _, body = self._held
                body.append(data)
                if sum(map(len, body)) > _MAX_HELD:
                    self._pass_on_held()
                return
            if self._boundary is not None:
                self._boundary.passed(data)
            self._exchange.write(data)
        except Exception as error:
            self._broken(error)

    def response_flush(self) -> None:
        try:
            self._exchange.flush()
            if self._finishing:
                self.end_gracefully()
        except Exception as error:
            self._broken(error)

    def response_end(self, trailers: list[Header]) -> None:
        self._stream = None
        try:
            self._request.answered_at = self._exchange.connection.seconds()
            if self._held is not None:
                if self._handled_impersonation_refusal(b"".join(self._held[1])):
                    return
                self._pass_on_held()
            self._exchange.end(trailers)
        except Exception as error:
            self._broken(error)

    def _pass_on_held(self) -> None:
        assert self._held is not None
        (head, body), self._held = self._held, None
        self._respond(head)
        for data in body:
            self._exchange.write(data)

    def response_upgraded(self, head: ResponseHead, side: TunnelSide) -> None:
        self._stream = None
        try:
            self._begin_tunnel(head, side)
        except Exception as error:
            side.close(clean=False)
            self._broken(error)

    def _begin_tunnel(self, head: ResponseHead, side: TunnelSide) -> None:
        request = self._request
        if request.info is not None and not request.info.long_running and not self._switched_to_long_running():
            side.close(clean=False)
            return
        upgrade = head.upgrade or self._exchange.head.upgrade or b""
        request.upstream_status = head.status
        self._tunnel_side = self._exchange.switch_protocols(head.reason, request.with_audit_id(head.fields), upgrade)
        self._tunnel_side.splice(side)
        if not self._exchange.ended:
            request.begin_session()

    def _switched_to_long_running(self) -> bool:
        """Count the tunnel of a short request as long-running from now on; False if it was refused instead."""
        request = self._request
        try:
            if request.permit is not None and request.plan is not None:
                request.permit = request.plan.limits.switch_to_long_running(request.permit, request.user.name)
        except StatusError as refusal:
            request.refuse(refusal, "flow_control")
            return False
        return True

    def _truncated(self, problem: Exception) -> None:
        """End an incomplete response, so that the client recognizes it as incomplete.

        A watch between two events has lost nothing: it ends cleanly, and an informer resumes without a relist.
        """
        self._request.suspect_api_service()
        if self._boundary is not None and isinstance(problem, ConnectionClosed):
            self._end_watch(self._boundary)
        else:
            self._request.reason = "upstream_broken"
            self._exchange.abort()

    def _end_watch(self, boundary: EventBoundary) -> None:
        if boundary.clean:
            self._request.reason = "upstream_closed_watch"
            self._exchange.end()
        else:
            self._request.reason = "upstream_broken"
            self._exchange.abort()

    # -- the client ---------------------------------------------------------------------------------------------

    def body_data(self, data: bytes) -> None:
        try:
            super().body_data(data)
        except Exception as error:
            self._broken(error)

    def body_end(self, trailers: list[Header]) -> None:
        try:
            super().body_end(trailers)
        except Exception as error:
            self._broken(error)

    def end_gracefully(self) -> None:
        if self._tunnel_side is not None:
            self._tunnel_side.close(clean=True)
        elif not self._exchange.responded or (self._boundary is not None and not self._boundary.clean):
            self._finishing = True  # inside an event: end at the next boundary
        elif self._boundary is not None:
            self._cancel_upstream()
            self._exchange.end()
        # else: no other response can be ended early and cleanly


def is_redirect(head: ResponseHead) -> bool:
    """Whether a status is a redirect (RFC 9110 15.4); 304 is not."""
    return head.status != 304 and head.header(b"location") is not None


def restore_prefix(fields: bytes, prefix: bytes) -> bytes:
    """Return a cluster's response fields with the path prefix that routing removed put back into redirects.

    Only a path that begins with exactly one slash is relative to the server's root (RFC 3986 4.2): `//` begins a host.
    """
    return _LOCATION.sub(lambda match: match[1] + prefix + b"/", fields)
