"""Which rule a request is for. The cases of Ingress conformance (host rules, path rules, default backend) are among
these; who answers over the wire is tested in test_conformance.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.config.model import Ingress, PathType, WildcardLabels
from mcproxy.kube.linear_regex import LinearRegex
from mcproxy.services.ingress.client_connection import host_name
from mcproxy.services.ingress.request_paths import BadPath
from mcproxy.services.ingress.router import Router, routes_of
from tests.services.ingress.config import ingress, path, rule

EXACT = PathType.EXACT


def router(*ingresses: Ingress) -> Router[str]:
    return Router((route, route.shares[0][0].service) for route in routes_of(ingresses))


def found(router: Router[str], host: str, target: str, method: str = "GET", *fields: str) -> str | None:
    """Return the service that a request goes to."""
    block = "".join(f"{field}\r\n" for field in fields).encode()
    result = router.find(host_name(host.lower().encode()), target.encode(), method.encode(), block)
    return None if result is None else result[0]


HOSTS = router(
    ingress(
        "hosts",
        rule("*.foo.com", path("/", "wildcard")),
        rule("foo.bar.com", path("/", "exact")),
    )
)


@pytest.mark.parametrize(
    ("host", "service"),
    [
        ("foo.bar.com", "exact"),
        ("FOO.Bar.com", "exact"),
        ("foo.bar.com:8443", "exact"),
        ("foo.bar.com.", "exact"),
        ("foo.bar.com.:80", "exact"),
        ("foo.bar.com..", None),
        ("subdomain.bar.com", None),
        ("bar.foo.com", "wildcard"),
        ("baz.bar.foo.com", None),
        ("foo.com", None),
        (".foo.com", None),
        ("*.foo.com", "wildcard"),
        ("[::1]", None),
        ("[::1]:80", None),
        ("", None),
    ],
)
def test_hosts(host: str, service: str | None) -> None:
    assert found(HOSTS, host, "/") == service


PATHS = router(
    ingress(
        "paths",
        rule("exact", path("/foo", "foo-exact", EXACT)),
        rule("prefix", path("/foo", "foo"), path("/aaa/bbb", "aaa-bbb"), path("/aaa", "aaa")),
        rule("mixed", path("/foo", "foo"), path("/foo", "foo-exact", EXACT)),
        rule("slash", path("/aaa/bbb/", "aaa-bbb"), path("/foo/", "foo-exact", EXACT)),
        rule("root", path("/", "root"), path("/api", "api")),
    )
)


@pytest.mark.parametrize(
    ("host", "target", "service"),
    [
        ("exact", "/foo", "foo-exact"),
        ("exact", "/foo?a=/bar", "foo-exact"),
        ("exact", "/foo/", None),
        ("exact", "/FOO", None),
        ("exact", "/bar", None),
        ("exact", "/%66oo", "foo-exact"),
        ("prefix", "/foo", "foo"),
        ("prefix", "/foo/", "foo"),
        ("prefix", "/FOO", None),
        ("prefix", "/foobar", None),
        ("prefix", "/aaa/bbb", "aaa-bbb"),
        ("prefix", "/aaa/bbb/ccc", "aaa-bbb"),
        ("prefix", "/aaa/ccc", "aaa"),
        ("prefix", "/aaaccc", None),
        ("prefix", "/aaa/bbbccc", "aaa"),
        ("prefix", "/", None),
        ("mixed", "/foo", "foo-exact"),
        ("mixed", "/foo/", "foo"),
        ("slash", "/aaa/bbb", "aaa-bbb"),
        ("slash", "/aaa/bbb/", "aaa-bbb"),
        ("slash", "/foo", None),
        ("slash", "/foo/", "foo-exact"),
        ("root", "/", "root"),
        ("root", "/apis", "root"),
        ("root", "/api/v1/" + "x/" * 500, "api"),
        ("root", "/x" * 5000, "root"),
        ("root", "*", None),
        ("root", "/?", "root"),
    ],
)
def test_paths(host: str, target: str, service: str | None) -> None:
    assert found(PATHS, host, target) == service


def test_the_host_decides_before_the_path() -> None:
    """As in nginx: what a host has no path for is not looked for at a wildcard or at rules for every host."""
    rules = router(
        ingress(
            "one",
            rule("a.example.com", path("/a", "a")),
            rule("*.example.com", path("/", "wildcard")),
            rule("", path("/", "any"), path("/x", "x")),
        )
    )
    assert found(rules, "a.example.com", "/a") == "a"
    assert found(rules, "a.example.com", "/b") is None
    assert found(rules, "b.example.com", "/b") == "wildcard"
    assert found(rules, "example.com", "/b") == "any"
    assert found(rules, "", "/x/y") == "x"


def test_a_default_backend_takes_what_no_rule_matches() -> None:
    rules = router(
        ingress("one", rule("a.example.com", path("/a", "a")), default="default-one"),
        ingress("two", rule("b.example.com", path("/b", "b"))),
        ingress("three", default="default-three"),
    )
    assert found(rules, "a.example.com", "/a") == "a"
    assert found(rules, "a.example.com", "/b") == "default-one"
    assert found(rules, "b.example.com", "/x") is None  # another ingress's host: its own has no default backend
    assert found(rules, "unknown", "/") == "default-one"  # the first one in the file
    only = router(ingress("three", default="echo"))
    for host, target in (("my-host", "/"), ("", "/resource"), ("some-host", "/sub-path")):
        assert found(only, host, target) == "echo"


def test_a_default_backend_comes_after_a_rule_for_the_root() -> None:
    rules = router(ingress("one", rule("", path("/", "root")), default="default"))
    assert found(rules, "x", "/y") == "root"


def test_of_two_rules_with_the_same_host_and_path_the_first_counts() -> None:
    rules = router(
        ingress("one", rule("a", path("/x", "first"), path("/x/", "second"))),
        ingress("two", rule("a", path("/x", "third"))),
    )
    assert found(rules, "a", "/x") == "first"


def test_rules_of_several_ingresses_for_one_host_are_one_table() -> None:
    rules = router(ingress("one", rule("a", path("/x", "x"))), ingress("two", rule("a", path("/y", "y"))))
    assert (found(rules, "a", "/x"), found(rules, "a", "/y")) == ("x", "y")


HIDDEN = router(ingress("one", rule("a", path("/", "all"), path("/admin", "nothing"), path("/p", "p"))))


@pytest.mark.parametrize(
    "target",
    [
        "/admin;%2Fx",
        "//admin",
        "/%2Fadmin",
        "/admin;x=1",
        "/admin%3Bx",
        "/\\admin",
        "/admin%5cx",
        "/admin%2Fx",
        "/x/..//admin/../admin;a",
    ],
)
def test_a_rule_is_not_evaded_by_another_spelling(target: str) -> None:
    """A pod that takes these for /admin would get from `all` what is to be for `nothing`."""
    with pytest.raises(BadPath):
        found(HIDDEN, "a", target)


_STEPS: tuple[Callable[[bytes], bytes], ...] = (
    lambda each: re.sub(rb"%(?!25)([0-9A-Fa-f]{2})", lambda match: bytes((int(match[1], 16),)), each),
    lambda each: re.sub(rb"/+", b"/", each),
    lambda each: re.sub(rb";[^/]*", b"", each),
    lambda each: each.replace(b"\\", b"/"),
)
_HOLES = router(
    ingress(
        "one",
        rule(
            "a",
            path("/", "all"),
            path("/a/b", "hidden"),
            path("/a", "exact", EXACT),
            path("/c", "c"),
            path("/c/a", "hidden"),
        ),
    )
)
_SPELLED = st.lists(
    st.sampled_from(
        [b"a", b"b", b"c", b"/", b"/", b"//", b"%2F", b"\\", b"%5C", b";", b"%3B", b"%61", b".", b"%2e", b"x"]
    ),
    max_size=9,
).map(lambda pieces: b"/" + b"".join(pieces))


@settings(max_examples=300)
@given(_SPELLED, st.permutations(_STEPS), st.integers(0, 4))
def test_however_a_pod_reads_a_path_it_belongs_to_the_rule_that_sent_it_there(
    target: bytes, steps: Sequence[Callable[[bytes], bytes]], count: int
) -> None:
    try:
        result = _HOLES.find(b"a", target)
    except BadPath:
        return
    assert result is not None
    service, sent = result
    for step in steps[:count]:
        sent = step(sent)
    assert not {b".", b".."} & set(sent.split(b"/"))
    plain = _HOLES.table(b"a")._match(sent)
    encoded = _HOLES.table(b"a")._match(_STEPS[0](sent))
    assert service in {each[0].live for each in (plain, encoded) if each}


def test_a_path_that_every_reading_gives_to_the_same_rule_passes() -> None:
    assert HIDDEN.find(b"a", b"/p/group%2Fproject//x;v=1?q=%2F") == ("p", b"/p/group%2Fproject//x;v=1?q=%2F")
    assert HIDDEN.find(b"a", b"/%70/x") == ("p", b"/%70/x")
    assert found(HIDDEN, "a", "/%61dmin/x") == "nothing"


def test_a_dot_segment_leads_to_the_rule_of_what_is_sent() -> None:
    assert HIDDEN.find(b"a", b"/admin/./x?a=..") == ("nothing", b"/admin/x?a=..")
    for target in ("/p/..%2Fadmin", "/p/../admin", "/p/%2E%2e/p/x"):
        with pytest.raises(BadPath):
            found(HIDDEN, "a", target)


_ELEMENT = st.sampled_from(["a", "b", "ab", "A", ""])
_PATH = st.lists(_ELEMENT, min_size=1, max_size=4).map(lambda each: "/" + "/".join(each))
_RULE = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=3).map(lambda each: "/" + "/".join(each))


@given(st.lists(st.tuples(_RULE, st.booleans()), max_size=6), _PATH)
def test_matching_is_that_of_the_specification(rules: list[tuple[str, bool]], target: str) -> None:
    """The table finds what comparing with each rule, element by element, finds."""
    built = router(
        ingress(
            "one",
            rule(
                "a",
                *(
                    path(text, f"s{number}", EXACT if exact else PathType.PREFIX)
                    for number, (text, exact) in enumerate(rules)
                ),
            ),
        )
    )
    elements = target.split("/")
    exact = [number for number, (text, is_exact) in enumerate(rules) if is_exact and text == target]
    prefixes = []
    for number, (text, is_exact) in enumerate(rules):
        wanted = [] if text == "/" else text.split("/")
        if not is_exact and elements[: len(wanted)] == wanted:
            prefixes.append((-len(wanted), number))
    expected = f"s{exact[0]}" if exact else f"s{min(prefixes)[1]}" if prefixes else None
    try:
        assert found(built, "a", target) == expected
    except BadPath:
        assert "//" in target


def test_what_is_remembered_of_targets_is_bounded_and_does_not_outlive_a_long_one() -> None:
    table = router(ingress("one", rule("a", path("/x", "x")))).table(b"a")
    for number in range(2000):
        target = b"/x/%d" % number
        assert table.find(target) == ("x", target)
        assert table.find(target) == ("x", target)
    assert len(table._cached) <= 512
    before = len(table._cached)
    table.find(b"/x/" + b"y" * 300)
    assert table.find(b"/unknown") is None
    assert len(table._cached) == before


CONDITIONS = router(
    ingress(
        "one",
        rule(
            "a",
            path("/", "all"),
            path("/x", "plain"),
            path("/x", "header", headers=(("version", "two"),)),
            path("/x", "headers", headers=(("version", "two"), ("color", "orange"))),
            path("/x", "query", query=(("animal", "whale"),)),
            path("/x", "method", methods=("POST", "PATCH")),
            path("/x", "method-and-header", methods=("POST",), headers=(("version", "two"),)),
            path("/only", "only", methods=("DELETE",)),
        ),
        rule("b", path("/only", "only", EXACT, methods=("DELETE",)), path("/only", "second", headers=(("a", "b"),))),
    )
)


@pytest.mark.parametrize(
    ("target", "method", "fields", "service"),
    [
        ("/x", "GET", (), "plain"),
        ("/x", "GET", ("Version: one",), "plain"),
        ("/x", "GET", ("VERSION:  two ",), "header"),
        ("/x", "GET", ("version: Two",), "plain"),
        ("/x", "GET", ("Color: orange", "Version: two"), "headers"),
        ("/x?animal=whale", "GET", (), "query"),
        ("/x?a=b&animal=whal%65", "GET", (), "query"),
        ("/x?animal=dolphin&animal=whale", "GET", (), "plain"),
        ("/x?Animal=whale", "GET", (), "plain"),
        ("/x?animal=whale", "GET", ("Version: two",), "header"),
        ("/x?animal=whale", "PATCH", ("Version: two",), "method"),
        ("/x", "POST", ("Version: two",), "method-and-header"),
        ("/x", "post", (), "plain"),
        ("/only", "DELETE", (), "only"),
        ("/only", "GET", (), "all"),
    ],
)
def test_conditions_and_their_order(target: str, method: str, fields: tuple[str, ...], service: str) -> None:
    assert found(CONDITIONS, "a", target, method, *fields) == service


def test_what_meets_no_condition_goes_to_no_rule() -> None:
    assert found(CONDITIONS, "b", "/only", "DELETE") == "only"
    assert found(CONDITIONS, "b", "/only", "GET") is None
    assert found(CONDITIONS, "b", "/only", "GET", "A: b") == "second"  # the Exact path's conditions do not hold
    assert found(CONDITIONS, "b", "/only", "GET") is None  # what was remembered of the target says nothing of fields


REGEX = PathType.REGEX
PATTERNS = router(
    ingress(
        "one",
        rule(
            "a",
            path(r"/.*\.php", "php", REGEX),
            path(r"/v[0-9]+/.*", "versions", REGEX),
            path(r"/v1/.*", "first-in-the-file-counts", REGEX),
            path("/v2", "prefix"),
            path("/v3/x", "exact", EXACT),
            path("/v4/.*", "posts", REGEX, methods=("POST",)),
        ),
        default="default",
    )
)


@pytest.mark.parametrize(
    ("target", "method", "service"),
    [
        ("/a.php", "GET", "php"),
        ("/a.php5", "GET", "default"),
        ("/A.PHP", "GET", "default"),
        ("/v1/x", "GET", "versions"),
        ("/%761/x", "GET", "versions"),
        ("/v2/a.php", "GET", "prefix"),
        ("/v3/x", "GET", "exact"),
        ("/v3/y", "GET", "versions"),
        ("/v4/y", "POST", "posts"),
        ("/v1/x.php?a", "GET", "php"),
    ],
)
def test_patterns_come_after_prefixes(target: str, method: str, service: str) -> None:
    assert found(PATTERNS, "a", target, method) == service


@given(
    st.lists(st.sampled_from(["/a", "/ab", "/abc", "/b", "/", "/a.", "/a[bc]", "/(a|b)", "/ab?", "/.*"]), max_size=8),
    st.lists(st.sampled_from("abc/"), min_size=1, max_size=4).map("".join),
)
def test_patterns_that_are_looked_up_are_those_that_a_list_would_have(patterns: list[str], text: str) -> None:
    """Whatever they begin with; the first of the file of those that match."""
    paths = [path(f"{each}.*", str(number), PathType.REGEX) for number, each in enumerate(patterns)]
    target = "/" + text.replace("//", "/").lstrip("/")
    expected = next(
        (str(number) for number, each in enumerate(paths) if LinearRegex(each.path).matches(target.encode())), None
    )
    assert found(router(ingress("i", rule("a", *paths))), "a", target) == expected


def test_of_ten_thousand_rules_a_request_meets_a_few() -> None:
    """What a request costs does not depend on their number: each is found by its host, its path or its beginning."""
    rules = []
    for number in range(1000):
        paths = [path(f"/exact/{each}", f"e{each}", PathType.EXACT) for each in range(4)]
        paths += [path(f"/prefix/{each}", f"p{each}") for each in range(4)]
        paths += [path(f"/{each}-{number}(/|$)(.*)", f"r{each}", PathType.REGEX) for each in range(2)]
        rules.append(rule(f"host-{number}.example.com" if number % 2 else "", *paths))
    routes = routes_of([ingress("i", each) for each in rules])
    assert len(routes) == 10_000
    table = Router((route, route.label) for route in routes).table(b"unknown.example.com")
    assert sum(map(len, table._patterns.values())) == 1000
    assert len(table._candidates(b"/1-98/x")) == 1
    assert len(table._candidates(b"/1-980/x")) == 2  # of /1-98 too
    assert table._candidates(b"/other") == []
    assert len(table._lengths) < 8
    assert len({id(pattern._rest) for each in table._patterns.values() for pattern, _ in each}) == 1


def test_a_pattern_is_not_evaded_by_another_spelling() -> None:
    with pytest.raises(BadPath):
        found(PATTERNS, "a", "/a.php;x")


@pytest.mark.parametrize(
    ("host", "service"),
    [
        ("bar.foo.com", "any"),
        ("a.bar.foo.com", "any"),
        ("x.y.deep.foo.com", "deep"),
        ("one.deep.foo.com", "deep"),
        ("foo.com", None),
        ("a.one.com", "one"),
        ("a.b.one.com", None),
        ("barfoo.com", None),
        ("a." * 120 + "foo.com", "any"),
        ("a." * 10_000 + "foo.com", None),
    ],
)
def test_a_wildcard_for_several_labels(host: str, service: str | None) -> None:
    table = router(
        ingress(
            "any",
            rule("*.foo.com", path("/", "any")),
            rule("*.deep.foo.com", path("/", "deep")),
            rule("", path("/every", "every")),
            wildcard_labels=WildcardLabels.ANY,
        ),
        ingress("one", rule("*.one.com", path("/", "one"))),
    )
    assert found(table, host, "/") == service
