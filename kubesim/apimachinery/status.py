"""Errors of the simulated kube-apiserver, with the exact messages of a real one.

An error is a `StatusError` of `mcproxy.kube`; only `server/app.py` turns it into a response. A real apiserver answers
some errors with a Kubernetes Status object and some with plain text (unknown paths, overload): these are `APIError`s.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kubesim.apimachinery.resources import JSONDict
from mcproxy.kube.status import (
    StatusCause,
    StatusError,
    expired,
    invalid,
    method_not_allowed,
    not_found,
    qualified,
    too_large_resource_version,
)

__all__ = [
    "APIError",
    "StatusCause",
    "StatusError",
    "expired",
    "invalid",
    "method_not_allowed",
    "not_found",
    "qualified",
    "too_large_resource_version",
]


class APIError(StatusError):
    """An error with its reason; `text`: sent as text/plain, the message is the whole body but its newline."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: JSONDict | None = None,
        *,
        headers: Sequence[tuple[str, str]] = (),
        text: bool = False,
        indented: bool = False,
    ) -> None:
        encoded = tuple((name.encode(), value.encode()) for name, value in headers)
        super().__init__(code, message, reason=reason, details=details, headers=encoded, indented=indented)
        self.text = text

    def body(self) -> bytes:
        """Return the response body."""
        return self.message.encode() + b"\n" if self.text else super().body()


def dumps(value: Any) -> bytes:
    """Return compact JSON as Go writes it (`<`, `>` and `&` escaped)."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if "<" in text or ">" in text or "&" in text:
        text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return text.encode()


def details(name: str = "", group: str = "", kind: str = "", **more: Any) -> JSONDict:
    """Return `details` without empty fields, in Go's order."""
    out: JSONDict = {key: value for key, value in (("name", name), ("group", group), ("kind", kind)) if value}
    out.update(more)
    return out


def success(details_: JSONDict | None = None, *, code: int | None = None) -> JSONDict:
    """Return the Status of success, the response of DELETE, eviction and binding."""
    out: JSONDict = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details_ is not None:
        out["details"] = details_
    if code is not None:
        out["code"] = code
    return out


def field_invalid(field: str, value: object, text: str) -> StatusCause:
    """The cause of a 422 for a value; this and the next are k8s.io/apimachinery's `field.Invalid` and so on."""
    return StatusCause("FieldValueInvalid", f"Invalid value: {json.dumps(value, separators=(',', ':'))}: {text}", field)


def field_required(field: str, text: str = "") -> StatusCause:
    """The cause of a 422 for a field that is missing."""
    return StatusCause("FieldValueRequired", f"Required value: {text}" if text else "Required value", field)


def field_not_supported(field: str, value: object, supported: Sequence[str]) -> StatusCause:
    """The cause of a 422 for a value that is not supported."""
    names = ", ".join(map(json.dumps, supported))
    return StatusCause(
        "FieldValueNotSupported", f"Unsupported value: {json.dumps(value)}: supported values: {names}", field
    )


def field_forbidden(field: str, text: str) -> StatusCause:
    """The cause of a 422 for a field that may not be set, or not be changed."""
    return StatusCause("FieldValueForbidden", f"Forbidden: {text}", field)


def field_duplicate(field: str, value: object) -> StatusCause:
    """The cause of a 422 for a value that another item of the list has, too."""
    return StatusCause("FieldValueDuplicate", f"Duplicate value: {json.dumps(value, separators=(',', ':'))}", field)


def field_too_long(field: str, most: int) -> StatusCause:
    """The cause of a 422 for a value that exceeds a number of bytes."""
    return StatusCause("FieldValueTooLong", f"Too long: may not be more than {most} bytes", field)


def field_too_many(field: str, items: Sequence[object], most: int) -> StatusCause:
    """The cause of a 422 for a list that exceeds a number of items."""
    return StatusCause("FieldValueTooMany", f"Too many: {len(items)}: must have at most {most} items", field)


def bad_request(message: str) -> StatusError:
    """400."""
    return APIError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    """401."""
    return APIError(401, "Unauthorized", "Unauthorized")


def forbidden(group: str, plural: str, name: str, message: str, **more: Any) -> StatusError:
    """403 of admission or authorization; `message` follows "is forbidden: "."""
    what = qualified(group, plural) + (f' "{name}"' if name else "")
    text = f"{what} is forbidden: {message}" if plural else f"forbidden: {message}"
    return APIError(403, "Forbidden", text, details(name, group, plural, **more))


def page_not_found() -> StatusError:
    """404 of an unknown path: plain text."""
    return APIError(404, "NotFound", "404 page not found", text=True, headers=[("X-Content-Type-Options", "nosniff")])


def no_such_resource() -> StatusError:
    """404 of an unknown resource in a built-in group."""
    return APIError(404, "NotFound", "the server could not find the requested resource", {})


def not_acceptable(message: str) -> StatusError:
    """406, indented as a real one."""
    return APIError(406, "NotAcceptable", message, {}, indented=True)


def already_exists(group: str, plural: str, name: str) -> StatusError:
    """409 of a create."""
    text = f'{qualified(group, plural)} "{name}" already exists'
    return APIError(409, "AlreadyExists", text, details(name, group, plural))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(group: str, plural: str, name: str, message: str = MODIFIED) -> StatusError:
    """409 of an update. Precondition failures of a delete give the Kind for `plural` and no group."""
    text = f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {message}'
    return APIError(409, "Conflict", text, details(name, group, plural))


def too_large(limit: int = 3145728) -> StatusError:
    """413 of a body."""
    return APIError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    """415 of a body."""
    text = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return APIError(415, "UnsupportedMediaType", text)


def rejected() -> StatusError:
    """422 of a JSON patch that cannot be applied."""
    return APIError(422, "Invalid", "the server rejected our request due to an error in our request", {})


def too_many_requests(retry_after: int = 1) -> StatusError:
    """429 of flow control: plain text."""
    headers = [("Retry-After", str(retry_after)), ("X-Content-Type-Options", "nosniff")]
    text = "Too many requests, please try again later."
    return APIError(429, "TooManyRequests", text, text=True, headers=headers)


def internal_error(message: str) -> StatusError:
    """500."""
    return APIError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})
