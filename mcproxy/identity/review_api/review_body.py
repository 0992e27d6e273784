"""The body of a review that an API server asks for, and the answer to it: JSON, YAML and protobuf. Pure.

A body that cannot be read is refused here, since what is read in two ways might be decided in two ways. A review that
is read and not valid (no token, both kinds of attributes, another kind of object) is None: the backend refuses it in
its own words.

Sources: k8s.io/kubernetes `pkg/registry/authentication/tokenreview`, `pkg/apis/authorization/validation`; delegated
authentication sends JSON (`plugin/pkg/authenticator/token/webhook`), a typed client of client-go since 1.32 protobuf.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.identity.review_api.review_schema import (
    ACCESS_SPEC,
    ACCESS_STATUS,
    TOKEN_SPEC,
    TOKEN_STATUS,
    JSONDict,
    Schema,
    from_json,
    from_protobuf,
    to_protobuf,
)
from mcproxy.identity.strict_json import json_object
from mcproxy.kube import protobuf
from mcproxy.kube.media_types import JSON, PROTOBUF, YAML, negotiate, only_accepted, unknown_format
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo

AUTHENTICATION, AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"
MAX_BODY = 256 * 1024
"""Bytes. A token has some thousand, and so have the names of a user and of what they ask for."""
_OBJECT_META, _SPEC = 1, 2  # field numbers
_STATUS = 3
_META_NAMESPACE = 3
_IGNORED_META = frozenset({"managedFields", "creationTimestamp"})
_FORMS = (JSON, YAML, PROTOBUF)


class Kind(NamedTuple):
    """A kind of review."""

    name: str
    group: str
    spec: Schema
    status: Schema

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1"


TOKEN_REVIEW = Kind("TokenReview", AUTHENTICATION, TOKEN_SPEC, TOKEN_STATUS)
ACCESS_REVIEW = Kind("SubjectAccessReview", AUTHORIZATION, ACCESS_SPEC, ACCESS_STATUS)
LOCAL_ACCESS_REVIEW = Kind("LocalSubjectAccessReview", AUTHORIZATION, ACCESS_SPEC, ACCESS_STATUS)

#: By group and resource.
KINDS = {
    (AUTHENTICATION, "tokenreviews"): TOKEN_REVIEW,
    (AUTHORIZATION, "subjectaccessreviews"): ACCESS_REVIEW,
    (AUTHORIZATION, "localsubjectaccessreviews"): LOCAL_ACCESS_REVIEW,
}


class TokenReview(NamedTuple):
    """What a TokenReview asks."""

    token: bytes
    audiences: tuple[str, ...]


class AccessReview(NamedTuple):
    """What a SubjectAccessReview asks."""

    subject: UserInfo
    attributes: Attributes


def read(kind: Kind, body: bytes, content_type: bytes | None) -> JSONDict | None:
    """Return the spec of a review in the order of Go's fields; None: it is another object, or has more than a spec.

    Raises StatusError: 415 for another media type, 400 for what cannot be read.
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
    """Return YAML as a kube-apiserver reads it. Raises ValueError, which shows nothing of it."""
    import yaml  # hardly a review comes in YAML: until one does, a process does without a megabyte of modules

    from mcproxy.kube import yaml_to_json

    try:
        return yaml_to_json.to_json(body.decode())
    except (UnicodeDecodeError, yaml.YAMLError):
        raise ValueError("is not acceptable YAML") from None


def _from_json(kind: Kind, body: bytes) -> JSONDict | None:
    review = json_object(body)
    metadata = review.get("metadata")
    if not _is(kind, review.get("apiVersion"), review.get("kind")) or not isinstance(metadata, dict | None):
        return None
    known = {key for key, value in (metadata or {}).items() if value} - _IGNORED_META
    if kind.group == AUTHORIZATION and known - ({"namespace"} if kind is LOCAL_ACCESS_REVIEW else set()):
        return None  # it must be empty
    return from_json(review.get("spec") or {}, kind.spec)


def _from_protobuf(kind: Kind, body: bytes) -> JSONDict | None:
    found = protobuf.envelope(body)
    if not _is(kind, found.api_version, found.kind):
        return None
    specs = protobuf.only(_SPEC, body, found.raw.content, found.raw.end)
    if len(specs) > 1:
        raise protobuf.Malformed("has its spec twice")
    return from_protobuf(body[specs[0].content : specs[0].end] if specs else b"", kind.spec)


def _is(kind: Kind, api_version: object, name: object) -> bool:
    return api_version in (None, "", kind.api_version) and name in (None, "", kind.name)  # the defaults


def token_review(spec: JSONDict) -> TokenReview | None:
    """Return what a TokenReview asks; None: it is not valid, or its token is none that a header could hold."""
    token = spec.get("token", "")
    if not token or not token.isprintable() or " " in token:
        return None
    return TokenReview(token.encode(), tuple(dict.fromkeys(spec.get("audiences", ()))))


def access_review(kind: Kind, spec: JSONDict, namespace: str) -> AccessReview | None:
    """Return what a review of access asks; None: it is not valid. `namespace` is that of the path."""
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
    """Return a field selector as text; "" if it has more than one: what is asked is then wider, never narrower."""
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
    """Return a label selector as text, as `_fields`."""
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
    """Return the media type to answer in. Raises StatusError (406)."""
    found = negotiate(accept.decode("latin-1"), writable=_FORMS)
    if found.kind:
        raise only_accepted(_FORMS)
    return found.media_type


def answer(kind: Kind, spec: JSONDict, status: JSONDict, namespace: str, media_type: str) -> bytes:
    """Return the review with its status, as a kube-apiserver answers it but for `managedFields`."""
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
