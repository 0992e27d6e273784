"""`daemon.sharedState`: where the replicas of the proxy count together what is `shared: true`."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.files import pem
from mcproxy.config.model import FlowControl, FlowControlType, PEMFile, Redis, Secret, SharedState
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import Merged, Named
from mcproxy.config.sections.model_reader import read
from mcproxy.config.urls import AddressError, RedisAddress, is_loopback, parse_redis_url

_TLS_KEYS = ("caFile", "certFile", "keyFile")
_MAX_PASSWORD = 4096  # bytes


def build_shared_state(context: Context, merged: Merged) -> SharedState | None:
    place = merged.setting("daemon", "sharedState")
    redis = place.get("redis") if place is not None else None
    found = _redis(context, redis) if redis is not None else None
    return SharedState(redis=found) if found is not None else None


def check_shared(context: Context, merged: Merged, controls: Sequence[Named[FlowControl]]) -> None:
    """Check that shared flow controls have `daemon.sharedState`, and that it is used."""
    state = merged.setting("daemon", "sharedState")
    shared = [place for control in controls if (place := _shared(control)) is not None]
    if state is None:
        for place in shared:
            right = 'add daemon: {sharedState: {redis: {url: "rediss://HOST:6379/0", caFile: FILE}}}, or write false'
            context.error(place, "there is no daemon.sharedState that replicas could count in together", right)
    elif not shared:
        what = "no flow control has shared: true, so nothing is kept there"
        context.warn(state, "no-effect", what, "write shared: true to the limits of all replicas, or take it out")


def _shared(control: Named[FlowControl]) -> Place | None:
    """Return the `shared: true` of a flow control that limits something."""
    place = control.place.get("shared")
    exempt = control.place.text("type") == FlowControlType.EXEMPT
    return place if place is not None and place.value is True and not exempt else None


def _redis(context: Context, place: Place) -> Redis | None:
    url = place.get("url")
    if url is None or url.string is None:
        return None
    try:
        address = parse_redis_url(url.string)
    except AddressError as error:
        context.error(url, error.what, error.right)
        return None
    ca, certificate, key = _tls(context, place, url, address)
    password = place.get("passwordFile")
    found = _password(context, password) if password is not None else None
    if not address.tls and address.socket is None and not is_loopback(address.host):
        if password is not None:
            context.error(url, f"the password would go to {address.host} in clear", "use rediss:// and caFile")
        else:
            what = f"is reached at {address.host} in clear: anyone on the network path can change the limits"
            context.warn(url, "in-clear", what, "use rediss:// and caFile")
    return read(
        context,
        place,
        Redis,
        host=address.host,
        port=address.port,
        socket=address.socket,
        database=address.database,
        ca=ca,
        certificate=certificate,
        key=key,
        password=found[1] if found is not None else None,
        password_file=found[0] if found is not None else None,
    )


def _tls(
    context: Context, place: Place, url: Place, address: RedisAddress
) -> tuple[PEMFile | None, PEMFile | None, PEMFile | None]:
    """Return authorities, client certificate and its key."""
    if not address.tls:
        for key in _TLS_KEYS:
            written = place.get(key)
            if written is not None:
                context.error(written, "means nothing without TLS", "write rediss:// in url, or take it out")
        return None, None, None
    ca = place.get("caFile")
    if ca is None and not place.has("caFile"):
        what = "is rediss, but there is no caFile to check the server's certificate with"
        context.error(url, what, "add caFile: the authority of Redis' certificate")
    found = pem.read_authorities(context, ca) if ca is not None else None
    pair = pem.read_pair(context, place)
    return found[0] if found is not None else None, *(pair if pair is not None else (None, None))


def _password(context: Context, place: Place) -> tuple[str, Secret] | None:
    """Return the absolute name and the contents of a password file, without the line's end; it is not shown."""
    found = context.read(place)
    if found is None:
        return None
    path, data = found
    if context.offline:
        return path, Secret("")
    context.check_private(place, path)
    try:
        text = data.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        text = "\n"
    if not text:
        context.error(place, f"{path} is empty", "put the password into it")
    elif len(data) > _MAX_PASSWORD or not text.isprintable():
        context.error(place, f"{path} holds no password", "put the password into it on one line, and nothing else")
    return path, Secret(text)
