"""Bundles of certificates: what is skipped, and what is said of it."""

from __future__ import annotations

import base64

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from mcproxy.certificate_blocks import load_certificates, one_of_each_name, read_blocks
from tests.config import pki

ONE, TWO = pki.make("one"), pki.make("two")
GOOD = pki.cert_pem(ONE[0])


def block(content: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(content) + b"-----END CERTIFICATE-----\n"


def with_serial(octet: int) -> bytes:
    """A certificate whose serial number has this one octet; its signature does not fit."""
    builder = x509.CertificateBuilder(ONE[0].subject, ONE[0].subject, ONE[1].public_key(), 1, pki.START, pki.END)
    der = bytearray(builder.sign(ONE[1], hashes.SHA256()).public_bytes(Encoding.DER))
    der[der.index(b"\x02\x01\x01") + 2] = octet
    return block(bytes(der))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (block(b"no certificate at all"), "it is no X.509 certificate"),
        (b"-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n", "its base64 is damaged"),
        (GOOD.partition(b"-----END")[0], "it has no END line"),
        (with_serial(0xFF), "its serial number is negative"),
    ],
)
def test_one_that_cannot_be_read_is_named_and_the_others_count(bad: bytes, reason: str) -> None:
    for data, line in ((bad + GOOD, 1), (b"# ours\n" + GOOD + bad, 2 + GOOD.count(b"\n")), (GOOD + bad + GOOD, None)):
        found = read_blocks(data)
        assert {one.subject for one in found.certificates} == {ONE[0].subject}
        (unreadable,) = found.unreadable
        assert unreadable.reason.startswith(reason)
        assert line is None or unreadable.line == line
        assert load_certificates(data) == found.certificates


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + GOOD,
        GOOD.replace(b"\n", b"\r\n"),
        b"Bag Attributes\n friendlyName: \xfc\n" + GOOD,
        pki.key_pem(ONE[1]) + GOOD,
        b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n" + GOOD,
        b"-----BEGIN PRIVATE KEY-----\nrubbish\n" + GOOD,
        GOOD.replace(b"CERTIFICATE", b"X509 CERTIFICATE"),
        with_serial(0),
    ],
)
def test_what_else_is_in_the_file_does_not_matter(data: bytes, recwarn: pytest.WarningsRecorder) -> None:
    found = read_blocks(data)
    assert [one.subject for one in found.certificates] == [ONE[0].subject]
    assert found.unreadable == []
    assert list(recwarn) == []


@pytest.mark.parametrize("data", [b"", b"rubbish", pki.key_pem(ONE[1]), ONE[0].public_bytes(Encoding.DER)])
def test_none_at_all_is_an_error(data: bytes) -> None:
    assert read_blocks(data).unreadable == []
    with pytest.raises(ValueError, match="no certificate in PEM form"):
        load_certificates(data)


def test_none_that_can_be_read_is_an_error_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"line 2 cannot be read: it is no X\.509 certificate"):
        load_certificates(b"\n" + block(b"no certificate at all"))


def test_one_of_each_name_in_turn() -> None:
    again = pki.make("one")[0]
    assert one_of_each_name([]) == []
    assert one_of_each_name([ONE[0], TWO[0], ONE[0]]) == [[ONE[0], TWO[0]]]
    assert one_of_each_name([ONE[0], TWO[0], again]) == [[ONE[0], TWO[0]], [again, TWO[0]]]


def test_many_blocks_take_linear_time() -> None:
    assert len(read_blocks(b"-----BEGIN CERTIFICATE-----\n" * 20000).unreadable) == 20000
    assert len(read_blocks(GOOD * 5000).certificates) == 5000
