"""The requests in flight. Pure."""

from __future__ import annotations

from typing import Any

from mcproxy.proxy.admin.page import formats
from mcproxy.proxy.admin.page.markup import EMPTY, Markup, breakable, join, tag
from mcproxy.proxy.admin.page.page_table import Column, Entry, Table, key_of, numbers
from mcproxy.proxy.admin.page.query import Query


def requests(document: dict[str, Any], query: Query) -> Markup:
    """Return the table of the requests in flight, the oldest first."""
    columns = (
        Column("Request", _request),
        numbers("Age", "ageSeconds", formats.seconds),
        Column("State", key_of("state")),
        Column("User", _user),
        Column("Client", key_of("client")),
        Column("Server", key_of("server")),
        Column("Cluster", key_of("cluster")),
        Column("Endpoint", key_of("endpoint")),
        Column("Process", key_of("process")),
        numbers("Sent", "bytesOut", formats.size),
    )
    every = document.get("requests") or ()
    table = Table("requests", "Requests in flight", columns, every, order=lambda each: -each["ageSeconds"])
    missing = document.get("missing")
    note = tag("p", "No answer from: ", breakable(", ".join(missing)), class_="note") if missing else EMPTY
    return join(table.render(query), note)


def _request(each: Entry) -> str:
    return f"{each.get('verb') or each.get('method') or ''} {each.get('path', '')}"


def _user(each: Entry) -> str | None:
    name, other = each.get("user"), each.get("impersonated")
    return f"{name} as {other}" if other else name
