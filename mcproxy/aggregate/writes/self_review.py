"""Answers users' reviews about themselves: `kubectl auth whoami` and `kubectl auth can-i`.

SelfSubjectReview is answered here, since the proxy knows the user. The other reviews are sent with the user's identity
to the primary and every member. Source: authentication.k8s.io/v1 SelfSubjectReview; authorization.k8s.io/v1.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from mcproxy.aggregate.writes.member_requests import ask_all, client_fields, hand_back, is_success, media_type, respond
from mcproxy.http.messages import split_fields
from mcproxy.kube import protobuf
from mcproxy.kube.media_types import JSON, PROTOBUF, YAML, negotiate, only_accepted
from mcproxy.kube.nesting import refuse_deep
from mcproxy.kube.numbers import json_float
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from mcproxy.aggregate.request import AggregatedRequest, MemberResponse
    from mcproxy.aggregate.writes.held_bodies import HeldBody
    from mcproxy.kube.user import UserInfo
    from mcproxy.net.wall_time import WallSeconds

TIMEOUT = 5.0
"""Maximum seconds for the answer of each member."""
_VERSIONS = ("v1", "v1beta1", "v1alpha1")
_LISTS = ("resourceRules", "nonResourceRules")


class _Status(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _Status | None = None


class _Review(msgspec.Struct):
    kind: str = ""
    api_version: str = msgspec.field(name="apiVersion", default="")
    metadata: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


_REVIEW = msgspec.json.Decoder(_Review, float_hook=json_float)
_ACCESS_REVIEW = msgspec.json.Decoder(_AccessReview, float_hook=json_float)
_VALUE = msgspec.json.Decoder(float_hook=json_float)


async def who_am_i(request: AggregatedRequest, clusters: Sequence[str], held: HeldBody, now: WallSeconds) -> None:
    """Answer a SelfSubjectReview; `clusters` are the clusters that can know the user, `now` is seconds since 1970.

    Raises StatusError.
    """
    _check_accept(request)
    if request.info.version not in _VERSIONS:
        raise StatusError(404, "the server could not find the requested resource", details={})
    data = await held.read(request.exchange)
    if clusters and not _is_review(data, request):
        # Send the body to a cluster, whose answer describes the error in it.
        (answer,) = await _send(request, clusters[:1], data)
        if not is_success(answer):
            hand_back(request, answer)
            return
    user = _user(request, clusters)
    info: dict[str, Any] = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    if user.groups:
        info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra}
    body = {
        "kind": "SelfSubjectReview",
        "apiVersion": f"authentication.k8s.io/{request.info.version}",
        "metadata": {"creationTimestamp": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")},
        "status": {"userInfo": info},
    }
    respond(request, 201, _json(body))


def _user(request: AggregatedRequest, clusters: Sequence[str]) -> UserInfo:
    """Return the user's identity with the most groups: only the user's own cluster gets the groups that it grants."""
    known: list[UserInfo] = []
    refusal: StatusError | None = None
    for cluster in clusters:
        try:
            known.append(request.user_for(cluster))
        except StatusError as error:
            refusal = refusal or error
    if not known:
        raise refusal or StatusError(403, "no cluster of this server knows the user", details={})
    return max(known, key=lambda user: len(user.groups))


async def access_review(request: AggregatedRequest, clusters: Sequence[str], held: HeldBody) -> None:
    """Answer a SelfSubjectAccessReview with the first cluster's answer that allows the request. Raises StatusError."""
    answers = await _ask(request, clusters, held)
    good = [answer for answer in answers if is_success(answer) and not isinstance(answer, StatusError)]
    allowing = [answer for answer in good if _allows(answer)]
    hand_back(request, (allowing or good or answers)[0])


async def rules_review(request: AggregatedRequest, clusters: Sequence[str], held: HeldBody) -> None:
    """Answer a SelfSubjectRulesReview with the rules of all clusters. Raises StatusError."""
    answers = await _ask(request, clusters, held)
    good = [
        (answer, review)
        for answer in answers
        if is_success(answer) and not isinstance(answer, StatusError) and (review := _object(answer)) is not None
    ]
    if not good:
        hand_back(request, answers[0])
        return
    merged: dict[str, Any] = good[0][1]
    statuses = [status for _, review in good if isinstance(status := review.get("status"), dict)]
    union: dict[str, Any] = {name: _union([status.get(name) for status in statuses]) for name in _LISTS}
    # The result is incomplete if a cluster was not asked, since it may have more rules.
    union["incomplete"] = len(good) < len(answers) or any(status.get("incomplete") is True for status in statuses)
    errors = [error for status in statuses if isinstance(error := status.get("evaluationError"), str) and error]
    if errors:
        union["evaluationError"] = "; ".join(dict.fromkeys(errors))
    merged["status"] = union
    respond(request, 201, _json(merged))


async def _ask(
    request: AggregatedRequest, clusters: Sequence[str], held: HeldBody
) -> list[MemberResponse | StatusError]:
    """Send the client's body to the clusters. Raises StatusError if there is no cluster to ask."""
    _check_accept(request)
    body = await held.read(request.exchange)
    if not clusters:
        raise StatusError(404, "the server could not find the requested resource", details={})
    return await _send(request, clusters, body)


def _check_accept(request: AggregatedRequest) -> None:
    """Raise StatusError (406) for a representation that reviews do not have, such as a Table."""
    values = [value for name, value in split_fields(request.head.fields) if name == b"accept"]
    found = negotiate(b",".join(values).decode("latin-1"), writable=(JSON, YAML))
    if found.kind:
        raise only_accepted()


def _is_review(data: bytes, request: AggregatedRequest) -> bool:
    """Whether a body is evidently a SelfSubjectReview."""
    media_type = (request.head.header(b"content-type") or b"").partition(b";")[0].strip().lower()
    try:
        if media_type == PROTOBUF.encode():
            envelope = protobuf.envelope(data)
            found = _Review(envelope.kind, envelope.api_version)
        elif media_type in (b"", JSON.encode()):
            found = _REVIEW.decode(data)
        else:
            return False
    except (msgspec.MsgspecError, protobuf.MalformedProtobuf, UnicodeDecodeError, RecursionError):
        return False
    version = f"authentication.k8s.io/{request.info.version}"
    return found.kind in ("", "SelfSubjectReview") and found.api_version in ("", version)  # the defaults


async def _send(request: AggregatedRequest, clusters: Sequence[str], body: bytes) -> list[MemberResponse | StatusError]:
    fields = [(b"Accept", JSON.encode()), *client_fields(request)]
    content_type = request.head.header(b"content-type")
    if content_type is not None:
        fields.append((b"Content-Type", content_type))

    async def send(cluster: str) -> MemberResponse:
        return await request.send(cluster, b"POST", request.target, fields=fields, body=body, timeout=TIMEOUT)

    request.served_by(*clusters, cached=False)
    return await ask_all(clusters, send)


def _allows(answer: MemberResponse) -> bool:
    try:
        status = _ACCESS_REVIEW.decode(answer.body).status
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return status is not None and status.allowed


def _object(answer: MemberResponse) -> dict[str, Any] | None:
    if media_type(answer) != JSON:
        return None
    try:
        refuse_deep(answer.body)  # the body is encoded again below, which fails if it is nested too deeply
        found = _VALUE.decode(answer.body)
    except (ValueError, RecursionError):  # msgspec's errors and UTF-8 errors are ValueErrors
        return None
    return found if isinstance(found, dict) else None


def _union(lists: Sequence[Any]) -> list[Any]:
    """Return the distinct entries of all lists, in their order."""
    known: dict[bytes, Any] = {}
    for entries in lists:
        for entry in entries if isinstance(entries, list) else ():
            known.setdefault(msgspec.json.encode(entry, order="sorted"), entry)
    return list(known.values())


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
