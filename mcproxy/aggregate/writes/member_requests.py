"""Helpers for requests to members: header fields, several requests at once, and passing back answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes

import msgspec

from mcproxy.aggregate import warnings
from mcproxy.aggregate.cache.cached_object import CLUSTER_ANNOTATION, CLUSTER_LABEL
from mcproxy.aggregate.cache.object_splitter import MAX_OBJECT_BYTES
from mcproxy.http.messages import Header, split_fields
from mcproxy.kube import json_edit, media_types, protobuf
from mcproxy.kube.json_edit import MetadataEdit
from mcproxy.kube.media_types import JSON, PROTOBUF, YAML, clauses, matches, only_accepted
from mcproxy.kube.selectors import Requirement, label_matcher, parse_label_selector
from mcproxy.kube.status import StatusError, read_status
from mcproxy.requests.coroutines import gather

if TYPE_CHECKING:
    from mcproxy.aggregate.request import AggregatedRequest, MemberResponse

Sending = Coroutine[Any, Any, "MemberResponse"]

_CLIENT_FIELDS = frozenset(
    {b"user-agent", b"audit-id", b"kubectl-command", b"kubectl-session", b"traceparent", b"tracestate"}
)
_PASSED_BACK = frozenset({b"content-type", b"retry-after", b"www-authenticate", b"x-content-type-options"})
_FOR_READERS = frozenset({b"warning", b"x-kubernetes-pf-flowschema-uid", b"x-kubernetes-pf-prioritylevel-uid"})
"""Response fields that describe the member, and are passed back only to users who may read in it."""
_MAX_PASSED_BACK = 100
"""Maximum number of fields of one response that are passed back, since a member can send very many."""
_MAX_STATUS = 64 * 1024  # maximum bytes of a failure's body that are read
_MAX_TEXT = 300  # maximum characters of that body that are shown if it is not a Status
_PATH_SAFE = ":@!$&'()*+,;=~"  # RFC 3986 3.3; names can contain them (RBAC names have colons)
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def client_fields(request: AggregatedRequest) -> list[Header]:
    """Return the client's header fields for members, without identity fields and Accept."""
    return [(name.title(), value) for name, value in split_fields(request.head.fields) if name in _CLIENT_FIELDS]


def accepted(request: AggregatedRequest, *, protobuf: bool) -> bytes:
    """Return the Accept field for members: the client's JSON media types, in the client's order.

    If the client prefers YAML, the field is only JSON, and the answer is converted to YAML. If the client accepts
    neither JSON nor YAML, the field is protobuf, if the client accepts that and `protobuf` is True. Else raises
    StatusError (406).
    """
    text = _accept(request)
    if not text.strip() or prefers_yaml(request):
        return JSON.encode()
    wanted = clauses(text)
    found = [clause for clause in wanted if matches(JSON, clause.media_type)]
    if found:
        return ",".join(_written(clause.params) for clause in found).encode("latin-1")
    if protobuf and any(clause.media_type == PROTOBUF and not clause.params for clause in wanted):
        return PROTOBUF.encode()
    raise only_accepted((JSON, YAML, PROTOBUF) if protobuf else (JSON, YAML))


def prefers_yaml(request: AggregatedRequest) -> bool:
    """Whether YAML is the client's first choice among the supported media types."""
    return media_types.prefers_yaml(_accept(request))


def _accept(request: AggregatedRequest) -> str:
    values = [value for name, value in split_fields(request.head.fields) if name == b"accept"]
    return b",".join(values).decode("latin-1")


def _written(params: Mapping[str, str]) -> str:
    return ";".join([JSON, *(f"{key}={value}" for key, value in params.items())])


def object_path(collection: str, name: str) -> bytes:
    """Return the path of an object, with its name escaped."""
    return f"{collection}/{quote(name, safe=_PATH_SAFE)}".encode()


async def ask_all(members: Sequence[str], send: Callable[[str], Sending]) -> list[MemberResponse | StatusError]:
    """Call the coroutine function `send` for all members at once; return each member's answer or error."""
    return await gather(_asked(send(member)) for member in members)


async def _asked(waiting: Sending) -> MemberResponse | StatusError:
    try:
        return await waiting
    except StatusError as refusal:
        return refusal


def is_success(answer: MemberResponse | StatusError) -> bool:
    return not isinstance(answer, StatusError) and 200 <= answer.status < 300


def code_of(answer: MemberResponse | StatusError) -> int:
    """Return the HTTP status of an answer."""
    return answer.code if isinstance(answer, StatusError) else answer.status


def message_of(answer: MemberResponse | StatusError) -> str:
    """Return the message of a failed request."""
    if isinstance(answer, StatusError):
        return answer.message
    status = read_status(answer.body[:_MAX_STATUS])
    if status is not None:
        return status.message
    text = answer.body[:_MAX_TEXT].decode("utf-8", "replace").strip()
    return text or f"HTTP status {answer.status}"


def reason_of(answer: MemberResponse | StatusError) -> str:
    """Return the `reason` of a failure ("Forbidden"), "" if it has no reason."""
    if isinstance(answer, StatusError):
        return answer.reason
    status = read_status(answer.body[:_MAX_STATUS])
    return "" if status is None else status.reason


def hand_back(
    request: AggregatedRequest,
    answer: MemberResponse | StatusError,
    *,
    body: bytes | None = None,
    more: Sequence[Header] = (),
    may_read: bool | None = None,
) -> None:
    """Answer the client with a member's status, safe fields and body, or with `body`; `more` are additional fields.

    `may_read`: whether the user may read in the member; None: yes, unless the member refused the request. Raises
    StatusError if the member gave no answer.
    """
    if isinstance(answer, StatusError):
        raise answer
    if answer.header(b"content-encoding") is not None:
        raise StatusError(502, f'cluster "{answer.member}" answered in an encoding that was not asked for')
    reader = answer.status not in (401, 403) if may_read is None else may_read
    passed = _PASSED_BACK | _FOR_READERS if reader else _PASSED_BACK
    fields = [(name, value) for name, value in answer.fields if name.lower() in passed][:_MAX_PASSED_BACK]
    block = request.own_fields(warnings.block([*fields, *more]))
    request.exchange.answer(answer.status, block, answer.body if body is None else body)


def respond(
    request: AggregatedRequest, status: int, body: bytes, more: Sequence[Header] = (), media_type: bytes = JSON.encode()
) -> None:
    """Answer the client with a body that the proxy has made."""
    fields = [(b"Content-Type", media_type), *more]
    request.exchange.answer(status, request.own_fields(warnings.block(fields)), body)


def warnings_of(answers: Sequence[MemberResponse]) -> list[Header]:
    """Return the distinct Warning fields of several answers."""
    found = [(name, value) for answer in answers for name, value in answer.fields if name.lower() == b"warning"]
    return list({value: (name, value) for name, value in found}.values())[: warnings.MAX_WARNINGS]


def edit_query(target: bytes, changes: dict[str, str | None]) -> bytes:
    """Return a target with query parameters replaced, or removed where the value is None. Missing parameters are not
    added.

    A repeated parameter, or a parameter in a form that Go ignores, is changed wherever another server could read it.
    """
    path, question, query = target.partition(b"?")
    if not question:
        return target
    pairs = []
    for pair in query.split(b"&"):
        key, _, _ = pair.partition(b"=")
        name = unquote_to_bytes(key.replace(b"+", b" ")).decode("utf-8", "replace")
        if name not in changes:
            pairs.append(pair)
            continue
        value = changes[name]
        if value is not None and b";" not in pair and not _BAD_ESCAPE.search(pair):
            pairs.append(f"{name}={quote(value, safe='')}".encode())
    return path + (b"?" + b"&".join(pairs) if pairs else b"")


_SYMBOLS = {"in": "in", "notin": "notin"}


def selector_for(selector: str, member: str) -> str | None:
    """Return a label selector for `member`; None if it selects none of that member's objects. Raises StatusError (400)
    for an invalid selector.
    """
    requirements = parse_label_selector(selector)
    if all(requirement.key != CLUSTER_LABEL for requirement in requirements):
        return selector
    labels = {CLUSTER_LABEL: member}
    matches = label_matcher(tuple(each for each in requirements if each.key == CLUSTER_LABEL))
    if matches is not None and not matches(labels):
        return None
    return ",".join(_text(each) for each in requirements if each.key != CLUSTER_LABEL)


def _text(requirement: Requirement) -> str:
    key, operator, values = requirement
    if operator == "exists":
        return key
    if operator == "!":
        return f"!{key}"
    if operator in _SYMBOLS:
        return f"{key} {operator} ({','.join(values)})"
    return f"{key}{operator}{values[0]}"


# -- answers of writes ----------------------------------------------------------------------------------------
#
# Rewrites a member's answer to a write for the client. Pure.
#
# For the client, an object gets the cluster's label and annotation, and a resource version of the aggregate. A Status
# stays unchanged.


_MAX_DIGITS = 20


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    deletion: str | None = msgspec.field(name="deletionTimestamp", default=None)
    grace: int | None = msgspec.field(name="deletionGracePeriodSeconds", default=None)
    finalizers: list[str] | None = None


class _Details(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Inner(msgspec.Struct):
    metadata: _Metadata | None = None


class _Row(msgspec.Struct):
    object: _Inner | None = None


class _Answer(msgspec.Struct):
    kind: str = ""
    metadata: _Metadata | None = None
    details: _Details | None = None
    rows: list[_Row] | None = None


_ANSWER = msgspec.json.Decoder(_Answer)


class WrittenObject(msgspec.Struct, frozen=True):
    """The object's properties in a member's answer to a write; "" and 0 for missing properties."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    version: int = 0
    stays: bool = False
    """The object was deleted, but stays until its finalizers or its grace period have ended."""

    @property
    def is_status(self) -> bool:
        return self.kind == "Status"


def read_written(answer: MemberResponse) -> WrittenObject:
    """Read an answer; for an unreadable answer, all properties are missing."""
    if len(answer.body) > MAX_OBJECT_BYTES:
        return WrittenObject()
    try:
        if media_type(answer) == PROTOBUF:
            return _read_protobuf(answer.body)
        if media_type(answer) != JSON:
            return WrittenObject()
        found = _ANSWER.decode(answer.body)
    except (msgspec.MsgspecError, protobuf.MalformedProtobuf, UnicodeDecodeError, RecursionError):
        return WrittenObject()
    if found.kind == "Status":
        details = found.details or _Details()
        return WrittenObject("Status", details.name, details.uid)
    metadata = found.metadata or _Metadata()
    if found.rows:
        inner = found.rows[0].object
        metadata = (inner.metadata if inner is not None else None) or metadata
    stays = metadata.deletion is not None and bool(metadata.finalizers or metadata.grace)
    return WrittenObject(found.kind, metadata.name, metadata.uid, version_number(metadata.resource_version), stays)


def _read_protobuf(body: bytes) -> WrittenObject:
    kind = protobuf.envelope(body).kind
    if kind == "Status":
        return WrittenObject("Status")
    # The fields that show whether the object stays are not decoded from protobuf, so wait for the version.
    return WrittenObject(kind, version=version_number(protobuf.metadata_of(body)[1]), stays=True)


def edited_answer(answer: MemberResponse, version: Callable[[int], str]) -> bytes:
    """Return the body of an answer for the client; `version` converts a member's version to the aggregate's.

    Raises StatusError (502) for an answer that cannot be read.
    """
    member = answer.member

    def change(text: str) -> str:
        number = version_number(text)
        return version(number) if number else text

    if len(answer.body) > MAX_OBJECT_BYTES:
        raise StatusError(502, f'cluster "{member}" answered with an object that is too large', reason="BadGateway")
    edit = MetadataEdit({CLUSTER_LABEL: member}, {CLUSTER_ANNOTATION: member}, change)
    try:
        if media_type(answer) == PROTOBUF:
            if protobuf.envelope(answer.body).kind == "Status":
                return answer.body
            return protobuf.edit_metadata(answer.body, edit)
        if media_type(answer) != JSON:
            return answer.body
        kind = json_edit.string_at(answer.body, ("kind",))
        if kind == "Status":
            return answer.body
        if kind == "Table":
            table = json_edit.edit_metadata(answer.body, MetadataEdit(resource_version=change))
            return json_edit.edit_rows(table, edit)
        return json_edit.edit_metadata(answer.body, edit)
    except (json_edit.MalformedJSON, protobuf.MalformedProtobuf) as error:
        raise StatusError(
            502, f'cluster "{member}" answered with what cannot be read: {error}', reason="BadGateway"
        ) from None


def media_type(answer: MemberResponse) -> str:
    """Return the media type of an answer, without parameters."""
    return (answer.header(b"content-type") or b"").partition(b";")[0].strip().lower().decode("latin-1")


def version_number(text: str) -> int:
    """Return a member's own resource version, 0 if it is malformed."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else 0
