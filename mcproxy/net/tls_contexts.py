"""Creates OpenSSL contexts for servers and clients: protocol versions, ciphers, memory use.

A context is complete before its first connection and never changes afterwards. Another policy needs another context.

Connections of all contexts release their buffers while idle (SSL_MODE_RELEASE_BUFFERS; a third of an idle watch's
memory). They refuse renegotiation, by which a peer could cause useless work, or change its certificate in mid-stream.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from OpenSSL import SSL
from OpenSSL.crypto import X509, X509StoreFlags
from twisted.logger import Logger

from mcproxy.certificate_blocks import load_certificates
from mcproxy.net.alpn import HTTP1_0, HTTP1_1
from mcproxy.net.certificate_paths import PathError, TrustAnchors, check_strength, verified

log = Logger(__name__)

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey

# Mozilla's "intermediate" ciphers for TLS 1.2, without finite-field DH; TLS 1.3 keeps OpenSSL's three suites.
CIPHERS = (
    b"ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:"
    b"ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:"
    b"ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305"
)
_MIN_RSA_BITS = 2048  # OpenSSL's security level 2
_VERSIONS = {"1.2": SSL.TLS1_2_VERSION, "1.3": SSL.TLS1_3_VERSION}


class PairError(ValueError):
    """A certificate and key are unusable; str() is a message for operators."""


class NoCommonProtocol(Exception):
    """The client's ALPN offers no supported protocol; OpenSSL sends no_application_protocol (RFC 7301 3.2)."""


def load_pair(chain: bytes, key: bytes) -> tuple[list[x509.Certificate], PrivateKey]:
    """Parse a PEM chain (leaf first) and the unencrypted PEM key of the leaf. Raises PairError."""
    try:
        certificates = x509.load_pem_x509_certificates(chain)
    except (ValueError, x509.InvalidVersion) as error:
        raise PairError("no PEM certificate can be read") from error
    try:
        private = load_pem_private_key(key, None)
    except TypeError as error:
        raise PairError("the key is encrypted; give it without a passphrase") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PairError("no PEM private key can be read") from error
    if not isinstance(private, PrivateKey):
        raise PairError("the key is neither RSA nor ECDSA nor EdDSA")
    try:
        belongs = _public_bytes(private) == _public_bytes(certificates[0])
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PairError("the certificate's public key cannot be read") from error
    if not belongs:
        raise PairError("the key does not belong to the first certificate")
    return certificates, private


def _public_bytes(holder: PrivateKey | x509.Certificate) -> bytes:
    return holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _new(min_version: int) -> SSL.Context:
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_min_proto_version(min_version)
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    return context


def _use_pair(context: SSL.Context, chain: Sequence[x509.Certificate], key: PrivateKey) -> None:
    try:
        context.use_certificate(chain[0])
        for certificate in chain[1:]:
            context.add_extra_chain_cert(certificate)
        context.use_privatekey(key)
        context.check_privatekey()
    except SSL.Error as error:
        reasons = "; ".join(str(entry[-1]) for entry in error.args[0]) if error.args else str(error)
        raise PairError(f"OpenSSL does not take the pair: {reasons}") from error


def server_context(
    chain: bytes, key: bytes, min_version: str = "1.2", protocols: Sequence[bytes] = (HTTP1_1, HTTP1_0)
) -> SSL.Context:
    """Create a context that serves this certificate (PEM, leaf first). Raises PairError.

    `protocols` are the ALPN names of supported protocols, best first. A client that offers only others gets the alert
    no_application_protocol. A client without ALPN completes the handshake.

    Client certificates are requested, and accepted with any chain; the handshake only proves that the client has the
    key. The x509 authenticator verifies them later, against the CAs of the virtual server.

    Sessions are not resumed, so no session moves from one context to another. A ticket does not contain the client's
    chain, so a resumed connection could not be verified like the first one. Kubernetes clients keep their connections,
    so resumption would save little.
    """
    context = _new(_VERSIONS[min_version])
    context.set_cipher_list(CIPHERS)
    context.set_options(SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_NO_TICKET)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_session_id(os.urandom(16))
    context.set_verify(SSL.VERIFY_PEER, _accept_any)
    context.set_alpn_select_callback(partial(_select_protocol, tuple(protocols)))
    _use_pair(context, *load_pair(chain, key))
    return context


def _accept_any(connection: SSL.Connection, certificate: X509, number: int, depth: int, ok: int) -> bool:
    return True


def _select_protocol(protocols: Sequence[bytes], connection: SSL.Connection, offered: list[bytes]) -> bytes:
    for protocol in protocols:
        if protocol in offered:
            return protocol
    raise NoCommonProtocol  # pyOpenSSL sends the alert, then raises this from do_handshake


def client_context(ca_pem: bytes | None, certificate: tuple[bytes, bytes] | None, verify: bool) -> SSL.Context:
    """Create a context for outgoing connections.

    `ca_pem`: the trusted CAs, None for the system's. Each certificate is a trust anchor, even if it is not self-signed.
    Of two CAs with one name, the CA whose key verifies the signature is used. `certificate`: our own (chain, key), both
    PEM. `verify` False accepts any chain (insecureSkipVerify). `net.connect` checks the name. Raises PairError for an
    invalid pair, ValueError for unparsable CAs.
    """
    context = _new(SSL.TLS1_2_VERSION)
    context.set_alpn_protos([HTTP1_1])  # the default of `net.connect`
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)  # SessionCache chooses the session to resume
    if verify:
        anchors = None
        store = context.get_cert_store()
        assert store is not None
        store.set_flags(X509StoreFlags.PARTIAL_CHAIN)
        if ca_pem is None:
            context.set_default_verify_paths()
        else:
            authorities = load_certificates(ca_pem)
            for authority in authorities:
                store.add_cert(X509.from_cryptography(authority))
            anchors = TrustAnchors(authorities)
        context.set_verify(SSL.VERIFY_PEER, partial(_record_verification, anchors))
    else:
        context.set_verify(SSL.VERIFY_NONE)
    if certificate is not None:
        _use_pair(context, *load_pair(*certificate))
    return context


class VerifyResult:
    """The result of OpenSSL's verification of a connection; it is the connection's app data during the handshake."""

    __slots__ = ("other_path", "refusal", "verified")

    def __init__(self) -> None:
        self.verified = False  # False also for a resumed session, whose chain an earlier full handshake verified
        self.refusal = ""  # the reason why the chain is not trusted
        self.other_path: str | None = None  # "" if another path is valid, else the reason why none is; None: not tried


def _record_verification(
    anchors: TrustAnchors | None, connection: SSL.Connection, certificate: X509, number: int, depth: int, ok: int
) -> bool:
    result = connection.get_app_data()
    if not isinstance(result, VerifyResult):
        return bool(ok)
    result.verified = True
    if not ok and anchors is not None and result.other_path is None:
        result.other_path = _other_path(anchors, connection)
    if ok or result.other_path == "":
        return True
    if number == _CODES.ERR_CERT_SIGNATURE_FAILURE:  # the signature can be by another authority with this name
        result.refusal = result.refusal or result.other_path or ""
    result.refusal = result.refusal or verify_reason(number)
    return False


def _other_path(anchors: TrustAnchors, connection: SSL.Connection) -> str:
    """Return "" if OpenSSL accepts another path from the server's certificate.

    Otherwise return the reason: the fault of a path with right signatures, else the signature.
    """
    refusal = ""
    try:
        chain = connection.get_peer_cert_chain(as_cryptography=True) or []
        for path in anchors.paths(chain[0], chain[1:]) if chain else ():
            try:
                check_strength(verified(path, time.time(), server=True), _MIN_RSA_BITS)
                return ""
            except PathError as error:
                refusal = refusal or error.cause
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm):  # raised for certificates that only OpenSSL parses
        pass
    return refusal or verify_reason(_CODES.ERR_CERT_SIGNATURE_FAILURE)


_CODES = SSL.X509VerificationCodes
_REASONS = {
    _CODES.ERR_CERT_HAS_EXPIRED: "certificate has expired",
    _CODES.ERR_CERT_NOT_YET_VALID: "certificate is not yet valid",
    _CODES.ERR_UNABLE_TO_GET_ISSUER_CERT: "unable to get issuer certificate",
    _CODES.ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY: "unable to get local issuer certificate",
    _CODES.ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE: "unable to verify the first certificate",
    _CODES.ERR_DEPTH_ZERO_SELF_SIGNED_CERT: "self-signed certificate",
    _CODES.ERR_SELF_SIGNED_CERT_IN_CHAIN: "self-signed certificate in certificate chain",
    _CODES.ERR_CERT_SIGNATURE_FAILURE: "certificate signature failure",
    _CODES.ERR_CERT_REVOKED: "certificate revoked",
    _CODES.ERR_CERT_CHAIN_TOO_LONG: "certificate chain too long",
    _CODES.ERR_INVALID_CA: "invalid CA certificate",
    _CODES.ERR_INVALID_PURPOSE: "unsuitable certificate purpose",
    _CODES.ERR_PATH_LENGTH_EXCEEDED: "path length constraint exceeded",
    _CODES.ERR_CERT_UNTRUSTED: "certificate not trusted",
    _CODES.ERR_CERT_REJECTED: "certificate rejected",
    _CODES.ERR_KEYUSAGE_NO_CERTSIGN: "key usage does not include certificate signing",
    _CODES.ERR_PERMITTED_VIOLATION: "permitted subtree violation",
    _CODES.ERR_EXCLUDED_VIOLATION: "excluded subtree violation",
}


def verify_reason(number: int) -> str:
    """Return OpenSSL's text for a verification error."""
    return _REASONS.get(number, f"certificate verify error {number}")


# TLS session cache of outgoing connections. Resumption saves the signatures of a handshake, and 5 KB per connection.
#
# A cache belongs to one ClientTLS: one endpoint, one set of CAs, one client credential. If one of them changes, there
# is a new ClientTLS with an empty cache. So a session is used only with the settings with which it was verified.
#
# A resumed connection skips the verification of the chain. So a session is not resumed if its chain was verified more
# than MAX_AGE ago, and sessions that derive from a resumed session keep the time of the first one. A resumed connection
# also has the certificate of the first connection. So its name need not be verified again, which would be a tenth of
# the cost of a health check.

MAX_AGE = 3600.0


class Verified(NamedTuple):
    """The verification of a session's certificate: the time (seconds, reactor's clock) and the verified name."""

    at: float
    name: str


class SessionCache:
    """Keeps the latest session."""

    __slots__ = ("_session", "_verified")

    def __init__(self) -> None:
        self._session: SSL.Session | None = None
        self._verified = Verified(0.0, "")

    def offer(self, connection: SSL.Connection, now: float) -> Verified | None:
        """Set the cached session on a connection before its handshake; return its verification, or None without one."""
        if self._session is None:
            return None
        if not 0 <= now - self._verified.at <= MAX_AGE:
            self._session = None
            return None
        try:
            connection.set_session(self._session)
        except ValueError:  # the session is from another context, with other CAs or another credential
            self._session = None
            return None
        return self._verified

    def put(self, session: SSL.Session | None, verified: Verified) -> None:
        """Store the session of a connection whose chain and name are verified."""
        if session is not None and verified.at >= self._verified.at:
            self._session = session
            self._verified = verified

    def clear(self) -> None:
        """Forget the session; the next connection makes a full handshake."""
        self._session = None
