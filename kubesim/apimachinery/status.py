"""Errors of the simulated kube-apiserver, with the exact messages of a real one.

Every error is raised as `APIError`; only `server/app.py` turns it into a response. A real apiserver answers some errors
with a Kubernetes Status object and some with plain text (unknown paths, overload), so the error has its form.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kubesim.apimachinery.resources import JSONDict
from mcproxy.kube.status import Cause as Cause
from mcproxy.kube.status import StatusError
from mcproxy.kube.status import qualified as qualified


class APIError(Exception):
    """An error response. `details=None` leaves details out; a real apiserver sends `{}` in some responses."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: JSONDict | None = None,
        *,
        headers: Sequence[tuple[str, str]] = (),
        metadata: JSONDict | None = None,
        text: bool = False,
        indented: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.headers = tuple(headers)
        self.metadata = metadata or {}
        self.text = text
        """Send text/plain; `message` is the whole body but its newline."""
        self.indented = indented
        """Send indented JSON without a final newline, as for 406."""

    def status(self) -> JSONDict:
        """Return the Status object, with Go's order of fields."""
        body: JSONDict = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body

    def body(self) -> bytes:
        """Return the response body."""
        if self.text:
            return self.message.encode() + b"\n"
        if self.indented:
            return json.dumps(self.status(), indent=2, ensure_ascii=False).encode()
        return dumps(self.status()) + b"\n"


def of(error: StatusError) -> APIError:
    """Return an error of `kube` as one of this server."""
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in error.headers]
    return APIError(
        error.code,
        error.reason,
        error.message,
        error.details,
        headers=headers,
        metadata=error.metadata,
        indented=error.indented,
    )


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


def success(details_: JSONDict | None = None, *, code: int | None = None, message: str = "") -> JSONDict:
    """Return the Status of success, the response of DELETE, eviction and binding."""
    out: JSONDict = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if message:
        out["message"] = message
    if details_ is not None:
        out["details"] = details_
    if code is not None:
        out["code"] = code
    return out


def bad_request(message: str) -> APIError:
    """400."""
    return APIError(400, "BadRequest", message)


def unauthorized() -> APIError:
    """401."""
    return APIError(401, "Unauthorized", "Unauthorized")


def forbidden(group: str, plural: str, name: str, message: str, **more: Any) -> APIError:
    """403 of admission or authorization; `message` follows "is forbidden: "."""
    what = qualified(group, plural) + (f' "{name}"' if name else "")
    text = f"{what} is forbidden: {message}" if plural else f"forbidden: {message}"
    return APIError(403, "Forbidden", text, details(name, group, plural, **more))


def page_not_found() -> APIError:
    """404 of an unknown path: plain text."""
    return APIError(404, "NotFound", "404 page not found", text=True, headers=[("X-Content-Type-Options", "nosniff")])


def no_such_resource() -> APIError:
    """404 of an unknown resource in a built-in group."""
    return APIError(404, "NotFound", "the server could not find the requested resource", {})


def not_found(group: str, plural: str, name: str) -> APIError:
    """404 of an object."""
    text = f'{qualified(group, plural)} "{name}" not found'
    return APIError(404, "NotFound", text, details(name, group, plural))


def method_not_allowed() -> APIError:
    """405."""
    return APIError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def not_acceptable(message: str) -> APIError:
    """406, indented as a real one."""
    return APIError(406, "NotAcceptable", message, {}, indented=True)


def already_exists(group: str, plural: str, name: str) -> APIError:
    """409 of a create."""
    text = f'{qualified(group, plural)} "{name}" already exists'
    return APIError(409, "AlreadyExists", text, details(name, group, plural))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(group: str, plural: str, name: str, message: str = MODIFIED) -> APIError:
    """409 of an update. Precondition failures of a delete give the Kind for `plural` and no group."""
    text = f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {message}'
    return APIError(409, "Conflict", text, details(name, group, plural))


def expired(message: str, *, continue_token: str = "") -> APIError:
    """410; `continue_token` is the "inconsistent" token by which a list may be continued."""
    return APIError(410, "Expired", message, metadata={"continue": continue_token} if continue_token else None)


def too_large(limit: int = 3145728) -> APIError:
    """413 of a body."""
    return APIError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def unsupported_media_type(accepted: Sequence[str]) -> APIError:
    """415 of a body."""
    text = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return APIError(415, "UnsupportedMediaType", text)


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause], *, doubled: Sequence[Cause] = ()) -> APIError:
    """422. The message joins the causes as Go's aggregate error does (equal texts once)."""
    texts = list(dict.fromkeys(f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes))
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    listed = [cause.as_dict() for cause in (*causes, *doubled)]
    return APIError(
        422,
        "Invalid",
        f'{qualified(group, kind)} "{name}" is invalid: {joined}',
        details(name, group, kind, causes=listed),
    )


def rejected() -> APIError:
    """422 of a JSON patch that cannot be applied."""
    return APIError(422, "Invalid", "the server rejected our request due to an error in our request", {})


def too_many_requests(retry_after: int = 1) -> APIError:
    """429 of flow control: plain text."""
    headers = [("Retry-After", str(retry_after)), ("X-Content-Type-Options", "nosniff")]
    text = "Too many requests, please try again later."
    return APIError(429, "TooManyRequests", text, text=True, headers=headers)


def internal_error(message: str) -> APIError:
    """500."""
    return APIError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})


def too_large_resource_version(wanted: int, current: int) -> APIError:
    """504 of a resourceVersion in the future."""
    return APIError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {wanted}, current: {current}",
        {
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
        headers=[("Retry-After", "1")],
    )
