"""`cors` of a server: the origins of web pages that may use it (WHATWG Fetch; RFC 6454 for the form of an origin)."""

from __future__ import annotations

import re

from mcproxy.config.model import CORS
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.server_names import is_ip, is_server_name

_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>\[[0-9a-f:.]+\]|[^:/?#@\[\]]+)(?::(?P<port>[0-9]{1,5}))?\Z"
)
_DEFAULT_PORTS = {"https": "443", "http": "80"}
_FORM = "write scheme://host or scheme://host:port, such as https://headlamp.example.com"


def cors(context: Context, place: Place | None) -> CORS | None:
    """Return the allowed origins as browsers send them; ill-formed and doubled ones are reported."""
    if place is None:
        return None
    found: dict[str, Place] = {}
    for item in place.children("allowedOrigins"):
        origin = _origin(context, item)
        if origin is None:
            continue
        if origin in found:
            context.error(item, f"{item.shown} is in the list already, at {found[origin].mark}", "keep one of the two")
        else:
            found[origin] = item
    return CORS(tuple(found))


def _origin(context: Context, place: Place) -> str | None:
    text = (place.string or "").lower()
    if text == "*":
        context.error(place, '"*" would open the server to every web page', "list the origins")
        return None
    if text == "null":
        context.error(place, '"null" stands for any sandboxed page and local file', "list the origins")
        return None
    match = _ORIGIN.match(text)
    if match is None:
        stripped = text.rstrip("/")
        right = f"write {stripped}" if _ORIGIN.match(stripped) else _FORM
        context.error(place, f"{place.shown} is not an origin", right)
        return None
    scheme, host, port = match["scheme"], match["host"], match["port"]
    if not _is_host(host):
        star = "a wildcard that is not just its first label" if "*" in host else "an ill-formed host"
        context.error(place, f"{place.shown} has {star}", "write a host such as headlamp.example.com or *.example.com")
        return None
    if port is not None and not 0 < int(port) < 65536:
        context.error(place, f"{place.shown} has no usable port", "write a port from 1 to 65535, or none")
        return None
    if host.startswith("*.") and "." not in host[2:]:
        context.warn(
            place,
            "broad-origin",
            f"{place.shown} is every host in the zone {host[2:]}",
            "name the hosts, or a longer domain",
        )
    suffix = f":{int(port)}" if port is not None and port != _DEFAULT_PORTS.get(scheme) else ""
    return f"{scheme}://{host}{suffix}"


def _is_host(host: str) -> bool:
    if host.startswith("["):
        return is_ip(host[1:-1])
    return not host.endswith(".") and is_server_name(host)
