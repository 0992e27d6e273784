"""The errors of a kube-apiserver that several packages raise, with its texts.

Source: k8s.io/apimachinery `pkg/api/errors`, and recordings of a kube-apiserver 1.36.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mcproxy.kube.status import StatusError

_SUMMARY = 30  # bytes of a body that an error shows


@dataclass(frozen=True)
class Cause:
    """One entry of `details.causes`: `reason` as in FieldValueInvalid, `message`, and the field's path."""

    reason: str
    message: str
    field: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return it as JSON has it, without an empty field."""
        out = {"reason": self.reason, "message": self.message}
        return {**out, "field": self.field} if self.field else out


def qualified(group: str, resource: str) -> str:
    """Return the qualified resource: `deployments.apps`, or `pods` for the core group."""
    return f"{resource}.{group}" if group else resource


def _details(name: str, group: str, kind: str) -> dict[str, Any]:
    return {key: value for key, value in (("name", name), ("group", group), ("kind", kind)) if value}


def not_found(group: str, resource: str, name: str) -> StatusError:
    """404 of an object."""
    return StatusError(404, f'{qualified(group, resource)} "{name}" not found', details=_details(name, group, resource))


def method_not_allowed() -> StatusError:
    """405."""
    return StatusError(405, "the server does not allow this method on the requested resource", details={})


def expired(message: str, *, continue_token: str = "") -> StatusError:
    """410; `continue_token` is the "inconsistent" token by which a list may be continued."""
    return StatusError(410, message, metadata={"continue": continue_token} if continue_token else None)


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> StatusError:
    """422. The message joins the causes as Go's aggregate error does (equal texts once)."""
    texts = list(dict.fromkeys(f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes))
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = {**_details(name, group, kind), "causes": [cause.as_dict() for cause in causes]}
    return StatusError(422, f'{qualified(group, kind)} "{name}" is invalid: {joined}', details=details)


def too_large_resource_version(wanted: str, current: str) -> StatusError:
    """504 of a resourceVersion that is in the future."""
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
    """400 of a body in JSON that no object can be read from (apiserver `transformDecodeError`, `summarizeData`)."""
    start = body[:_SUMMARY]
    shown = start.decode("utf-8", "replace") if start[:1] == b"{" else start.hex() or "<empty>"
    shown += " ..." if len(body) > _SUMMARY else ""
    return StatusError(
        400,
        f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; "
        f"json parse error: {why} ({shown})",
    )
