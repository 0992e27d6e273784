"""The path in the URL of an endpoint: an API server has none, unless a gateway is in front of it."""

from __future__ import annotations

import re

from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place

_GATEWAY_PATH = re.compile(r"(/[^/]+)*/clusters/[^/]+\Z")
"""The paths at which gateways serve the API of one cluster: Rancher, mcproxy itself."""


def check_path(context: Context, place: Place, path: str) -> None:
    """Warn of a path."""
    if path and not _GATEWAY_PATH.match(path):
        what = f"requests go to {path}/api, {path}/apis and so on: an API server has its API at the root"
        context.warn(place, "url-path", what, f"leave out {path}, unless a gateway there expects it")
