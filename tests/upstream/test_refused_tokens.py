"""Which tokens of clients count as refused."""

from __future__ import annotations

from mcproxy.upstream.cluster import RefusedTokens


def test_a_refused_token_counts_for_a_minute() -> None:
    refused = RefusedTokens()
    assert not refused
    refused.note(b"bad", 10.0)
    assert bool(refused)
    assert [refused.has(b"bad", now) for now in (10.0, 69.9)] == [True, True]
    assert not refused.has(b"good", 10.0)
    refused.note(b"bad", 60.0)
    assert refused.has(b"bad", 119.0)
    assert not refused.has(b"bad", 120.0)
    assert not refused


def test_the_number_is_bounded() -> None:
    refused = RefusedTokens()
    for number in range(2000):
        refused.note(b"%d" % number, 0.0)
    assert sum(refused.has(b"%d" % number, 1.0) for number in range(2000)) == 1024
    assert refused.has(b"1999", 1.0)
