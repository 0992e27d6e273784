"""The section `authentication`: sets of authenticators."""

from __future__ import annotations

from dataclasses import dataclass, field

from mcproxy.config.model.clusters import ClusterTLS, Credentials, Endpoint, KubeconfigReference
from mcproxy.config.model.common import PEMFile, Secret


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A line of a token file."""

    token: Secret
    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenFile:
    path: str  # absolute
    tokens: tuple[StaticToken, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReview:
    cluster: str | None = None  # None: the only cluster of the server that uses this set
    audiences: tuple[str, ...] = ()
    cache_success: float = 120.0
    cache_failure: float = 10.0


@dataclass(frozen=True, slots=True)
class JWKSFile:
    path: str  # absolute
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OIDC:
    """One issuer of ID tokens. Keys come from `jwks`, else from `jwks_url`, else from the issuer's discovery."""

    issuer: str  # https URL, compared with the claim byte for byte
    audiences: tuple[str, ...]  # at least one; a token needs one of them
    jwks: JWKSFile | None = None
    jwks_url: str | None = None
    ca: PEMFile | None = None  # for discovery and jwks_url; None: the system's authorities
    username_claim: str = "sub"
    username_prefix: str = ""
    groups_claim: str | None = None
    groups_prefix: str = ""
    required_claims: tuple[tuple[str, str], ...] = ()  # (claim, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """TokenReview by a server that is not a cluster: the endpoint is the review's own URL."""

    kubeconfig: KubeconfigReference
    endpoint: Endpoint
    tls: ClusterTLS = ClusterTLS()
    credentials: Credentials = Credentials()
    cache_success: float = 120.0
    cache_failure: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """The proxies that are trusted to name users in X-Remote-* headers."""

    ca: PEMFile
    allowed_names: tuple[str, ...] = ()  # common names; empty: any certificate of the authorities


@dataclass(frozen=True, slots=True, kw_only=True)
class Anonymous:
    enabled: bool = False
    paths: tuple[str, ...] = ()  # exact paths; empty: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """A named set of authenticators; a server names one."""

    name: str
    client_ca: PEMFile | None = None
    client_crl: PEMFile | None = None  # PEM or DER; None: revocation is not checked
    token_file: TokenFile | None = None
    oidc: tuple[OIDC, ...] = ()
    token_review: TokenReview | None = None
    webhook: Webhook | None = None
    request_header: RequestHeader | None = None
    anonymous: Anonymous = Anonymous()
    allow_system_names: bool = False
    share_service_accounts: bool = False
