"""A peer that announces a smaller table waits for a change of its size in the next header block (RFC 9113 4.3.1)."""

from __future__ import annotations

import pytest
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from mcproxy.http.h2.hpack.encoder import NO_TABLE
from tests.http.h2.harness import Client


@pytest.mark.parametrize("size", [0, 100, 4096, 65536])
@pytest.mark.parametrize("body", [b"", b"hello", b"v" * 20_000])
def test_responses_behind_the_change(size: int, body: bytes) -> None:
    client = Client()
    client.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: size})
    client.exchange()
    for _ in range(3):
        number = client.asks()
        client.last.answer(body)
        client.exchange()
        assert client.bodies.get(number, b"") == body
    assert client.server.wire.open


def test_without_the_change_the_peer_ends_the_connection() -> None:
    client = Client()
    client.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: 0})
    client.exchange()
    assert client.server.connection.sender.block_prefix == NO_TABLE
    client.server.connection.sender.block_prefix = b""
    client.asks()
    client.last.answer()
    with pytest.raises(ProtocolError):
        client.exchange()
