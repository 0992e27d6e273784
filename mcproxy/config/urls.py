"""Parses addresses of endpoints, listeners and networks, and decides whether they are local."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from mcproxy.config.model import Bind, EndpointConfig, HTTPProxy, IPNetwork, Secret, SystemdBind, TCPBind, UnixBind
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?\Z")
_PATH = re.compile(r"(/[!-~]*)?\Z")
_REDIS_FORM = "write a URL such as rediss://10.0.0.5:6379/0, or unix:///run/redis/redis.sock"
_PROXY_FORM = "write http://HOST:PORT"
_USER_INFO = re.compile(r"([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*\Z")
"""User and password in a URL, as Go's net/url takes them (`validUserinfo`)."""
_DEFAULT_PORTS = {"https": 443, "http": 80}


class AddressError(ValueError):
    """An invalid address, with `what` is wrong and what would be `right`."""

    def __init__(self, what: str, right: str) -> None:
        super().__init__(f"{what}; {right}")
        self.what = what
        self.right = right


def parse_endpoint(url: str, name: str | None = None) -> EndpointConfig:
    """Parse the URL of a kube-apiserver; raises AddressError. The path is kept without trailing slashes.

    Messages do not repeat the URL, which may hold a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname
    except ValueError:
        raise AddressError("is not a URL", "write a URL such as https://10.0.0.1:6443") from None
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise AddressError("is not a URL of a server", "write a URL such as https://10.0.0.1:6443")
    if "@" in parts.netloc:
        raise AddressError("has a user name in it", "take it out, and use credentials")
    if "?" in url or "#" in url:
        raise AddressError("has a query or fragment", "end the URL with host, port or path")
    _check_host(host)
    if parts.netloc.endswith(":") or port == 0:
        raise AddressError("has no usable port", "write a port from 1 to 65535, or none")
    path = parse_path(parts.path)
    endpoint = EndpointConfig(
        name="", scheme=parts.scheme, host=host, port=port or _DEFAULT_PORTS[parts.scheme], path=path
    )
    return EndpointConfig(
        name=name or endpoint.url, scheme=endpoint.scheme, host=host, port=endpoint.port, path=endpoint.path
    )


def parse_path(text: str) -> str:
    """Return the path to an API server without trailing slashes; raises AddressError."""
    path = text.rstrip("/")
    if not _PATH.match(path) or {"..", "."} & set(path.split("/")) or "//" in path or {"?", "#"} & set(path):
        raise AddressError("has an unusable path", "write a plain path such as /k8s/clusters/a, without . or ..")
    return path


def parse_hub(url: str) -> str:
    """Return the URL of a hub as https://HOST:PORT, in lower case; raises AddressError."""
    form = "write a URL such as https://hub-1.example:6443"
    try:
        hub = parse_endpoint(url)
    except AddressError as error:
        right = "take it out, and use dial.credentials" if "@" in url else form
        raise AddressError(error.what, right) from None
    if hub.scheme != "https":
        raise AddressError("is not an https URL", form)
    if hub.path or url.endswith("/"):
        raise AddressError("has a path", f"end the URL with the port: https://{urlsplit(url).netloc}")
    return hub.url


def _check_host(host: str) -> None:
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise AddressError("has an ill-formed IPv6 address", "write it as in https://[fd00::1]:6443") from None
        return
    if not _HOST.match(host) or ".." in host or len(host) > 253:
        raise AddressError("has an ill-formed host name", "write a DNS name (in its ASCII form) or an IP address")
    if host.rpartition(".")[2].isdigit():
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise AddressError("has an ill-formed IPv4 address", "write it as in https://10.0.0.1:6443") from None


def check_https(url: str, *, query: bool) -> None:
    """Check that `url` is a valid https URL; raises AddressError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, 0
    if not host or port == 0 or parts.scheme != "https":
        raise AddressError("is not an https URL", "write a URL such as https://login.example.com")
    if "@" in parts.netloc:
        raise AddressError("has a user name in it", "take it out")
    if "#" in url or ("?" in url and not query):
        raise AddressError("has a query or fragment", "end the URL with host, port or path")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise AddressError("has characters that no URL has", "encode them with %")
    _check_host(host)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """The address of a Redis; `socket` is the absolute path of a unix socket."""

    tls: bool = False
    host: str = ""
    port: int = 6379
    socket: str | None = None
    database: int = 0


def parse_redis_url(url: str) -> RedisAddress:
    """Parse a redis://, rediss:// (TLS) or unix:// URL in the form of Redis clients; raises AddressError.

    Messages do not repeat the URL, which may hold a password.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise AddressError("is not a URL", _REDIS_FORM) from None
    if parts.scheme not in ("redis", "rediss", "unix") or not url.isascii() or not url.isprintable() or " " in url:
        raise AddressError("is not a URL of a Redis", _REDIS_FORM)
    if "@" in parts.netloc:
        raise AddressError("has a user name or password in it", "take it out, and use username and passwordFile")
    if parts.fragment or "#" in url:
        raise AddressError("has a fragment", _REDIS_FORM)
    if parts.scheme == "unix":
        socket = unquote(parts.path)
        if parts.netloc or len(socket) < 2 or len(socket.encode()) > 107 or "\0" in socket:
            raise AddressError("names no unix socket", "write unix:///run/redis/redis.sock, of at most 107 bytes")
        return RedisAddress(socket=socket, database=_database(parts.query.removeprefix("db=")))
    if not host:
        raise AddressError("has no host", _REDIS_FORM)
    _check_host(host)
    if "?" in url:
        raise AddressError("has a query", _REDIS_FORM)
    if parts.netloc.endswith(":") or port == 0:
        raise AddressError("has no usable port", "write a port from 1 to 65535, or none")
    database = _database(parts.path.removeprefix("/"))
    return RedisAddress(tls=parts.scheme == "rediss", host=host, port=port or 6379, database=database)


def _database(text: str) -> int:
    if text and not (text.isdigit() and len(text) <= 4):
        raise AddressError("names no database", "end it with the number of a database such as /0, or with the port")
    return int(text or 0)


def parse_http_proxy(url: str, *, default_port: int | None = None) -> HTTPProxy:
    """Parse the URL of an HTTP proxy, as in proxy-url of a kubeconfig; raises AddressError.

    User and password are decoded (RFC 3986 2.1). Without `default_port` the URL must have a port. Messages do not
    repeat the URL, which may hold a password.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise AddressError("is not a URL of an HTTP proxy", _PROXY_FORM) from None
    if parts.scheme in ("https", "socks", "socks4", "socks5", "socks5h"):
        what = f"is a proxy of the kind {parts.scheme}: only HTTP proxies that are reached without TLS are supported"
        raise AddressError(what, _PROXY_FORM)
    if parts.scheme != "http" or not host or not url.isascii() or not url.isprintable() or " " in url:
        raise AddressError("is not a URL of an HTTP proxy", _PROXY_FORM)
    if parts.path not in ("", "/") or "?" in url or "#" in url:
        raise AddressError("has a path, query or fragment", "end the URL with host and port")
    _check_host(host)
    port = default_port if port is None and not parts.netloc.endswith(":") else port
    if not port:
        raise AddressError("has no usable port", "write a port from 1 to 65535, such as http://proxy.example.com:3128")
    user, password = _user_info(parts.netloc)
    shown = f"[{host}]" if ":" in host else host
    return HTTPProxy(url=f"http://{shown}:{port}", host=host, port=port, user=user, password=password)


def _user_info(netloc: str) -> tuple[str | None, Secret | None]:
    """Return the decoded user and password of a URL; the password is "" if only a user is given."""
    info, separator, _ = netloc.rpartition("@")
    if not separator:
        return None, None
    form = "encode it with %, as http://USER:PASSWORD@HOST:PORT"
    if not _USER_INFO.match(info):
        raise AddressError("has a user or password with a character that a URL cannot have", form)
    try:
        user, _, password = (unquote(part, errors="strict") for part in info.partition(":"))
    except UnicodeDecodeError:
        raise AddressError("has a user or password that is not UTF-8", form) from None
    check_proxy_user(user)
    if not password.isprintable():
        raise AddressError("has a password with control characters", "give the proxy's user another password")
    return user, Secret(password)


def check_proxy_user(user: str) -> None:
    """Check that Basic authentication can carry a user name (RFC 7617 2); raises AddressError."""
    if ":" in user or not user.isprintable():
        raise AddressError(
            "the user name has a colon or control characters, which Basic authentication cannot carry",
            "use another user of the proxy",
        )


def parse_bind(text: str) -> Bind:
    """Parse a listener's bind, whose form the schema has checked; raises AddressError."""
    if text.startswith("unix:"):
        if len(text.encode()) > 107 + len("unix:"):
            raise AddressError("is longer than the 107 bytes of a unix socket's path", "use a shorter path")
        if "\0" in text:
            raise AddressError("has a NUL byte", "write unix:/absolute/path")
        return UnixBind(text.removeprefix("unix:"))
    if text.startswith("systemd:"):
        return SystemdBind(text.removeprefix("systemd:"))
    host, _, port = text.rpartition(":")
    if int(port) > 65535:
        raise AddressError(f"{port} is not a port", "write a port from 0 to 65535")
    if host.startswith("["):
        host = host[1:-1]
    try:
        _check_host(host)
    except AddressError as error:
        raise AddressError(error.what, "write host:port such as 127.0.0.1:6443, or [v6]:port") from None
    return TCPBind(host, int(port))


def parse_network(text: str) -> IPNetwork:
    """Parse a network or a single address; raises AddressError."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        right = f"did you mean {ipaddress.ip_interface(text).network}?"
    except ValueError:
        raise AddressError("is not a network", "write a network such as 10.0.0.0/8, or one address") from None
    raise AddressError("has bits set beyond its prefix", right)


def is_open(bind: Bind | None) -> bool:
    """Whether requests of other machines arrive: they can connect, or the listener dials hubs (None).

    True for systemd sockets, whose address is unknown here.
    """
    return bind is None or isinstance(bind, SystemdBind) or (isinstance(bind, TCPBind) and not is_loopback(bind.host))


def is_loopback(host: str) -> bool:
    """Whether an address or name is certainly loopback."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# -- the path in the URL of an endpoint: an API server has no path, except behind a gateway ----------------------------

_GATEWAY_PATH = re.compile(r"(/[^/]+)*/clusters/[^/]+\Z")
"""The paths below which gateways (Rancher, mcproxy itself) serve the API of one cluster."""


def check_path(context: Context, place: Place, path: str) -> None:
    """Warn of an unusual path in an endpoint's URL, or behind its tunnel."""
    if path and not _GATEWAY_PATH.match(path):
        what = f"requests go to {path}/api, {path}/apis and so on: an API server has its API at the root"
        context.warn(place, "url-path", what, f"leave out {path}, unless a gateway there expects it")
