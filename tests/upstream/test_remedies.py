"""The remedy fits the cause; causes are made by the code that makes them in the daemon."""

import errno
from dataclasses import replace

import pytest
from OpenSSL import SSL

from mcproxy.config import model
from mcproxy.net.causes import Cause, CauseCode
from mcproxy.net.connect_errors import from_errno, from_handshake
from mcproxy.net.connect_errors import untrusted as made_untrusted
from mcproxy.net.tls_contexts import verify_reason
from mcproxy.upstream.health_check import failure_message
from mcproxy.upstream.remedies import CLUSTER, Keys, keys_of, of_kubeconfig, remedy

WHERE = "10.0.0.1:6443"
_CODES = SSL.X509VerificationCodes


def untrusted(number: int) -> str:
    return made_untrusted(WHERE, verify_reason(number)).cause


def handshake(reason: str) -> str:
    return from_handshake(SSL.Error([("SSL routines", "", reason)]), WHERE).cause


@pytest.mark.parametrize(
    ("cause", "part"),
    [
        (untrusted(_CODES.ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY), "into `tls.caFile`"),
        (untrusted(_CODES.ERR_DEPTH_ZERO_SELF_SIGNED_CERT), "into `tls.caFile`"),
        (untrusted(_CODES.ERR_SELF_SIGNED_CERT_IN_CHAIN), "into `tls.caFile`"),
        (untrusted(_CODES.ERR_CERT_SIGNATURE_FAILURE), "into `tls.caFile`"),
        (untrusted(_CODES.ERR_CERT_HAS_EXPIRED), "renew"),
        (untrusted(_CODES.ERR_CERT_NOT_YET_VALID), "clocks"),
        (untrusted(_CODES.ERR_CERT_REVOKED), "not revoked"),
        (untrusted(_CODES.ERR_INVALID_PURPOSE), "server authentication"),
        (untrusted(9999), "another certificate"),
        (CauseCode.WRONG_NAME, "`tls.serverName`"),
        (CauseCode.NO_NAME, "subjectAltName"),
        (handshake("tlsv13 alert certificate required"), "`credentials.certFile`"),
        (handshake("tlsv1 alert unknown ca"), "`credentials.certFile`"),
        (handshake("wrong version number"), "port in the URL"),
        (handshake("tlsv1 unrecognized name"), "`tls.serverName`"),
        (handshake("unsupported protocol"), "TLS 1.2"),
        (handshake("unexpected eof while reading"), "log"),
        (from_errno(errno.ECONNREFUSED, WHERE).cause, "runs, and listens"),
        (from_errno(errno.ETIMEDOUT, WHERE).cause, "firewall"),
        (from_errno(errno.EHOSTUNREACH, WHERE).cause, "routes"),
        (from_errno(errno.ENETUNREACH, WHERE).cause, "routes"),
        (from_errno(errno.EMFILE, WHERE).cause, "LimitNOFILE="),
        (from_errno(errno.EADDRNOTAVAIL, WHERE).cause, "`connections.maxConnections`"),
        (from_errno(errno.EACCES, "unix:/run/x y.sock").cause, "daemon's user"),
        (from_errno(errno.ENOENT, "unix:/run/x.sock").cause, "where its socket is"),
        (from_errno(errno.EPERM, WHERE).cause, "firewall of this machine"),
        (CauseCode.NO_ANSWER_TO_CONNECT, "firewall"),
        (CauseCode.PROXY_UNREACHABLE, "the HTTP proxy of `proxy` runs"),
        (CauseCode.NOT_AN_HTTP_PROXY, "host and port of an HTTP proxy"),
        (CauseCode.PROXY_CREDENTIALS, "user and password"),
        (CauseCode.REFUSED_BY_PROXY, "pass CONNECT requests"),
        (CauseCode.NOT_REACHED_BY_PROXY, "from the HTTP proxy"),
        (CauseCode.HANDSHAKE_TIMEOUT, "hangs"),
        (CauseCode.NO_ADDRESS, "DNS"),
        (CauseCode.NO_ANSWER, "hangs"),
        (CauseCode.BROKEN_OFF, "log"),
        (CauseCode.NOT_HTTP, "port and scheme"),
        (CauseCode.NO_HTTP2, "HTTP1"),
        (failure_message(401, b"", "/readyz"), "`credentials`"),
        (failure_message(403, b"", "/readyz"), "mcproxy rbac"),
        (failure_message(404, b"", "/x"), "healthCheck.path"),
        (failure_message(429, b"", "/readyz"), "overloaded"),
        (failure_message(500, b"[-]etcd failed: reason withheld\n", "/readyz"), "not ready"),
        (failure_message(302, b"", "/readyz"), "what answers"),
        ("something new", "runs and can be reached"),
    ],
)
def test_the_remedy_fits_the_cause(cause: str | CauseCode, part: str) -> None:
    assert part in remedy(cause)


def test_what_a_server_can_choose_does_not_choose_the_remedy() -> None:
    names = f"the certificate of {WHERE} is not trusted: certificate has expired"
    cause = Cause(f"the certificate is not for a.example; it is for {names}", CauseCode.WRONG_NAME)
    assert "`tls.serverName`" in remedy(cause)
    failed = failure_message(500, b"[-]10.0.0.1:6443-refused-the-connection failed\n", "/readyz")
    assert failed is not None
    assert "not ready" in remedy(failed)


def test_the_remedy_names_where_the_configuration_has_it() -> None:
    cause = untrusted(_CODES.ERR_DEPTH_ZERO_SELF_SIGNED_CERT)
    endpoint = model.EndpointConfig(name="a", scheme="https", host="10.0.0.1", port=6443)
    cluster = model.ClusterConfig(name="east", endpoints=(endpoint,))
    assert keys_of(cluster) == replace(CLUSTER, rights="grant it what `mcproxy rbac --cluster east` prints")
    from_file = replace(cluster, kubeconfig=model.KubeconfigReference("/etc/k", "admin"))
    assert "`certificate-authority-data` in /etc/k" in remedy(cause, keys_of(from_file))
    assert "context admin in /etc/k" in remedy(CauseCode.UNAUTHORIZED, keys_of(from_file))
    assert "`proxy-url` in /etc/k" in remedy(CauseCode.PROXY_CREDENTIALS, keys_of(from_file))
    assert "--cluster east" in remedy(CauseCode.FORBIDDEN, keys_of(from_file))
    assert "the webhook" in remedy(cause, of_kubeconfig(model.KubeconfigReference("/etc/k", "x"), "the webhook"))
    assert "`oidc[].caFile`" in remedy(cause, Keys("the issuer", ca="`oidc[].caFile`"))
