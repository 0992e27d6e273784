"""Which of a client's headers reach a cluster, by the cluster's way of being told who calls.

Source: Kubernetes "User impersonation" and "Authenticating proxy"; the prefixes are whole families, since Kubernetes
adds to them. Underscores count as hyphens here: some servers read them so.
"""

from __future__ import annotations

from mcproxy.config.model import Identity
from mcproxy.kube.status import StatusError

Header = tuple[bytes, bytes]

_IMPERSONATE = b"impersonate"
_BEARER_PROTOCOL = b"base64url.bearer.authorization.k8s.io."

# First bytes of the header names that are looked at; all others pass without a second look.
_SUSPECTS = frozenset(b"aisx")


def passing(identity: Identity, headers: list[Header]) -> list[Header]:
    """Return the headers that pass: Authorization and Impersonate-* only with Passthrough, X-Remote-* never.

    X-Forwarded-* are left out too, since the proxy sets them anew. Raises StatusError (403) for impersonation asked
    for where the proxy lends its own rights: to ignore it would run the request with more rights than were meant.
    """
    own = identity is Identity.PROXY
    result = []
    for field in headers:
        name = field[0]
        if name[0] in _SUSPECTS:
            plain = name.replace(b"_", b"-")
            if plain.startswith((b"x-remote-", b"x-forwarded-")):
                continue
            if own:
                if plain == b"authorization":
                    continue
                if plain.startswith(_IMPERSONATE):
                    raise StatusError(
                        403, "impersonation is not possible here: the cluster is told the proxy's own identity"
                    )
                if plain == b"sec-websocket-protocol":
                    kept = _without_bearer(field[1])
                    if not kept:
                        continue
                    field = (name, kept)
        result.append(field)
    return result


def _without_bearer(protocols: bytes) -> bytes:
    """Take a bearer token out of the offered WebSocket subprotocols (browsers can put it nowhere else)."""
    if _BEARER_PROTOCOL not in protocols:
        return protocols
    offered = (protocol.strip(b" \t") for protocol in protocols.split(b","))
    return b", ".join(protocol for protocol in offered if not protocol.startswith(_BEARER_PROTOCOL))
