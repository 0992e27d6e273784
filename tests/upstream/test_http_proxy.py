"""The HTTP proxy of a configuration, as connections take it."""

from __future__ import annotations

import base64

import pytest

from mcproxy.config import model
from mcproxy.net.http_connect import HTTPProxy
from mcproxy.upstream.http_proxy import http_proxy


@pytest.mark.parametrize(
    ("user", "password", "pair"),
    [(None, None, None), ("edge", "pä:ß", "edge:pä:ß"), ("edge", "", "edge:"), ("", "b", ":b")],
)
def test_credentials_are_basic_in_utf_8(user: str | None, password: str | None, pair: str | None) -> None:
    secret = None if password is None else model.Secret(password)
    config = model.HTTPProxy(url="http://a:1", host="a", port=1, user=user, password=secret)
    authorization = None if pair is None else b"Basic " + base64.b64encode(pair.encode())
    assert http_proxy(config) == HTTPProxy("a", 1, authorization)


def test_none_is_none() -> None:
    assert http_proxy(None) is None
