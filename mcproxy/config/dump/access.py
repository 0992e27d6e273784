"""Authentication and authorization in the form of the file; see `config.dump`."""

from __future__ import annotations

from typing import Any

from mcproxy.config.dump.rules import rule
from mcproxy.config.model import OIDC, Authentication, Authorization
from mcproxy.config.units import format_duration

Document = dict[str, Any]


def authentication(authenticators: Authentication) -> Document:
    header, review, webhook = authenticators.request_header, authenticators.token_review, authenticators.webhook
    crl = authenticators.client_crl
    anonymous, client_ca, tokens = authenticators.anonymous, authenticators.client_ca, authenticators.token_file
    return {
        "name": authenticators.name,
        "requestHeader": {"caFile": header.ca.path, "allowedNames": list(header.allowed_names) or None}
        if header is not None
        else None,
        "clientCertificates": {"caFile": client_ca.path, "crlFile": crl.path if crl is not None else None}
        if client_ca is not None
        else None,
        "tokenFile": tokens.path if tokens is not None else None,
        "oidc": [_oidc(issuer) for issuer in authenticators.oidc],
        "tokenReview": {
            "cluster": review.cluster,
            "audiences": list(review.audiences),
            "cacheSuccess": format_duration(review.cache_success),
            "cacheFailure": format_duration(review.cache_failure),
        }
        if review is not None
        else None,
        "webhook": {
            "kubeconfig": webhook.kubeconfig.file,
            "cacheSuccess": format_duration(webhook.cache_success),
            "cacheFailure": format_duration(webhook.cache_failure),
        }
        if webhook is not None
        else None,
        "anonymous": {"enabled": anonymous.enabled, "paths": list(anonymous.paths) or None},
        "allowSystemNames": authenticators.allow_system_names,
        "shareServiceAccounts": authenticators.share_service_accounts,
    }


def _oidc(issuer: OIDC) -> Document:
    return {
        "issuer": issuer.issuer,
        "audiences": list(issuer.audiences),
        "jwksFile": issuer.jwks.path if issuer.jwks is not None else None,
        "jwksURL": issuer.jwks_url,
        "caFile": issuer.ca.path if issuer.ca is not None else None,
        "usernameClaim": issuer.username_claim,
        "usernamePrefix": issuer.username_prefix,
        "groupsClaim": issuer.groups_claim,
        "groupsPrefix": issuer.groups_prefix if issuer.groups_claim is not None else None,
        "requiredClaims": dict(issuer.required_claims),
    }


def authorization(authorizer: Authorization) -> Document:
    review = authorizer.subject_access_review
    return {
        "name": authorizer.name,
        "rules": [rule(each) for each in authorizer.rules] if authorizer.rules is not None else None,
        "subjectAccessReview": {
            "cluster": review.cluster,
            "cacheAllowed": format_duration(review.cache_allowed),
            "cacheDenied": format_duration(review.cache_denied),
        }
        if review is not None
        else None,
    }
