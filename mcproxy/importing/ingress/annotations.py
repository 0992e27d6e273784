"""Translates annotations of ingress controllers, mainly ingress-nginx, to keys of ingresses and backends.

An object is left out if an annotation that restricts access (authentication, allowed networks, limits) or decides where
requests go (rewriting, canaries) cannot be carried over: without it, requests would be served that were refused before,
or would reach another backend. All other annotations that are not carried over are reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mcproxy.config.reading.nodes import Place, quote
from mcproxy.importing.fragment import Fragment
from mcproxy.importing.ingress.placed_objects import PlacedError, PlacedObject, mapping, remark

_NGINX = "nginx.ingress.kubernetes.io/"
_SILENT = ("kubectl.kubernetes.io/", "meta.helm.sh/", "argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/",
           "field.cattle.io/", "resourcetemplate.karmada.io/", "policy.karmada.io/")  # fmt: skip
"""Annotations of tools, which do not affect requests."""
_CLOSES = re.compile(r"auth|allowlist|whitelist|denylist|blacklist|limit-|ratelimit|middlewares|snippet|modsecurity|"
                     r"waf|satisfy|source-range|ip-rules|denied")  # fmt: skip
_DIRECTS = re.compile(r"rewrite|use-regex|app-root|canary|mirror|permanent-redirect|temporal-redirect|url-?rewrite|"
                      r"default-backend|upstream-vhost|custom-http-errors|redirect-scheme|prefix-?strip")  # fmt: skip
_INTO: dict[str, dict[str, Any]] = {
    "HTTP": {},
    "AUTO_HTTP": {},
    "GRPC": {"protocol": "HTTP2"},
    "HTTPS": {"tls": {"insecureSkipVerify": True}},
    "GRPCS": {"protocol": "HTTP2", "tls": {"insecureSkipVerify": True}},
}
"""The protocol of a backend, by the annotation backend-protocol."""


class Annotated:
    """The keys of an ingress and of its backends that come from the annotations of one object."""

    def __init__(self, found: PlacedObject, made: Fragment) -> None:
        """Raises PlacedError for an annotation that leaves the object out."""
        self.ingress: dict[str, Any] = {}
        self.backend: dict[str, Any] = {}
        self._found = found
        self._made = made
        metadata = mapping(found.place, "metadata")
        annotations = mapping(metadata, "annotations")
        for key, place in annotations.entries() if annotations is not None else ():
            if place.string is None:
                raise PlacedError(place, "is not a string")
            self._read(key, place, place.string)

    def _read(self, key: str, place: Place, value: str) -> None:
        name = key.removeprefix(_NGINX) if key.startswith(_NGINX) else ""
        if key.startswith(_SILENT):
            return
        if known := _KNOWN.get(name):
            known(self, place, value if value.isprintable() else quote(value))
        elif key == "kubernetes.io/ingress.class":
            self._note(
                place, f"is not carried over: the ingress is on the listeners that it names (class {quote(value)})"
            )
        elif value.lower() == "false" and (name or _CLOSES.search(key) or _DIRECTS.search(key)):
            return  # off, as it is without it
        elif _CLOSES.search(key.partition("/")[2] or key):
            raise PlacedError(place, f"{key} restricts requests, and mcproxy has nothing like it for an ingress")
        elif _DIRECTS.search(key.partition("/")[2] or key):
            raise PlacedError(place, f"{key} decides where requests go, and mcproxy has nothing like it")
        else:
            self._note(place, f"{key} is not carried over")

    def _note(self, place: Place, what: str) -> None:
        remark(self._made, self._found, place, what)

    # -- what is carried over --------------------------------------------------------------------------------------

    def ssl_redirect(self, place: Place, value: str) -> None:
        if value.lower() == "false":
            self.ingress["redirectToTLS"] = False

    def force_ssl_redirect(self, place: Place, value: str) -> None:
        if value.lower() == "true":
            self._note(place, "is carried over for hosts of tls alone; where something else ends TLS, redirect there")

    def affinity(self, place: Place, value: str) -> None:
        if value == "cookie":
            self.backend["affinity"] = "Cookie"
        else:
            self._note(place, f"the affinity {value} is not known to mcproxy")

    def cookie(self, place: Place, value: str) -> None:
        self._note(place, "is not carried over: the cookie of affinity has its own name and attributes")

    def load_balance(self, place: Place, value: str) -> None:
        if value in ("ewma", "least_conn"):
            self.backend["strategy"] = "LeastRequests"
            self._note(place, f"{value} is carried over as LeastRequests, which is like it")
        elif value != "round_robin":
            self._note(place, f"the strategy {value} is not known to mcproxy; it is RoundRobin")

    def backend_protocol(self, place: Place, value: str) -> None:
        if value.upper() not in _INTO:
            raise PlacedError(place, f"the backend protocol {value} is not known to mcproxy")
        keys = _INTO[value.upper()]
        self.backend.update(keys)
        if "tls" in keys:
            what = (
                "INSECURE: as with ingress-nginx the certificates of pods are not verified; give tls a caFile instead"
            )
            self._note(place, what)

    def connect_timeout(self, place: Place, value: str) -> None:
        if seconds := self._seconds(place, value):
            self.backend["connectTimeout"] = seconds

    def read_timeout(self, place: Place, value: str) -> None:
        if seconds := self._seconds(place, value):
            self.backend["responseTimeout"] = seconds
            self._note(place, "is carried over as the time until the head of the response; streams may last")

    def tries(self, place: Place, value: str) -> None:
        if value.isdigit() and 1 <= int(value) <= 11:
            self.backend["retries"] = int(value) - 1
        else:
            self._note(place, "is not carried over: retries has at most 10 further attempts")

    def body_size(self, place: Place, value: str) -> None:
        self._note(
            place, f"is not carried over: limits.bodyBytes of the listener is for all of its ingresses ({value})"
        )

    def _seconds(self, place: Place, value: str) -> str | None:
        if value.removesuffix("s").isdigit() and 0 < int(value.removesuffix("s")) < 10**6:
            return f"{int(value.removesuffix('s'))}s"
        self._note(place, "is not a number of seconds; the default applies")
        return None


_KNOWN: dict[str, Callable[[Annotated, Place, str], None]] = {
    "ssl-redirect": Annotated.ssl_redirect,
    "force-ssl-redirect": Annotated.force_ssl_redirect,
    "affinity": Annotated.affinity,
    "session-cookie-name": Annotated.cookie,
    "session-cookie-path": Annotated.cookie,
    "session-cookie-expires": Annotated.cookie,
    "session-cookie-max-age": Annotated.cookie,
    "session-cookie-samesite": Annotated.cookie,
    "load-balance": Annotated.load_balance,
    "backend-protocol": Annotated.backend_protocol,
    "proxy-connect-timeout": Annotated.connect_timeout,
    "proxy-read-timeout": Annotated.read_timeout,
    "proxy-next-upstream-tries": Annotated.tries,
    "proxy-body-size": Annotated.body_size,
}
