"""Deletion of a collection: by each member in scope, with the selectors of the request.

A kube-apiserver deletes the first `limit` objects of its list, and returns this page with a token for the next page.
Here the pages of one member follow the pages of the previous member.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import msgspec
from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate import warnings
from mcproxy.aggregate.freshness import RETRY_AFTER, may_have
from mcproxy.aggregate.writes import member_requests, read_your_writes
from mcproxy.aggregate.writes.member_requests import (
    Sending,
    accepted,
    ask_all,
    client_fields,
    code_of,
    edit_query,
    hand_back,
    is_success,
    message_of,
    reason_of,
    respond,
    selector_for,
    warnings_of,
)
from mcproxy.aggregate.writes.request_body import BodyKind, RequestBody
from mcproxy.aggregate.writes.uncached_reads import MemberList, merged_list
from mcproxy.kube.query_parameters import integer, parse_query
from mcproxy.kube.status import StatusError, qualified, retry_after
from mcproxy.requests.coroutines import gather

if TYPE_CHECKING:
    from mcproxy.aggregate.authorization import WriteRights
    from mcproxy.aggregate.request import AggregatedRequest, MemberResponse
    from mcproxy.aggregate.view.view import MemberView, View
    from mcproxy.http.messages import Header
    from mcproxy.kube.resource import GroupVersionResource

_VERSION = "mcproxy.io/delete/v1"
_MAX_LENGTH = 16 * 1024


class _Token(msgspec.Struct):
    v: str
    cluster: str
    # The member's own continue token; "": from its beginning.
    token: str = msgspec.field(name="continue", default="")


class PagePosition(NamedTuple):
    """The start of the next page: the member, and the member's own token ("": from its beginning)."""

    member: str
    token: str


def encode(position: PagePosition) -> str:
    """Return the token for the client."""
    token = msgspec.json.encode(_Token(_VERSION, position.member, position.token))
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode()


def decode(text: str) -> PagePosition:
    """Read a token. Raises StatusError (400)."""
    try:
        if len(text) > _MAX_LENGTH:
            raise ValueError
        found = msgspec.json.decode(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True), type=_Token)
    except (ValueError, UnicodeError, RecursionError):
        found = _Token("", "")
    if found.v != _VERSION:
        raise StatusError(400, "invalid continue token: it was not made by a deletion of a collection here")
    return PagePosition(found.cluster, found.token)


class DeleteCollection:
    """The deletion of one collection."""

    def __init__(
        self,
        request: AggregatedRequest,
        view: View,
        gvr: GroupVersionResource,
        namespace: str,
        body: RequestBody,
        clock: IReactorTime,
        rights: WriteRights,
    ) -> None:
        self._request = request
        self._view = view
        self._gvr = gvr
        self._namespace = namespace
        self._body = body
        self._clock = clock
        self._rights = rights
        self._query = parse_query(request.target.partition(b"?")[2])
        self._limit = max(0, integer(self._query.get("limit") or "0"))

    async def run(self) -> None:
        """Answer the request. Raises StatusError."""
        request = self._request
        accept = accepted(request, protobuf=False)
        targets = self._targets()
        bodies = {name: self._body_for(name) for name in targets}
        fields = [(b"Accept", accept), *client_fields(request)]
        if self._body.content_type is not None:
            fields.append((b"Content-Type", self._body.content_type))

        async def send(name: str, target: bytes = b"") -> MemberResponse:
            return await request.send(name, b"DELETE", target or targets[name], fields=fields, body=bodies[name])

        names = list(targets)
        undone = self._undone()
        if not names and not undone:
            self._answer_empty()
            return
        if names and len(self._view.layout) > 1 and (self._limit or self._query.get("continue")):
            await self._page(targets, undone, send)
            return
        results = dict(zip(names, await ask_all(names, send), strict=True)) | undone
        request.served_by(*names, cached=False)
        failed = [name for name in results if not is_success(results[name])]
        if failed:
            self._fail(results, failed)
            return
        await self._succeed([result for result in results.values() if not isinstance(result, StatusError)])

    def _targets(self) -> dict[str, bytes]:
        """Return the members that get the request, each with its target. Raises StatusError (400)."""
        members = [
            member
            for member in self._view.members
            if member.covers(self._namespace) and member.name in self._request.members
        ]
        targets = {}
        for member in members:
            selector = selector_for(self._query.get("labelSelector", ""), member.name)
            if selector is None:
                continue
            changes: dict[str, str | None] = {"labelSelector": selector or None}
            version = self._query.get("resourceVersion")
            if version:
                changes["resourceVersion"] = self._view.reader.list_part(version, member.name, self._subject)
            if selector == self._query.get("labelSelector", ""):
                del changes["labelSelector"]
            targets[member.name] = edit_query(self._request.target, changes)
        return targets

    def _undone(self) -> dict[str, StatusError]:
        """Return the members that may have objects of the collection but cannot be asked now."""
        selector = self._query.get("labelSelector", "")
        return {
            member: retry_after(503, f"cluster {member} is unavailable: {why}", RETRY_AFTER, name=member)
            for member, why in may_have(self._view, self._namespace, self._request.left_out, ())
            if selector_for(selector, member) is not None
        }

    async def _page(
        self, targets: Mapping[str, bytes], undone: Mapping[str, StatusError], send: Callable[..., Sending]
    ) -> None:
        """Delete the first `limit` objects of the collection, member by member."""
        names, token, left = list(targets), "", self._limit
        if text := self._query.get("continue"):
            place = decode(text)
            if place.member not in names:
                raise StatusError(410, f"cluster {place.member} is no longer in the collection", reason="Expired")
            names, token = names[names.index(place.member) :], place.token
        results: dict[str, MemberResponse | StatusError] = {}
        following: PagePosition | None = None
        for number, name in enumerate(names):
            results[name] = answer = (await ask_all([name], partial(send, target=_paged(targets[name], left, token))))[
                0
            ]
            if not is_success(answer) or isinstance(answer, StatusError):
                break
            found = MemberList(answer)
            left -= len(found.items)
            token = found.continue_token
            if token:
                following = PagePosition(name, token)
            elif self._limit and left <= 0 and number + 1 < len(names):
                following = PagePosition(names[number + 1], "")
            if following is not None:
                break
        self._request.served_by(*results, cached=False)
        if following is None:
            results |= undone
        if failed := [name for name, result in results.items() if not is_success(result)]:
            self._fail(results, failed)
            return
        good = [result for result in results.values() if not isinstance(result, StatusError)]
        await self._succeed(good, "" if following is None else encode(following))

    def _body_for(self, name: str) -> bytes:
        reader = self._view.reader
        return self._body.for_member(
            name, lambda text: reader.owner_part(text, name, self._subject), BodyKind.DELETE_OPTIONS
        )

    @property
    def _subject(self) -> str:
        return qualified(self._gvr.group, self._gvr.resource)

    def _answer_empty(self) -> None:
        """Answer if no member has objects to delete. Raises StatusError (403) if no member allows the request."""
        left_out = self._request.left_out
        if left_out and not self._request.members:
            raise StatusError(403, "; ".join(f"cluster {each.member}: {each.why}" for each in left_out), details={})
        resource, versions = self._view.resource, self._view.versions_of((), self._namespace)
        body = {
            "kind": resource.list_kind,
            "apiVersion": self._gvr.api_version,
            "metadata": {"resourceVersion": self._view.format.list_version(versions)},
            "items": [],
        }
        respond(self._request, 200, json.dumps(body, separators=(",", ":")).encode() + b"\n", self._left_out())

    def _fail(self, results: Mapping[str, MemberResponse | StatusError], failed: Sequence[str]) -> None:
        """Answer with the result of each member, or with a single refusal if all members refuse in the same way."""
        if len(failed) == len(results) and len({code_of(each) for each in results.values()}) == 1:
            hand_back(self._request, results[failed[0]], more=self._left_out())
            return
        causes = []
        for name, result in results.items():
            if name in failed:
                code, why = code_of(result), message_of(result)
                causes.append({"reason": reason_of(result) or str(code), "message": f"cluster {name}: {code}: {why}"})
            else:
                causes.append({"reason": "Success", "message": f"cluster {name}: its collection was deleted"})
        details: dict[str, Any] = {"group": self._gvr.group, "kind": self._gvr.resource, "causes": causes}
        raise StatusError(
            500,
            f"the collection of {self._subject} was not deleted in every cluster; failed: {', '.join(failed)}",
            details={key: value for key, value in details.items() if value},
        )

    async def _succeed(self, results: Sequence[MemberResponse], token: str = "") -> None:
        request, view = self._request, self._view
        readers = await self._rights.readers([result.member for result in results], self._namespace)
        if all(member_requests.read_written(result).is_status for result in results):
            hand_back(request, results[0], more=self._left_out(), may_read=results[0].member in readers)
            return
        lists = [MemberList(result) for result in results if not member_requests.read_written(result).is_status]
        lists = [each for each in lists if each.is_table == lists[0].is_table]
        if not self._is_dry_run():
            await self._until_gone(lists)
        versions = view.versions_of(readers, self._namespace)
        version = view.format.list_version(versions)
        body = await merged_list(lists, self._gvr, self._version_of, self._clock, resource_version=version, token=token)
        told = [result for result in results if result.member in readers]
        respond(request, 200, body, [*warnings_of(told), *self._left_out()])

    def _version_of(self, name: str, text: str) -> str:
        member, number = self._view.member(name), member_requests.version_number(text)
        return text if member is None or not number else self._view.format.object(member.index, number)

    async def _until_gone(self, lists: Sequence[MemberList]) -> None:
        waiting = []
        for each in lists:
            member = self._view.member(each.member)
            if member is not None and not each.is_table:
                waiting.append(self._member_until_gone(member, each))
        await gather(waiting)

    async def _member_until_gone(self, member: MemberView, found: MemberList) -> None:
        objects = {(item.namespace, item.name): item.uid for item in found.objects()}
        await read_your_writes.until_gone(member.stores_of(self._namespace), objects, self._clock)

    def _is_dry_run(self) -> bool:
        return "dryRun" in self._query or self._body.is_dry_run

    def _left_out(self) -> list[Header]:
        texts = [f"cluster {each.member}: its objects were left: {each.why}" for each in self._request.left_out]
        return list(warnings.warnings(texts))


def _paged(target: bytes, limit: int, token: str) -> bytes:
    """Return a target with the given `limit` (0: none) and `continue` parameters."""
    path, _, query = edit_query(target, {"limit": None, "continue": None}).partition(b"?")
    more = [
        (b"limit=%d" % limit) if limit > 0 else b"",
        b"continue=" + quote(token, safe="").encode() if token else b"",
    ]
    return path + b"?" + b"&".join(filter(None, [query, *more]))
