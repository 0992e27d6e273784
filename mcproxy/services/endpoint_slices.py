"""Reads the fields of EndpointSlices and Services that an ingress needs, from JSON of clusters that may be hostile.

Source: k8s.io/api `discovery/v1` and `core/v1`; the meaning of fields that are missing is kube-proxy's.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from mcproxy.services.allowed_addresses import Address, parse_address
from mcproxy.services.api_types import DNS_LABEL, DNS_SUBDOMAIN, MAX_SLICE_ENDPOINTS, ConditionsJSON, PortJSON, decode

MAX_PORTS = 1000
"""Of one slice or Service."""

_APP_PROTOCOL = re.compile(r"[A-Za-z0-9._/-]{1,317}")  # a label's name, with a prefix or without
_ZONE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class SliceEndpoint(NamedTuple):
    """One endpoint of a slice, whatever its port."""

    address: Address
    zone: str | None
    ready: bool
    serving: bool
    terminating: bool
    pod: str | None = None  # its name, if it is a pod


class TCPPort(NamedTuple):
    """One TCP port, of a Service or, with the pods' number, of a slice."""

    name: str
    port: int
    app_protocol: str | None


class Slice(NamedTuple):
    """One EndpointSlice. `unusable`: how many of its endpoints have no IP address of its type."""

    endpoints: tuple[SliceEndpoint, ...]
    ports: tuple[TCPPort, ...]
    unusable: int = 0


class Service(NamedTuple):
    """One Service."""

    external_name: bool
    headless: bool
    families: tuple[int, ...]
    """4 and 6, the primary one first; () where the cluster does not say."""
    ports: tuple[TCPPort, ...]


class _Target(msgspec.Struct):
    kind: str | None = None
    name: str | None = None


class _Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str] = msgspec.field(default_factory=list)
    conditions: ConditionsJSON | None = None
    zone: str | None = None
    target_ref: _Target | None = None


class _Slice(msgspec.Struct, rename="camel"):
    address_type: str = ""
    endpoints: list[_Endpoint] | None = None
    ports: list[PortJSON] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    type: str | None = None
    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    ip_families: list[str] | None = None
    ports: list[PortJSON] | None = None


class _Service(msgspec.Struct):
    spec: _Spec | None = None


_SLICE = msgspec.json.Decoder(_Slice)
_SERVICE = msgspec.json.Decoder(_Service)
_FAMILIES = {"IPv4": 4, "IPv6": 6}


def read_slice(data: bytes) -> Slice:
    """Return an EndpointSlice. Raises UnreadableObject.

    `ready` that is missing is true, `serving` that is missing is as `ready`, `terminating` that is missing is false. Of
    the addresses of an endpoint the first one counts.
    """
    found = decode(_SLICE, data)
    family = _FAMILIES.get(found.address_type)
    read = found.endpoints or []
    endpoints = [] if family is None else [each for each in map(_endpoint, read[:MAX_SLICE_ENDPOINTS]) if each]
    endpoints = [each for each in endpoints if each.address.family == family]
    return Slice(tuple(endpoints), _ports(found.ports), len(read) - len(endpoints))


def read_service(data: bytes) -> Service:
    """Return a Service. Raises UnreadableObject."""
    spec = decode(_SERVICE, data).spec or _Spec()
    return Service(
        external_name=spec.type == "ExternalName",
        headless=spec.cluster_ip == "None",
        families=tuple(dict.fromkeys(_FAMILIES[each] for each in spec.ip_families or () if each in _FAMILIES)),
        ports=_ports(spec.ports),
    )


def _endpoint(read: _Endpoint) -> SliceEndpoint | None:
    address = parse_address(read.addresses[0]) if read.addresses else None
    if address is None:
        return None
    conditions = read.conditions or ConditionsJSON()
    ready = conditions.ready is not False
    serving = ready if conditions.serving is None else conditions.serving
    zone = read.zone if read.zone is not None and _ZONE.fullmatch(read.zone) else None
    return SliceEndpoint(address, zone, ready, serving, conditions.terminating is True, _pod(read.target_ref))


def _pod(target: _Target | None) -> str | None:
    name = None if target is None or target.kind != "Pod" else target.name
    return name if name is not None and len(name) <= 253 and DNS_SUBDOMAIN.fullmatch(name) else None


def _ports(read: list[PortJSON] | None) -> tuple[TCPPort, ...]:
    """Return the ports that can be used, of each name the first: no cluster has two of one name.

    With as many of one name as there may be ports, each endpoint would be there as often.
    """
    ports: dict[str, TCPPort] = {}
    for each in (read or ())[:MAX_PORTS]:
        name = each.name or ""
        if each.port is None or not 0 < each.port < 65536 or (each.protocol or "TCP") != "TCP":
            continue
        if name not in ports and (not name or DNS_LABEL.fullmatch(name)):
            ports[name] = TCPPort(name, each.port, _app_protocol(each.app_protocol))
    return tuple(ports.values())


def _app_protocol(text: str | None) -> str | None:
    return text if text is not None and _APP_PROTOCOL.fullmatch(text) else None
