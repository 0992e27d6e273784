"""The steps of a request to an Admin listener, in order:

    head -> Host and origin -> user -> method -> path -> authorized? -> answer

A request with a wrong Host, from a web page of another site, or without a user learns nothing, not even which paths
are served. Expensive answers (all except probes) are limited in number, so that a flood of them does not delay requests
to clusters. Each listener has its own limit, and one remote client can use half of it. So a client that does not read
the answers of a listener without authentication blocks neither operators on other listeners nor other scrapers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.identity.authorization.attributes import Attributes, forbidden
from mcproxy.identity.cross_site import is_foreign
from mcproxy.kube import healthz
from mcproxy.kube.healthz import Check
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.proxy.admin import admin_paths, browsers, request_list
from mcproxy.proxy.admin.admin_interface import AdminSource
from mcproxy.proxy.admin.admin_paths import Requested
from mcproxy.proxy.admin.cached_call import CachedCall
from mcproxy.proxy.client_connection import ClientConnectionInfo
from mcproxy.proxy.request import own_fields, refusal_fields
from mcproxy.proxy.routes import Routes
from mcproxy.requests.coroutines import settled, start
from mcproxy.requests.correlation import audit_id_of

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.http.exchange import Exchange
    from mcproxy.identity.authentication.authenticator import Authenticator, NoAuthentication
    from mcproxy.identity.authorization.authorizer import Authorizer

log = Logger(__name__)

MAX_AT_ONCE = 16
"""Maximum number of concurrent answers (except probes) of a listener in one process; more requests get 429."""
MAX_OF_CLIENT = MAX_AT_ONCE // 2
"""Maximum for one remote address. Addresses of this machine have no such maximum: many clients share each of them."""
_CHECKS_LAST = 0.5
"""Seconds for which the checks by other processes are cached, since anybody may request probes without limit."""
_METHODS = (b"GET", b"HEAD")
_LOGGED = (401, 403, 429)
_TEXT = b"text/plain; charset=utf-8"
_JSON = b"application/json"
_YAML = b"application/yaml"
_HTML = b"text/html; charset=utf-8"

SendBody = Callable[["Exchange", bytes, Iterator[bytes], bool], Any]
"""``(exchange, fields, pieces, gzip)``: sends a 200 with back-pressure; must be awaited."""


Templates = Callable[[str], Coroutine[Deferred[Any], Any, str | None]]
"""``(group)``: returns the text of /bootstrap/GROUP ("": the list of paths); None: no API service has this group."""


class AdminParts:
    """The parts that all Admin listeners of a process share, over reloads."""

    def __init__(
        self,
        source: AdminSource,
        checks: Callable[[], Sequence[Check]],
        send_body: SendBody,
        clock: IReactorTime,
        templates: Templates,
    ) -> None:
        """`checks` returns this process's own checks of /readyz; the first is that it is not shutting down."""
        self.source = source
        self.templates = templates
        self.checks = checks
        self.send_body = send_body
        self.checks_of_daemon = CachedCall(source.checks, clock, _CHECKS_LAST)
        # A request during a running call gets this call's answer, so a flood of scrapes runs one call at a time.
        self.status = CachedCall(source.status, clock, 0.0)
        self.metrics = {
            openmetrics: CachedCall(partial(source.metrics, openmetrics), clock, 0.0) for openmetrics in (False, True)
        }
        self.running: Counter[tuple[str, str]] = Counter()
        """The numbers of running answers by (listener, client address); "" as the address counts the whole listener."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    content_type: bytes
    pieces: Iterable[bytes]
    policy: bytes = browsers.PLAIN_POLICY


class AdminPipeline:
    """How one Admin listener handles requests under one Runtime."""

    def __init__(
        self,
        listener: model.ListenerConfig,
        parts: AdminParts,
        *,
        authenticator: Authenticator | NoAuthentication,
        authorizer: Authorizer | None,
    ) -> None:
        self.routes = Routes(())
        self._listener = listener
        self._paths = frozenset(listener.paths)
        self._parts = parts
        self._authenticator = authenticator
        self._authorizer = authorizer
        bind = listener.bind
        self._bound = bind.host.lower() if isinstance(bind, model.TCPBind) else ""
        # Clients can reach an open listener directly, and with TLS a web page would need a certificate for its name.
        self._checks_host = listener.tls is None and isinstance(bind, model.TCPBind) and not is_foreign(self._bound)

    def handle(self, exchange: Exchange) -> None:
        """Handle a request of the HTTP engine."""
        start(self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        connection = exchange.connection
        client = connection.handler_state
        if not isinstance(client, ClientConnectionInfo) or client.routes is not self.routes:
            client = ClientConnectionInfo(connection, self.routes, self._listener.trusted_proxies, self.handle)
            connection.handler_state = client
        try:
            requested = await self._admitted(exchange, client)
            await self._answer(exchange, client, requested)
        except StatusError as refusal:
            if refusal.code in _LOGGED:
                log.info(
                    "a request to an Admin listener was refused",
                    event="admin_request_refused",
                    client=client.log_address,
                    listener=self._listener.name,
                    cause=refusal.message,
                    status=refusal.code,
                )
            self._refuse(exchange, refusal)
        except Exception:
            log.failure("a bug in an answer of an Admin listener", event="internal_error")
            self._refuse(exchange, StatusError(500, "internal error"))

    # -- authorization ------------------------------------------------------------------------------------------------

    async def _admitted(self, exchange: Exchange, client: ClientConnectionInfo) -> Requested:
        """Return the parsed request of an authorized client. Raises StatusError."""
        head = exchange.head
        if self._checks_host:
            browsers.check_host(head.host, self._bound)
        headers = client.identity_headers(head.fields)
        browsers.check_site(headers, head.host)
        path = head.target.partition(b"?")[0]
        caller = await settled(self._authenticator.authenticate(client.peer, headers, path, client=client.address))
        if headers.impersonate:
            raise StatusError(403, "nobody can be impersonated here")
        if head.method not in _METHODS:
            raise StatusError(
                405, "only GET and HEAD are served here, nothing can be changed", headers=((b"Allow", b"GET, HEAD"),)
            )
        requested = admin_paths.find(head.target, self._paths)
        if requested is None:
            raise StatusError(404, "this path is not served here", details={})
        if self._authorizer is not None:
            await self._authorize(self._authorizer, caller, requested)
        return requested

    async def _authorize(self, authorizer: Authorizer, caller: AuthenticatedUser, requested: Requested) -> None:
        reviewer = authorizer.reviewer
        user = caller.user if reviewer is None else caller.for_cluster(reviewer)
        path = f"{requested.path}/{requested.check}" if requested.check else requested.path
        attributes = Attributes("get", path=path, is_resource=False)
        decision = await settled(authorizer.decide(user, attributes, reviewer or ""))
        if not decision.allowed:
            raise forbidden(user, attributes, decision.reason)

    # -- answers ------------------------------------------------------------------------------------------------------

    async def _answer(self, exchange: Exchange, client: ClientConnectionInfo, requested: Requested) -> None:
        probe = requested.path[1:]
        if probe in healthz.PROBES:
            answer = await self._probe(probe, requested)
            self._send_whole(exchange, answer)
            return
        parts = self._parts
        place = self._place(client)
        parts.running.update(place)
        try:
            answer = await self._made(exchange, requested)
            if exchange.head.method == b"HEAD":
                self._send_whole(exchange, answer)
            elif not exchange.ended:
                gzip = _accepts_gzip(exchange.head.header(b"accept-encoding"))
                await parts.send_body(exchange, self._fields(exchange, answer), iter(answer.pieces), gzip)
        finally:
            parts.running.subtract(place)
            parts.running += Counter()  # removes the keys whose count is zero

    def _place(self, client: ClientConnectionInfo) -> Sequence[tuple[str, str]]:
        """Return the keys under which a request of this client is counted. Raises StatusError (429)."""
        name, address, running = self._listener.name, client.address, self._parts.running
        everybody = (name, "")
        elsewhere = bool(address) and is_foreign(address)
        if running[everybody] >= MAX_AT_ONCE or (elsewhere and running[name, address] >= MAX_OF_CLIENT):
            raise retry_after(429, "too many requests at the same time, please try again later", 1)
        return (everybody, (name, address)) if elsewhere else (everybody,)

    async def _probe(self, probe: str, requested: Requested) -> _Answer:
        try:
            query = healthz.parse_query(requested.query)
        except ValueError:
            raise StatusError(400, "too many parameters") from None
        checks = [Check("ping", "")]
        if probe != "livez":
            local = self._parts.checks()
            checks += local if probe == "readyz" else local[1:]
            checks += await self._parts.checks_of_daemon.get()
        if requested.check:
            found = healthz.answer_one(requested.check, checks)
            if found is None:
                raise StatusError(404, "there is no such check", details={})
        else:
            found = healthz.answer(probe, checks, query)
        return _Answer(found[0], _TEXT, [found[1].encode()])

    async def _made(self, exchange: Exchange, requested: Requested) -> _Answer:
        parts, source = self._parts, self._parts.source
        match requested.path:
            case "/metrics":
                openmetrics, kind = _metrics_type((exchange.head.header(b"accept") or b"").decode("latin-1"))
                return _Answer(200, kind.encode(), await parts.metrics[openmetrics].get())
            case "/config":
                return _Answer(200, _TEXT, [(await source.config()).encode()])
            case "/debug/requests":
                document = await source.requests()
                if _wants_page(exchange, requested):
                    from mcproxy.proxy.admin.page import page, query

                    now = _rfc3339(exchange.connection.wall_seconds())
                    pieces = page.render_requests(document, self._paths, now, query.parse(requested.query))
                    return _Answer(200, _HTML, (piece.encode() for piece in pieces), page.POLICY)
                if _wants_table(exchange, requested):
                    return _Answer(200, _TEXT, [request_list.table(document).encode()])
                return _Answer(200, _JSON, [_json(document)])
            case admin_paths.BOOTSTRAP:
                text = await parts.templates(requested.check)
                if text is None:
                    raise StatusError(404, "no API service is of this group", details={})
                return _Answer(200, _YAML if requested.check else _TEXT, [text.encode()])
            case "/status":
                return _Answer(200, _JSON, [_json(await parts.status.get())])
        from mcproxy.proxy.admin.page import page, query  # imported late to save memory if nobody requests it

        now = _rfc3339(exchange.connection.wall_seconds())
        pieces = page.render(await parts.status.get(), self._paths, now, query.parse(requested.query))
        return _Answer(200, _HTML, (piece.encode() for piece in pieces), page.POLICY)

    def _fields(self, exchange: Exchange, answer: _Answer) -> bytes:
        more = b"Content-Type: %b\r\n%b%b" % (answer.content_type, browsers.FIELDS, answer.policy)
        return own_fields(audit_id_of(exchange.head.fields), exchange.connection.wall_seconds(), more)

    def _send_whole(self, exchange: Exchange, answer: _Answer) -> None:
        exchange.answer(answer.status, self._fields(exchange, answer), b"".join(answer.pieces))

    def _refuse(self, exchange: Exchange, refusal: StatusError) -> None:
        if exchange.responded or exchange.ended:
            exchange.abort()
            return
        fields = refusal_fields(refusal, audit_id_of(exchange.head.fields), exchange.connection.wall_seconds())
        exchange.answer(refusal.code, fields, refusal.body())


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")


def _metrics_type(accept: str) -> tuple[bool, str]:
    from mcproxy.observe.metrics.exposition import content_type

    return content_type(accept)


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _wants_page(exchange: Exchange, requested: Requested) -> bool:
    """Whether to answer with HTML: Accept begins with text/html, as a browser's, and the query requests no format."""
    accepted = (exchange.head.header(b"accept") or b"").startswith(b"text/html")
    return accepted and not requested.query.startswith(b"format=")


def _wants_table(exchange: Exchange, requested: Requested) -> bool:
    """Whether to answer with a text table: the query is `format=table`, or Accept begins with `text/`."""
    return requested.query == b"format=table" or (exchange.head.header(b"accept") or b"").startswith(b"text/")


def _accepts_gzip(value: bytes | None) -> bool:
    """Whether a request's Accept-Encoding names gzip, and not with q=0."""
    for item in (value or b"").lower().split(b","):
        name, _, parameters = item.partition(b";")
        if name.strip() in (b"gzip", b"*"):
            return parameters.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False
