"""Huffman's code: what decodes to what, and which strings no encoder sends (RFC 7541 5.2)."""

from __future__ import annotations

import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import example, given
from hypothesis import strategies as st

from mcproxy.http.h2.hpack.tables import CODES, EOS, HuffmanError, decode, decode_by_steps

encode = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode
texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60).map(str.encode)


def from_bits(bits: str) -> bytes:
    return bytes(int(bits[start : start + 8], 2) for start in range(0, len(bits), 8))


def code_of(symbol: int) -> str:
    code, length = CODES[symbol]
    return f"{code:0{length}b}"


def outcome(decoder: object, data: bytes) -> bytes | None:
    """Return the string, None if it is refused."""
    try:
        return bytes(decoder(data))  # type: ignore[operator]
    except Exception:
        return None


def test_the_codes_are_those_of_the_standard() -> None:
    assert [CODES[symbol] for symbol in range(257)] == list(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("f1e3c2e5f23a6ba0ab90f4ff", b"www.example.com"),
        ("a8eb10649cbf", b"no-cache"),
        ("25a849e95ba97d7f", b"custom-key"),
        ("d07abe941054d444a8200595040b8166e082a62d1bff", b"Mon, 21 Oct 2013 20:13:21 GMT"),
        ("94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
         b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
        ("", b""),
    ],
)  # fmt: skip
def test_examples_of_the_standard(data: str, text: bytes) -> None:
    assert decode(bytes.fromhex(data)) == text


@pytest.mark.parametrize("symbol", range(256))
@pytest.mark.parametrize("around", [b"", b"a", b"aaaa", b"0123456789" * 30])
def test_every_octet_everywhere(symbol: int, around: bytes) -> None:
    text = around + bytes([symbol]) + around + bytes([symbol])
    assert decode(encode(text)) == text


@pytest.mark.parametrize("text", [b"a", b"0", b"?", b"w", b"X", b"&", b"~", b"{", b"\\", b"\xff", b"aaaaaa", b"X" * 50])
@pytest.mark.parametrize("padding", range(24))
def test_padding_has_at_most_7_bits_and_is_of_ones(text: bytes, padding: int) -> None:
    bits = "".join(map(code_of, text))
    padding += -(len(bits) + padding) % 8
    if padding <= 7:
        assert decode(from_bits(bits + "1" * padding)) == text
    else:
        with pytest.raises(HuffmanError):
            decode(from_bits(bits + "1" * padding))
    for wrong in range(min(padding, 7)):
        data = from_bits(bits + "1" * wrong + "0" + "1" * (padding - wrong - 1))
        assert outcome(decode, data) == outcome(decode_huffman, data) == outcome(decode_by_steps, data)


@pytest.mark.parametrize("before", [b"", b"a", b"aaa", b"/api/v1/pods"])
@pytest.mark.parametrize("behind", [b"", b"a", b"aaaaaaaaaaaaaaaaaaaa"])
def test_eos_in_a_string_is_an_error(before: bytes, behind: bytes) -> None:
    bits = "".join(map(code_of, [*before, EOS, *behind]))
    with pytest.raises(HuffmanError):
        decode(from_bits(bits + "1" * (-len(bits) % 8)))


@pytest.mark.parametrize("size", range(1, 8))
def test_a_string_of_ones_alone_is_an_error(size: int) -> None:
    with pytest.raises(HuffmanError):
        decode(b"\xff" * size)


@given(st.one_of(texts, st.binary(max_size=40)))
def test_what_is_encoded_is_decoded(text: bytes) -> None:
    assert decode(encode(text)) == text


@given(st.binary(max_size=24), st.binary(max_size=3))
@example(b"\xff\xff\xff\xfc", b"")
def test_any_bytes_mean_what_they_mean_to_hpack(data: bytes, end: bytes) -> None:
    for octets in (data, encode(data) + end, encode(data)[:-1]):
        assert outcome(decode, octets) == outcome(decode_by_steps, octets) == outcome(decode_huffman, octets)
