"""The payloads of the frames between a worker and the keeper. Pure.

Payloads are MessagePack arrays of fields in a fixed order. They have no version, since both sides are the same program.
Text from clients and clusters can have lone surrogates, which UTF-8 cannot encode, so it is sent as bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from mcproxy.http.messages import Header, RequestHead
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.identity.authorization.access_review import Decision, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.proxy.keeper.keeper_frames import FrameError

T = TypeVar("T")


class Head(msgspec.Struct, array_like=True, frozen=True):
    """A request's head (`http.messages.RequestHead`)."""

    method: bytes
    target: bytes
    host: bytes
    fields: bytes
    http11: bool
    keep_alive: bool
    length: int
    upgrade: bytes | None
    expects_continue: bool
    te_trailers: bool


class MemberDecision(msgspec.Struct, array_like=True, frozen=True):
    """The decision about one cluster: the user for the cluster and the policy that applies, or the refusal."""

    cluster: str
    user: bytes | None  # `encode_user`
    policy: str | None
    refusal: bytes | None  # `encode_refusal`


class Opened(msgspec.Struct, array_like=True, frozen=True):
    """A request to an aggregate, authenticated and admitted."""

    server: str
    aggregate: str
    head: Head
    target: bytes  # path and query on the aggregate's API
    address: str  # the client's address, "" on a unix socket
    forwarded: bytes  # the block of X-Forwarded-* fields for members
    response_fields: bytes  # a block of fields that is added to every response (CORS)
    caller: bytes  # `encode_user`
    caller_cluster: str
    shares_accounts: bool
    by_token: bool
    also_of: list[str]
    user: bytes  # the user that it runs as
    impersonates: bool
    members: list[MemberDecision]


class Response(msgspec.Struct, array_like=True, frozen=True):
    """The arguments of `Exchange.respond`."""

    status: int
    reason: bytes
    fields: bytes
    length: int
    declared: int | None


class Whole(msgspec.Struct, array_like=True, frozen=True):
    """The arguments of `Exchange.answer`."""

    status: int
    fields: bytes
    body: bytes
    reason: bytes


class Interim(msgspec.Struct, array_like=True, frozen=True):
    """The arguments of `Exchange.send_interim`."""

    status: int
    reason: bytes
    fields: bytes


GONE = "gone"
"""The `reason` of a refusal since a reload has removed the server or its aggregate; the worker will follow the reload
soon.
"""


class Refusal(msgspec.Struct, array_like=True, frozen=True):
    """A refusal, and its reason for the access log ("": the default reason)."""

    status: bytes  # `encode_refusal`
    reason: str


class Forwarding(msgspec.Struct, array_like=True, frozen=True):
    """The member to which the worker forwards a request, and the target for the member."""

    member: str
    target: bytes


class ResponseNote(msgspec.Struct, array_like=True, frozen=True):
    """The keeper's part of a response's access log record."""

    clusters: list[str]
    cached: bool


class Redecided(msgspec.Struct, array_like=True, frozen=True):
    """The answer to DECIDE: the present decisions, or a refusal."""

    number: int
    members: list[MemberDecision]
    refusal: bytes | None


class Review(msgspec.Struct, array_like=True, frozen=True):
    """Asks whether a member allows a user's read (`aggregate.last_decisions`)."""

    server: str
    cluster: str
    user: bytes
    attributes: bytes


class Reviewed(msgspec.Struct, array_like=True, frozen=True):
    """A member's decision. `unavailable`: there is no decision; "unreachable": the member cannot be reached."""

    allowed: bool
    reason: bytes
    unavailable: str


def encode(payload: msgspec.Struct | list[Header] | int) -> bytes:
    """Return a payload as bytes."""
    return msgspec.msgpack.encode(payload)


def decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Return a decoder for payloads of one kind; it raises FrameError."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def decoded(payload: bytes) -> T:
        try:
            return decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FrameError(f"a payload is no {kind}: {error}") from None

    return decoded


def head_of(head: RequestHead, *, expects_continue: bool) -> Head:
    """Return the payload for a head; `expects_continue`: the client waits for 100 Continue before it sends its body."""
    return Head(
        head.method,
        head.target,
        head.host,
        head.fields,
        head.http11,
        head.keep_alive,
        head.length,
        head.upgrade,
        expects_continue,
        head.te_trailers,
    )


def request_head(sent: Head) -> RequestHead:
    """Return the head of a payload."""
    head = RequestHead()
    head.method, head.target, head.host, head.fields = sent.method, sent.target, sent.host, sent.fields
    head.http11, head.keep_alive, head.length, head.upgrade = sent.http11, sent.keep_alive, sent.length, sent.upgrade
    head.expects_continue, head.te_trailers = sent.expects_continue, sent.te_trailers
    return head


# -- users, refusals, reviews -----------------------------------------------------------------------------------------


def encode_user(user: UserInfo) -> bytes:
    """Return a user as bytes."""
    extra = [(_bytes(key), [_bytes(value) for value in values]) for key, values in user.extra]
    return msgspec.msgpack.encode(
        (_bytes(user.name), [_bytes(group) for group in user.groups], _bytes(user.uid), extra)
    )


def decode_user(data: bytes) -> UserInfo:
    """Decode the result of `encode_user`. Raises FrameError."""
    name, groups, uid, extra = _decode_user(data)
    return UserInfo(
        _text(name),
        tuple(map(_text, groups)),
        _text(uid),
        tuple((_text(key), tuple(map(_text, values))) for key, values in extra),
    )


_decode_user = decoder(tuple[bytes, list[bytes], bytes, list[tuple[bytes, list[bytes]]]])


def authenticated_user(opened: Opened, user: UserInfo) -> AuthenticatedUser:
    """Return the authenticated user of a request; `user` is its `caller`."""
    return AuthenticatedUser(
        user,
        opened.caller_cluster,
        shares_accounts=opened.shares_accounts,
        by_token=opened.by_token,
        also_of=tuple(opened.also_of),
    )


def encode_refusal(refusal: StatusError) -> bytes:
    """Return a refusal as bytes."""
    document = {
        "code": refusal.code,
        "message": refusal.message,
        "reason": refusal.reason,
        "details": refusal.details,
        "headers": [(name.decode("latin-1"), value.decode("latin-1")) for name, value in refusal.headers],
        "metadata": refusal.metadata,
        "indented": refusal.indented,
    }
    return json.dumps(document).encode("ascii")


def decode_refusal(data: bytes) -> StatusError:
    """Decode the result of `encode_refusal`. Raises FrameError."""
    try:
        document: dict[str, Any] = json.loads(data)
        headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in document.pop("headers"))
        return StatusError(document.pop("code"), document.pop("message"), headers=headers, **document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FrameError(f"a refusal cannot be read: {error}") from None


def encode_attributes(attributes: Attributes) -> bytes:
    """Return the attributes of a review as bytes."""
    return json.dumps(attributes).encode("ascii")


def decode_attributes(data: bytes) -> Attributes:
    """Decode the result of `encode_attributes`. Raises FrameError."""
    try:
        return Attributes(*json.loads(data))
    except (ValueError, TypeError) as error:
        raise FrameError(f"the attributes of a review cannot be read: {error}") from None


def reviewed(decision: Decision | ReviewUnavailable) -> Reviewed:
    """Return the payload for a decision, or for a failed review."""
    if isinstance(decision, ReviewUnavailable):
        return Reviewed(False, b"", "unreachable" if decision.unreachable else "unavailable")
    return Reviewed(decision.allowed, _bytes(decision.reason), "")


def decision_of(sent: Reviewed, cluster: str) -> Decision:
    """Return the decision of a payload. Raises ReviewUnavailable."""
    if sent.unavailable:
        raise ReviewUnavailable(cluster, unreachable=sent.unavailable == "unreachable")
    return Decision(sent.allowed, _text(sent.reason))


def members_of(
    users: Mapping[str, UserInfo],
    policies: Mapping[str, str],
    refusals: Mapping[str, StatusError],
    user_bytes: Callable[[UserInfo], bytes],
) -> list[MemberDecision]:
    """Return the payloads of the decisions about each cluster; `user_bytes` is `encode_user`, perhaps with a cache."""
    return [
        MemberDecision(
            name,
            user_bytes(users[name]) if name in users else None,
            policies.get(name) if name not in refusals else None,
            encode_refusal(refusals[name]) if name in refusals else None,
        )
        for name in dict.fromkeys((*policies, *refusals))
    ]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise FrameError(f"a text cannot be read: {error}") from None
