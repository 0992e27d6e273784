"""`Status`, the object of a Kubernetes error response.

Every refusal to a client of the proxy is raised as `StatusError` and turned into a response in one place,
`proxy.request.Request.refuse`. Source: Kubernetes API conventions, "Response Status Kind"; the order of the fields is
that of a kube-apiserver.
"""

from __future__ import annotations

import json
import re
from typing import Any

# The default reason of a code (apimachinery, `metav1.StatusReason`).
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

# Go's encoder escapes these, which can only occur in strings.
_GO_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})

_NOT_PLAIN = re.compile(r"[^\n -~]")  # in YAML some of these are line breaks, or not allowed

HeaderList = tuple[tuple[bytes, bytes], ...]


class StatusError(Exception):
    """A refusal, which becomes a Kubernetes `Status` object.

    `code` is the HTTP status; `reason` the machine-readable CamelCase word ("" where Kubernetes has none for it);
    `message` is the sentence that kubectl prints; `details` and `metadata` are the Status object's own; `headers` go on
    the response. `indented`: JSON over several lines without a final newline, as a kube-apiserver writes a 406.
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
        """Return the Status object in YAML, its fields sorted as sigs.k8s.io/yaml does, their values written as JSON.

        So it needs no library. JSON's escape of a character beyond 16 bits, two surrogates, is none in YAML.
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
