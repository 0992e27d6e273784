"""Clients that do not read what they have asked an Admin listener for: they must not blind those who do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from h2.settings import SettingCodes

from mcproxy.config import model
from mcproxy.proxy.admin import admin_pipeline
from mcproxy.proxy.admin.admin_pipeline import MAX_AT_ONCE, MAX_OF_CLIENT
from tests.proxy.admin.conftest import Source
from tests.proxy.admin.test_admin_pipeline import admin, ask, serve
from tests.proxy.harness import NAME, Harness
from tests.proxy.http2_peers import H2Client, h2_client

H2 = (model.HTTPProtocol.HTTP2, model.HTTPProtocol.HTTP1)
OPEN = replace(admin(tls=True, protocols=H2, paths=("/metrics",)), name="open", bind=model.TCPBind("0.0.0.0", 0))
LARGE = [b"x" * 65536] * 32
"""More than is kept for a client."""


async def asks_and_does_not_read(harness: Harness, port: int, *, places: int) -> None:
    """Ask for more than a client has places for, on one connection without flow-control windows."""
    client: H2Client = await h2_client(harness, port)
    client.engine.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    streams = [client.ask(path=b"/metrics") for _ in range(MAX_AT_ONCE + 1)]
    client.flush()
    refused = MAX_AT_ONCE + 1 - places
    await harness.until(lambda: [stream.status for stream in streams].count(429) == refused, "the refusals")
    await harness.turns()
    assert [stream.status for stream in streams].count(429) == refused


async def test_who_does_not_read_on_one_listener_takes_no_place_of_another(harness: Harness, source: Source) -> None:
    source.metrics_text = LARGE
    await serve(harness, listeners=(admin(), OPEN))
    await asks_and_does_not_read(harness, harness.port(1), places=MAX_AT_ONCE)
    assert (await ask(harness, b"/status", port=harness.port(0)))[0] == 200


async def test_who_does_not_read_takes_half_of_the_places(
    harness: Harness, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.metrics_text = LARGE
    monkeypatch.setattr(admin_pipeline, "is_foreign", lambda name: name == "127.0.0.1")  # as if it were another machine
    await serve(harness, listeners=(OPEN,))
    await asks_and_does_not_read(harness, harness.port(), places=MAX_OF_CLIENT)
    monkeypatch.undo()
    assert (await ask(harness, tls=True, host=NAME.encode()))[0] == 200
