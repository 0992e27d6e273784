"""Reads `proxy` of a cluster or of `dial`: the HTTP proxy on the way."""

from __future__ import annotations

from mcproxy.config.model import HTTPProxy
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.model_reader import read


def http_proxy(context: Context, place: Place | None) -> HTTPProxy | None:
    """Return the HTTP proxy at `place`."""
    if place is None:
        return None
    file = place.get("passwordFile")
    return read(context, place, HTTPProxy, password_file=context.path(file) if file is not None else None)
