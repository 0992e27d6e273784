"""Tables of the largest senders, for `mcproxy top` and `mcproxy status --top`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mcproxy.cli.terminal import Cell, Column, Terminal, duration, number, size

MEASURES = {"requests": "requests", "bytes": "bytes", "cpu": "cpuSeconds", "refused": "refused"}
"""The measures by which senders are ranked: the words of options and keys, and the keys of the document."""
TITLES = {"users": "USER", "clients": "CLIENT", "resources": "RESOURCE", "userAgents": "USER AGENT"}


def lines_of(senders: Mapping[str, Any], measure: str, most: int, terminal: Terminal, wanted: str = "") -> list[str]:
    """Return a table of each kind with `most` rows at most, sorted by `measure`, the greatest first.

    `wanted`: only names that contain this text, in any letter case.
    """
    seconds = senders.get("windowSeconds")
    if seconds is None:
        return ["the daemon does not tell who sends most: it is of another version"]
    total = senders.get("total") or {}
    lines = [
        f"the last {duration(seconds)}, by {measure}: {number(total.get('requests'))} requests, "
        f"{size(total.get('bytes'))}, {duration(total.get('cpuSeconds'))} of processor time, "
        f"{number(total.get('refused'))} refused"
    ]
    for kind, title in TITLES.items():
        rows = list(_rows(senders.get(kind) or (), total, MEASURES[measure], wanted))[:most]
        if rows:
            lines += ["", *terminal.table(_columns(title), rows)]
    return lines


def _columns(title: str) -> list[Column]:
    return [
        Column(title=title, gives_way=True),
        Column(title="REQUESTS", right=True),
        Column(title="SHARE", right=True),
        Column(title="BYTES", right=True),
        Column(title="CPU (EST.)", right=True),
        Column(title="REFUSED", right=True),
    ]


def _rows(
    entries: Sequence[Mapping[str, Any]], total: Mapping[str, Any], key: str, wanted: str
) -> Iterator[list[Cell | str]]:
    for each in sorted(entries, key=lambda one: (-one[key], one["name"])):
        if wanted.lower() not in each["name"].lower() or not each[key]:
            continue
        every = total.get(key) or 0
        yield [
            each["name"],
            number(each["requests"]),
            f"{each[key] / every:.0%}" if every else "-",
            size(each["bytes"]),
            duration(each["cpuSeconds"]),
            Cell(number(each["refused"]), "warn" if each["refused"] else ""),
        ]
