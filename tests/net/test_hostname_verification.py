"""Names of certificates."""

from __future__ import annotations

import pytest
from cryptography import x509

from mcproxy.net.connect_errors import TLSError
from mcproxy.net.hostname_verification import certificate_names, check_name, plain_name
from tests.net.authorities import CANNOT_MATCH, root, server
from tests.net.peers import CA, pair


def cert(*names: str) -> x509.Certificate:
    return x509.load_pem_x509_certificates(pair(*names)[0])[0]


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (("a.example.com",), "a.example.com"),
        (("a.example.com",), "A.Example.COM"),
        (("*.example.com",), "x.example.com"),
        (("kubernetes",), "kubernetes"),
        (("127.0.0.1", "::1"), "127.0.0.1"),
        (("127.0.0.1", "::1"), "0:0:0:0:0:0:0:1"),
        (("a.example.com",), "a.example.com."),
        (("*.example.com",), "x.example.com."),
        (("10.0.0.1",), "::ffff:10.0.0.1"),
        (("::ffff:10.0.0.1",), "10.0.0.1"),
        (("xn--bcher-kva.example",), "xn--bcher-kva.example"),
    ],
)
def test_names_and_addresses_that_match(names: tuple[str, ...], name: str) -> None:
    check_name(cert(*names), name)


@pytest.mark.parametrize(
    ("names", "name", "cause"),
    [
        (("a.example.com", "10.0.0.1"), "b.example.com", "is not for b.example.com; it is for a.example.com, 10.0.0.1"),
        (("*.example.com",), "x.y.example.com", "is not for x.y.example.com"),
        (("*.example.com",), "example.com", "is not for example.com"),
        (("a.example.com",), "10.0.0.1", "is not for 10.0.0.1; it is for a.example.com"),
        (("10.0.0.1",), "10.0.0.2", "is not for 10.0.0.2"),
        (("10.0.0.1",), "a.example.com", "is not for a.example.com"),
        (("10.0.0.1",), "::ffff:10.0.0.2", "is not for 10.0.0.2"),
        (("a.example.com",), "a.example.com..", "is not for a.example.com."),
        (("a.example.com",), "not/a/name", "cannot be checked"),
    ],
)
def test_names_that_do_not_match_are_in_the_error(names: tuple[str, ...], name: str, cause: str) -> None:
    with pytest.raises(TLSError) as caught:
        check_name(cert(*names), name)
    assert cause in caught.value.cause


def test_a_certificate_without_names_or_none_at_all() -> None:
    authority = x509.load_pem_x509_certificate(CA.cert_pem.bytes())
    assert certificate_names(authority) == []
    with pytest.raises(TLSError):
        check_name(authority, "a.example.com")
    with pytest.raises(TLSError, match="no certificate"):
        check_name(None, "a.example.com")


@pytest.mark.parametrize("other", CANNOT_MATCH, ids=repr)
def test_a_name_that_can_match_nothing_is_ignored(other: x509.GeneralName) -> None:
    mixed = server(root(), other, "a.example.com", "10.0.0.1").certificate
    for name in ("a.example.com", "10.0.0.1"):
        check_name(mixed, name)
    with pytest.raises(TLSError, match=r"is not for b\.example\.com"):
        check_name(mixed, "b.example.com")


@pytest.mark.parametrize("name", ["a.example.com", "127.0.0.1", "foo.local", "foo.a.example.com", "h.example"])
@pytest.mark.parametrize("only", CANNOT_MATCH, ids=repr)
def test_a_certificate_with_nothing_usable_is_refused(only: x509.GeneralName, name: str) -> None:
    with pytest.raises(TLSError, match="is not for"):
        check_name(server(root(), only).certificate, name)


def test_a_name_of_a_certificate_with_a_final_dot_matches_nothing() -> None:
    for name in ("localhost", "localhost."):
        with pytest.raises(TLSError):
            check_name(server(root(), "localhost.").certificate, name)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("host", "host"),
        ("host.", "host"),
        ("a.example.com.", "a.example.com"),
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:a00:1", "10.0.0.1"),
        ("fd00::1", "fd00::1"),
    ],
)
def test_the_form_of_a_name_in_sni_and_comparison(name: str, plain: str) -> None:
    assert plain_name(name) == plain
