"""Affinity cookies: whom they name, what they tell, and that none can be made up."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mcproxy.config.model import Affinity, AffinityCookie, SameSite
from mcproxy.services.ingress.cookie_affinity import MAX_KEYS, CookieAffinity, derived_key, joined_keys
from tests.services.ingress.config import backend
from tests.services.ingress.parts import endpoint

KEY = b"k" * 32
ONE, TWO = endpoint("1"), endpoint("2")


def affinity(*keys: bytes, service: str = "web", endpoints: tuple[Any, ...] = (ONE, TWO)) -> CookieAffinity:
    found = CookieAffinity(backend(service, affinity=Affinity.COOKIE), keys or (KEY,))
    found.follow([endpoints])
    return found


def cookie(affinity: CookieAffinity, endpoint: Any) -> bytes:
    """Return the cookie pair that a client sends after a response."""
    field = affinity.field(endpoint, b"/", secure=False)
    return field.removeprefix(b"Set-Cookie: ").partition(b";")[0]


def test_a_cookie_names_its_endpoint() -> None:
    known = affinity()
    for each in (ONE, TWO):
        assert known.endpoint_of(b"Accept: */*\r\nCookie: %b\r\n" % cookie(known, each)) is each


@pytest.mark.parametrize(
    "block",
    [b"Cookie: a=b; %b; c=d\r\n", b"cookie: a=b;%b\r\n", b"COOKIE:%b\r\n", b"Cookie: x=y\r\nX: z\r\nCookie: %b \r\n"],
)
def test_it_is_found_wherever_it_stands(block: bytes) -> None:
    known = affinity()
    assert known.endpoint_of(block % cookie(known, TWO)) is TWO


@pytest.mark.parametrize(
    "block", [b"", b"Cookie: a=b\r\n", b"X-Cookie: %b\r\n", b"X: a\r\nY: cookie: %b\r\n", b"Cookie: x%b\r\n"]
)
def test_nothing_else_is_taken_for_one(block: bytes) -> None:
    known = affinity()
    assert known.endpoint_of(block.replace(b"%b", cookie(known, TWO))) is None


def test_attributes() -> None:
    known = affinity()
    plain, secure = known.field(ONE, b"/web", secure=False), known.field(ONE, b"/web", secure=True)
    assert re.fullmatch(rb"Set-Cookie: mcproxy-[0-9a-f]{8}=[\w-]{22}; Path=/web; HttpOnly; SameSite=Lax\r\n", plain)
    assert secure == plain[:-2] + b"; Secure\r\n"


def test_its_name_lifetime_and_same_site_are_those_of_the_file() -> None:
    def known(**more: Any) -> CookieAffinity:
        found = CookieAffinity(backend("web", affinity=Affinity.COOKIE, cookie=AffinityCookie(**more)), (KEY,))
        found.follow([(ONE, TWO)])
        return found

    mine = known(name="route", max_age=3600.0, same_site=SameSite.STRICT)
    field = mine.field(ONE, b"/", secure=True)
    assert re.fullmatch(
        rb"Set-Cookie: route=[\w-]{22}; Path=/; Max-Age=3600; HttpOnly; SameSite=Strict; Secure\r\n", field
    )
    assert mine.endpoint_of(b"Cookie: %b\r\n" % cookie(mine, TWO)) is TWO
    anywhere = known(same_site=SameSite.NONE)
    assert b"SameSite=None; Secure" in anywhere.field(ONE, b"/", secure=True)
    assert b"SameSite=Lax" in anywhere.field(ONE, b"/", secure=False)  # browsers drop None without Secure


def test_it_tells_nothing_of_the_address_without_the_key() -> None:
    assert cookie(affinity(), ONE) != cookie(affinity(b"other" * 7), ONE)
    assert b"10.0.0.1" not in cookie(affinity(), ONE)


def test_one_of_another_backend_or_of_another_key_names_nothing() -> None:
    known, other = affinity(), affinity(service="admin")
    value = cookie(other, ONE).partition(b"=")[2]
    assert known.endpoint_of(b"Cookie: %b=%b\r\n" % (known.name, value)) is None
    assert known.endpoint_of(b"Cookie: %b\r\n" % cookie(affinity(b"other" * 7), ONE)) is None
    assert known.endpoint_of(b"Cookie: %b=10.0.0.1:8080\r\n" % known.name) is None
    assert known.endpoint_of(b"Cookie: %b=%b\r\n" % (known.name, b"A" * 22)) is None


def test_one_of_an_endpoint_that_is_gone_names_nothing() -> None:
    known = affinity()
    sent = b"Cookie: %b\r\n" % cookie(known, ONE)
    known.follow([(TWO,)])
    assert known.endpoint_of(sent) is None
    assert known.field(ONE, b"/", secure=False) == b""


def test_workers_and_replicas_with_the_same_key_understand_each_other() -> None:
    sent = b"Cookie: %b\r\n" % cookie(affinity(), ONE)
    assert affinity().endpoint_of(sent) is ONE


def test_cookies_of_the_key_before_are_understood() -> None:
    before = affinity()
    after = affinity(*joined_keys(b"new" * 11, (KEY,)))
    assert after.endpoint_of(b"Cookie: %b\r\n" % cookie(before, TWO)) is TWO
    assert cookie(after, TWO) != cookie(before, TWO)


def test_keys() -> None:
    assert derived_key([b"a", b"b"]) == derived_key([b"b", b"a", b"b"]) != derived_key([b"a"])
    assert derived_key([]) == b""
    assert joined_keys(b"a", (b"b", b"a")) == (b"a", b"b")
    assert len(joined_keys(b"a", tuple(b"%d" % number for number in range(9)))) == MAX_KEYS
