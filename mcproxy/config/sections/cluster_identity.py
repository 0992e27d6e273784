"""`identity` of a cluster (how users are conveyed to it), its other keys, and the requirements of each value."""

from __future__ import annotations

from dataclasses import dataclass

from mcproxy.config import credential_checks
from mcproxy.config.files import pem
from mcproxy.config.kubeconfig_reader import Access
from mcproxy.config.model import FrontProxy, UpstreamIdentity
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.urls import is_loopback


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    identity: UpstreamIdentity | None  # None: what is written there is wrong (reported)
    extras: tuple[str, ...]
    front_proxy: FrontProxy | None


def build(context: Context, place: Place) -> ClusterIdentity:
    """Return how users are conveyed to the cluster at `place`."""
    written = place.text("identity")
    front = place.get("frontProxy")
    pair = pem.read_pair(context, front) if front is not None else None
    return ClusterIdentity(
        identity=UpstreamIdentity(written or UpstreamIdentity.IMPERSONATE)
        if written or not place.has("identity")
        else None,
        extras=_extras(context, place),
        front_proxy=FrontProxy(*pair) if pair is not None else None,
    )


def _extras(context: Context, place: Place) -> tuple[str, ...]:
    """Return the extra keys; Kubernetes has them in lower case only."""
    found: dict[str, Place] = {}
    for item in place.children("impersonateExtras"):
        key = item.string or ""
        if "*" in key and key != "*":
            context.error(
                item, f"{item.shown} is not a key, and keys have no patterns", 'list the keys, or write "*" for all'
            )
        elif not key.isascii() or not key.isprintable() or " " in key:
            context.error(item, f"{item.shown} is not an extra key", "write one such as scopes or example.com/team")
        elif key != key.lower():
            context.error(item, f"{item.shown} has capitals, and extra keys have none", f"write {key.lower()}")
        elif key in found:
            context.error(item, f"{item.shown} is in the list already, at {found[key].mark}", "keep one of the two")
        else:
            found[key] = item
    if "*" in found and len(found) > 1:
        other = next(item for key, item in found.items() if key != "*")
        context.warn(
            other, "no-effect", f'{other.shown} changes nothing beside "*", which passes on all', "keep one of the two"
        )
        return ("*",)
    return tuple(found)


def check_needs(context: Context, place: Place, settings: ClusterIdentity, access: Access) -> None:
    """Check that the cluster has what this identity needs, and warn of what it does not use."""
    identity = settings.identity
    if identity is None:
        return
    missing = credential_checks.are_missing(place, access.credentials)
    where = place.get("identity") or place
    if identity is UpstreamIdentity.IMPERSONATE and missing:
        said = "identity: Impersonate" if place.has("identity") else "identity: Impersonate (the default)"
        what = f"has {said} but no credentials, which impersonation requires"
        right = "add credentials that may impersonate, or write identity: Passthrough (the client's own credentials)"
        context.error(place, what, right)
    elif identity is UpstreamIdentity.PROXY and missing:
        what = "has identity: Proxy but no credentials: every request is anonymous to the cluster"
        context.warn(place, "no-credentials", what, "add credentials")
    elif identity is UpstreamIdentity.REQUEST_HEADER and not place.has("frontProxy"):
        what = "has identity: RequestHeader but no frontProxy, and without its certificate X-Remote-* is not trusted"
        context.error(place, what, "add frontProxy: {certFile: …, keyFile: …}")
    if identity is not UpstreamIdentity.REQUEST_HEADER and place.has("frontProxy"):
        what = f"belongs to identity: RequestHeader, and this is identity: {identity}"
        context.warn(
            place.get("frontProxy") or where, "no-effect", what, "take it out, or write identity: RequestHeader"
        )
    if identity is not UpstreamIdentity.IMPERSONATE and settings.extras:
        what = f"belongs to identity: Impersonate, and this is identity: {identity}"
        right = "take it out" + ("" if identity is UpstreamIdentity.PASSTHROUGH else ", or write identity: Impersonate")
        context.warn(place.get("impersonateExtras") or where, "no-effect", what, right)
    if identity is UpstreamIdentity.REQUEST_HEADER and settings.front_proxy is not None:
        _check_secure(context, place, access)


def _check_secure(context: Context, place: Place, access: Access) -> None:
    plain = next((endpoint for endpoint in access.endpoints if endpoint.scheme == "http"), None)
    if plain is not None:
        what = f"has identity: RequestHeader, and the certificate in frontProxy cannot be shown to {plain.url}"
        if is_loopback(plain.host):
            context.warn(place, "in-clear", what, "use https")
        else:
            context.error(place, what, "use https")
