"""Decodes the Services, EndpointSlices and ServiceExports of a cluster, and checks types and limits.

A source cluster counts as hostile, because its objects are copied into the API of other clusters. So all copied fields
are checked here: if Kubernetes' own validation would refuse a field, the field or the whole object is left out.

Sources: k8s.io/api `core/v1`, `discovery/v1`; kubernetes `pkg/apis/discovery/validation`; KEP-1645.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from mcproxy.services.api_types import (
    DNS_LABEL,
    MANAGED_BY,
    MANAGER,
    MAX_SLICE_ENDPOINTS,
    MCS_SERVICE_NAME,
    MCS_SOURCE_CLUSTER,
    SLICE_MANAGED_BY,
    ConditionsJSON,
    PortJSON,
    UnreadableObject,
    decode,
)

MAX_PORTS = 100
"""Maximum of ports of one Service or slice."""
MAX_EXPORTED = 64
"""Maximum of labels, and of annotations, of one ServiceExport."""
MAX_ANNOTATIONS = 16 << 10
"""Maximum of bytes of all annotations of one ServiceExport."""

PROTOCOLS = ("TCP", "UDP", "SCTP")
FAMILIES = ("IPv4", "IPv6")

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z\Z", re.ASCII)
_POLICIES = frozenset(("Cluster", "Local"))
_FAMILY_POLICIES = frozenset(("SingleStack", "PreferDualStack", "RequireDualStack"))
_TRAFFIC_DISTRIBUTIONS = frozenset(("PreferClose", "PreferSameZone", "PreferSameNode"))
_OTHER_IMPORTERS = ("karmada.io", "submariner.io", "mesh-controller.cilium.io", "aws-cloud-map-mcs-controller-for-k8s")
"""Suffixes of the values of endpointslice.kubernetes.io/managed-by that importers of other projects set."""
_CACHED_FROM = "resource.karmada.io/cached-from-cluster"
"""An annotation that the caches add to their objects (`aggregate.cache.decoder`)."""
_FALSE = ("Ready", "False")
_RESERVED = ("kubernetes.io", "k8s.io", MANAGER)
_RECOMMENDED = frozenset(f"app.kubernetes.io/{name}" for name in ("name", "version", "component", "part-of"))


class Port(NamedTuple):
    """A port of a Service or slice; in a slice `number` is the port of the pods."""

    name: str
    number: int
    protocol: str = "TCP"
    app_protocol: str | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Protocol and number, which must be unique among the ports of a Service."""
        return self.protocol, self.number


class ExportedService(NamedTuple):
    """The parts of a Service that are copied to other clusters."""

    type: str = "ClusterIP"
    headless: bool = False
    ports: tuple[Port, ...] = ()
    session_affinity: str = "None"  # None | ClientIP
    affinity_timeout: int | None = None  # seconds
    families: tuple[str, ...] = ()
    family_policy: str | None = None  # SingleStack | PreferDualStack | RequireDualStack; None: not set
    internal_traffic_policy: str | None = None
    traffic_distribution: str | None = None
    publish_not_ready: bool = False
    """Whether the DNS name of a headless Service also resolves to endpoints that are not ready."""
    imported: bool = False
    """Whether the Service itself is derived from a service of another cluster."""
    cluster_ips: tuple[str, ...] = ()


class ExportedEndpoint(NamedTuple):
    """An endpoint; its addresses are unchecked text."""

    addresses: tuple[str, ...]
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None
    hostname: str | None = None
    node: str | None = None
    zone: str | None = None


class ExportedSlice(NamedTuple):
    """An EndpointSlice of the cluster itself, not imported."""

    name: str
    address_type: str
    endpoints: tuple[ExportedEndpoint, ...]
    ports: tuple[Port, ...]


class Import(NamedTuple):
    """A ServiceImport with the properties of its service."""

    service: ExportedService
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    clusters: tuple[str, ...]
    """The ids of the clusters in its status."""
    not_ready: tuple[str, str] = ("", "")
    """Reason and message of its condition Ready, if its status is False."""


class Export(NamedTuple):
    """A ServiceExport."""

    created: datetime | None
    """None: the time is missing or malformed, and the export counts as the newest."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None


class _ClientIP(msgspec.Struct, rename="camel"):
    timeout_seconds: int | None = None


class _AffinityConfig(msgspec.Struct):
    client_ip: _ClientIP | None = msgspec.field(default=None, name="clientIP")


class _ServiceSpec(msgspec.Struct, rename="camel"):
    type: str | None = None
    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    cluster_ips: list[str] | None = msgspec.field(default=None, name="clusterIPs")
    ports: list[PortJSON] | None = None
    session_affinity: str | None = None
    session_affinity_config: _AffinityConfig | None = None
    ip_families: list[str] | None = None
    ip_family_policy: str | None = None
    internal_traffic_policy: str | None = None
    traffic_distribution: str | None = None
    publish_not_ready_addresses: bool | None = None


class _Service(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _ServiceSpec = msgspec.field(default_factory=_ServiceSpec)


class _Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str] | None = None
    conditions: ConditionsJSON | None = None
    hostname: str | None = None
    node_name: str | None = None
    zone: str | None = None


class _Slice(msgspec.Struct, rename="camel"):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    address_type: str = ""
    endpoints: list[_Endpoint] | None = None
    ports: list[PortJSON] | None = None


class _ExportSpec(msgspec.Struct, rename="camel"):
    exported_labels: dict[str, str] | None = None
    exported_annotations: dict[str, str] | None = None


class _Export(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _ExportSpec | None = None


class _ImportSpec(msgspec.Struct, rename="camel"):
    type: str = ""
    ips: list[str] | None = None
    ports: list[PortJSON] | None = None
    session_affinity: str | None = None
    session_affinity_config: _AffinityConfig | None = None
    ip_families: list[str] | None = None
    internal_traffic_policy: str | None = None
    traffic_distribution: str | None = None


class _ImportCluster(msgspec.Struct):
    cluster: str = ""


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _ImportStatus(msgspec.Struct):
    clusters: list[_ImportCluster] | None = None
    conditions: list[_Condition] | None = None


class _Import(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _ImportSpec = msgspec.field(default_factory=_ImportSpec)
    status: _ImportStatus | None = None


class _Identity(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_SERVICE = msgspec.json.Decoder(_Service)
_SLICE = msgspec.json.Decoder(_Slice)
_EXPORT = msgspec.json.Decoder(_Export)
_IMPORT = msgspec.json.Decoder(_Import)
_IDENTITY = msgspec.json.Decoder(_Identity)


def read_service(data: bytes) -> ExportedService:
    """Return a Service. Raises UnreadableObject."""
    found = decode(_SERVICE, data)
    spec, labels = found.spec, found.metadata.labels or {}
    affinity, timeout = _affinity(spec.session_affinity, spec.session_affinity_config)
    return ExportedService(
        type=spec.type or "ClusterIP",
        headless=spec.cluster_ip == "None",
        ports=_service_ports(spec.ports),
        session_affinity=affinity,
        affinity_timeout=timeout,
        families=_families(spec.ip_families),
        family_policy=_one_of(_FAMILY_POLICIES, spec.ip_family_policy),
        internal_traffic_policy=_one_of(_POLICIES, spec.internal_traffic_policy),
        traffic_distribution=_one_of(_TRAFFIC_DISTRIBUTIONS, spec.traffic_distribution),
        publish_not_ready=bool(spec.publish_not_ready_addresses),
        imported=labels.get(MANAGED_BY) == MANAGER,
        cluster_ips=tuple(each for each in spec.cluster_ips or () if each not in ("", "None"))[:2],
    )


def read_slice_name(data: bytes) -> str | None:
    """Return the name of an EndpointSlice, in a fraction of the time that decoding the whole object takes.

    Returns None if the slice itself is imported from another cluster. Raises UnreadableObject.
    """
    metadata = decode(_IDENTITY, data).metadata
    if _is_imported(metadata.labels or {}):
        return None
    name: str = metadata.name
    if not (0 < len(name) <= 253 and _SUBDOMAIN.match(name)):
        raise UnreadableObject("an EndpointSlice has no valid name")
    return name


def read_slice(name: str, data: bytes) -> ExportedSlice:
    """Return the EndpointSlice whose name `read_slice_name` has returned. Raises UnreadableObject."""
    found = decode(_SLICE, data)
    endpoints = tuple(map(_endpoint, (found.endpoints or ())[:MAX_SLICE_ENDPOINTS]))
    return ExportedSlice(name, found.address_type, endpoints, _slice_ports(found.ports))


def read_export(data: bytes) -> Export:
    """Return a ServiceExport, with its labels and annotations that may be copied. Raises UnreadableObject."""
    found = decode(_EXPORT, data)
    spec = found.spec or _ExportSpec()
    return Export(
        _time(found.metadata.creation_timestamp),
        _exported(spec.exported_labels or {}, values=_LABEL_VALUE),
        _exported(spec.exported_annotations or {}, values=None),
    )


def read_import(data: bytes) -> Import:
    """Return a ServiceImport. Raises UnreadableObject."""
    found = decode(_IMPORT, data)
    spec, metadata = found.spec, found.metadata
    affinity, timeout = _affinity(spec.session_affinity, spec.session_affinity_config)
    service = ExportedService(
        headless=spec.type == "Headless",
        cluster_ips=tuple(spec.ips or ())[:2],
        ports=_service_ports(spec.ports),
        session_affinity=affinity,
        affinity_timeout=timeout,
        families=_families(spec.ip_families),
        internal_traffic_policy=_one_of(_POLICIES, spec.internal_traffic_policy),
        traffic_distribution=_one_of(_TRAFFIC_DISTRIBUTIONS, spec.traffic_distribution),
    )
    annotations = {key: value for key, value in (metadata.annotations or {}).items() if key != _CACHED_FROM}
    status = found.status or _ImportStatus()
    not_ready = [(each.reason, each.message) for each in status.conditions or () if (each.type, each.status) == _FALSE]
    return Import(
        service,
        _exported(metadata.labels or {}, values=_LABEL_VALUE),
        _exported(annotations, values=None),
        tuple(each.cluster for each in status.clusters or () if each.cluster),
        not_ready[0] if not_ready else ("", ""),
    )


def read_labels(data: bytes) -> Mapping[str, str]:
    """Return the labels of any object. Raises UnreadableObject."""
    return decode(_IDENTITY, data).metadata.labels or {}


def _affinity(affinity: str | None, config: _AffinityConfig | None) -> tuple[str, int | None]:
    if affinity != "ClientIP":
        return "None", None
    timeout = config.client_ip.timeout_seconds if config and config.client_ip else None
    return affinity, timeout if timeout is not None and 0 < timeout <= 86400 else None


def _families(read: list[str] | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in read or () if each in FAMILIES))


def _one_of(values: Collection[str], read: str | None) -> str | None:
    return read if read in values else None


def _is_imported(labels: Mapping[str, str]) -> bool:
    if labels.keys() & {MCS_SERVICE_NAME, MCS_SOURCE_CLUSTER}:
        return True
    manager = labels.get(SLICE_MANAGED_BY, "")
    return manager == MANAGER or manager.endswith(_OTHER_IMPORTERS)


def _endpoint(read: _Endpoint) -> ExportedEndpoint:
    conditions = read.conditions or ConditionsJSON()
    return ExportedEndpoint(
        addresses=tuple(dict.fromkeys((read.addresses or ())[:100])),
        ready=conditions.ready,
        serving=conditions.serving,
        terminating=conditions.terminating,
        hostname=read.hostname if read.hostname and DNS_LABEL.fullmatch(read.hostname) else None,
        node=read.node_name if read.node_name and _SUBDOMAIN.match(read.node_name[:254]) else None,
        zone=read.zone if read.zone and _QUALIFIED.match(read.zone) else None,
    )


def _service_ports(read: list[PortJSON] | None) -> tuple[Port, ...]:
    """Return the ports in order, without those that conflict with an earlier one."""
    ports: list[Port] = []
    names, numbers = set[str](), set[tuple[str, int]]()
    for each in (read or ())[:MAX_PORTS]:
        port = _port(each)
        if port is None or port.name in names or port.address in numbers:
            continue
        names.add(port.name)
        numbers.add(port.address)
        ports.append(port)
    return tuple(ports)


def _slice_ports(read: list[PortJSON] | None) -> tuple[Port, ...]:
    """Return the ports by name. Ports without a number are left out: they mean all ports, which no Service has."""
    ports: dict[str, Port] = {}
    for each in (read or ())[:MAX_PORTS]:
        port = _port(each)
        if port is not None:
            ports.setdefault(port.name, port)
    return tuple(sorted(ports.values()))


def _port(read: PortJSON) -> Port | None:
    name, protocol = read.name or "", read.protocol or "TCP"
    if read.port is None or not 0 < read.port < 65536 or protocol not in PROTOCOLS:
        return None
    if name and not DNS_LABEL.fullmatch(name):
        return None
    app_protocol = read.app_protocol if read.app_protocol and _is_qualified(read.app_protocol) else None
    return Port(name, read.port, protocol, app_protocol)


def _exported(read: Mapping[str, str], values: re.Pattern[str] | None) -> dict[str, str]:
    """Return the labels or annotations that may be copied to objects of other clusters.

    Keys of Kubernetes and of mcproxy would control the controllers of those clusters, so they are not copied, except
    the recommended labels, which only describe an application.
    """
    found: dict[str, str] = {}
    size = 0
    for key in sorted(read):
        value = read[key]
        if not _is_qualified(key) or _is_reserved(key) or (values is not None and not values.match(value)):
            continue
        size += len(key) + len(value.encode())
        if len(found) == MAX_EXPORTED or size > MAX_ANNOTATIONS:
            break
        found[key] = value
    return found


def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not (0 < len(prefix) <= 253 and _SUBDOMAIN.match(prefix)):
        return False
    return _QUALIFIED.match(name) is not None


def _is_reserved(key: str) -> bool:
    prefix, slash, _ = key.rpartition("/")
    if not slash or key in _RECOMMENDED:
        return False
    return any(prefix == domain or prefix.endswith(f".{domain}") for domain in _RESERVED)


def _time(text: str | None) -> datetime | None:
    if text is None or not _TIME.match(text):
        return None
    try:
        return datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
