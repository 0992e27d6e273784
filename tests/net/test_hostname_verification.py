"""Names of certificates."""

from __future__ import annotations

import pytest
from cryptography import x509

from mcproxy.net.connect_errors import TLSError
from mcproxy.net.hostname_verification import certificate_names, check_name
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
