"""The Host header of requests to an endpoint."""

from __future__ import annotations

from mcproxy.config import model

_DEFAULT_PORTS = {"https": 443, "http": 80}


def host_header(config: model.EndpointConfig) -> bytes:
    """Return the value of the Host header: the host, in brackets if IPv6, and the port unless it is the default.

    Behind a tunnel it is the tunnel's name.
    """
    if config.tunnel is not None:
        return config.tunnel.encode()
    host = config.host if config.host.isascii() else config.host.encode("idna").decode()
    if ":" in host:
        host = f"[{host}]"
    default = config.port == _DEFAULT_PORTS.get(config.scheme)
    return (host if default else f"{host}:{config.port}").encode()
