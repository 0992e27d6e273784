"""Annotations of ingress-nginx: what becomes keys, what leaves an object out, and what is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcproxy.config.model import AffinityCookie, HashBy, Redirect, SameSite, Strategy
from tests.importing.ingress.test_import_ingress import Imported


def ingress_of(name: str, annotations: dict[str, str], *paths: str, host: str = "a.test", service: str = "web") -> str:
    """Return an Ingress as JSON; annotations are ingress-nginx's."""
    backend = {"service": {"name": service, "port": {"number": 80}}}
    http = {"paths": [{"path": path, "pathType": "Prefix", "backend": backend} for path in paths or ("/",)]}
    named = {f"nginx.ingress.kubernetes.io/{key}": value for key, value in annotations.items()}
    metadata = {"name": name, "namespace": "shop", "annotations": named}
    spec = {"rules": [{"host": host, "http": http}]}
    return json.dumps({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata, "spec": spec})


class Play:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys
        self.made: Imported

    def read(self, *objects: str) -> None:
        (self._folder / "f.yaml").write_text("\n---\n".join(objects))
        self.made = Imported(self._folder, self._capsys, str(self._folder / "f.yaml"), "--cluster", "member1")

    def paths(self, host: str = "a.test") -> list[Any]:
        rules = [rule for each in self.made.loaded().ingresses for rule in each.rules if rule.host == host]
        return [path for rule in rules for path in rule.paths]

    @property
    def names(self) -> list[str]:
        return [each["name"] for each in self.made.document["ingresses"]]


@pytest.fixture
def play(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Play:
    return Play(tmp_path, capsys)


def test_a_rewrite_with_captures(play: Play) -> None:
    play.read(ingress_of("a", {"rewrite-target": "/x/$2"}, "/v1(/|$)(.*)", "/longer-one(/|$)(.*)"))
    paths = play.paths()
    assert [each.path for each in paths] == ["/longer-one(/|$)(.*)", "/v1(/|$)(.*)"]
    assert {(str(each.path_type), each.filters.rewrite_path) for each in paths} == {("Regex", "/x/\\2")}


def test_regular_expressions_are_for_the_beginning_of_a_path(play: Play) -> None:
    play.read(ingress_of("a", {"use-regex": "true"}, "/a[0-9]", "/all/.*", "/end$"))
    assert [each.path for each in play.paths()] == ["/a[0-9].*", "/all/.*", "/end$"]


def test_redirects(play: Play) -> None:
    play.read(
        ingress_of("a", {"permanent-redirect": "https://b.test:8443/x", "permanent-redirect-code": "308"}),
        ingress_of("c", {"temporal-redirect": "http://b.test"}, host="c.test"),
        ingress_of("d", {"app-root": "/start", "from-to-www-redirect": "true"}, host="d.test"),
    )
    [moved] = play.paths()
    assert moved.filters.redirect == Redirect(scheme="https", host="b.test", port=8443, path="/x", code=308)
    assert moved.backend is None
    [found] = play.paths("c.test")
    assert found.filters.redirect == Redirect(scheme="http", host="b.test", path="/", code=302)
    root, rest = play.paths("d.test")
    assert (str(root.path_type), root.filters.redirect) == ("Exact", Redirect(path="/start", code=302))
    assert rest.backend is not None
    [www] = play.paths("www.d.test")
    assert www.filters.redirect == Redirect(host="d.test", code=308)


def test_canaries(play: Play) -> None:
    canary = {"canary": "true", "canary-weight": "20", "canary-by-header": "X-New"}
    value = {"canary": "true", "canary-by-header": "X-Team", "canary-by-header-value": "blue"}
    play.read(
        ingress_of("new", canary, service="next"),
        ingress_of("main", {"proxy-body-size": "2m"}),
        ingress_of("other", {}, host="b.test"),
        ingress_of("team", value, host="b.test", service="blue"),
    )
    assert play.names == ["shop.main", "shop.other"]
    shared, always, never = play.paths()
    assert [(each.weight, each.backend.service) for each in shared.backends] == [(80, "web"), (20, "next")]
    assert (always.headers, always.backend.service) == ((("x-new", "always"),), "next")
    assert (never.headers, never.backend.service) == ((("x-new", "never"),), "web")
    assert {each.filters.body_bytes for each in (shared, always, never)} == {2 << 20}
    own, blue = play.paths("b.test")
    assert (own.backend.service, blue.headers, blue.backend.service) == ("web", (("x-team", "blue"),), "blue")


@pytest.mark.parametrize(
    "more",
    [
        {"canary-by-cookie": "new", "canary-weight": "1"},
        {"canary-by-header": "X", "canary-by-header-pattern": "a|b"},
        {},
        {"canary-weight": "-1"},
        {"canary-weight": "5"},  # of a host that no other object has
    ],
)
def test_a_canary_that_is_not_understood_changes_nothing(play: Play, more: dict[str, str]) -> None:
    host = "c.test" if more == {"canary-weight": "5"} else "a.test"
    play.read(ingress_of("main", {}), ingress_of("new", {"canary": "true", **more}, service="next", host=host))
    assert any("Ingress shop/new" in line and "left out" in line for line in play.made.said)
    assert play.names == ["shop.main"]
    [path] = play.paths()
    assert path.backend.service == "web"


def test_a_canary_is_left_out_with_its_ingress(play: Play) -> None:
    """The authentication of the main object is for the canary's requests too."""
    play.read(
        ingress_of("main", {"auth-url": "http://a/"}),
        ingress_of("new", {"canary": "true", "canary-weight": "5"}, service="next"),
    )
    assert play.made.status == 78
    assert not play.made.output.exists()


def test_keys_of_backends(play: Play) -> None:
    given = {
        "affinity": "cookie", "session-cookie-name": "r", "session-cookie-max-age": "60",
        "session-cookie-samesite": "Strict", "upstream-hash-by": "$http_x_user", "load-balance": "ewma",
        "proxy-next-upstream": "error timeout http_502 http_503", "proxy-next-upstream-tries": "9",
        "backend-protocol": "HTTPS", "upstream-vhost": "inner.test", "x-forwarded-prefix": "/app",
    }  # fmt: skip
    play.read(ingress_of("a", given))
    [path] = play.paths()
    backend = path.backend
    assert backend.cookie == AffinityCookie(name="r", max_age=60.0, same_site=SameSite.STRICT)
    assert (backend.strategy, backend.hash_by) == (Strategy.CONSISTENT_HASH, HashBy(header="x-user"))
    assert (backend.retries, backend.retry_on) == (2, (502, 503))
    assert backend.tls is not None
    assert path.filters.rewrite_host == "inner.test"
    assert path.filters.request_headers.set_ == (("X-Forwarded-Prefix", "/app"),)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("auth-type", "basic"), ("auth-url", "http://a/"), ("auth-tls-secret", "a/b"), ("auth-signin", "http://a/"),
        ("whitelist-source-range", "10.0.0.0/8"), ("denylist-source-range", "10.0.0.0/8"), ("limit-rps", "5"),
        ("limit-connections", "5"), ("ssl-passthrough", "true"), ("configuration-snippet", "deny all;"),
        ("server-snippet", "x"), ("rewrite-target", "/$host"), ("rewrite-target", "https://b.test/$1"),
        ("permanent-redirect", "https://b.test$request_uri"), ("temporal-redirect", "/x"),
        ("permanent-redirect-code", "x"), ("backend-protocol", "FCGI"), ("upstream-vhost", "$host"),
    ],
)  # fmt: skip
def test_what_restricts_or_cannot_be_said_leaves_the_object_out(play: Play, annotation: str, value: str) -> None:
    more = {"permanent-redirect": "https://b.test"} if annotation == "permanent-redirect-code" else {}
    play.read(ingress_of("a", {annotation: value, **more}), ingress_of("b", {}, host="b.test"))
    assert play.names == ["shop.b"]
    assert any("Ingress shop/a" in line and "left out" in line for line in play.made.said)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("enable-cors", "true"), ("cors-allow-origin", "*"), ("mirror-target", "http://a"),
        ("custom-http-errors", "404"), ("default-backend", "errors"), ("service-upstream", "true"),
        ("proxy-send-timeout", "5"), ("session-cookie-path", "/"), ("upstream-hash-by", "$request_uri"),
        ("proxy-body-size", "many"), ("proxy-next-upstream", "error non_idempotent"),
    ],
)  # fmt: skip
def test_what_is_safe_to_leave_out_is_told(play: Play, annotation: str, value: str) -> None:
    play.read(ingress_of("a", {annotation: value}))
    assert play.names == ["shop.a"]
    assert any(annotation in line for line in play.made.said), play.made.said
    assert play.made.status == 0
