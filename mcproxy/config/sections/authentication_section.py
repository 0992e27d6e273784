"""Reads the sections `authentication` (sets of authenticators) and `authorization` (authorizers).

`config.checks.server_exposure` checks sets together with the servers and clusters that use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cryptography import x509

from mcproxy.config import kubeconfig_reader
from mcproxy.config.files import jwks, pem, token_file
from mcproxy.config.files.pem import read_crl
from mcproxy.config.model import (
    OIDC,
    Authentication,
    Authorization,
    PEMFile,
    RequestHeader,
    Webhook,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.reading.nodes import Sequence as List
from mcproxy.config.sections.entries import Sections, reference, references
from mcproxy.config.sections.model_reader import read
from mcproxy.config.sections.request_rules import Where, build_rules
from mcproxy.config.urls import AddressError, check_https

# -- `oidc` of a set of authenticators: issuers of ID tokens, with prefixes as kube-apiserver's flags define them ------


def _issuers(context: Context, place: Place, *, allow_system_names: bool) -> Iterator[OIDC]:
    """Yield the issuers of the set of authenticators at `place`; errors are reported, duplicate issuers too."""
    first: dict[str, Place] = {}
    for entry in place.children("oidc"):
        issuer = entry.get("issuer")
        if issuer is None or issuer.string is None:
            continue
        _check_url(context, issuer, query=False)
        known = first.setdefault(issuer.string, issuer)
        if known is not issuer:
            what = f"{issuer.shown} is an issuer of this set already, at {known.mark}"
            context.error(issuer, what, "keep one of the two; it can have several audiences")
        yield _issuer(context, entry, issuer.string)
        if not allow_system_names:
            _check_system_prefix(context, entry)
        prefix = entry.get("usernamePrefix")
        if prefix is not None and prefix.string in ("", "-") and place.has("clientCertificates"):
            what = "users of the issuer have no prefix: one may have the name of a client certificate's user"
            context.warn(prefix, "no-prefix", what, 'write a prefix such as "oidc:"')


def _issuer(context: Context, place: Place, issuer: str) -> OIDC:
    file, url, ca = place.get("jwksFile"), place.get("jwksURL"), place.get("caFile")
    if url is not None:
        _check_url(context, url, query=True)
    authorities = pem.read_authorities(context, ca) if ca is not None else None
    if ca is not None and place.has("jwksFile"):
        what = "is for fetching discovery and keys, and with jwksFile nothing is fetched"
        context.warn(ca, "no-effect", what, "take it out, or take jwksFile out")
    by_email = place.text("usernameClaim") == "email"
    return read(
        context,
        place,
        OIDC,
        jwks=jwks.read(context, file) if file is not None else None,
        ca=authorities[0] if authorities is not None else None,
        username_prefix=_prefix(place, "usernamePrefix", "" if by_email else f"{issuer}#"),
        groups_prefix=_prefix(place, "groupsPrefix", ""),
        required_claims=_required_claims(context, place.get("requiredClaims")),
    )


def _required_claims(context: Context, place: Place | None) -> tuple[tuple[str, str], ...]:
    claims = list(place.entries()) if place is not None else []
    for name, value in claims:
        if not name:
            context.error(value, "has no claim before the colon", "name it, as in {hd: example.com}")
    return tuple((name, value.string or "") for name, value in claims)


def _prefix(place: Place, key: str, default: str) -> str:
    """Return a prefix; "-" means no prefix, as in kube-apiserver."""
    written = place.text(key)
    if written is None:
        return default
    return "" if written == "-" else written


def _check_system_prefix(context: Context, place: Place) -> None:
    for key, fate in (("usernamePrefix", "every user is refused"), ("groupsPrefix", "every group is dropped")):
        prefix = place.get(key)
        if prefix is not None and (prefix.string or "").startswith("system:"):
            what = f"{fate}: names that begin with system: are not accepted from here"
            context.warn(prefix, "system-names", what, "write another prefix, or set allowSystemNames: true")


def _check_url(context: Context, place: Place, *, query: bool) -> None:
    try:
        check_https(place.string or "", query=query)
    except AddressError as error:
        context.error(place, error.what, error.right)


# -- sets of authenticators -------------------------------------------------------------------------------------------

NONE = "none"
"""The value of `servers[].authentication` for no authentication; no set may have this name."""

TOKEN_AUTHENTICATORS = ("tokenFile", "oidc", "tokenReview", "webhook")
"""The keys of authenticators for bearer tokens, with which a client needs no certificate."""

_AUTHENTICATORS = ("clientCertificates", *(key for key in TOKEN_AUTHENTICATORS if key != "oidc"), "requestHeader")
# Authenticators that need allowSystemNames to accept users and groups that begin with system:.
_SYSTEM_NAMES = ("tokenFile", "oidc", "requestHeader", "webhook")


def authentication(context: Context, place: Place, sections: Sections) -> Authentication | None:
    """Return the set of authenticators written at `place`."""
    check_name(context, place)
    switch = place.get("allowSystemNames")
    allow_system_names = switch is not None and switch.value is True
    certificates, header = place.get("clientCertificates"), place.get("requestHeader")
    client_ca = _authorities(context, certificates)
    header_ca = _authorities(context, header)
    if header is not None and client_ca is not None and header_ca is not None:
        _check_apart(context, header, client_ca[1], header_ca[1])
    crl_file = certificates.get("crlFile") if certificates is not None else None
    issuers = client_ca[1] if client_ca is not None else []
    _check_cluster(context, certificates, sections, "clusterCA")
    _check_cluster(context, place.get("tokenReview"), sections)
    tokens, webhook = place.get("tokenFile"), place.get("webhook")
    made = read(
        context,
        place,
        Authentication,
        client_ca=client_ca[0] if client_ca is not None else None,
        client_crl=read_crl(context, crl_file, issuers) if crl_file is not None else None,
        token_file=token_file.read(context, tokens, allow_system_names=allow_system_names) if tokens else None,
        oidc=tuple(_issuers(context, place, allow_system_names=allow_system_names)),
        webhook=_webhook(context, webhook) if webhook is not None else None,
        request_header=_request_header(
            context, header, header_ca[0] if header_ca is not None else None, sections, allow_system_names
        ),
    )
    _check_any(context, place, made)
    _check_effect(context, place, "allowSystemNames", _SYSTEM_NAMES)
    _check_effect(context, place, "shareServiceAccounts", ("tokenReview", "clientCertificates"))
    return made if made.name else None


def check_name(context: Context, place: Place) -> None:
    """Refuse `none` as the name of an entry, because servers write `none` to select no entry."""
    name = place.get("name")
    if name is not None and name.string == NONE:
        context.error(name, "would read as if there were none", "give it another name")


def _check_cluster(context: Context, place: Place | None, sections: Sections, key: str = "cluster") -> None:
    """Report an unknown cluster that `place` names by `key`."""
    if place is not None:
        reference(context, place.get(key), sections.clusters.names, "cluster")


def _authorities(context: Context, place: Place | None) -> tuple[PEMFile, list[x509.Certificate]] | None:
    file = place.get("caFile") if place is not None else None
    found = pem.read_authorities(context, file, strict=True) if file is not None else None
    if (
        file is not None
        and found is not None
        and found[1]
        and not any(pem.is_authority(certificate) for certificate in found[1])
    ):
        what = f"no certificate in {found[0].path} is an authority's (basicConstraints), so it cannot be trusted as one"
        context.warn(file, "not-an-authority", what, "name the authority that issues the clients' certificates")
    return found


def _request_header(
    context: Context, place: Place | None, ca: PEMFile | None, sections: Sections, allow_system_names: bool
) -> RequestHeader | None:
    """Return the trusted proxies; `ca` is None if there is no usable caFile (one that was reported, or none)."""
    if place is None:
        return None
    trusted = references(context, place.get("listeners"), sections.listeners.names, "listener")
    by_name = sections.listeners.by_name
    for item in place.children("listeners"):
        found = by_name.get(item.string or "")
        if found is not None and not found.place.has("dial"):
            what = f"{item.shown} is no listener with dial: others can connect to it, and are not trusted so"
            context.error(item, what, "name a listener with dial, or write caFile and let them show a certificate")
    user = place.get("hubUser")
    if user is not None and (user.string or "").startswith("system:") and not allow_system_names:
        what = "names that begin with system: are not accepted from here"
        context.error(user, what, "write another name, or set allowSystemNames: true")
    if ca is None and (place.has("caFile") or not trusted):
        return None
    return read(context, place, RequestHeader, ca=ca, listeners=trusted)


def _check_apart(
    context: Context, header: Place, clients: list[x509.Certificate], headers: list[x509.Certificate]
) -> None:
    """Report an authority in both files, since its client certificates could name any user in X-Remote-*."""
    file = header.get("caFile") or header
    both = next((certificate for certificate in headers if certificate in clients), None)
    if both is None:
        return
    what = f"the authority {both.subject.rfc4514_string()} is clientCertificates' too"
    if header.has("allowedNames"):
        what += ": a client with a certificate of an allowed name from it can act as any user"
        context.warn(file, "shared-authority", what, "use an authority of its own")
    else:
        what += ": every client with a certificate could act as any user"
        context.error(file, what, "use an authority of its own, or add allowedNames: [NAME]")


def _webhook(context: Context, place: Place) -> Webhook | None:
    file = place.get("kubeconfig")
    access = kubeconfig_reader.read_context(context, file, None, file) if file is not None else None
    if file is None or access is None or not access.endpoints or access.kubeconfig is None:
        return None
    [endpoint] = access.endpoints
    if endpoint.scheme == "http" and not access.stays_here(endpoint):
        context.error(file, f"tokens would go to {endpoint.url} in clear", "use https in the kubeconfig")
    return read(
        context,
        place,
        Webhook,
        kubeconfig=access.kubeconfig,
        endpoint=endpoint,
        tls=access.tls,
        credentials=access.credentials,
        proxy=access.proxy,
    )


def _check_any(context: Context, place: Place, made: Authentication) -> None:
    """Report a set without an authenticator, unless it has an invalid one, which is already reported."""
    issuers, anonymous = place.get("oidc"), place.get("anonymous")
    no_issuer = issuers is not None and isinstance(issuers.node, List) and not issuers.node.items
    given = any(place.has(key) for key in _AUTHENTICATORS) or (place.has("oidc") and not no_issuer)
    faulty = anonymous is None or (anonymous.has("enabled") and anonymous.get("enabled") is None)
    if not given and not made.anonymous.enabled and not (place.has("anonymous") and faulty):
        right = f"add {', '.join(_AUTHENTICATORS)} or oidc, or anonymous: {{enabled: true}}"
        context.error(place, "has no authenticator, so no client can authenticate", right)


def _check_effect(context: Context, place: Place, key: str, about: Sequence[str]) -> None:
    """Warn of an enabled switch if nothing that it affects is configured."""
    switch = place.get(key)
    if switch is not None and switch.value is True and not any(place.has(other) for other in about):
        context.warn(switch, "no-effect", f"is about {', '.join(about)}, and this set has none of it", "take it out")


# -- the section `authorization` ---------------------------------------------------------------------------------------


def authorizer(context: Context, place: Place, sections: Sections) -> Authorization | None:
    """Return the authorizer written at `place`."""
    check_name(context, place)
    _check_cluster(context, place.get("subjectAccessReview"), sections)
    rules, clusters = place.get("rules"), sections.clusters.names
    made = read(
        context,
        place,
        Authorization,
        rules=build_rules(context, rules, where=Where.AUTHORIZATION, clusters=clusters) if rules is not None else None,
    )
    return made if made.name else None
