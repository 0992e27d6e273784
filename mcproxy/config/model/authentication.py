"""The sections `authentication`, sets of authenticators, and `authorization`, authorizers."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated

from mcproxy.config.model.clusters import ClusterTLS, Credentials, EndpointConfig, HTTPProxy, KubeconfigReference
from mcproxy.config.model.dispatch import Rule
from mcproxy.config.model.keys import (
    NOT_A_KEY,
    ClusterName,
    Key,
    Name,
    PEMFile,
    ReviewVersion,
    SchemaDefinition,
    Seconds,
    Secret,
)


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A line of a token file."""

    token: Secret
    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenFileConfig:
    path: str  # absolute
    tokens: tuple[StaticToken, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReview:
    cluster: ClusterName | None = None
    """The cluster that reviews tokens, with its credentials. Left out: the one cluster of the server that uses this
    set."""
    audiences: tuple[str, ...] = ()
    """Audiences, one of which a token must be for. Left out: those of the cluster."""
    cache_success: Seconds = 120.0
    """How long an accepted token is not reviewed again."""
    cache_failure: Seconds = 10.0
    """How long a refused token is not reviewed again."""


@dataclass(frozen=True, slots=True)
class JWKSFile:
    path: str  # absolute
    data: bytes = field(repr=False)


class DistributedClaims(enum.StrEnum):
    """What happens to a token with a distributed claim (`_claim_names`)."""

    REFUSE = "Refuse"
    IGNORE = "Ignore"  # the user is one without the claim


@dataclass(frozen=True, slots=True, kw_only=True)
class OIDC:
    """One issuer of ID tokens. Keys come from `jwks`, else from `jwks_url`, else from the issuer's discovery."""

    issuer: str
    """The issuer's URL, exactly as in the token's iss."""
    audiences: tuple[str, ...]
    """The token's aud must contain one of these; usually the client ID."""
    jwks: Annotated[JWKSFile | None, Key("jwksFile")] = None
    """JSON file with the issuer's public keys (a JWK Set)."""
    jwks_url: Annotated[str | None, Key("jwksURL")] = None
    """Where the issuer's public keys (a JWK Set) are fetched."""
    ca: Annotated[PEMFile | None, Key("caFile")] = None
    """PEM file with the authorities that are trusted for fetching discovery and keys. Left out: those of the system."""
    username_claim: str = "sub"
    """The claim with the user's name."""
    username_prefix: str = ""
    """The prefix of the name. "" or "-": nothing. Left out, as with kube-apiserver: the issuer and #, but nothing where
    usernameClaim is email."""
    groups_claim: str | None = None
    """The claim with the user's groups, a string or a list of strings. Left out: no groups."""
    groups_prefix: str = ""
    """The prefix of each group. "" or "-": nothing."""
    required_claims: tuple[tuple[str, str], ...] = ()  # (claim, value)
    """Claims that a token must have, each with its value: the claim is that string, or a list that contains it."""
    distributed_claims: DistributedClaims = DistributedClaims.REFUSE
    """What happens to a token with a distributed claim (_claim_names), as some directories issue for users with many
    groups. Refuse: it is not accepted, as with a kube-apiserver that cannot fetch the claim. Ignore: the claim counts
    as absent, so a policy that rejects by group does not apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """TokenReview by a server that is not a cluster: the endpoint is the review's own URL."""

    kubeconfig: Annotated[KubeconfigReference, SchemaDefinition("file")]
    """Kubeconfig whose current context has the URL that reviews are sent to, the trusted authorities and the proxy's
    credentials."""
    endpoint: Annotated[EndpointConfig, NOT_A_KEY]
    tls: Annotated[ClusterTLS, NOT_A_KEY] = ClusterTLS()
    credentials: Annotated[Credentials, NOT_A_KEY] = Credentials()
    proxy: Annotated[HTTPProxy | None, NOT_A_KEY] = None
    version: ReviewVersion = ReviewVersion.V1
    """The version of TokenReview requests; responses in either version are accepted. kube-apiserver sends v1beta1
    unless --authentication-token-webhook-version says otherwise."""
    cache_success: Seconds = 120.0
    """How long an accepted token is not reviewed again."""
    cache_failure: Seconds = 30.0
    """How long a refused token is not reviewed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """The proxies that are trusted to name users in X-Remote-* headers.

    At least one of `ca` and `listeners` is set.
    """

    ca: Annotated[PEMFile | None, Key("caFile")] = None
    """PEM file with the authorities of their client certificates; not those of clientCertificates."""
    allowed_names: Annotated[tuple[str, ...], Key(omit_empty=True)] = ()
    """The common names that their certificates may have. Left out: every certificate of the authorities is accepted."""
    listeners: Annotated[tuple[Name, ...], Key(omit_empty=True)] = ()
    """Listeners with dial, whose hubs are trusted to name users. No certificate is needed: a hub has proved its name
    when it was dialled."""
    hub_user: str | None = None
    """The user of requests of these hubs without X-Remote-User: their health checks, reviews and caches. Required with
    listeners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anonymous:
    enabled: bool = False
    """Whether requests without a credential are accepted."""
    paths: Annotated[tuple[str, ...], Key(omit_empty=True)] = ()
    """The exact paths for which they are accepted. Left out: all paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """A named set of authenticators; a server names one."""

    name: Name
    """The name that servers refer to the set by; none is reserved."""
    request_header: RequestHeader | None = None
    """Proxies that are trusted to name the user in X-Remote-User, -Uid, -Group and -Extra-*; from all other clients
    these headers are removed."""
    client_ca: Annotated[PEMFile | None, Key("clientCertificates.caFile")] = None
    """PEM file with the authorities of client certificates."""
    client_crl: Annotated[PEMFile | None, Key("clientCertificates.crlFile")] = None
    """Revocation lists of these authorities, in PEM or DER; read again at each reload. No certificate of an authority
    whose list is missing or expired is accepted. Left out: revocation is not checked."""
    cluster_ca: Annotated[ClusterName, Key("clientCertificates.clusterCA", omit_empty=True)] = ""
    """The cluster that these authorities belong to: users and groups that begin with system: are valid for it only.
    Left out: an authority that is also in the tls.caFile of a cluster belongs to that cluster; the names of any other
    are valid for every cluster."""
    token_file: TokenFileConfig | None = None
    """CSV file of bearer tokens, as for kube-apiserver: token,user,uid and, optionally, groups in one quoted column:
    "group1,group2". Read at each reload."""
    oidc: tuple[OIDC, ...] = ()
    """Issuers of ID tokens (OpenID Connect). Keys come from jwksFile, else from jwksURL, else from the issuer's
    discovery document."""
    token_review: TokenReview | None = None
    """Bearer tokens are reviewed by a cluster (TokenReview). Users and groups that begin with system: are valid for
    that cluster only, others for every cluster of the server."""
    webhook: Webhook | None = None
    """Bearer tokens are reviewed by a server that is not a cluster (TokenReview)."""
    anonymous: Anonymous = Anonymous()
    """Requests without a credential are accepted as system:anonymous, of the group system:unauthenticated."""
    allow_system_names: bool = False
    """Accept users and groups that begin with system: from tokenFile, oidc, requestHeader and webhook too. Otherwise
    such a user is refused and such a group dropped."""
    share_service_accounts: bool = False
    """Accept service accounts and nodes authenticated by one cluster's tokenReview, or by a certificate of its
    authority, for other clusters too, where the same name is another account. Other names that begin with system: are
    never shared."""


# -- The section `authorization` ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectAccessReview:
    cluster: ClusterName | None = None
    """The cluster that reviews requests, with its credentials. Left out: the one that the request goes to."""
    version: ReviewVersion = ReviewVersion.V1
    """The version of SubjectAccessReview requests; responses in either version are accepted. kube-apiserver has only v1
    since 1.22."""
    cache_allowed: Seconds = 300.0
    """How long the decision to allow a request is cached."""
    cache_denied: Seconds = 30.0
    """How long the decision to deny a request is cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """A named authorizer; with both parts, requests that no rule allows are reviewed."""

    name: Name
    """The name that servers refer to the authorizer by; none is reserved."""
    rules: tuple[Rule, ...] | None = None
    """What is allowed, as in RBAC; one matching rule is enough. With subjectAccessReview as well, requests that no rule
    allows are reviewed."""
    subject_access_review: SubjectAccessReview | None = None
    """A cluster decides whether the request is allowed (SubjectAccessReview)."""
