"""The protocol of tunnels: names, tickets, and the bodies of requests on a control connection. Pure.

    edge -> hub   GET /mcproxy.io/v1/tunnels/NAME, Upgrade: mcproxy-tunnel/1    101: the roles turn
    hub -> edge   POST /dial {ticket, protocol}    the edge opens one more connection, with this ticket
    hub -> edge   POST /drain {within}             the edge replaces the control connection

A control connection has no ticket, and is HTTP/2 after the 101. A data connection has the ticket of its dial, which
also names its protocol.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any, Final

from mcproxy.net.alpn import H2, HTTP1_1

PATH: Final = "/mcproxy.io/v1/tunnels/"
"""The path of a tunnel at the hub, without its name."""
UPGRADE: Final = b"mcproxy-tunnel/1"
"""The token of the Upgrade field; its version is that of this protocol."""
INSTANCE: Final = "Mcproxy-Instance"
"""The field that names the edge's daemon: 32 hexadecimal digits, the same in all its processes and after an upgrade."""
NO_INSTANCE: Final = f"{INSTANCE} is not 32 hexadecimal digits"
"""The hub's answer (400) to a request for a tunnel that is right in all but this field. `check --connect` at an edge
sends such a request: it takes the place of no daemon.
"""
TICKET: Final = "Mcproxy-Ticket"
"""The field with the ticket of a dial."""

DIAL: Final = "/dial"
DRAIN: Final = "/drain"
MAX_BODY: Final = 4096
"""Maximum size of a body on a control connection, of both directions (bytes)."""

TICKET_SECONDS: Final = 10.0
"""Time for which a ticket is valid (seconds)."""
HUB_KEEP_ALIVE: Final = 15.0
"""Seconds without a byte from the edge after which the hub asks for one (PING)."""
ANSWER_SECONDS: Final = 10.0
"""Seconds in which the peer has to answer a PING, before its connection is closed."""
MAX_CONTROLS: Final = 64
"""Maximum of control connections of one tunnel: one for each process of the edge, twice during an upgrade."""

_INSTANCE = re.compile(rb"[0-9a-f]{32}")
_TICKET = re.compile(rb"([0-9a-z-]{1,40})\.[0-9a-f]{32}")
_NAMES = {H2: "h2", HTTP1_1: "http/1.1"}
_PROTOCOLS = {name: alpn for alpn, name in _NAMES.items()}
_MOST_WITHIN = 60.0  # seconds


def new_ticket(process: str) -> str:
    """Return a ticket: the process that waits for its connection, and 128 random bits."""
    return f"{process}.{secrets.token_hex(16)}"


def process_of(ticket: bytes) -> str:
    """Return the process that a ticket names. Raises ValueError for a malformed ticket."""
    found = _TICKET.fullmatch(ticket)
    if found is None:
        raise ValueError("the ticket is malformed")
    return found[1].decode("ascii")


def is_instance(value: bytes) -> bool:
    """Whether a value of Mcproxy-Instance is well-formed."""
    return _INSTANCE.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class DialRequest:
    """The body of POST /dial. `protocol` is an ALPN name, as of `net.alpn`."""

    ticket: str
    protocol: bytes

    def encode(self) -> bytes:
        return json.dumps({"ticket": self.ticket, "protocol": _NAMES[self.protocol]}).encode()

    @classmethod
    def decode(cls, body: bytes) -> DialRequest:
        """Read a body. Raises ValueError. Unknown members are ignored, so that later versions can add some."""
        members = _object(body)
        ticket, protocol = members.get("ticket"), members.get("protocol")
        if not isinstance(ticket, str) or not isinstance(protocol, str) or protocol not in _PROTOCOLS:
            raise ValueError("a dial has a ticket, and the protocol h2 or http/1.1")
        process_of(ticket.encode("utf-8", "replace"))
        return cls(ticket, _PROTOCOLS[protocol])


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """The body of POST /drain: the control connection is to be replaced within so many seconds."""

    within: float

    def encode(self) -> bytes:
        return json.dumps({"within": self.within}).encode()

    @classmethod
    def decode(cls, body: bytes) -> DrainRequest:
        """Read a body. Raises ValueError."""
        within = _object(body).get("within")
        if isinstance(within, bool) or not isinstance(within, int | float) or not 0 <= within <= _MOST_WITHIN:
            raise ValueError(f"within is a number of seconds, at most {_MOST_WITHIN:g}")
        return cls(float(within))


def encode_cause(cause: str) -> bytes:
    """Return the body of a failed answer on a control connection."""
    return json.dumps({"cause": cause[:1000]}).encode()


def decode_cause(body: bytes) -> str:
    """Return the cause in a failed answer, as one printable line; "" if it has none."""
    try:
        cause = _object(body).get("cause")
    except ValueError:
        return ""
    return printable(cause) if isinstance(cause, str) else ""


def printable(text: str) -> str:
    """Return a text of the peer as one line for logs, with 300 characters at most."""
    return " ".join("".join(each if each.isprintable() else " " for each in text[:1000]).split())[:300]


def _object(body: bytes) -> dict[str, Any]:
    if len(body) > MAX_BODY:
        raise ValueError(f"the body has more than {MAX_BODY} bytes")
    try:
        value = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("the body is no JSON object")
    return value
