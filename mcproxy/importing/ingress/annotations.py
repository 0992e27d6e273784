"""Translates annotations of ingress controllers, mainly ingress-nginx, to keys of ingresses, paths and backends.

An object is left out if an annotation that restricts access (authentication, allowed networks, limits) or decides
where requests go cannot be carried over: without it, requests would be served that were refused before, or would reach
another backend. All other annotations that are not carried over are reported.

Source: ingress-nginx, docs/user-guide/nginx-configuration/annotations.md and rootfs/etc/nginx/template/nginx.tmpl.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from mcproxy.config.reading.nodes import Place, quote
from mcproxy.importing.fragment import Fragment, Note
from mcproxy.importing.ingress.placed_objects import PlacedError, PlacedObject, mapping, remark

_NGINX = "nginx.ingress.kubernetes.io/"
_SILENT = ("kubectl.kubernetes.io/", "meta.helm.sh/", "argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/",
           "field.cattle.io/", "resourcetemplate.karmada.io/", "policy.karmada.io/")  # fmt: skip
"""Prefixes of tools' annotations, which do not affect requests."""
_CLOSES = re.compile(r"auth|allowlist|whitelist|denylist|blacklist|limit-|ratelimit|middlewares|snippet|modsecurity|"
                     r"waf|satisfy|source-range|ip-rules|denied|passthrough")  # fmt: skip
_DIRECTS = re.compile(r"rewrite|use-regex|app-root|canary|permanent-redirect|temporal-redirect|url-?rewrite|"
                      r"upstream-vhost|redirect-scheme|prefix-?strip|from-to-www")  # fmt: skip
_INTO: dict[str, dict[str, Any]] = {
    "HTTP": {},
    "AUTO_HTTP": {},
    "GRPC": {"protocol": "GRPC"},
    "HTTPS": {"tls": {"insecureSkipVerify": True}},
    "GRPCS": {"protocol": "GRPC", "tls": {"insecureSkipVerify": True}},
}
"""The protocol of a backend by the value of the annotation backend-protocol."""
_CANARY = ("canary-weight", "canary-weight-total", "canary-by-header", "canary-by-header-value")
_RETRIED = {"http_429": 429, "http_500": 500, "http_502": 502, "http_503": 503, "http_504": 504}
_MOST_RETRIES = 2
_HASHED = re.compile(r"\$(?:(http|cookie)_(\w+)|(?:binary_)?remote_addr)")
_SIZE = re.compile(r"(\d{1,9})([kKmMgG]?)")
_UNITS = {"": "", "k": "Ki", "m": "Mi", "g": "Gi"}


@dataclass(slots=True)
class Canary:
    """The canary rule of an Ingress: its backends get a part of another Ingress's requests for the same paths."""

    weight: int = 0
    total: int = 100
    header: str = ""
    value: str = ""  # value of the header field; "": the values "always" and "never"


@dataclass(slots=True)
class Routing:
    """The routing options from annotations, for each path of an object."""

    filters: dict[str, Any] = field(default_factory=dict)
    regex: bool = False
    rewrite: str = ""  # the new path, with \1 … for captures of the path
    app_root: str = ""
    www: bool = False
    redirect: dict[str, Any] | None = None
    canary: Canary | None = None


class Annotated:
    """The keys of an ingress and of its backends that come from the annotations of one object."""

    def __init__(self, found: PlacedObject, made: Fragment) -> None:
        """Raises PlacedError for an annotation that leaves the object out."""
        self.ingress: dict[str, Any] = {}
        self.backend: dict[str, Any] = {}
        self.routing = Routing()
        self._cookie: dict[str, Any] = {}
        self._found = found
        self._made = made
        metadata = mapping(found.place, "metadata")
        annotations = mapping(metadata, "annotations")
        written = dict(annotations.entries()) if annotations is not None else {}
        for key, place in written.items():
            if place.string is None:
                raise PlacedError(place, "is not a string")
            self._read(key, place, place.string)
        if self._cookie and self.backend.get("affinity") == "Cookie":
            self.backend["cookie"] = self._cookie
        codes = {name: written.get(f"{_NGINX}{name}-redirect-code") for name in ("permanent", "temporal")}
        for name, found_code in codes.items():
            if found_code is not None and self.routing.redirect is not None and f"{_NGINX}{name}-redirect" in written:
                self.routing.redirect["code"] = self._code(found_code)
        self._canary(written)

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
            return  # "off" is the default
        elif _CLOSES.search(key.partition("/")[2] or key):
            raise PlacedError(place, f"{key} restricts requests, and mcproxy has nothing like it for an ingress")
        elif _DIRECTS.search(key.partition("/")[2] or key):
            raise PlacedError(place, f"{key} decides where requests go, and mcproxy has nothing like it")
        else:
            self._note(place, f"{key} is not carried over")

    def _note(self, place: Place, what: str) -> None:
        remark(self._made, self._found, place, what)

    # -- where requests go -----------------------------------------------------------------------------------------

    def _canary(self, written: dict[str, Place]) -> None:
        place = written.get(f"{_NGINX}canary")
        if place is None or (place.string or "").lower() != "true":
            return
        texts = {name: (found.string or "") for name in _CANARY if (found := written.get(_NGINX + name)) is not None}
        numbers = {name: texts.get(name, "") for name in ("canary-weight", "canary-weight-total")}
        if any(text and not (text.isdigit() and len(text) < 7) for text in numbers.values()):
            raise PlacedError(place, "canary-weight or canary-weight-total is not a whole number")
        weight, total = (int(text or 0) for text in numbers.values())
        canary = Canary(
            weight, total or 100, texts.get("canary-by-header", ""), texts.get("canary-by-header-value", "")
        )
        if not canary.weight and not canary.header:
            raise PlacedError(place, "it is a canary without canary-weight and canary-by-header, which gets no request")
        self.routing.canary = canary

    def part_of_canary(self, place: Place, value: str) -> None:
        """Do nothing: `_canary` reads this annotation."""

    def use_regex(self, place: Place, value: str) -> None:
        if value.lower() == "true":
            self.routing.regex = True
            self._note(place, "is carried over for the paths of this object; case counts in them")

    def rewrite_target(self, place: Place, value: str) -> None:
        target = re.sub(r"\$(\d)", r"\\\1", value)
        if not value.startswith("/") or "$" in target or "\\" in value:
            raise PlacedError(place, f"mcproxy has nothing like the target {value}: a path with $1 to $9 alone")
        self.routing.regex, self.routing.rewrite = True, target

    def app_root(self, place: Place, value: str) -> None:
        if not value.startswith("/"):
            raise PlacedError(place, f"{value} is not a path")
        self.routing.app_root = value

    def from_to_www(self, place: Place, value: str) -> None:
        self.routing.www = value.lower() == "true"

    def permanent_redirect(self, place: Place, value: str) -> None:
        self._redirect(place, value, 301)

    def temporal_redirect(self, place: Place, value: str) -> None:
        self._redirect(place, value, 302)

    def redirect_code(self, place: Place, value: str) -> None:
        """Do nothing: `__init__` reads this annotation together with the redirect."""

    def _redirect(self, place: Place, value: str, code: int) -> None:
        try:
            url = urlsplit(value)
            port = url.port
        except ValueError as error:
            raise PlacedError(place, f"{value} is not a URL: {error}") from None
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment or "$" in value:
            raise PlacedError(
                place, f"mcproxy has nothing like a redirect to {value}: a URL without query and variables"
            )
        to = {"scheme": url.scheme, "host": url.hostname, "path": url.path or "/", "code": code}
        self.routing.redirect = to | ({} if port is None else {"port": port})
        self._note(place, "is carried over with the query of each request, which ingress-nginx leaves out")

    def _code(self, place: Place) -> int:
        text = place.string or ""
        if text not in ("301", "302", "303", "307", "308"):
            raise PlacedError(place, f"mcproxy has no redirect with the status {text}")
        return int(text)

    def ssl_redirect(self, place: Place, value: str) -> None:
        if value.lower() == "false":
            self.ingress["redirectToTLS"] = False

    def force_ssl_redirect(self, place: Place, value: str) -> None:
        if value.lower() == "true":
            self._note(place, "is carried over for hosts of tls alone; where something else ends TLS, redirect there")

    def upstream_vhost(self, place: Place, value: str) -> None:
        if "$" in value:
            raise PlacedError(place, f"mcproxy has nothing like the host {value}: one without variables")
        self.routing.filters["rewriteHost"] = value

    def forwarded_prefix(self, place: Place, value: str) -> None:
        if "$" in value:
            self._note(place, f"is not carried over: {value} has variables")
        else:
            self.routing.filters["requestHeaders"] = {"set": {"X-Forwarded-Prefix": value}}

    def body_size(self, place: Place, value: str) -> None:
        found = _SIZE.fullmatch(value)
        if found is None:
            self._note(place, f"is not carried over: {value} is not a size; requests may have 1 MiB")
        else:
            self.routing.filters["bodyBytes"] = int(found[1]) and found[1] + _UNITS[found[2].lower()]

    # -- which pod gets requests -----------------------------------------------------------------------------------

    def affinity(self, place: Place, value: str) -> None:
        if value == "cookie":
            self.backend["affinity"] = "Cookie"
        else:
            self._note(place, f"the affinity {value} is not known to mcproxy")

    def cookie_name(self, place: Place, value: str) -> None:
        self._cookie["name"] = value

    def cookie_age(self, place: Place, value: str) -> None:
        if seconds := self._seconds(place, value):
            self._cookie["maxAge"] = seconds

    def cookie_same_site(self, place: Place, value: str) -> None:
        if value.capitalize() in ("Lax", "Strict", "None"):
            self._cookie["sameSite"] = value.capitalize()
        else:
            self._note(place, f"is not carried over: {value} is not known; it is Lax")

    def cookie_path(self, place: Place, value: str) -> None:
        self._note(place, "is not carried over: the cookie's path is that of the rule")

    def hash_by(self, place: Place, value: str) -> None:
        found = _HASHED.fullmatch(value.strip('"'))
        if found is None:
            self._note(place, f"is not carried over: mcproxy hashes the address, a header or a cookie, not {value}")
            return
        self.backend["strategy"] = "ConsistentHash"
        if found[1] == "http":
            self.backend["hashBy"] = {"header": found[2].replace("_", "-")}
        elif found[1]:
            self.backend["hashBy"] = {"cookie": found[2]}

    def load_balance(self, place: Place, value: str) -> None:
        if value in ("ewma", "least_conn"):
            self.backend.setdefault("strategy", "LeastRequests")
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

    # -- timeouts and retries --------------------------------------------------------------------------------------

    def connect_timeout(self, place: Place, value: str) -> None:
        if seconds := self._seconds(place, value):
            self.backend["connectTimeout"] = seconds

    def read_timeout(self, place: Place, value: str) -> None:
        if seconds := self._seconds(place, value):
            self.backend["responseTimeout"] = self.backend["readTimeout"] = seconds

    def next_upstream(self, place: Place, value: str) -> None:
        words = value.split()
        if "off" in words:
            self.backend["retries"] = 0
            return
        if statuses := [_RETRIED[word] for word in words if word in _RETRIED]:
            self.backend["retryOn"] = statuses
        others = [word for word in words if word not in (*_RETRIED, "error", "timeout", "invalid_header")]
        if others:
            self._note(place, f"{', '.join(others)} is not carried over: idempotent requests alone are sent again")

    def tries(self, place: Place, value: str) -> None:
        tries = int(value) if value.isdigit() and len(value) < 7 else -1
        if not 0 < tries <= _MOST_RETRIES + 1:
            self._note(place, f"is carried over as {_MOST_RETRIES + 1} tries, the most that there are")
            tries = _MOST_RETRIES + 1
        self.backend.setdefault("retries", tries - 1)

    def _seconds(self, place: Place, value: str) -> str | None:
        if value.removesuffix("s").isdigit() and 0 < int(value.removesuffix("s")) < 10**6:
            return f"{int(value.removesuffix('s'))}s"
        self._note(place, "is not a number of seconds; the default applies")
        return None


_KNOWN: dict[str, Callable[[Annotated, Place, str], None]] = {
    **dict.fromkeys(("canary", *_CANARY), Annotated.part_of_canary),
    "use-regex": Annotated.use_regex,
    "rewrite-target": Annotated.rewrite_target,
    "app-root": Annotated.app_root,
    "from-to-www-redirect": Annotated.from_to_www,
    "permanent-redirect": Annotated.permanent_redirect,
    "permanent-redirect-code": Annotated.redirect_code,
    "temporal-redirect": Annotated.temporal_redirect,
    "temporal-redirect-code": Annotated.redirect_code,
    "ssl-redirect": Annotated.ssl_redirect,
    "force-ssl-redirect": Annotated.force_ssl_redirect,
    "upstream-vhost": Annotated.upstream_vhost,
    "x-forwarded-prefix": Annotated.forwarded_prefix,
    "proxy-body-size": Annotated.body_size,
    "affinity": Annotated.affinity,
    "session-cookie-name": Annotated.cookie_name,
    "session-cookie-path": Annotated.cookie_path,
    "session-cookie-max-age": Annotated.cookie_age,
    "session-cookie-samesite": Annotated.cookie_same_site,
    "upstream-hash-by": Annotated.hash_by,
    "load-balance": Annotated.load_balance,
    "backend-protocol": Annotated.backend_protocol,
    "proxy-connect-timeout": Annotated.connect_timeout,
    "proxy-read-timeout": Annotated.read_timeout,
    "proxy-next-upstream": Annotated.next_upstream,
    "proxy-next-upstream-tries": Annotated.tries,
}


# -- canaries ----------------------------------------------------------------------------------------------------------
# A canary has the host and paths of another object, and selects requests for its own backends: requests with a value of
# a header field ("always" if no value is given), otherwise a share by weight. The header has precedence, and "never"
# excludes a request from the share. Source: "Canary" in ingress-nginx's annotations.md.


def join_canaries(fragments: Sequence[Fragment], canaries: Sequence[tuple[Fragment, Canary]]) -> list[Note]:
    """Add canaries to the entries of `fragments`, which are no canaries; return a note for each path of a canary that
    no entry has.
    """
    left_out = []
    for fragment, canary in canaries:
        for entry in fragment.sections.get("ingresses", ()):
            for rule in entry.get("rules", ()):
                for path in rule["paths"]:
                    if not _join_canary(fragments, _namespace_of(entry), rule.get("host", ""), path, canary):
                        what = f"left out: it is a canary, and no ingress with its host has the path {path['path']}"
                        left_out.append(Note(fragment.origin, "spec.rules", what, fragment.place))
            if "defaultBackend" in entry:
                what = "left out: a canary of a default backend is not known to mcproxy"
                left_out.append(Note(fragment.origin, "spec.defaultBackend", what, fragment.place))
    return left_out


def _namespace_of(entry: dict[str, Any]) -> str:
    return str(entry["name"]).partition(".")[0]


def _join_canary(
    fragments: Sequence[Fragment], namespace: str, host: str, path: dict[str, Any], canary: Canary
) -> bool:
    for fragment in fragments:
        for entry in fragment.sections.get("ingresses", ()):
            for rule in entry.get("rules", ()) if _namespace_of(entry) == namespace else ():
                for main in rule["paths"]:
                    same = (main["path"], main["pathType"]) == (path["path"], path["pathType"])
                    if same and "backend" in main and "headers" not in main and rule.get("host", "") == host:
                        rule["paths"] += _add_shares(main, path["backend"], canary)
                        return True
    return False


def _add_shares(main: dict[str, Any], backend: dict[str, Any], canary: Canary) -> list[dict[str, Any]]:
    """Add the shares to `main`, and return the additional paths for header fields."""
    own = main["backend"]
    beside = []
    if canary.header:
        beside.append({**main, "headers": {canary.header: canary.value or "always"}, "backend": backend})
        if not canary.value and canary.weight:
            beside.append({**main, "headers": {canary.header: "never"}})
    if canary.weight:
        weight = min(canary.weight, canary.total)
        del main["backend"]
        main["backends"] = [
            {"weight": canary.total - weight, "backend": own},
            {"weight": weight, "backend": backend},
        ]
    return beside
