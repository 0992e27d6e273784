"""Which of a client's headers reach a cluster, by the cluster's way of being told who calls.

Source: Kubernetes "User impersonation" and "Authenticating proxy"; the prefixes are whole families, since Kubernetes
adds to them. Underscores count as hyphens here: some servers read them so.
"""

from __future__ import annotations

import re

from mcproxy.config.model import Identity
from mcproxy.http.messages import split_fields
from mcproxy.kube.status import StatusError

_BEARER_PROTOCOL = b"base64url.bearer.authorization.k8s.io."

# X-Forwarded-For by other names: a kube-apiserver's audit log would believe X-Real-Ip, and nobody sets these anew.
_OTHER_SOURCES = (b"forwarded", b"x-real-ip")

# Names that are looked at, at the beginning of a line of a `fields` block in lower case.
_SUSPECT = re.compile(
    rb"(?:^|\n)(?:authorization|impersonate|forwarded|x[-_](?:(?:remote|forwarded)[-_]|real[-_]ip)"
    rb"|sec[-_]websocket[-_]protocol)"
)


def passing(identity: Identity, fields: bytes) -> bytes:
    """Return the fields that pass: Authorization and Impersonate-* only with Passthrough, X-Remote-* never.

    `fields` is a block as in `RequestHead`. X-Forwarded-* are left out too, since the proxy sets them anew. Raises
    StatusError (403) for impersonation asked for where the proxy lends its own rights: to ignore it would run the
    request with more rights than were meant.
    """
    if _SUSPECT.search(fields.lower()) is None:
        return fields
    lends = identity is Identity.PROXY
    lines = fields.split(b"\r\n")
    result = []
    for line, (name, value) in zip(lines, split_fields(fields), strict=False):
        plain = name.replace(b"_", b"-")
        if plain.startswith((b"x-remote-", b"x-forwarded-")) or plain in _OTHER_SOURCES:
            continue
        if lends:
            if plain == b"authorization":
                continue
            if plain.startswith(b"impersonate"):
                raise StatusError(
                    403, "impersonation is not possible here: the cluster is told the proxy's own identity"
                )
            if plain == b"sec-websocket-protocol" and _BEARER_PROTOCOL in value:
                kept = _without_bearer(value)
                if not kept:
                    continue
                line = b"Sec-WebSocket-Protocol: " + kept
        result.append(line + b"\r\n")
    return b"".join(result)


def _without_bearer(protocols: bytes) -> bytes:
    """Take a bearer token out of the offered WebSocket subprotocols (browsers can put it nowhere else)."""
    offered = (protocol.strip(b" \t") for protocol in protocols.split(b","))
    return b", ".join(protocol for protocol in offered if not protocol.startswith(_BEARER_PROTOCOL))
