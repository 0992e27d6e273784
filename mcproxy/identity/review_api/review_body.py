"""Parses an API server's review and writes the answer: JSON, YAML and protobuf. Pure.

An unreadable body is refused here, since two parsers could read it differently. A readable but invalid review (no
token, both kinds of attributes, another kind of object) results in None: the backend refuses it with its own message.

Sources: k8s.io/kubernetes `pkg/registry/authentication/tokenreview`, `pkg/apis/authorization/validation`; delegated
authentication sends JSON (`plugin/pkg/authenticator/token/webhook`), a typed client of client-go since 1.32 protobuf.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.identity.strict_json import json_object
from mcproxy.kube import protobuf
from mcproxy.kube.media_types import JSON, PROTOBUF, YAML, negotiate, only_accepted, unknown_format
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo

JSONDict = dict[str, Any]
_MAX_FIELDS = 10_000  # maximum number of fields in one message
_VALUE_ITEMS = 1  # field number in an ExtraValue


class Type(Enum):
    """The types of fields, in addition to messages."""

    STRING = "string"
    STRINGS = "strings"
    BOOL = "bool"
    EXTRA = "extra"  # a map of strings to lists of strings


class ReviewField(NamedTuple):
    """One field: its protobuf number and its type; `many`: it is a list of messages."""

    number: int
    type: Type | Mapping[str, ReviewField]
    many: bool = False


Schema = Mapping[str, ReviewField]

_USER: Schema = {
    "username": ReviewField(1, Type.STRING),
    "uid": ReviewField(2, Type.STRING),
    "groups": ReviewField(3, Type.STRINGS),
    "extra": ReviewField(4, Type.EXTRA),
}
_REQUIREMENT: Schema = {
    "key": ReviewField(1, Type.STRING),
    "operator": ReviewField(2, Type.STRING),
    "values": ReviewField(3, Type.STRINGS),
}
_SELECTOR: Schema = {
    "rawSelector": ReviewField(1, Type.STRING),
    "requirements": ReviewField(2, _REQUIREMENT, many=True),
}
_RESOURCE: Schema = {
    "namespace": ReviewField(1, Type.STRING),
    "verb": ReviewField(2, Type.STRING),
    "group": ReviewField(3, Type.STRING),
    "version": ReviewField(4, Type.STRING),
    "resource": ReviewField(5, Type.STRING),
    "subresource": ReviewField(6, Type.STRING),
    "name": ReviewField(7, Type.STRING),
    "fieldSelector": ReviewField(8, _SELECTOR),
    "labelSelector": ReviewField(9, _SELECTOR),
}
TOKEN_SPEC: Schema = {"token": ReviewField(1, Type.STRING), "audiences": ReviewField(2, Type.STRINGS)}
TOKEN_STATUS: Schema = {
    "authenticated": ReviewField(1, Type.BOOL),
    "user": ReviewField(2, _USER),
    "audiences": ReviewField(4, Type.STRINGS),
    "error": ReviewField(3, Type.STRING),
}
ACCESS_SPEC: Schema = {
    "resourceAttributes": ReviewField(1, _RESOURCE),
    "nonResourceAttributes": ReviewField(2, {"path": ReviewField(1, Type.STRING), "verb": ReviewField(2, Type.STRING)}),
    "user": ReviewField(3, Type.STRING),
    "groups": ReviewField(4, Type.STRINGS),
    "extra": ReviewField(5, Type.EXTRA),
    "uid": ReviewField(6, Type.STRING),
}
ACCESS_STATUS: Schema = {
    "allowed": ReviewField(1, Type.BOOL),
    "denied": ReviewField(4, Type.BOOL),
    "reason": ReviewField(2, Type.STRING),
    "evaluationError": ReviewField(3, Type.STRING),
}


def from_json(value: Any, schema: Schema) -> JSONDict:
    """Return the known fields of a decoded JSON object in Go's order, without empty ones except messages.

    Raises ValueError if a value does not have the type of its field.
    """
    if not isinstance(value, dict):
        raise ValueError("is no object")
    found: JSONDict = {}
    for name, field in schema.items():
        item = value.get(name)
        if item is None:
            continue
        known = _value(item, field)
        if known or isinstance(field.type, Mapping):
            found[name] = known
    return found


def _value(item: Any, field: ReviewField) -> Any:
    if isinstance(field.type, Mapping):
        if not field.many:
            return from_json(item, field.type)
        return [from_json(each, field.type) for each in _list(item)]
    if field.type is Type.STRINGS:
        return _strings(item)
    if field.type is Type.EXTRA:
        if not isinstance(item, dict):
            raise ValueError("extra is no object")
        return {key: _strings([] if values is None else values) for key, values in sorted(item.items())}
    if not isinstance(item, str if field.type is Type.STRING else bool):
        raise ValueError(f"{field.type.value} expected")
    return item


def _list(item: Any) -> list[Any]:
    if not isinstance(item, list):
        raise ValueError("list expected")
    return item


def _strings(item: Any) -> list[str]:
    if not all(isinstance(each, str) for each in _list(item)):
        raise ValueError("strings expected")
    return list(item)


def from_protobuf(message: bytes, schema: Schema) -> JSONDict:
    """Return the fields of a message as `from_json` does. Raises protobuf.MalformedProtobuf, which is a ValueError."""
    by_number = {field.number: name for name, field in schema.items()}
    found: JSONDict = {}
    for each in protobuf.scan(message, most=_MAX_FIELDS):
        name = by_number.get(each.number)
        if name is None:
            continue
        field, content = schema[name], message[each.content : each.end]
        if field.type is Type.BOOL:
            found[name] = any(byte & 0x7F for byte in content)
            continue
        if each.wire != protobuf.BYTES:
            raise protobuf.MalformedProtobuf(f"field {each.number} has wire type {each.wire}")
        if isinstance(field.type, Mapping):
            inner = from_protobuf(content, field.type)
            if field.many:
                found.setdefault(name, []).append(inner)
            elif name in found:
                raise protobuf.MalformedProtobuf(f"{name} stands twice")
            else:
                found[name] = inner
        elif field.type is Type.STRINGS:
            found.setdefault(name, []).append(_text(content))
        elif field.type is Type.EXTRA:
            key, values = _entry(content)
            found.setdefault(name, {})[key] = values
        else:
            found[name] = _text(content)
    ordered = {name: found[name] for name in schema if name in found}
    return {name: value for name, value in ordered.items() if value or isinstance(schema[name].type, Mapping)}


def _entry(message: bytes) -> tuple[str, list[str]]:
    entry = dict(protobuf.values(message))
    key, value = entry.get(protobuf.ENTRY_KEY, b""), entry.get(protobuf.ENTRY_VALUE, b"")
    if isinstance(key, int) or isinstance(value, int):
        raise protobuf.MalformedProtobuf("an integer in extra")
    parts = [part for number, part in protobuf.values(value) if number == _VALUE_ITEMS]
    return _text(key), [_text(part) for part in parts if not isinstance(part, int)]


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise protobuf.MalformedProtobuf("a string that is no UTF-8") from None


def to_protobuf(value: Mapping[str, Any], schema: Schema) -> bytes:
    """Return the message of fields such as `from_json` returns."""
    fields = sorted(((schema[name], item) for name, item in value.items()), key=lambda pair: pair[0].number)
    return b"".join(_encoded(field, item) for field, item in fields)


def _encoded(field: ReviewField, item: Any) -> bytes:
    if isinstance(field.type, Mapping):
        items = item if field.many else [item]
        return b"".join(protobuf.encode_bytes(field.number, to_protobuf(each, field.type)) for each in items)
    if field.type is Type.BOOL:
        return protobuf.encode_varint(field.number << 3) + protobuf.encode_varint(int(item))
    if field.type is Type.STRING:
        return protobuf.encode_bytes(field.number, item.encode())
    if field.type is Type.STRINGS:
        return b"".join(protobuf.encode_bytes(field.number, each.encode()) for each in item)
    return b"".join(protobuf.encode_bytes(field.number, _encoded_entry(key, values)) for key, values in item.items())


def _encoded_entry(key: str, values: list[str]) -> bytes:
    items = b"".join(protobuf.encode_bytes(_VALUE_ITEMS, each.encode()) for each in values)
    return protobuf.encode_bytes(protobuf.ENTRY_KEY, key.encode()) + protobuf.encode_bytes(protobuf.ENTRY_VALUE, items)


AUTHENTICATION, AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"
MAX_BODY = 256 * 1024
"""Maximum bytes of a review. A token has a few thousand bytes, and so have a user's names and the attributes."""
_OBJECT_META, _SPEC = 1, 2  # field numbers
_STATUS = 3
_META_NAMESPACE = 3
_IGNORED_META = frozenset({"managedFields", "creationTimestamp"})
_FORMS = (JSON, YAML, PROTOBUF)


class ReviewKind(NamedTuple):
    """A kind of review."""

    name: str
    group: str
    spec: Schema
    status: Schema

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1"


TOKEN_REVIEW = ReviewKind("TokenReview", AUTHENTICATION, TOKEN_SPEC, TOKEN_STATUS)
ACCESS_REVIEW = ReviewKind("SubjectAccessReview", AUTHORIZATION, ACCESS_SPEC, ACCESS_STATUS)
LOCAL_ACCESS_REVIEW = ReviewKind("LocalSubjectAccessReview", AUTHORIZATION, ACCESS_SPEC, ACCESS_STATUS)

#: The kinds of review by group and resource.
KINDS = {
    (AUTHENTICATION, "tokenreviews"): TOKEN_REVIEW,
    (AUTHORIZATION, "subjectaccessreviews"): ACCESS_REVIEW,
    (AUTHORIZATION, "localsubjectaccessreviews"): LOCAL_ACCESS_REVIEW,
}


class TokenReviewSpec(NamedTuple):
    """The question of a TokenReview."""

    token: bytes
    audiences: tuple[str, ...]


class AccessReview(NamedTuple):
    """The question of a SubjectAccessReview."""

    subject: UserInfo
    attributes: Attributes


def read(kind: ReviewKind, body: bytes, content_type: bytes | None) -> JSONDict | None:
    """Return the spec of a review in Go's order of fields; None: the body is another object, or has more than a spec.

    Raises StatusError: 415 for another media type, 400 for an unreadable body.
    """
    media_type = (content_type or b"").partition(b";")[0].strip().lower().decode("latin-1")
    if media_type not in ("", *_FORMS):
        raise unknown_format(_FORMS)
    try:
        if media_type == PROTOBUF:
            return _from_protobuf(kind, body)
        return _from_json(kind, _yaml_as_json(body) if media_type == YAML else body)
    except ValueError as error:
        text = f"the object provided is unrecognized (must be of type {kind.name}): it {error}"
        raise StatusError(400, text) from None


def _yaml_as_json(body: bytes) -> bytes:
    """Return YAML as JSON, parsed as by a kube-apiserver. Raises ValueError, whose text shows nothing of the YAML."""
    import yaml  # imported late, since YAML reviews are rare: this saves a megabyte of modules

    from mcproxy.kube import yaml_nodes

    try:
        return yaml_nodes.to_json(body.decode())
    except (UnicodeDecodeError, yaml.YAMLError):
        raise ValueError("is not acceptable YAML") from None


def _from_json(kind: ReviewKind, body: bytes) -> JSONDict | None:
    review = json_object(body)
    metadata = review.get("metadata")
    if not _is(kind, review.get("apiVersion"), review.get("kind")) or not isinstance(metadata, dict | None):
        return None
    known = {key for key, value in (metadata or {}).items() if value} - _IGNORED_META
    if kind.group == AUTHORIZATION and known - ({"namespace"} if kind is LOCAL_ACCESS_REVIEW else set()):
        return None  # a review's status must be empty
    return from_json(review.get("spec") or {}, kind.spec)


def _from_protobuf(kind: ReviewKind, body: bytes) -> JSONDict | None:
    found = protobuf.envelope(body)
    if not _is(kind, found.api_version, found.kind):
        return None
    specs = protobuf.only(_SPEC, body, found.raw.content, found.raw.end)
    if len(specs) > 1:
        raise protobuf.MalformedProtobuf("has its spec twice")
    return from_protobuf(body[specs[0].content : specs[0].end] if specs else b"", kind.spec)


def _is(kind: ReviewKind, api_version: object, name: object) -> bool:
    return api_version in (None, "", kind.api_version) and name in (None, "", kind.name)  # the defaults


def token_review(spec: JSONDict) -> TokenReviewSpec | None:
    """Return the question of a TokenReview; None: it is invalid, or its token cannot be in a header."""
    token = spec.get("token", "")
    if not token or not token.isprintable() or " " in token:
        return None
    return TokenReviewSpec(token.encode(), tuple(dict.fromkeys(spec.get("audiences", ()))))


def access_review(kind: ReviewKind, spec: JSONDict, namespace: str) -> AccessReview | None:
    """Return the question of an access review; None: it is invalid. `namespace` is that of the path."""
    of_resource, of_path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if (of_resource is None) == (of_path is None) or not (spec.get("user") or spec.get("groups")):
        return None
    if kind is LOCAL_ACCESS_REVIEW and (of_resource is None or of_resource.get("namespace", "") != namespace):
        return None
    extra = tuple(sorted((key, tuple(values)) for key, values in spec.get("extra", {}).items()))
    groups = tuple(dict.fromkeys(spec.get("groups", ())))
    subject = UserInfo(spec.get("user", ""), groups, spec.get("uid", ""), extra)
    if of_resource is None:
        assert of_path is not None
        return AccessReview(
            subject, Attributes(of_path.get("verb", ""), path=of_path.get("path", ""), is_resource=False)
        )
    fields, labels = of_resource.get("fieldSelector"), of_resource.get("labelSelector")
    if any(each and "rawSelector" in each and "requirements" in each for each in (fields, labels)):
        return None
    names = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
    attributes = Attributes(*(of_resource.get(name, "") for name in names))
    return AccessReview(subject, attributes._replace(field_selector=_fields(fields), label_selector=_labels(labels)))


def _fields(selector: JSONDict | None) -> str:
    """Return a field selector as text; "" if it has several requirements, which only makes the question broader."""
    if not selector:
        return ""
    signs = {"In": "=", "NotIn": "!="}
    parts = []
    for each in selector.get("requirements", ()):
        sign, values = signs.get(each.get("operator", "")), each.get("values", [])
        if sign is None or len(values) != 1:
            return ""
        escaped = "".join(f"\\{char}" if char in "\\,=" else char for char in values[0])
        parts.append(f"{each.get('key', '')}{sign}{escaped}")
    return str(selector.get("rawSelector") or ",".join(parts))


def _labels(selector: JSONDict | None) -> str:
    """Return a label selector as text, as `_fields` does."""
    if not selector:
        return ""
    parts = []
    for each in selector.get("requirements", ()):
        key, operator, values = each.get("key", ""), each.get("operator", ""), ",".join(each.get("values", []))
        forms = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}
        form = {**forms, "DoesNotExist": f"!{key}"}.get(operator)
        if form is None:
            return ""
        parts.append(form)
    return str(selector.get("rawSelector") or ",".join(parts))


def answer_type(accept: bytes) -> str:
    """Return the media type of the answer. Raises StatusError (406)."""
    found = negotiate(accept.decode("latin-1"), writable=_FORMS)
    if found.kind:
        raise only_accepted(_FORMS)
    return found.media_type


def answer(kind: ReviewKind, spec: JSONDict, status: JSONDict, namespace: str, media_type: str) -> bytes:
    """Return the review with its status, in the form of a kube-apiserver's answer, but without `managedFields`."""
    if media_type == PROTOBUF:
        meta = protobuf.encode_bytes(_META_NAMESPACE, namespace.encode()) if namespace else b""
        parts = (_OBJECT_META, meta), (_SPEC, to_protobuf(spec, kind.spec)), (_STATUS, to_protobuf(status, kind.status))
        types = protobuf.encode_bytes(protobuf.TYPE_API_VERSION, kind.api_version.encode())
        types += protobuf.encode_bytes(protobuf.TYPE_KIND, kind.name.encode())
        raw = b"".join(protobuf.encode_bytes(number, part) for number, part in parts)
        fields = (protobuf.UNKNOWN_TYPE_META, types), (protobuf.UNKNOWN_RAW, raw), (3, b""), (4, b"")
        return protobuf.MAGIC + b"".join(protobuf.encode_bytes(number, part) for number, part in fields)
    metadata = {"namespace": namespace} if namespace else {}
    document: dict[str, Any] = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": metadata}
    document |= {"spec": spec, "status": status}
    if media_type == YAML:
        import yaml

        return yaml.safe_dump(document, allow_unicode=True).encode()
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
