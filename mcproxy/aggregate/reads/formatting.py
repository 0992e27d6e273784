"""Bodies in other forms than the cached bytes: YAML, and JSON over several lines (`pretty=true`).

Both have to be made from the whole body, so they are made for small ones alone, in a thread: YAML costs seconds of
processor time for some megabytes. Clients that read much ask for JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
import yaml

from mcproxy.aggregate.reads.response_body import TURN_SECONDS, InThread, Pieces, next_turn
from mcproxy.kube.media_types import JSON, YAML
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

MAX_YAML = 256 * 1024
"""Bytes of JSON."""
MAX_PRETTY = 1024 * 1024
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


async def formatted(
    clock: IReactorTime, in_thread: InThread, source: Iterator[Pieces], media_type: str, *, pretty: bool
) -> Iterator[Pieces]:
    """Return a body as asked for; JSON that is too long for `pretty` stays in one line.

    Raises StatusError 406 for what is too long for YAML.
    """
    if media_type == YAML:
        found, complete = await _collected(clock, source, MAX_YAML)
        if not complete:
            text = f"more than {MAX_YAML} bytes are answered as {JSON} only; use limit or a selector for {YAML}"
            raise StatusError(406, text, indented=True)
        body = await in_thread(to_yaml, b"".join(found.parts))
        return iter((Pieces([body], len(body)),))
    if pretty:
        found, complete = await _collected(clock, source, MAX_PRETTY)
        if not complete:
            return chain((found,), source)
        body = await in_thread(to_pretty, b"".join(found.parts))
        return iter((Pieces([body], len(body)),))
    return source


async def _collected(clock: IReactorTime, source: Iterator[Pieces], limit: int) -> tuple[Pieces, bool]:
    """Return the pieces of `source`, and whether they are all; not many more bytes than `limit`."""
    parts: list[bytes] = []
    size, began = 0, clock.seconds()
    for more in source:
        parts += more.parts
        size += more.size
        if size > limit:
            return Pieces(parts, size), False
        if clock.seconds() - began > TURN_SECONDS:
            await next_turn(clock)
            began = clock.seconds()
    return Pieces(parts, size), True


def to_yaml(body: bytes) -> bytes:
    """Return JSON as YAML with sorted keys, as sigs.k8s.io/yaml writes it."""
    value = msgspec.json.decode(body)
    return bytes(yaml.dump(value, Dumper=_DUMPER, encoding="utf-8", allow_unicode=True, default_flow_style=False))


def to_pretty(body: bytes) -> bytes:
    """Return JSON over several lines, as Go's MarshalIndent with two spaces; without a final newline."""
    return msgspec.json.format(body.rstrip(b"\n"), indent=2)
