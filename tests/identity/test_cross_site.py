"""What a web page could ask of a proxy that lends its rights to whoever can connect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.identity.client_identity_headers import split_identity_headers
from mcproxy.identity.cross_site import check_same_origin, is_foreign, refuse_foreign_host
from mcproxy.kube.status import StatusError


def check(host: str, *fields: str) -> None:
    block = "".join(f"{field}\r\n" for field in ("Accept: */*", *fields)).encode()
    check_same_origin(split_identity_headers(block), host.encode())


def refused(host: str, *fields: str) -> bool:
    try:
        check(host, *fields)
    except StatusError as error:
        return error.code == 403
    return False


@pytest.mark.parametrize("host", ["", "localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_names_of_this_machine(host: str) -> None:
    assert not is_foreign(host)


@pytest.mark.parametrize("host", ["evil.test", "localhost.evil.test", "10.0.0.1", "::2", "127.0.0.1.evil.test"])
def test_other_names(host: str) -> None:
    assert is_foreign(host)


def test_a_foreign_host_is_refused_with_what_to_do() -> None:
    refusal = refuse_foreign_host(b"evil.test")
    assert refusal.code == 403
    assert "serverNames" in refusal.message


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.test",
        "null",
        "",
        "https://localhost.evil.test",
        "https://localhost:6444",
        "http://localhost",
        "localhost:6443",
        "ftp://localhost:6443",
        "https://localhost:6443/x",
        "https://localhost:6443, https://evil.test",
    ],
)
def test_another_origin_is_refused(origin: str) -> None:
    assert refused("localhost:6443", f"Origin: {origin}")
    assert refused("localhost:6443", "oRIGIN:https://localhost:6443", f"origin:\t{origin}")


@pytest.mark.parametrize(
    ("origin", "host"), [("http://localhost", "localhost:443"), ("https://localhost", "localhost:80")]
)
def test_a_default_port_is_that_of_the_origins_scheme(origin: str, host: str) -> None:
    assert refused(host, f"Origin: {origin}")


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site"])
@pytest.mark.parametrize("origin", [(), ("Origin: https://localhost:6443",)])
def test_so_is_what_a_browser_marks_as_of_another_site(site: str, origin: tuple[str, ...]) -> None:
    assert refused("localhost:6443", f"Sec-Fetch-Site: {site}", *origin)
    assert refused("localhost:6443", "Sec-Fetch-Site: none", *origin, f"sec-fetch-site:{site}")


@pytest.mark.parametrize(
    ("host", "fields"),
    [
        ("localhost:6443", ()),
        ("localhost:6443", ("Origin: https://localhost:6443", "Sec-Fetch-Site: same-origin")),
        ("localhost:6443", ("Sec-Fetch-Site: none",)),
        ("k8s.test", ("Origin: https://K8S.test:443",)),
        ("k8s.test:80", ("Origin: http://k8s.test",)),
        ("localhost", ("X-Origin: http://evil.test", "Origin-X: y")),
    ],
)
def test_clients_and_the_own_origin_pass(host: str, fields: tuple[str, ...]) -> None:
    check(host, *fields)


@given(st.sampled_from(["a", "b", "a:1", "a:80", "a:443"]), st.sampled_from(["a", "b", "a:1", "a:80", "a:443"]))
def test_only_the_same_host_and_port_are_one_origin(page: str, host: str) -> None:
    def full(authority: str) -> str:
        return authority if ":" in authority else f"{authority}:80"

    assert refused(host, f"Origin: http://{page}") == (full(page) != full(host))
