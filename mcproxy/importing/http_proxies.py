"""Writes HTTP proxies, which other configurations have as one URL with user and password, as `proxy` of a cluster."""

from __future__ import annotations

from typing import Any

from mcproxy.config.model import HTTPProxy
from mcproxy.importing.fragment import Fragment


def proxy_entry(fragment: Fragment, cluster: str, proxy: HTTPProxy) -> dict[str, Any] | None:
    """Return the value of `proxy`, with the password in a file of `fragment`.

    None for an empty user name or password, which `proxy` cannot have.
    """
    if proxy.user is None or proxy.password is None:
        return {"url": proxy.url}
    password = proxy.password.reveal()
    if not proxy.user or not password:
        return None
    return {
        "url": proxy.url,
        "user": proxy.user,
        "passwordFile": fragment.file(cluster, "proxy-password", password.encode()),
    }
