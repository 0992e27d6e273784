"""`Status`, the object of a Kubernetes error response.

Every refusal to a client of the proxy is raised as `StatusError`, and `proxy.request.Request.refuse` converts it to a
response. Source: Kubernetes API conventions, "Response Status Kind"; the order of the fields is that of a
kube-apiserver.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mcproxy.kube.protobuf import MAGIC, envelope, scan

# The default reason of each status code (apimachinery, `metav1.StatusReason`).
REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}

# The characters that Go's encoder escapes; they can occur only in strings.
_GO_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})

_NOT_PLAIN = re.compile(r"[^\n -~]")  # some of these characters are line breaks in YAML, others are not allowed

HeaderList = tuple[tuple[bytes, bytes], ...]


class StatusError(Exception):
    """The refusal of a request, with the fields of its Kubernetes `Status` object.

    `code` is the HTTP status code. `reason` is the machine-readable CamelCase word ("" if Kubernetes has none for it).
    `message` is the sentence that kubectl prints. `details` and `metadata` are fields of the Status object. `headers`
    are header fields of the response. `indented`: write JSON over several lines, as a kube-apiserver does for 406.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str | None = None,
        details: dict[str, Any] | None = None,
        headers: HeaderList = (),
        metadata: dict[str, Any] | None = None,
        indented: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = REASONS.get(code, "") if reason is None else reason
        self.details = details
        self.headers = headers
        self.metadata = metadata or {}
        self.indented = indented

    def status(self) -> dict[str, Any]:
        """Return the Status object, with a kube-apiserver's order of fields."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status

    def body(self) -> bytes:
        """Return the Status object as compact JSON with a final newline, as a kube-apiserver writes it."""
        status = self.status()
        if self.indented:
            return json.dumps(status, indent=2, ensure_ascii=False).translate(_GO_ESCAPES).encode()
        return json.dumps(status, separators=(",", ":"), ensure_ascii=False).translate(_GO_ESCAPES).encode() + b"\n"

    def yaml_body(self) -> bytes:
        """Return the Status object in YAML, with fields sorted as by sigs.k8s.io/yaml and values written as JSON.

        This requires no YAML library. JSON escapes a character beyond 16 bits as two surrogates, which YAML forbids.
        """
        fields = sorted(self.status().items())
        text = "".join(f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in fields)
        return _NOT_PLAIN.sub(lambda found: f"\\U{ord(found[0]):08x}", text).encode()


def retry_after(
    code: int, message: str, seconds: int, *, reason: str | None = None, name: str | None = None
) -> StatusError:
    """Return a refusal with `Retry-After` and the same `details.retryAfterSeconds`; `seconds` is a whole number."""
    details: dict[str, Any] = {"name": name} if name else {}
    details["retryAfterSeconds"] = seconds
    return StatusError(code, message, reason=reason, details=details, headers=((b"Retry-After", b"%d" % seconds),))


# The errors of a kube-apiserver that several packages raise, with its texts.
#
# Source: k8s.io/apimachinery `pkg/api/errors`, and recordings of a kube-apiserver 1.36.

_SUMMARY = 30  # maximum of bytes of a body in an error message


@dataclass(frozen=True)
class StatusCause:
    """One entry of `details.causes`: `reason` as in FieldValueInvalid, `message`, and the field's path."""

    reason: str
    message: str
    field: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the cause as a JSON object, without an empty field."""
        out = {"reason": self.reason, "message": self.message}
        return {**out, "field": self.field} if self.field else out


def qualified(group: str, resource: str) -> str:
    """Return the qualified resource: `deployments.apps`, or `pods` for the core group."""
    return f"{resource}.{group}" if group else resource


def _details(name: str, group: str, kind: str) -> dict[str, Any]:
    return {key: value for key, value in (("name", name), ("group", group), ("kind", kind)) if value}


def not_found(group: str, resource: str, name: str) -> StatusError:
    """Return 404 for an object."""
    return StatusError(404, f'{qualified(group, resource)} "{name}" not found', details=_details(name, group, resource))


def method_not_allowed() -> StatusError:
    """Return 405."""
    return StatusError(405, "the server does not allow this method on the requested resource", details={})


def expired(message: str, *, continue_token: str = "") -> StatusError:
    """Return 410. `continue_token`: the "inconsistent" token with which the client can continue the list."""
    return StatusError(410, message, metadata={"continue": continue_token} if continue_token else None)


def invalid(group: str, kind: str, name: str, causes: Sequence[StatusCause]) -> StatusError:
    """Return 422. The message joins the causes as Go's aggregate error does (equal texts only once)."""
    texts = list(dict.fromkeys(f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes))
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = {**_details(name, group, kind), "causes": [cause.as_dict() for cause in causes]}
    return StatusError(422, f'{qualified(group, kind)} "{name}" is invalid: {joined}', details=details)


def too_large_resource_version(wanted: str, current: str) -> StatusError:
    """Return 504 for a resourceVersion that is in the future."""
    return StatusError(
        504,
        f"Timeout: Too large resource version: {wanted}, current: {current}",
        details={
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
        headers=((b"Retry-After", b"1"),),
    )


def unrecognized(kind: str, body: bytes, why: str) -> StatusError:
    """Return 400 for a JSON body that is not a decodable object (apiserver `transformDecodeError`, `summarizeData`)."""
    start = body[:_SUMMARY]
    shown = start.decode("utf-8", "replace") if start[:1] == b"{" else start.hex() or "<empty>"
    shown += " ..." if len(body) > _SUMMARY else ""
    return StatusError(
        400,
        f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; "
        f"json parse error: {why} ({shown})",
    )


_STATUS_MESSAGE, _STATUS_REASON = 3, 4  # field numbers


# Reading the `Status` of a cluster's error response: JSON, or the protobuf that client-go requests. Pure.
#
# Source: k8s.io/apimachinery `pkg/runtime/serializer/protobuf` (the magic number and the envelope, `runtime.Unknown`)
# and `pkg/apis/meta/v1/generated.proto` (`Status`). The caller bounds the size of a body; its content is not trusted.


class StatusText(NamedTuple):
    """Reason and message of a Status."""

    reason: str
    message: str


def read_status(body: bytes) -> StatusText | None:
    """Return reason and message of a body that is a Status; None for any other body."""
    try:
        return _from_protobuf(body) if body.startswith(MAGIC) else _from_json(body)
    except (ValueError, RecursionError):
        return None


def _from_json(body: bytes) -> StatusText | None:
    status = json.loads(body)
    if not isinstance(status, dict) or status.get("kind") != "Status":
        return None
    reason, message = status.get("reason"), status.get("message")
    return StatusText(reason, message) if isinstance(reason, str) and isinstance(message, str) else None


def _from_protobuf(body: bytes) -> StatusText | None:
    found = envelope(body)
    if found.kind != "Status":
        return None
    texts = {_STATUS_REASON: "", _STATUS_MESSAGE: ""}
    for field in scan(body, found.raw.content, found.raw.end):
        if field.number in texts:
            texts[field.number] = body[field.content : field.end].decode()
    return StatusText(texts[_STATUS_REASON], texts[_STATUS_MESSAGE])
