"""Reads an HTTP proxy: `proxy` of a cluster, and of a listener's `dial`."""

from __future__ import annotations

from mcproxy.config import credential_checks
from mcproxy.config.model import HTTPProxy
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.model_reader import read
from mcproxy.config.urls import AddressError, check_proxy_user, parse_http_proxy

_SEPARATE = "take them out, and use user and passwordFile"


def http_proxy(context: Context, place: Place | None) -> HTTPProxy | None:
    """Return the HTTP proxy at `place`, with its password; None if there is none, or its URL is wrong (reported)."""
    url = place.get("url") if place is not None else None
    user, file = (place.get("user"), place.get("passwordFile")) if place is not None else (None, None)
    if user is not None and user.string is not None:
        _check_user(context, user, user.string)
    password = credential_checks.password_file(context, file) if file is not None else None
    if place is None:
        return None
    if url is None and context.offline and place.has("url"):
        address = parse_http_proxy("http://variable.invalid:80")
    elif url is None or url.string is None:
        return None
    else:
        try:
            if "@" in url.string:
                raise AddressError("has a user name or password in it", _SEPARATE)
            address = parse_http_proxy(url.string)
        except AddressError as error:
            context.error(url, error.what, error.right)
            return None
    return read(
        context,
        place,
        HTTPProxy,
        url=address.url,
        host=address.host,
        port=address.port,
        password=password[1] if password is not None else None,
        password_file=password[0] if password is not None else None,
    )


def _check_user(context: Context, place: Place, user: str) -> None:
    try:
        check_proxy_user(user)
    except AddressError as error:
        context.error(place, error.what, error.right)
