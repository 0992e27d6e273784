"""Serves /apis/apiregistration.k8s.io/v1/apiservices of a server with API services: its own APIService objects, and
those of its backend with other names.

The proxy queries the backend with the client's identity, on the path of the client's own request. So the backend's
refusal is the answer, and users whom it refuses do not see the server's own objects ("ours"). If the backend lacks the
resource, only our objects exist. Requests that do not concern our objects (other names, creates) are not handled here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from mcproxy.apiservices.availability import Registration
from mcproxy.apiservices.object_merge import (
    GROUP,
    KIND,
    LABELS,
    RESOURCE,
    VERSION,
    Maker,
    Own,
    RequestedForm,
    UnreadableAnswer,
    merged_list,
    names_of,
)
from mcproxy.config import model
from mcproxy.identity.authorization.attributes import attributes_of, forbidden
from mcproxy.kube import list_options, media_types
from mcproxy.kube.query_parameters import parse_query
from mcproxy.kube.selectors import label_matcher, parse_field_selector, parse_label_selector
from mcproxy.kube.status import StatusError, expired, qualified
from mcproxy.net.wall_time import WallSeconds
from mcproxy.proxy import subrequest
from mcproxy.proxy.api_service_watch import APIServiceWatch

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.aggregate.request import MemberResponse
    from mcproxy.apiservices.availability import Availability
    from mcproxy.http.exchange import Exchange
    from mcproxy.http.messages import RequestHead
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.proxy.request import Request

COLLECTION = f"/apis/{GROUP}/{VERSION}/{RESOURCE}"
_REVIEW = b"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_DIGITS = 20  # maximum digits of a resourceVersion with 64 bits
_LIMIT = 32 * 1024 * 1024  # maximum bytes of the backend's list
_WRITES = ("update", "patch", "delete")
_PARAMETERS = ("labelSelector", "fieldSelector", "resourceVersion", "resourceVersionMatch", "continue", "includeObject")
_JSON = b"Content-Type: application/json\r\n"


class _ReviewStatus(msgspec.Struct):
    allowed: bool = False
    reason: str = ""


class _Review(msgspec.Struct):
    status: _ReviewStatus


class _Meta(msgspec.Struct):
    resourceVersion: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta


class APIServiceObjects:
    """The APIService objects of one server, under one Runtime."""

    home = ""  # requests to the backend go to the whole backend, not to one cluster

    def __init__(self, server: model.Server, known: Availability, clock: IReactorTime) -> None:
        self._server = server.name
        self._clock = clock
        self._services: Mapping[str, model.APIService] = {each.object_name: each for each in server.api_services}
        self._known = known

    def takes(self, info: RequestInfo, head: RequestHead) -> bool:
        """Whether a request is answered here. HEAD is not: the backend refuses it for any name."""
        if (
            head.method == b"HEAD"
            or (info.group, info.version, info.resource) != (GROUP, VERSION, RESOURCE)
            or info.namespace
        ):
            return False
        if info.verb in ("list", "watch"):
            return not info.subresource
        return info.name in self._services and info.subresource in ("", "status") and info.verb in ("get", *_WRITES)

    async def serve(self, request: Request, info: RequestInfo, target: bytes, handle: subrequest.Handle) -> None:
        """Answer a request that `takes` accepts; `handle` sends requests to the backend.

        Raises StatusError, and CancelledError."""
        backend = _Backend(request, handle)
        if info.verb in _WRITES:
            await self._write(request, info, target, backend)
        elif info.verb == "list":
            await self._list(request, target, backend)
        elif info.verb == "watch":
            await self._watch(request, info, target, backend)
        else:
            await self._get(request, info, target, backend)

    async def _list(self, request: Request, target: bytes, backend: _Backend) -> None:
        query = parse_query(target.partition(b"?")[2])
        options = list_options.parse(query)
        accept = (request.exchange.head.header(b"accept") or b"").decode("latin-1")
        form = _form(media_types.negotiate(accept, list_of=(GROUP, KIND)), query)
        asked = {name: query[name] for name in _PARAMETERS if name in query}
        # The answer ignores the client's `limit`. Kubernetes: "servers may choose not to support the limit".
        response = await backend.get(COLLECTION, asked, _accept(form))
        maker = self._maker(request, form)
        ours = [] if options.continue_token else self._selected(options)
        if response.status == 404:
            body = maker.empty_list(_now(request))
        elif response.status == 200:
            body = response.body
            if not options.resource_version and not options.continue_token:
                self._set_floor(_version_of(response), _client(request))
        else:
            subrequest.relay(request, response)
            return
        try:
            merged = merged_list(body, maker, self._services, ours)
        except UnreadableAnswer as problem:
            raise _unreadable(problem) from None
        warnings = b"".join(b"Warning: %b\r\n" % value for name, value in response.fields if name.lower() == b"warning")
        request.exchange.answer(200, request.own_fields(_JSON + warnings), merged)

    async def _watch(self, request: Request, info: RequestInfo, target: bytes, backend: _Backend) -> None:
        query = parse_query(target.partition(b"?")[2])
        options = list_options.parse(query, watch=True)
        accept = (request.exchange.head.header(b"accept") or b"").decode("latin-1")
        form = _form(media_types.negotiate(accept), query)
        self._selected(options)  # refuses an invalid selector
        version = options.resource_version
        resumes = version not in ("", "0")
        known = self._known
        if not options.initial_events and (not resumes or known.floor(self._server) is None):
            listed = await backend.get(COLLECTION, {"limit": "1"}, "application/json")
            if listed.status == 200:
                now = _version_of(listed)
                self._set_floor(now, "" if resumes else _client(request))
                version = version if resumes else now
            elif listed.status != 404:
                subrequest.relay(request, listed)
                return
        floor, number = known.floor(self._server), _number(version)
        if resumes and not options.initial_events and floor is not None and number is not None:
            proven = number > floor or (number == floor and known.got_minimum_version(self._server, _client(request)))
            if not proven:
                raise expired(f"too old resource version: {version} ({floor})")
        services = tuple(self._services.values())
        watch = APIServiceWatch(
            request,
            self._clock,
            self._maker(request, form),
            options,
            names=tuple(self._services),
            ours=lambda: [own for own in self._selected(options) if info.name in ("", own.service.object_name)],
            version=version,
        )
        watch.follow(
            known.subscribe(watch.changed),
            known.on_configured(lambda: watch.configured(same=known.services(self._server) == services)),
        )
        try:
            watch.opened(backend.stream(target, _accept(form), watch))
            refused = await watch.begun
        except BaseException:
            watch.stop()
            raise
        if refused is None:
            return
        if refused.status != 404:
            watch.stop()
            subrequest.relay(request, refused)
        elif resumes and (number is None or number < int(known.begun(self._server) * 1000)):
            watch.stop()
            raise expired(f"too old resource version: {version}")
        else:
            watch.begin_alone(_now(request))

    async def _get(self, request: Request, info: RequestInfo, target: bytes, backend: _Backend) -> None:
        query = parse_query(target.partition(b"?")[2])
        accept = (request.exchange.head.header(b"accept") or b"").decode("latin-1")
        form = _form(media_types.negotiate(accept), query)
        response = await backend.get(info.path.rstrip("/"), {}, "application/json")
        if response.status not in (200, 404):
            subrequest.relay(request, response)
            return
        version = await self._version(request, response, backend)
        body = self._maker(request, form).single(self._own(info.name), version)
        request.exchange.answer(200, request.own_fields(_JSON), body)

    async def _version(self, request: Request, response: MemberResponse, backend: _Backend) -> str:
        """Return a version from which a client can watch: that of the hidden backend object, or of the list."""
        if response.status == 200:
            try:
                return msgspec.json.decode(response.body, type=_Object).metadata.resourceVersion
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                raise _unreadable(UnreadableAnswer("something that is not an object")) from None
        listed = await backend.get(COLLECTION, {"limit": "1"}, "application/json")
        if listed.status == 404:
            return _now(request)
        if listed.status != 200:
            return "1"
        version = _version_of(listed)
        self._set_floor(version, _client(request))
        return version

    def _set_floor(self, version: str, client: str) -> None:
        """Keep the version of a list of the backend (`Availability.set_floor`)."""
        number = _number(version)
        if number is not None:
            self._known.set_floor(self._server, number, client)

    async def _write(self, request: Request, info: RequestInfo, target: bytes, backend: _Backend) -> None:
        """Refuse a write to one of our objects: with 403 for a user without the right, else 405. Raises StatusError."""
        attributes = {
            "group": GROUP,
            "version": VERSION,
            "resource": RESOURCE,
            "name": info.name,
            "verb": info.verb,
            **({"subresource": info.subresource} if info.subresource else {}),
        }
        review = {
            "kind": "SelfSubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "spec": {"resourceAttributes": attributes},
        }
        response = await backend.post(_REVIEW, msgspec.json.encode(review))
        try:
            if response.status not in (200, 201):
                raise UnreadableAnswer(f"{response.status} to a SelfSubjectAccessReview")
            status = msgspec.json.decode(response.body, type=_Review).status
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, UnreadableAnswer):
            raise StatusError(503, "the backend cannot be asked whether the request is allowed") from None
        if not status.allowed:
            raise forbidden(request.user, attributes_of(info, target), status.reason)
        raise StatusError(
            405,
            f'{info.verb} is not supported on resources of kind "{qualified(GROUP, RESOURCE)}": {info.name} is from '
            f"the configuration of mcproxy (apiServices of server {self._server}), and is changed there",
            details={"name": info.name, "group": GROUP, "kind": RESOURCE},
        )

    def _own(self, name: str) -> Own:
        service = self._services[name]
        return Own(service, self._known.get(Registration.of(service)))

    def _selected(self, options: list_options.ListOptions) -> list[Own]:
        """Return our objects that match the selectors. Raises StatusError 400 for an invalid selector."""
        matches = label_matcher(parse_label_selector(options.label_selector)) if options.label_selector else None
        terms = parse_field_selector(options.field_selector) if options.field_selector else ()
        if matches is not None and not matches(LABELS):
            return []
        found = []
        for name in self._services:
            values = {"metadata.name": name, "metadata.namespace": ""}
            if all((values.get(term.field) == term.value) is not term.negated for term in terms):
                found.append(self._own(name))
        return found

    def _maker(self, request: Request, form: RequestedForm) -> Maker:
        return Maker(self._server, form, request.exchange.connection.wall_seconds)


class _Backend:
    """Sends requests to the backend on behalf of a request's client."""

    def __init__(self, request: Request, handle: subrequest.Handle) -> None:
        self._request = request
        self._handle = handle

    async def get(self, path: str, query: Mapping[str, str], accept: str) -> MemberResponse:
        text = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        target = quote(path).encode() + (b"?" + text.encode() if text else b"")
        return await self._ask(b"GET", target, ((b"Accept", accept.encode()),))

    async def post(self, target: bytes, body: bytes) -> MemberResponse:
        fields = ((b"Accept", b"application/json"), (b"Content-Type", b"application/json"))
        return await self._ask(b"POST", target, fields, body)

    async def _ask(
        self, method: bytes, target: bytes, fields: tuple[tuple[bytes, bytes], ...], body: bytes = b""
    ) -> MemberResponse:
        return await subrequest.fetch(
            self._request, self._handle, method, target, fields=fields, body=body, name="the backend", limit=_LIMIT
        )

    def stream(self, target: bytes, accept: str, sink: subrequest.StreamSink) -> Exchange:
        fields = ((b"Accept", accept.encode()),)
        return subrequest.stream(self._request, self._handle, target, fields=fields, name="the backend", sink=sink)


def _version_of(listed: MemberResponse) -> str:
    """Return the version of a list. Raises StatusError (502)."""
    try:
        return names_of(listed.body)[0]
    except UnreadableAnswer as problem:
        raise _unreadable(problem) from None


def _number(version: str) -> int | None:
    """Return a resourceVersion as a number, None if it is not a number; client and backend can send any text."""
    return int(version) if version.isdecimal() and len(version) <= _DIGITS else None


def _form(accepted: media_types.NegotiatedMediaType, query: Mapping[str, str]) -> RequestedForm:
    return RequestedForm(accepted.kind, accepted.version or "v1", query.get("includeObject") or "Metadata")


def _accept(form: RequestedForm) -> str:
    if not form.kind:
        return media_types.JSON
    return f"{media_types.JSON};as={form.kind};v={form.version};g=meta.k8s.io"


def _now(request: Request) -> str:
    """Return the version of objects that only this process has: the wall-clock time in milliseconds."""
    return str(int(_wall(request)() * 1000))


def _client(request: Request) -> str:
    """Return a string that identifies the client: the user, and the program's name."""
    agent = request.exchange.head.header(b"user-agent") or b""
    return f"{request.user.name}\n{agent[:200].decode('latin-1')}"


def _wall(request: Request) -> Callable[[], WallSeconds]:
    return request.exchange.connection.wall_seconds


def _unreadable(problem: UnreadableAnswer) -> StatusError:
    return StatusError(502, f"the backend has sent {problem}", reason="BadGateway")
