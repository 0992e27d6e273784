"""Session affinity by cookie: keeps the requests of a client at one endpoint. Pure.

The value of a cookie is an HMAC of the endpoint's address with a secret key of the proxy. It does not reveal the
address (a plain hash of the 2^32 IPv4 addresses could be reversed). It is compared with the values of the backend's
present endpoints, so neither a forged value nor another backend's value names an endpoint. No state is kept for
clients.

The key is derived from the private keys of the listener's certificates, so all workers, later processes and replicas
with the same certificates accept each other's cookies. Without certificates the parent process of the workers makes it.
A reload with other certificates makes a new key; the process accepts cookies of a few former keys until it ends.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256

from mcproxy.config.model import AffinityCookie, IngressBackend, SameSite
from mcproxy.services.ingress.endpoint_health import BackendEndpoint

MAX_KEYS = 4
"""Maximum of keys whose cookies are accepted: the newest key and some former ones."""
_CONTEXT = b"mcproxy ingress affinity 1"


def derived_key(secrets: Iterable[bytes]) -> bytes:
    """Return the key derived from secrets, independent of their order; b"" without secrets."""
    found = sorted({sha256(each).digest() for each in secrets})
    return hmac.digest(b"".join(found), _CONTEXT, sha256) if found else b""


def joined_keys(new: bytes, before: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the keys after a reload; the first one makes cookies."""
    return tuple(dict.fromkeys((new, *before)))[:MAX_KEYS]


def cookie_pattern(name: bytes, value: bytes) -> re.Pattern[bytes]:
    """Return the pattern of a cookie in the fields of a request; the group is the value, if well-formed."""
    return re.compile(
        rb"(?:^|\n)cookie:(?:[^\r\n]*?[; \t])??%b=(%b)(?=[; \t\r])" % (re.escape(name), value), re.IGNORECASE
    )


class CookieAffinity:
    """The cookies of one backend."""

    __slots__ = ("_age", "_backend", "_by_value", "_keys", "_members", "_pattern", "_same_site", "_tokens", "name")

    def __init__(self, backend: IngressBackend, keys: Sequence[bytes]) -> None:
        """`keys`: the first key makes cookies; cookies of all keys are accepted."""
        port = backend.port
        self._backend = f"{backend.namespace}/{backend.service}:{port}".encode()
        self._keys = tuple(keys)
        cookie = backend.cookie or AffinityCookie()
        #: The backend's part of the cookie's name, so that backends on one host have different cookies.
        self.name = (cookie.name or "mcproxy-" + sha256(_CONTEXT + self._backend).hexdigest()[:8]).encode()
        age = int(cookie.max_age)
        self._age = b"; Max-Age=%d" % age if age else b""
        self._same_site = cookie.same_site
        self._pattern = cookie_pattern(self.name, rb"[\w-]{22}")
        self._by_value: dict[bytes, BackendEndpoint] = {}
        self._members: tuple[Sequence[BackendEndpoint], ...] = ()
        self._tokens: dict[BackendEndpoint, tuple[bytes, ...]] = {}  # the cookie values, one for each key

    def follow(self, members: Iterable[Sequence[BackendEndpoint]]) -> None:
        """Set the present endpoints of each cluster."""
        members = tuple(members)
        if members == self._members:
            return
        self._members = members
        before, self._tokens = self._tokens, {}
        known: dict[bytes, BackendEndpoint] = {}
        for endpoint in [endpoint for endpoints in members for endpoint in endpoints]:
            tokens = before.get(endpoint) or tuple([self._token(key, endpoint) for key in self._keys])
            self._tokens[endpoint] = tokens
            for token in tokens:
                known[token] = endpoint
        self._by_value = known

    def endpoint_of(self, fields: bytes) -> BackendEndpoint | None:
        """Return the endpoint that the cookie of a request names; None without a cookie or if the endpoint is gone."""
        for value in self._pattern.findall(fields):
            found = self._by_value.get(value)
            if found is not None:
                return found
        return None

    def field(self, endpoint: BackendEndpoint, path: bytes, *, secure: bool) -> bytes:
        """Return the Set-Cookie line for an endpoint; `path` is the encoded Path of the rule."""
        tokens = self._tokens.get(endpoint)
        if tokens is None:  # the endpoint was removed meanwhile
            return b""
        same_site = self._same_site if secure or self._same_site is not SameSite.NONE else SameSite.LAX
        return b"Set-Cookie: %b=%b; Path=%b%b; HttpOnly; SameSite=%b%b\r\n" % (
            self.name,
            tokens[0],
            path,
            self._age,
            same_site.encode(),
            b"; Secure" if secure else b"",
        )

    def _token(self, key: bytes, endpoint: BackendEndpoint) -> bytes:
        text = b"%b\n%b\n%b" % (self._backend, endpoint.cluster.encode(), endpoint.name.encode())
        return urlsafe_b64encode(hmac.digest(key, text, sha256)[:16]).rstrip(b"=")
