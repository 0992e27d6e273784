"""Which of a client's headers reach a cluster, by the cluster's way of being told who calls.

Source: Kubernetes "User impersonation" and "Authenticating proxy"; the prefixes are whole families, since Kubernetes
adds to them. Underscores count as hyphens here: some servers read them so.
"""

from __future__ import annotations

from mcproxy.config.model import Identity
from mcproxy.http.messages import split_line
from mcproxy.kube.status import StatusError

_BEARER_PROTOCOL = b"base64url.bearer.authorization.k8s.io."

# What the names that are looked at begin with; all other lines pass without a second look.
_SUSPECTS = frozenset(b"aisxAISX")


def passing(identity: Identity, lines: list[bytes]) -> list[bytes]:
    """Return the header lines that pass: Authorization and Impersonate-* only with Passthrough, X-Remote-* never.

    X-Forwarded-* are left out too, since the proxy sets them anew. Raises StatusError (403) for impersonation asked
    for where the proxy lends its own rights: to ignore it would run the request with more rights than were meant.
    """
    lends = identity is Identity.PROXY
    result = []
    for line in lines:
        if line[0] in _SUSPECTS:
            name, value = split_line(line)
            name = name.replace(b"_", b"-")
            if name.startswith((b"x-remote-", b"x-forwarded-")):
                continue
            if lends:
                if name == b"authorization":
                    continue
                if name.startswith(b"impersonate"):
                    raise StatusError(
                        403, "impersonation is not possible here: the cluster is told the proxy's own identity"
                    )
                if name == b"sec-websocket-protocol" and _BEARER_PROTOCOL in value:
                    value = _without_bearer(value)
                    if not value:
                        continue
                    line = b"Sec-WebSocket-Protocol: " + value
        result.append(line)
    return result


def _without_bearer(protocols: bytes) -> bytes:
    """Take a bearer token out of the offered WebSocket subprotocols (browsers can put it nowhere else)."""
    offered = (protocol.strip(b" \t") for protocol in protocols.split(b","))
    return b", ".join(protocol for protocol in offered if not protocol.startswith(_BEARER_PROTOCOL))
