"""The table of malformed requests of HTTP/1.1 (`tests.http.h1.malformed`) over HTTP/2: what is refused is the same.

A request is carried over as it stands: its target is `:path`, its first Host `:authority`, its fields are unchanged.
"""

from __future__ import annotations

from functools import partial

from mcproxy.config import model
from tests.http.h1.malformed import CASES, Case
from tests.http.h2 import raw
from tests.http.h2.raw import ENHANCE_YOUR_CALM, PROTOCOL_ERROR, Field
from tests.proxy.harness import NAME, OK, Harness, always, cluster, config
from tests.security.http2_attacker import H2_LISTENER, attacker
from tests.security.test_http2_exhaustion import proxy

__all__ = ["proxy"]

#: What only HTTP/1.1 has: lines, their ends and folding, versions, chunks; and Host beside :authority may be the same.
_OF_HTTP1 = (
    "the same Host twice",
    "HTTP/",
    "version",
    "another protocol",
    "preface",
    "after the method",
    "before the version",
    "a space behind",
    "before",
    "garbage",
    "no method",
    "a field without a colon",
    "LF between",
    "bare LFs",
    "doubled CR",
    "obs-fold",
    "without an end",
)


def carried_over(case: Case) -> tuple[dict[str, bytes | None], list[Field]]:
    line, *lines = case.raw.partition(b"\r\n\r\n")[0].split(b"\r\n")
    method, rest = line.split(b" ", 1)
    fields: list[Field] = []
    authority: bytes | None = None
    for each in lines:
        name, _, value = each.partition(b":")
        value = value.strip(b" \t")
        if name == b"Host" and authority is None:
            authority = value
        else:
            fields.append((name.lower(), value))
    return {"method": method, "path": rest.rpartition(b" ")[0], "authority": authority}, fields


async def test_what_http1_refuses_is_refused_over_http2(proxy: Harness) -> None:
    upstream = proxy.upstream()
    upstream.reply = always(OK)
    east = cluster(upstream.endpoint(), credentials=model.Credentials(token=model.Secret("lent")))
    servers = [
        model.Server(name=name, listeners=("tls",), server_names=(name,), backend=model.ClusterBackend("east"))
        for name in (NAME, "other.test")
    ]
    await proxy.serve(config([east], servers, (H2_LISTENER,)))
    client = await attacker(proxy)
    played = 0
    for case in CASES:
        if case.begun or any(word in case.name for word in _OF_HTTP1):
            continue
        played += 1
        pseudo, fields = carried_over(case)
        stream = client.ask_block(raw.request(*fields, **pseudo))
        await client.until(partial(client.over, stream), 120.0)
        if client.lost is not None:
            assert client.seen.goaway == ENHANCE_YOUR_CALM, case.name
            client = await attacker(proxy)
        elif client.seen.ended(stream):
            assert client.seen.status(stream) == case.status, case.name
        else:
            assert client.seen.reset(stream) == PROTOCOL_ERROR, case.name
    assert played >= 85
    assert upstream.received == b""
