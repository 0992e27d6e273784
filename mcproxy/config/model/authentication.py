"""The sections `authentication`, sets of authenticators, and `authorization`, authorizers."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated

from mcproxy.config.model.clusters import ClusterTLS, Credentials, Endpoint, KubeconfigReference
from mcproxy.config.model.dispatch import Rule
from mcproxy.config.model.keys import NOT_A_KEY, Key, PEMFile, ReviewVersion, Seconds, Secret


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
    cache_success: Seconds = 120.0
    cache_failure: Seconds = 10.0


@dataclass(frozen=True, slots=True)
class JWKSFile:
    path: str  # absolute
    data: bytes = field(repr=False)


class DistributedClaims(enum.StrEnum):
    """What becomes of a token with a claim that is elsewhere (`_claim_names`)."""

    REFUSE = "Refuse"
    IGNORE = "Ignore"  # the user is one without it


@dataclass(frozen=True, slots=True, kw_only=True)
class OIDC:
    """One issuer of ID tokens. Keys come from `jwks`, else from `jwks_url`, else from the issuer's discovery."""

    issuer: str  # https URL, compared with the claim byte for byte
    audiences: tuple[str, ...]  # at least one; a token needs one of them
    jwks: Annotated[JWKSFile | None, Key("jwksFile")] = None
    jwks_url: Annotated[str | None, Key("jwksURL")] = None
    #: For discovery and jwks_url; None: the system's authorities.
    ca: Annotated[PEMFile | None, Key("caFile")] = None
    username_claim: str = "sub"
    username_prefix: str = ""
    groups_claim: str | None = None
    groups_prefix: str = ""
    required_claims: tuple[tuple[str, str], ...] = ()  # (claim, value)
    distributed_claims: DistributedClaims = DistributedClaims.REFUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """TokenReview by a server that is not a cluster: the endpoint is the review's own URL."""

    kubeconfig: KubeconfigReference
    endpoint: Annotated[Endpoint, NOT_A_KEY]
    tls: Annotated[ClusterTLS, NOT_A_KEY] = ClusterTLS()
    credentials: Annotated[Credentials, NOT_A_KEY] = Credentials()
    version: ReviewVersion = ReviewVersion.V1
    cache_success: Seconds = 120.0
    cache_failure: Seconds = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """The proxies that are trusted to name users in X-Remote-* headers."""

    ca: Annotated[PEMFile, Key("caFile")]
    #: Common names; empty: any certificate of the authorities.
    allowed_names: Annotated[tuple[str, ...], Key(omit_empty=True)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Anonymous:
    enabled: bool = False
    paths: Annotated[tuple[str, ...], Key(omit_empty=True)] = ()  # exact paths; empty: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """A named set of authenticators; a server names one."""

    name: str
    request_header: RequestHeader | None = None
    client_ca: Annotated[PEMFile | None, Key("clientCertificates.caFile")] = None
    #: PEM or DER; None: revocation is not checked.
    client_crl: Annotated[PEMFile | None, Key("clientCertificates.crlFile")] = None
    #: The cluster whose authorities `client_ca` are; "": as its `tls.caFile` shows.
    cluster_ca: Annotated[str, Key("clientCertificates.clusterCA", omit_empty=True)] = ""
    token_file: TokenFile | None = None
    oidc: tuple[OIDC, ...] = ()
    token_review: TokenReview | None = None
    webhook: Webhook | None = None
    anonymous: Anonymous = Anonymous()
    allow_system_names: bool = False
    share_service_accounts: bool = False


# -- The section `authorization` ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectAccessReview:
    cluster: str | None = None  # None: the one that the request goes to
    version: ReviewVersion = ReviewVersion.V1
    cache_allowed: Seconds = 300.0
    cache_denied: Seconds = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """A named authorizer; with both parts, what no rule allows is reviewed."""

    name: str
    rules: tuple[Rule, ...] | None = None
    subject_access_review: SubjectAccessReview | None = None
