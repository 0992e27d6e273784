"""Remedies for operators when a server cannot be used, by the logged cause. Pure.

Causes are sentences of this program (`net.connect_errors`, `net.handshake_errors`, `upstream.health_check`), and
they travel between processes as text. So the table is one of patterns for the beginnings of causes, the more specific
first; text that a server influences (the names in its certificate, its failed checks) is at the end of a cause.
"""

from __future__ import annotations

import functools
import re
from dataclasses import asdict, dataclass, replace

from mcproxy.config import model


@dataclass(frozen=True, slots=True)
class Keys:
    """The configuration keys that remedies name, and a name for the server."""

    server: str = "the API server"
    ca: str = "`tls.caFile`"
    name: str = "`tls.serverName`"
    certificate: str = "`credentials.certFile`"
    credential: str = "`credentials`"
    rights: str = "grant it what `mcproxy rbac` prints for this cluster"


CLUSTER = Keys()

TRUST_FRONT_PROXY = (
    "let the API server trust the front proxy's certificate (--requestheader-client-ca-file: its authority, "
    "--requestheader-allowed-names: its common name)"
)
"""The remedy for 401 from an API server that gets no other credential."""


def shows_front_proxy_alone(cluster: model.Cluster) -> bool:
    """Whether the proxy's own requests to a cluster show the front proxy's certificate, and no credential."""
    return cluster.identity is model.UpstreamIdentity.REQUEST_HEADER and cluster.credentials == model.Credentials()


def keys_of(cluster: model.Cluster) -> Keys:
    """Return where the configuration has what a remedy for a cluster is about."""
    rights = f"grant it what `mcproxy rbac --cluster {cluster.name}` prints"
    certificate = "`credentials.certFile`"
    if cluster.front_proxy is not None:
        certificate = "`frontProxy.certFile` or `credentials.certFile`"
    if cluster.kubeconfig is None:
        return Keys(certificate=certificate, rights=rights)
    return replace(of_kubeconfig(cluster.kubeconfig), rights=rights)


def of_kubeconfig(reference: model.KubeconfigReference, server: str = "the API server") -> Keys:
    """Return the same for a server that a kubeconfig describes."""
    return Keys(
        server=server,
        ca=f"`certificate-authority-data` in {reference.file}",
        name=f"`tls-server-name` in {reference.file}",
        certificate=f"`client-certificate-data` in {reference.file}",
        credential=f"the user of context {reference.context} in {reference.file}",
    )


# Each: a pattern of the cause's beginning (`_UNTRUSTED`, `_HANDSHAKE`: of what follows the address), and the remedy.
_UNTRUSTED = (
    (
        r"self-signed certificate|unable to get |unable to verify |certificate not trusted",
        "put the CA that signed {server}'s certificate into {ca}",
    ),
    (r"certificate has expired", "renew {server}'s certificate, or correct this machine's clock"),
    (r"certificate is not yet valid", "correct the clocks of this machine and of {server}"),
    (r"certificate revoked", "give {server} a certificate that is not revoked"),
    (r"unsuitable certificate purpose", "give {server} a certificate for server authentication"),
    (
        r"certificate signature failure",
        "put the current CA into {ca}: the one there has the same name, but another key",
    ),
    (r"", "give {server} another certificate, and put its CA into {ca}"),
)
_HANDSHAKE = (
    (
        r"it (rejects|requires) .*client certificate",
        "put a client certificate that {server} accepts into {certificate}",
    ),
    (r"it accepts no cipher", "see which ciphers {server} has, and whether it requires a client certificate"),
    (r"it does not speak TLS", "see whether the port in the URL is the right one"),
    (r"it does not know the server name", "set {name} to a name that {server} has"),
    (r"it speaks no version of TLS", "enable TLS 1.2 or later on {server}"),
    (r"", "see {server}'s log, and what is between it and here"),
)
_DNS = "see that the name is right and that DNS answers on this machine (getent hosts NAME)"
_OTHER = (
    (
        r"(the upstream answered, but |TLS handshake with \S+ failed: [^;]*; )it does not speak HTTP/2",
        "set `connections.protocol` to Auto or HTTP1",
    ),
    (
        r"the certificate is not for .*; it is for no name$",
        "give {server} a certificate with a subjectAltName; a common name does not count",
    ),
    (
        r"the certificate is not for ",
        "set {name} to a name that the certificate is for, or see where the address leads",
    ),
    (r"the certificate cannot be checked for ", "give {server} a certificate with valid names"),
    (r"the certificates for .* cannot be used", "see that the files of the certificates can be read and fit"),
    (r"\S+ refused the connection", "see whether {server} runs, and listens on this address and port"),
    (r"the name \S+ has no address", _DNS),
    (r"\S+ took longer than .* in resolving its name", _DNS),
    (r"\S+ took longer than .* in the TLS handshake", "see whether {server} hangs, and what is between it and here"),
    (r"no connection to \S+ within ", "see whether its machine is up, whether {server} hangs, and what is between"),
    (r"\S+ (did not answer|took longer than )", "see whether its machine is up, and whether a firewall drops packets"),
    (
        r"cannot connect to .*: (No route to host|Network is unreachable|Host is down)",
        "see the routes and firewalls to it",
    ),
    (r"cannot connect to .*: Too many open files", "raise LimitNOFILE= of the unit, or lower the load"),
    (r"cannot connect to .*: Cannot assign requested address", "no port is left: lower `connections.maxConnections`"),
    (r"cannot connect to unix:.*: Permission denied", "let the daemon's user write to the socket"),
    (r"cannot connect to unix:.*: No such file or directory", "see whether {server} runs, and where its socket is"),
    (r"cannot connect to .*: (Permission denied|Operation not permitted)", "see the firewall of this machine"),
    (r"no answer (from \S+ )?on \S+ within ", "see whether {server} hangs or is overloaded"),
    (r"closed the connection|connection reset", "see {server}'s log, and what is between it and here"),
    (r"\S+ broke off the connection", "see {server}'s log, and what is between it and here"),
    (r"answered 401 ", "put a credential that {server} accepts into {credential}"),
    (r"answered 403 ", "{rights}, or set `healthCheck.path`"),
    (r"answered 404 ", "set `healthCheck.path` to one that {server} has; see what answers there"),
    (r"answered 429 ", "see why {server} is overloaded"),
    (r"answered 5\d\d ", "it runs, but is not ready: see {server}'s log"),
    (r"answered something that is not HTTP", "see whether the URL has the right port and scheme (https)"),
    (r"answered |the server sent no certificate", "see what answers there"),
)
_PATTERNS = tuple(
    (f"{prefix}(?:{pattern})", todo)
    for prefix, table in (
        (r"the certificate of \S+ is not trusted: ", _UNTRUSTED),
        ("", _OTHER[:1]),
        (r"TLS handshake with \S+ failed: ", _HANDSHAKE),
        ("", _OTHER[1:]),
    )
    for pattern, todo in table
)


@functools.cache
def _compiled() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return the table ready for use. Each process imports it, few use it, and to compile it takes long."""
    return tuple((re.compile(pattern), todo) for pattern, todo in _PATTERNS)


def remedy(cause: str, keys: Keys = CLUSTER, default: str = "") -> str:
    """Return what an operator does about `cause`; `default` if nothing is known of it."""
    for pattern, todo in _compiled():
        if pattern.match(cause):
            return todo.format(**asdict(keys))
    return default or f"see whether {keys.server} runs and can be reached from here"
