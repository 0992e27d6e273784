"""`oidc` of a set of authenticators: issuers of ID tokens, with prefixes as kube-apiserver's flags define them."""

from __future__ import annotations

from collections.abc import Iterator

from mcproxy.config.files import jwks, pem
from mcproxy.config.model import OIDC
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.model_reader import read
from mcproxy.config.urls import AddressError, check_https


def issuers(context: Context, place: Place, *, allow_system_names: bool) -> Iterator[OIDC]:
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
    """Return a prefix; "-" is none, as for kube-apiserver."""
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
