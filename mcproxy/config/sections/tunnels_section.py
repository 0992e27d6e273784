"""Reads the section `tunnels` of a hub, and `dial` of an edge's listeners: the two ends of tunnels."""

from __future__ import annotations

from mcproxy.config import credential_checks
from mcproxy.config.files import pem
from mcproxy.config.model import Dial, DialCredentials, DialTLS, HTTPProtocol, PEMFile, Serves, Tunnel
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Mapping, Place
from mcproxy.config.sections.clusters_section import server_name
from mcproxy.config.sections.entries import Sections
from mcproxy.config.sections.http_proxy import http_proxy
from mcproxy.config.sections.model_reader import read
from mcproxy.config.urls import AddressError, parse_hub
from mcproxy.kube.user import ANONYMOUS_NAME

_LEAST_KEEP_ALIVE = 1.0  # seconds; a PING more often than that is a load without a use


def tunnel(context: Context, place: Place, sections: Sections) -> Tunnel | None:
    """Return the tunnel written at `place`."""
    made = read(context, place, Tunnel, users=_users(context, place))
    return made if made.name and made.users else None


def _users(context: Context, tunnel: Place) -> tuple[str, ...]:
    """Return the users who may open a tunnel; report those who are everybody."""
    found: dict[str, Place] = {}
    for item in tunnel.children("users"):
        name = item.string or ""
        if name == "*":
            context.error(item, '"*" is no user: users have no patterns here', "list the users")
        elif name == ANONYMOUS_NAME:
            what = f"{item.shown} is every client without a credential, and each could take the cluster's place"
            context.error(item, what, "name users whom the server authenticates")
        elif name in found:
            context.error(item, f"{item.shown} is in the list already, at {found[name].mark}", "keep one of the two")
        else:
            found[name] = item
    return tuple(found)


# -- `dial` of a listener ----------------------------------------------------------------------------------------------

PROTOCOLS = (HTTPProtocol.HTTP2, HTTPProtocol.HTTP1)
"""What a listener with dial serves: hubs ask for connections of either protocol."""

_OF_CONNECTING = "is for a listener that clients connect to, and this one dials"
_UNSUITABLE = {
    "tls": "take it out: the edge is the TLS client, and its certificate is in dial.tls",
    "proxyProtocol": "take it out",
    "mode": "take it out",
    "group": "take it out",
    "freeBind": "take it out",
}
"""Keys of a listener that a listener with dial cannot have, with what would be right."""


def dial(context: Context, listener: Place) -> Dial | None:
    """Return how the listener dials, or None if a value is missing or wrong (reported)."""
    place = listener.get("dial")
    if place is None:
        return None
    _check_keys(context, listener)
    urls = _urls(context, place)
    tls_place, credentials_place = place.get("tls"), place.get("credentials")
    tls = _tls(context, tls_place) if tls_place is not None else None
    name = place.get("serverName")
    verified = server_name(context, name) if name is not None else None
    credentials = _credentials(context, credentials_place)
    _check_credentials(context, place)
    proxy = http_proxy(context, place.get("proxy"))
    if tls is None or not urls or not place.text("tunnel"):
        return None
    made = read(context, place, Dial, urls=urls, server_name=verified, tls=tls, credentials=credentials, proxy=proxy)
    keep_alive = place.get("keepAlive")
    if keep_alive is not None and made.keep_alive < _LEAST_KEEP_ALIVE:
        context.error(keep_alive, "is too short", "write at least 1s")
    return made


def _check_keys(context: Context, listener: Place) -> None:
    """Report keys that are for listeners with bind, and warn of those that a listener with dial does not need."""
    for key, right in _UNSUITABLE.items():
        written = listener.get(key)
        if written is not None and written.value is not False:
            context.error(written, _OF_CONNECTING, right)
    serves = listener.get("serves")
    if serves is not None and serves.string != Serves.API:
        what = f"is {serves.string}, and over a tunnel come requests for API servers"
        context.error(serves, what, "write API, or bind instead of dial")
    networks = listener.get("trustedProxies")
    if networks is not None and any(networks.items()):
        what = "names networks, and the hub's X-Forwarded-For counts anyway: it was dialled"
        context.warn(networks, "no-effect", what, "take it out")
    if listener.get("protocols") is not None:
        what = "does not count: over a tunnel both HTTP/2 and HTTP/1.1 are served, as the hub asks"
        context.warn(listener.get("protocols") or listener, "no-effect", what, "take it out")


def _urls(context: Context, place: Place) -> tuple[str, ...]:
    """Return the URLs of the hubs, each once; () if one is wrong (reported)."""
    found: dict[str, Place] = {}
    good = True
    for item in place.children("urls"):
        try:
            url = parse_hub(item.string or "")
        except AddressError as error:
            context.error(item, error.what, error.right)
            good = False
            continue
        first = found.setdefault(url, item)
        if first is not item:
            context.error(item, f"{item.shown} is in the list already, at {first.mark}", "keep one of the two")
    return tuple(found) if good else ()


def _tls(context: Context, place: Place) -> DialTLS | None:
    ca_place = place.get("caFile")
    ca = pem.read_authorities(context, ca_place) if ca_place is not None else None
    cert_place, key_place = place.get("certFile"), place.get("keyFile")
    certificate = pem.read_file(context, cert_place) if cert_place is not None else None
    key = pem.read_key(context, key_place) if key_place is not None else None
    if cert_place is not None and key_place is not None and certificate is not None and key is not None:
        _check_pair(context, cert_place, certificate, key_place, key)
    return DialTLS(ca=ca[0], certificate=certificate, key=key) if ca is not None else None


def _check_pair(context: Context, cert_place: Place, certificate: PEMFile, key_place: Place, key: PEMFile) -> None:
    leaf = pem.pair(context, cert_place, certificate, key_place, key)
    if leaf is not None and not pem.is_for_clients(leaf):
        what = f"the certificate in {certificate.path} is for servers only (extendedKeyUsage)"
        context.warn(cert_place, "certificate-usage", what, "hubs will refuse it; make one with clientAuth")


def _credentials(context: Context, place: Place | None) -> DialCredentials | None:
    file = place.get("tokenFile") if place is not None else None
    path = credential_checks.token_file(context, file) if file is not None else None
    return DialCredentials(token_file=path) if path is not None else None


def _check_credentials(context: Context, place: Place) -> None:
    """Require one credential, so that it is certain which user opens the tunnel. Wrong ones count as given."""
    tls, credentials = place.get("tls"), place.get("credentials")
    has_certificate = tls is not None and (tls.has("certFile") or tls.has("keyFile"))
    empty = credentials is not None and isinstance(credentials.node, Mapping) and not credentials.node.entries
    has_token = place.has("credentials") and not empty
    if has_certificate and credentials is not None and has_token:
        what = "is given in addition to the client certificate in dial.tls, and a tunnel is opened as one user"
        context.error(credentials, what, "keep one of the two")
    elif not has_certificate and not place.has("credentials") and tls is not None:
        what = "has no credential, and a hub lets in only users whom it knows"
        context.error(place, what, "add certFile and keyFile to tls, or credentials: {tokenFile: FILE}")
