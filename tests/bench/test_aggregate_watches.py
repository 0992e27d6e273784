"""Events of one length, the load that checks them, and a small run of both processes."""

from __future__ import annotations

import json
import ssl
from typing import cast

import pytest

from bench.aggregate_watches import measure
from bench.lab import open_lab
from bench.watch_clients import Watch
from bench.watch_server import SIZE, pod


def line(number: int) -> bytes:
    return b'{"type":"MODIFIED","object":%b}\n' % pod("pod-0001", number, 1000.5)


def taken(*chunks: bytes) -> Watch:
    watch = Watch(cast(ssl.SSLSocket, None))
    for chunk in chunks:
        watch._take(b"%x\r\n%b\r\n" % (len(chunk), chunk), [])
    return watch


def test_all_events_have_one_length() -> None:
    assert len({len(line(number)) for number in (1, 99, 123456)}) == 1
    assert 3900 < len(line(1)) < SIZE + 200
    assert json.loads(line(7))["object"]["status"]["n"] == "000000007"


@pytest.mark.parametrize(
    ("chunks", "number", "wrong"),
    [
        ([line(1) + line(2), line(3)], 3, 0),
        ([line(1), line(3)], 3, 1),
        ([line(1), line(1)], 1, 1),
        ([line(1), line(2) + line(4)], 4, 1),
        ([line(1), line(2)[:-1] + b"x\n"], 2, 1),
    ],
)
def test_what_is_missing_or_out_of_order_is_seen(chunks: list[bytes], number: int, wrong: int) -> None:
    watch = taken(*chunks)
    assert (watch.number, watch.wrong) == (number, wrong)


@pytest.mark.slow
def test_a_small_run() -> None:
    with open_lab() as lab:
        section = measure(lab, 6, 50, 1.0)
    assert [row[0] for row in section.rows] == ["all read", "3 of them read nothing"]
    assert all(target.met for target in section.targets if "delay" in target.what)
