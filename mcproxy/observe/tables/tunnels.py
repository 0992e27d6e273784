"""The table of tunnels: those that a hub accepts, and the hubs that an edge dials. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mcproxy.observe.tables.table import CAUSE, At, Column, Document, Entry, Form, State, Table, total_of

_STATES: Mapping[bool | None, tuple[str | None, State]] = {
    True: ("connected", "good"),
    False: ("not connected", "bad"),
}
_PEERS = 3  # limit of the named edges of a tunnel


def tunnel_rows(document: Document) -> list[Entry]:
    """Return the rows: one for each tunnel that is accepted, and one for each hub that is dialled."""
    rows: list[Entry] = []
    for each in document.get("tunnels") or ():
        if each.get("role") == "hub":
            rows.append(_accepted(each))
        else:
            rows += [_dialled(each, hub) for hub in each.get("hubs") or ()]
    return rows


def _accepted(tunnel: Entry) -> Entry:
    peers = tunnel.get("peers") or ()
    addresses = list(dict.fromkeys(str(each.get("peer")) for each in peers if each.get("peer")))
    more = f" and {len(addresses) - _PEERS} more" if len(addresses) > _PEERS else ""
    instances = list(dict.fromkeys(str(each.get("instance")) for each in peers if each.get("instance")))
    return {
        **tunnel,
        "by": "an edge",
        "peer": (", ".join(addresses[:_PEERS]) + more) or None,
        "rttSeconds": max((each["rttSeconds"] for each in peers if each.get("rttSeconds")), default=None),
        "instance": ", ".join(instances[:_PEERS]) or None,
        "connections": total_of(tunnel.get("connections")),
        "controls": len(peers),
    }


def _dialled(tunnel: Entry, hub: Entry) -> Entry:
    return {**hub, "name": tunnel.get("name"), "by": f"listener {tunnel.get('listener')}", "peer": hub.get("url")}


TUNNELS = Table(
    "tunnels",
    "Tunnels",
    (
        Column("Tunnel", "name", at=At.ALL),
        Column("Dialled by", "by", at=At.ALL, yields=True),
        Column("Peer", "peer", at=At.ALL),
        Column(
            "State",
            lambda each: _STATES.get(each.get("connected"), (None, ""))[0],
            at=At.ALL,
            state=lambda each: _STATES.get(each.get("connected"), (None, ""))[1],
        ),
        Column("Since", "since", Form.SINCE, short="FOR"),
        Column("Round trip", "rttSeconds", Form.TIME, At.ALL, "RTT"),
        Column("Connections", "connections", Form.COUNT, At.ALL, "CONNS"),
        Column("Control connections", "controls", Form.COUNT, At.WIDE, "CONTROLS", yields=True),
        Column("Instance", "instance", at=At.WIDE | At.PAGE, yields=True),
        CAUSE,
    ),
    tunnel_rows,
)
