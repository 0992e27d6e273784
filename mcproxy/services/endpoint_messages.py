"""The endpoints of a backend as plain JSON values, for the messages between processes.

The endpoints are one string, ``ADDRESS PORT STATE ZONE POD;…``: none of their parts has a space or a semicolon, and
JSON leaves it as it is.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

from mcproxy.config.model.ingresses import IPFamily
from mcproxy.services.endpoint_table import BackendKey, EndpointState, PodEndpoint, PortEndpoints

_STATES = {"R": EndpointState.READY, "T": EndpointState.TERMINATING}
_LETTERS = {state: letter for letter, state in _STATES.items()}

Entry = list[Any]
"""``[key, flags, appProtocol, problem, endpoints]``; the first is `key_of`."""


def entry_of(key: BackendKey, value: PortEndpoints) -> Entry:
    """Return a backend and its value."""
    lines = ";".join(
        f"{each.address} {each.port} {_LETTERS[each.state]} {each.zone or ''} {each.pod or ''}"
        for each in value.endpoints
    )
    flags = ("k" if value.known else "") + ("s" if value.stale else "") + ("m" if value.missing else "")
    networks = [str(network) for network in key.allowed]
    return [[*key[:4], networks, key.family], flags, value.app_protocol, value.problem, lines]


def name_of(entry: Entry) -> str:
    """Return what is the same in all entries of one backend."""
    return repr(entry[0])


def size_of(entry: Entry) -> int:
    """Return about how many bytes an entry takes."""
    return 200 + len(entry[3]) + len(entry[4])


def read_entry(entry: Entry) -> tuple[BackendKey, PortEndpoints]:
    """Return what `entry_of` was given."""
    (cluster, namespace, service, port, networks, family), flags, app_protocol, problem, lines = entry
    key = BackendKey(
        cluster,
        namespace,
        service,
        port,
        tuple(ip_network(network) for network in networks),
        family and IPFamily(family),
    )
    endpoints = tuple(map(_endpoint, lines.split(";"))) if lines else ()
    return key, PortEndpoints(endpoints, app_protocol, "k" in flags, "s" in flags, problem, "m" in flags)


def _endpoint(line: str) -> PodEndpoint:
    address, port, state, zone, pod = line.split(" ")
    return PodEndpoint(address, int(port), zone or None, _STATES[state], pod or None)
