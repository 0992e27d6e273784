"""Remedies for operators when a server cannot be used, by the code of the cause (`net.causes`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from mcproxy.config import model
from mcproxy.net.causes import CauseCode, code_of


@dataclass(frozen=True, slots=True)
class Keys:
    """The configuration keys and the name of the server for the texts of remedies."""

    server: str = "the API server"
    ca: str = "`tls.caFile`"
    name: str = "`tls.serverName`"
    certificate: str = "`credentials.certFile`"
    credential: str = "`credentials`"
    rights: str = "grant it what `mcproxy rbac` prints for this cluster"
    proxy: str = "`proxy`"


CLUSTER = Keys()

TRUST_FRONT_PROXY = (
    "let the API server trust the front proxy's certificate (--requestheader-client-ca-file: its authority, "
    "--requestheader-allowed-names: its common name)"
)
"""The remedy for 401 if the proxy presents only the front proxy's certificate."""


def shows_front_proxy_alone(cluster: model.ClusterConfig) -> bool:
    """Whether the proxy's own requests to a cluster present only the front proxy's certificate."""
    return cluster.identity is model.UpstreamIdentity.REQUEST_HEADER and cluster.credentials == model.Credentials()


def keys_of(cluster: model.ClusterConfig) -> Keys:
    """Return the configuration keys for remedies about a cluster."""
    rights = f"grant it what `mcproxy rbac --cluster {cluster.name}` prints"
    certificate = "`credentials.certFile`"
    if cluster.front_proxy is not None:
        certificate = "`frontProxy.certFile` or `credentials.certFile`"
    if cluster.kubeconfig is None:
        return Keys(certificate=certificate, rights=rights)
    return replace(of_kubeconfig(cluster.kubeconfig), rights=rights)


def of_kubeconfig(reference: model.KubeconfigReference, server: str = "the API server") -> Keys:
    """Return the configuration keys for remedies about a server that a kubeconfig describes."""
    return Keys(
        server=server,
        ca=f"`certificate-authority-data` in {reference.file}",
        name=f"`tls-server-name` in {reference.file}",
        certificate=f"`client-certificate-data` in {reference.file}",
        credential=f"the user of context {reference.context} in {reference.file}",
        proxy=f"`proxy-url` in {reference.file}",
    )


def keys_of_hub(dial: model.Dial) -> Keys:
    """Return the configuration keys for remedies about a hub that a listener dials."""
    return Keys(
        server="the hub",
        ca="`dial.tls.caFile`",
        name="`dial.serverName`",
        certificate="`dial.tls.certFile`",
        credential="`dial.tls`" if dial.credentials is None else "`dial.credentials`",
        proxy="`dial.proxy`",
    )


_DNS = "see that the name is right and that DNS answers on this machine (getent hosts NAME)"
_LOG = "see {server}'s log, and what is between it and here"
_REMEDIES: Mapping[CauseCode, str] = {
    CauseCode.NO_ADDRESS: _DNS,
    CauseCode.REFUSED: "see whether {server} runs, and listens on this address and port",
    CauseCode.NO_ANSWER_TO_CONNECT: "see whether its machine is up, and whether a firewall drops packets",
    CauseCode.NO_CONNECTION_IN_TIME: ("see whether its machine is up, whether {server} hangs, and what is between"),
    CauseCode.UNREACHABLE: "see the routes and firewalls to it",
    CauseCode.TOO_MANY_FILES: "raise LimitNOFILE= of the unit, or lower the load",
    CauseCode.NO_FREE_PORT: "no port is left: lower `connections.maxConnections`",
    CauseCode.SOCKET_NOT_PERMITTED: "let the daemon's user write to the socket",
    CauseCode.NO_SOCKET: "see whether {server} runs, and where its socket is",
    CauseCode.NOT_PERMITTED: "see the firewall of this machine",
    CauseCode.NO_TUNNEL: "see the log of the mcproxy beside {server}, and the network between; it dials by itself",
    CauseCode.PROXY_UNREACHABLE: "see whether the HTTP proxy of {proxy} runs and can be reached from here",
    CauseCode.NOT_AN_HTTP_PROXY: "see whether {proxy} has the host and port of an HTTP proxy, and see the proxy's log",
    CauseCode.PROXY_CREDENTIALS: "put a user and password that the HTTP proxy accepts into {proxy}",
    CauseCode.REFUSED_BY_PROXY: "let the HTTP proxy of {proxy} pass CONNECT requests for {server}",
    CauseCode.NOT_REACHED_BY_PROXY: "see whether {server} runs and can be reached from the HTTP proxy of {proxy}",
    CauseCode.HANDSHAKE_TIMEOUT: "see whether {server} hangs, and what is between it and here",
    CauseCode.CLIENT_CERTIFICATE: "put a client certificate that {server} accepts into {certificate}",
    CauseCode.NO_COMMON_CIPHER: "see which ciphers {server} has, and whether it requires a client certificate",
    CauseCode.NOT_TLS: "see whether the port in the URL is the right one",
    CauseCode.SERVER_NAME_UNKNOWN: "set {name} to a name that {server} has",
    CauseCode.TLS_VERSION: "enable TLS 1.2 or later on {server}",
    CauseCode.HANDSHAKE_FAILED: _LOG,
    CauseCode.NO_COMMON_PROTOCOL: _LOG,
    CauseCode.HTTP2_REFUSED: "set `connections.protocol` to Auto or HTTP1",
    CauseCode.NO_HTTP2: "set `connections.protocol` to Auto or HTTP1",
    CauseCode.NO_CERTIFICATE: "see what answers there",
    CauseCode.UNKNOWN_AUTHORITY: "put the CA that signed {server}'s certificate into {ca}",
    CauseCode.EXPIRED: "renew {server}'s certificate, or correct this machine's clock",
    CauseCode.NOT_YET_VALID: "correct the clocks of this machine and of {server}",
    CauseCode.REVOKED: "give {server} a certificate that is not revoked",
    CauseCode.WRONG_PURPOSE: "give {server} a certificate for server authentication",
    CauseCode.WRONG_SIGNATURE: "put the current CA into {ca}: the one there has the same name, but another key",
    CauseCode.UNTRUSTED: "give {server} another certificate, and put its CA into {ca}",
    CauseCode.WRONG_NAME: "set {name} to a name that the certificate is for, or see where the address leads",
    CauseCode.NO_NAME: "give {server} a certificate with a subjectAltName; a common name does not count",
    CauseCode.INVALID_NAMES: "give {server} a certificate with valid names",
    CauseCode.OWN_CERTIFICATE: "see that the files of the certificates can be read and fit",
    CauseCode.NO_ANSWER: "see whether {server} hangs or is overloaded",
    CauseCode.BROKEN_OFF: _LOG,
    CauseCode.NOT_HTTP: "see whether the URL has the right port and scheme (https)",
    CauseCode.UNAUTHORIZED: "put a credential that {server} accepts into {credential}",
    CauseCode.FORBIDDEN: "{rights}, or set `healthCheck.path`",
    CauseCode.NOT_FOUND: "set `healthCheck.path` to one that {server} has; see what answers there",
    CauseCode.TOO_MANY_REQUESTS: "see why {server} is overloaded",
    CauseCode.SERVER_ERROR: "it runs, but is not ready: see {server}'s log",
    CauseCode.OTHER_ANSWER: "see what answers there",
}


def remedy(cause: str | CauseCode, keys: Keys = CLUSTER, default: str = "") -> str:
    """Return the remedy for `cause`, or `default` if there is none."""
    code = cause if isinstance(cause, CauseCode) else code_of(cause)
    todo = _REMEDIES.get(code, default or "see whether {server} runs and can be reached from here")
    return todo.format(**asdict(keys))
