"""Deletion of a collection: by each member in scope, with the selectors of the request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate import warnings
from mcproxy.aggregate.member_requests import (
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
    warnings_of,
)
from mcproxy.aggregate.member_selection import selector_for
from mcproxy.aggregate.merged_list import MemberList, merged
from mcproxy.aggregate.writes import answers, visibility
from mcproxy.aggregate.writes.request_body import BodyKind, RequestBody
from mcproxy.kube.errors import qualified
from mcproxy.kube.query_parameters import integer, parse_query
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from mcproxy.aggregate.request import AggregatedRequest, MemberResponse
    from mcproxy.aggregate.view.view import MemberView, View
    from mcproxy.http.messages import Header
    from mcproxy.kube.resource import GroupVersionResource


class DeleteCollection:
    """One such request."""

    def __init__(
        self,
        request: AggregatedRequest,
        view: View,
        gvr: GroupVersionResource,
        namespace: str,
        body: RequestBody,
        clock: IReactorTime,
    ) -> None:
        self._request = request
        self._view = view
        self._gvr = gvr
        self._namespace = namespace
        self._body = body
        self._clock = clock
        self._query = parse_query(request.target.partition(b"?")[2])

    async def run(self) -> None:
        """Answer the request. Raises StatusError."""
        request = self._request
        accept = accepted(request, protobuf=False)
        targets = self._targets()
        bodies = {name: self._body_for(name) for name in targets}
        fields = [(b"Accept", accept), *client_fields(request)]
        if self._body.content_type is not None:
            fields.append((b"Content-Type", self._body.content_type))

        async def send(name: str) -> MemberResponse:
            return await request.send(name, b"DELETE", targets[name], fields=fields, body=bodies[name])

        names = list(targets)
        if not names:
            self._answer_empty()
            return
        results = dict(zip(names, await ask_all(names, send), strict=True))
        request.served_by(*names, cached=False)
        failed = [name for name in names if not is_success(results[name])]
        if failed:
            self._fail(results, failed)
            return
        await self._succeed([result for result in results.values() if not isinstance(result, StatusError)])

    def _targets(self) -> dict[str, bytes]:
        """Return the members to send to, each with its target. Raises StatusError (400)."""
        members = [
            member
            for member in self._view.members
            if member.covers(self._namespace) and member.name in self._request.members
        ]
        if len(self._view.layout) > 1 and (self._query.get("continue") or integer(self._query.get("limit") or "0") > 0):
            raise StatusError(400, "limit and continue are not possible where several clusters delete a collection")
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

    def _body_for(self, name: str) -> bytes:
        reader = self._view.reader
        return self._body.for_member(
            name, lambda text: reader.owner_part(text, name, self._subject), BodyKind.DELETE_OPTIONS
        )

    @property
    def _subject(self) -> str:
        return qualified(self._gvr.group, self._gvr.resource)

    def _answer_empty(self) -> None:
        """Answer where nothing is to be deleted anywhere. Raises StatusError (403) if the user may touch no member."""
        left_out = self._request.left_out
        if left_out and not self._request.members:
            raise StatusError(403, "; ".join(f"cluster {member}: {why}" for member, why in left_out), details={})
        resource, versions = self._view.resource, self._view.versions_of((), self._namespace)
        body = {
            "kind": resource.list_kind,
            "apiVersion": self._gvr.api_version,
            "metadata": {"resourceVersion": self._view.format.whole(versions)},
            "items": [],
        }
        respond(self._request, 200, json.dumps(body, separators=(",", ":")).encode() + b"\n", self._left_out())

    def _fail(self, results: Mapping[str, MemberResponse | StatusError], failed: Sequence[str]) -> None:
        """Say what each member answered; where all refuse alike, it is that refusal."""
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

    async def _succeed(self, results: Sequence[MemberResponse]) -> None:
        request, view = self._request, self._view
        if all(answers.read(result).is_status for result in results):
            hand_back(request, results[0], more=self._left_out())
            return
        lists = [MemberList(result) for result in results if not answers.read(result).is_status]
        lists = [each for each in lists if each.is_table == lists[0].is_table]
        if not self._is_dry_run():
            await self._until_gone(lists)
        versions = view.versions_of(frozenset(result.member for result in results), self._namespace)
        version = view.format.whole(versions)
        body = await merged(lists, self._gvr, self._version_of, self._clock, resource_version=version)
        respond(request, 200, body, [*warnings_of(results), *self._left_out()])

    def _version_of(self, name: str, text: str) -> str:
        member, number = self._view.member(name), answers.version_number(text)
        return text if member is None or not number else self._view.format.object(member.index, number)

    async def _until_gone(self, lists: Sequence[MemberList]) -> None:
        waiting = []
        for each in lists:
            member = self._view.member(each.member)
            if member is not None and not each.is_table:
                waiting.append(Deferred.fromCoroutine(self._member_until_gone(member, each)))
        await gatherResults(waiting, consumeErrors=True)

    async def _member_until_gone(self, member: MemberView, found: MemberList) -> None:
        objects = {(item.namespace, item.name): item.uid for item in found.objects()}
        await visibility.until_gone(member.stores_of(self._namespace), objects, self._clock)

    def _is_dry_run(self) -> bool:
        return "dryRun" in self._query or self._body.is_dry_run

    def _left_out(self) -> list[Header]:
        texts = [f"cluster {member}: its objects were left: {why}" for member, why in self._request.left_out]
        return list(warnings.warnings(texts))
