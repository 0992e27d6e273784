"""A set of authenticators that are tried in order; the first one that accepts a credential decides.

    requestHeader -> clientCertificates -> tokens (tokenFile, oidc, tokenReview, webhook) -> anonymous
         |                 |                   |                                               only if no credential
         '---- not accepted: 401 at the end, unless a later one accepts                        was presented at all

So a valid certificate with an invalid token is accepted, and also a valid token with an invalid certificate. A
credential that no authenticator accepts results in 401, never in the anonymous user. If the token is passed on to the
cluster (`Passthrough`), only the token counts. Source, also for the order and the errors: k8s.io/apiserver
`pkg/authentication/request/union` and `.../authenticatorfactory`; the reference page of identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from mypy_extensions import mypyc_attr
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.config.model import Authentication, PEMFile
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser, is_limited
from mcproxy.identity.authentication.request_header import RequestHeaderAuthenticator, RequestHeaderRefusedError
from mcproxy.identity.authentication.token_authenticator import claimed_issuer
from mcproxy.identity.authentication.x509.peer import HubPeer, TLSPeer
from mcproxy.identity.authentication.x509.verifier import ClientCertificateVerifier
from mcproxy.identity.client_identity_headers import IdentityHeaders
from mcproxy.identity.reviewer_log import shown
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import ANONYMOUS
from mcproxy.net.wall_time import wall_clock
from mcproxy.requests.coroutines import OrPending

log = Logger(__name__)

_ANONYMOUS = AuthenticatedUser(ANONYMOUS, ambient=True, authenticator="anonymous")
_UNAUTHENTICATED = AuthenticatedUser(ANONYMOUS, ambient=True)  # on a server without authentication
_CERTIFICATE_TODO = "the client must send a valid certificate of clientCertificates.caFile, or none"
_FRONT_PROXY_TODO = "a front proxy must send a certificate of requestHeader.caFile, or be a hub of its listeners"


class BearerTokenAuthenticator(Protocol):
    """The interface of `token_union.UnionTokenAuthenticator`. It raises StatusError (401, 503) and logs why."""

    @property
    def key_of(self) -> Callable[[bytes], bytes]:
        """Returns the cache key of a token; a caller that keeps the token computes the key once."""

    def authenticate(
        self, token: bytes, client: str, key: bytes | None, server: str
    ) -> OrPending[AuthenticatedUser]: ...


class Authenticator:
    """One configured set of authenticators; there is one object for each cluster that reviews the set's tokens."""

    __slots__ = (
        "_anonymous",
        "_anonymous_paths",
        "_clients",
        "_home",
        "_homes",
        "_name",
        "_request_header",
        "_shares_accounts",
        "_tokens",
        "_wall_seconds",
    )

    @classmethod
    def build(
        cls,
        config: Authentication,
        *,
        tokens: BearerTokenAuthenticator | None,
        clock: IReactorTime,
        homes: Mapping[bytes, tuple[str, ...]] = MappingProxyType({}),
        previous: Authenticator | None = None,
    ) -> Authenticator:
        """Make the authenticators of a set; `tokens` is the authenticator for bearer tokens, or None.

        `homes` has the clusters of each CA by `verifier.authority_key` (`certificate_homes`): `system:` names in
        certificates from such a CA are valid only in these clusters. `previous` is the same set before a reload:
        verification results of unchanged CAs stay cached. Raises ValueError for CAs that cannot be read.
        """
        return cls(config, tokens, clock, homes, previous)

    def __init__(
        self,
        config: Authentication,
        tokens: BearerTokenAuthenticator | None,
        clock: IReactorTime,
        homes: Mapping[bytes, tuple[str, ...]],
        previous: Authenticator | None,
    ) -> None:
        self._home = config.cluster_ca
        self._shares_accounts = config.share_service_accounts
        self._homes = homes
        known: Iterable[ClientCertificateVerifier] = () if previous is None else previous._verifiers()
        self._name = config.name
        self._tokens = tokens
        self._wall_seconds = wall_clock(clock)
        self._clients = None if config.client_ca is None else _verifier(config.client_ca, config.client_crl, known)
        self._request_header: RequestHeaderAuthenticator | None = None
        if (header := config.request_header) is not None:
            verifier = None if header.ca is None else _verifier(header.ca, None, known)
            self._request_header = RequestHeaderAuthenticator(
                header, verifier, allow_system_names=config.allow_system_names
            )
        self._anonymous = config.anonymous.enabled
        self._anonymous_paths = frozenset(path.encode() for path in config.anonymous.paths)

    def authenticate(
        self,
        peer: TLSPeer | None,
        headers: IdentityHeaders,
        path: bytes,
        *,
        client: str = "",
        server: str = "",
        token_decides: bool = False,
    ) -> OrPending[AuthenticatedUser]:
        """Return the user, immediately if no review is needed.

        `peer` is the TLS peer, None without a client certificate. `path` is the unchanged path for the cluster,
        without the query. `client` is the client's address and `server` the server's name, for the log.
        `token_decides`: a certificate counts only if there is no token. Raises StatusError (401, 503).
        """
        token = headers.token
        hub = isinstance(peer, HubPeer)
        if isinstance(peer, HubPeer):
            caller = self._by_hub(peer, headers, client, server)
            if caller is not None:
                return caller
            peer = None
        if peer is not None and not (token_decides and (token is not None or headers.bad_token)):
            caller = self._by_certificate(peer, headers, client, server)
            if caller is not None:
                return caller
        if token is None:
            return self._without_token(peer, headers, path, client, server, hub=hub)
        if self._tokens is None:
            cause = "no authenticator of this set accepts bearer tokens"
            raise self._refused(cause, "add one that does", client, server, issuer=claimed_issuer(token))
        tokens = self._tokens
        return tokens.authenticate(token, client, headers.token_key(tokens.key_of), server)

    def _by_hub(self, peer: HubPeer, headers: IdentityHeaders, client: str, server: str) -> AuthenticatedUser | None:
        if self._request_header is None:
            return None
        try:
            return self._request_header.of_hub(peer, headers)
        except RequestHeaderRefusedError as refusal:
            raise self._refused(refusal.cause, refusal.todo, client, server) from None

    def _by_certificate(
        self, peer: TLSPeer, headers: IdentityHeaders, client: str, server: str
    ) -> AuthenticatedUser | None:
        now = self._wall_seconds()
        if headers.remote and self._request_header is not None:
            try:
                caller = self._request_header.caller(peer, headers.remote, now)
            except RequestHeaderRefusedError as refusal:
                raise self._refused(refusal.cause, refusal.todo, client, server, peer) from None
            if caller is not None:
                return caller
        if self._clients is None:
            return None
        verification = peer.verification(self._clients, now)
        if verification.cause:
            return None
        caller = peer.certificate_user().authenticated
        if caller is None or not (self._home or self._homes) or not is_limited(caller.user):
            return caller
        homes = (self._home,) if self._home else self._homes_of(verification.authorities)
        if not homes:
            return caller
        return replace(caller, cluster=homes[0], also_of=homes[1:], shares_accounts=self._shares_accounts)

    def _homes_of(self, authorities: Iterable[bytes]) -> tuple[str, ...]:
        """Return the clusters that have one of the CAs of a certificate's chain."""
        return tuple(dict.fromkeys(name for key in authorities for name in self._homes.get(key, ())))

    def _without_token(
        self, peer: TLSPeer | None, headers: IdentityHeaders, path: bytes, client: str, server: str, *, hub: bool
    ) -> AuthenticatedUser:
        if headers.bad_token:
            raise self._refused(headers.bad_token, "the client must send a valid bearer token", client, server, peer)
        if peer is not None and (cause := self._certificate_refusal(peer)):
            cause = f"the client certificate is not accepted: {cause}"
            raise self._refused(cause, _CERTIFICATE_TODO, client, server, peer)
        if self._anonymous and (not self._anonymous_paths or path in self._anonymous_paths):
            return _ANONYMOUS
        if hub:
            cause = "the hub names no user for the request, and it has no token"
            raise self._refused(cause, "the client of the hub must send a token that is valid here", client, server)
        if headers.remote:
            cause = "X-Remote-* came without the certificate of a front proxy"
            raise self._refused(cause, _FRONT_PROXY_TODO, client, server, peer)
        log.debug(
            "a request is refused: it has no credential",
            event="credential_missing",
            server=server,
            client=client,
            authentication=self._name,
        )
        raise _unauthorized()

    def _certificate_refusal(self, peer: TLSPeer) -> str:
        """Return why a certificate without an accepted user excludes an anonymous request; "" if it does not."""
        now = self._wall_seconds()
        cause = ""
        if self._clients is not None:
            cause = peer.verification(self._clients, now).cause or peer.certificate_user().cause
        if not cause and self._request_header is not None:
            cause = self._request_header.refusal_cause(peer, now)
        return cause

    def _verifiers(self) -> list[ClientCertificateVerifier]:
        verifiers = [] if self._clients is None else [self._clients]
        if self._request_header is not None and self._request_header.verifier is not None:
            verifiers.append(self._request_header.verifier)
        return verifiers

    def _refused(
        self, cause: str, todo: str, client: str, server: str, peer: TLSPeer | None = None, *, issuer: str = ""
    ) -> StatusError:
        """Log a refused request with its cause and client, and return the 401; `issuer`: the token's claimed issuer."""
        log.info(
            "a request is refused: its credential is not accepted",
            event="authentication_refused",
            server=server,
            client=client,
            authentication=self._name,
            certificate="" if peer is None else _subject(peer),
            issuer=issuer,
            cause=cause,
            todo=todo,
        )
        return _unauthorized()


@mypyc_attr(allow_interpreted_subclasses=True)  # tests subclass it
class NoAuthentication:
    """The authenticator of a server without `authentication`: every user is anonymous."""

    __slots__ = ()

    def authenticate(
        self,
        peer: TLSPeer | None,
        headers: IdentityHeaders,
        path: bytes,
        *,
        client: str = "",
        server: str = "",
        token_decides: bool = False,
    ) -> OrPending[AuthenticatedUser]:
        return _UNAUTHENTICATED


NO_AUTHENTICATION = NoAuthentication()


def presented_credential(headers: IdentityHeaders, peer: TLSPeer | None) -> str:
    """Return the kind of the credential that was refused, for metrics; "none" without a credential."""
    if headers.token is not None or headers.bad_token:
        return "token"
    if headers.remote:
        return "requestHeader"
    return "none" if peer is None else "clientCertificates"


def _subject(peer: TLSPeer) -> str:
    """Return the name in an unverified certificate, for the log."""
    try:
        return "" if peer.leaf is None else shown(peer.leaf.subject.rfc4514_string())
    except ValueError:
        return "a name that cannot be read"


def _verifier(
    ca: PEMFile, crl: PEMFile | None, known: Iterable[ClientCertificateVerifier]
) -> ClientCertificateVerifier:
    """Return the verifier in `known` with these CAs and revocation lists, or a new one."""
    for verifier in known:
        if verifier.pem == ca.data and verifier.crl == crl:
            return verifier
    return ClientCertificateVerifier(ca.data, crl)


def _unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized")
