"""The edge's link to one hub: what it says of its own certificate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mcproxy.config import model
from mcproxy.tunnels.hub_link import validity
from tests.proxy.harness import CA

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def dial(begin: datetime, end: datetime) -> model.Dial:
    issued = CA.issue_cert(common_name="edge-a", not_before=begin, not_after=end)
    pem = issued.cert_chain_pems[0].bytes()
    tls = model.DialTLS(ca=model.PEMFile("ca", b""), certificate=model.PEMFile("edge.crt", pem))
    return model.Dial(tunnel="site-a", urls=("https://127.0.0.1:1",), tls=tls)


def test_a_certificate_that_is_valid_now_is_not_mentioned() -> None:
    assert validity(dial(NOW - timedelta(days=1), NOW + timedelta(days=1)), NOW.timestamp()) == ""


def test_the_dates_of_an_expired_certificate_and_of_one_for_a_wrong_clock() -> None:
    expired = dial(NOW - timedelta(days=30), NOW - timedelta(days=1))
    assert validity(expired, NOW.timestamp()).endswith("is valid from 2026-10-30 12:00 to 2026-11-28 12:00 UTC")
    future = dial(NOW + timedelta(days=1), NOW + timedelta(days=2))
    assert "2026-11-30 12:00" in validity(future, NOW.timestamp())


def test_without_a_certificate_there_is_nothing_to_say() -> None:
    tls = model.DialTLS(ca=model.PEMFile("ca", b""))
    assert validity(model.Dial(tunnel="site-a", urls=("https://127.0.0.1:1",), tls=tls), NOW.timestamp()) == ""
