"""Services, EndpointSlices and Leases: validation with Kubernetes' messages, allocation of addresses and ports.

Sources: kubernetes `pkg/apis/discovery/validation`, `pkg/apis/core/validation` (ValidateService),
`pkg/apis/coordination/validation`, `pkg/registry/core/service/storage/alloc.go`; what a kube-apiserver 1.36 says is
recorded in tests/golden/services. A simulated cluster has IPv4 alone for addresses of Services.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kubesim.apimachinery.resources import JSONDict
from kubesim.apimachinery.status import (
    StatusCause,
    bad_request,
    field_duplicate,
    field_invalid,
    field_not_supported,
    field_required,
    field_too_many,
    invalid,
)
from kubesim.cluster import SimulatedCluster

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
LABEL_HELP = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
MAX_ENDPOINTS, MAX_ADDRESSES, MAX_PORTS = 1000, 100, 20_000
_FAMILIES = ("IPv4", "IPv6")
_NO_IP = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}")
_LEADING_ZERO = re.compile(r"(\A|\.)0[0-9]")


def content(key: tuple[str, str], obj: Mapping[str, Any], *, loopback: bool = False) -> list[StatusCause]:
    """Return the errors in an object of one of these kinds, with its defaults; [] for another kind.

    `loopback`: endpoints may be on this machine.
    """
    if key == ("discovery.k8s.io", "endpointslices"):
        return list(_endpoint_slice(obj, loopback=loopback))
    if key == ("", "services"):
        return list(_service(obj.get("spec") or {}))
    if key == ("coordination.k8s.io", "leases"):
        return list(_lease(obj.get("spec") or {}))
    return []


def check_times(lease: Mapping[str, Any]) -> None:
    """Check that the times of a Lease have six decimals, as client-go's MicroTime. Raises APIError 400."""
    spec = lease.get("spec") or {}
    for key in ("acquireTime", "renewTime"):
        time = spec.get(key)
        if time is not None and not _MICRO_TIME.match(time):
            rest = time[19:]
            raise bad_request(
                f'Lease in version "v1" cannot be handled as a Lease: parsing time "{time}" as '
                f'"2006-01-02T15:04:05.000000Z07:00": cannot parse "{rest}" as ".000000"'
            )


def immutable(key: tuple[str, str], old: Mapping[str, Any], new: Mapping[str, Any]) -> list[StatusCause]:
    """Return the errors in a change of immutable fields."""
    if key == ("discovery.k8s.io", "endpointslices") and old.get("addressType") != new.get("addressType"):
        return [field_invalid("addressType", new.get("addressType"), "field is immutable")]
    if key != ("", "services"):
        return []
    before, after = old.get("spec") or {}, new.get("spec") or {}
    if before.get("clusterIP") not in (None, "", after.get("clusterIP")):
        return [field_invalid("spec.clusterIPs[0]", [after.get("clusterIP")], "may not change once set")]
    found = []
    pairs = zip(before.get("clusterIPs") or (), after.get("ipFamilies") or (), strict=False)
    for index, (address, family) in enumerate(pairs):
        if address != "None" and (":" in address) != (family == "IPv6"):
            text = f"expected an {family} value as indicated by `ipFamilies[{index}]`"
            found.append(field_invalid(f"spec.clusterIPs[{index}]", address, text))
    return found


def _endpoint_slice(obj: Mapping[str, Any], *, loopback: bool) -> Iterator[StatusCause]:
    kind = obj.get("addressType")
    if not kind:
        yield field_required("addressType")
    elif kind not in (*_FAMILIES, "FQDN"):
        yield field_not_supported("addressType", kind, ("FQDN", "IPv4", "IPv6"))
    endpoints = obj.get("endpoints") or ()
    if len(endpoints) > MAX_ENDPOINTS:
        yield field_too_many("endpoints", endpoints, MAX_ENDPOINTS)
    else:
        for number, each in enumerate(endpoints):
            yield from _endpoint(f"endpoints[{number}]", str(kind), each, loopback=loopback)
    ports = obj.get("ports") or ()
    if len(ports) > MAX_PORTS:
        yield field_too_many("ports", ports, MAX_PORTS)
        return
    names = set()
    for number, port in enumerate(ports):
        where, name = f"ports[{number}]", port.get("name") or ""
        if name in names:
            yield field_duplicate(f"{where}.name", name)
        elif len(name) > 63:
            yield field_invalid(f"{where}.name", name, "must be no more than 63 characters")
        elif name and not LABEL.match(name):
            yield field_invalid(f"{where}.name", name, LABEL_HELP)
        names.add(name)
        if port.get("protocol", "TCP") not in ("TCP", "UDP", "SCTP"):
            yield field_not_supported(f"{where}.protocol", port["protocol"], ("SCTP", "TCP", "UDP"))


def _endpoint(where: str, kind: str, endpoint: Mapping[str, Any], *, loopback: bool) -> Iterator[StatusCause]:
    addresses = endpoint.get("addresses") or ()
    if not addresses:
        yield field_required(f"{where}.addresses", "must contain at least 1 address")
    elif len(addresses) > MAX_ADDRESSES:
        yield field_too_many(f"{where}.addresses", addresses, MAX_ADDRESSES)
    elif kind in _FAMILIES:
        for number, text in enumerate(addresses):
            yield from _address(f"{where}.addresses", number, kind, text, loopback=loopback)
    hostname = endpoint.get("hostname")
    if hostname and not LABEL.match(hostname):
        yield field_invalid(f"{where}.hostname", hostname, LABEL_HELP)


def _address(where: str, number: int, kind: str, text: str, *, loopback: bool) -> Iterator[StatusCause]:
    place = f"{where}[{number}]"
    if ":" not in text and _LEADING_ZERO.search(text):
        yield field_invalid(place, text, "must not have leading 0s")
        return
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        yield field_invalid(place, text, _NO_IP)
        return
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        yield field_invalid(place, text, "must not be an IPv4-mapped IPv6 address")
    elif address.version != (4 if kind == "IPv4" else 6):
        yield field_invalid(where, text, f"must be an {kind} address")
    elif str(address) != text:
        yield field_invalid(place, text, f'must be in canonical form ("{address}")')
    elif address.is_unspecified:
        yield field_invalid(place, text, f"may not be unspecified ({text})")
    elif address.is_loopback and not loopback:
        yield field_invalid(place, text, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
    elif address.is_link_local:
        yield field_invalid(place, text, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    elif address in ipaddress.ip_network("224.0.0.0/24" if address.version == 4 else "ff02::/16"):
        yield field_invalid(place, text, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")


def _service(spec: Mapping[str, Any]) -> Iterator[StatusCause]:
    if spec.get("type") == "ExternalName":
        return
    headless = spec.get("clusterIP") == "None"
    ports = spec.get("ports") or ()
    if not ports and not headless:
        yield field_required("spec.ports")
    taken = set()
    for number, port in enumerate(ports):
        name = port.get("name")
        if not name and len(ports) > 1:
            yield field_required(f"spec.ports[{number}].name")
    for number, port in enumerate(ports):
        address = (port.get("protocol", "TCP"), port.get("port"))
        if address in taken:
            shown = {
                "Name": "",
                "Protocol": address[0],
                "AppProtocol": None,
                "Port": address[1],
                "TargetPort": 0,
                "NodePort": 0,
            }
            yield field_duplicate(f"spec.ports[{number}]", shown)
        taken.add(address)
    yield from _families(spec, headless=headless)


def _families(spec: Mapping[str, Any], *, headless: bool) -> Iterator[StatusCause]:
    policy, families = spec.get("ipFamilyPolicy"), spec.get("ipFamilies") or ()
    if policy == "SingleStack" and len(families) > 1:
        text = "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"
        yield field_invalid("spec.ipFamilyPolicy", policy, text)
        return
    if headless and not spec.get("selector"):
        return  # any families in any cluster
    for number, family in enumerate(families):
        if family != "IPv4" and not _has_address(spec, number):
            yield field_invalid(f"spec.ipFamilies[{number}]", family, "not configured on this cluster")
    if policy == "RequireDualStack":
        text = "this cluster is not configured for dual-stack services"
        yield field_invalid("spec.ipFamilyPolicy", policy, text)


def _has_address(spec: Mapping[str, Any], number: int) -> bool:
    """Whether a Service already has an address of the family; one that a test has set counts."""
    return number < len(spec.get("clusterIPs") or ())


def _lease(spec: Mapping[str, Any]) -> Iterator[StatusCause]:
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        yield field_invalid("spec.leaseDurationSeconds", duration, "must be greater than 0")
    if transitions is not None and transitions < 0:
        yield field_invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0")


SERVICES = ("", "services")
RANGE = ipaddress.ip_network("10.96.0.0/16")
"""The addresses that Services may have."""
FIRST_NODE_PORT, LAST_NODE_PORT = 30000, 32767


def base64_text(value: str) -> str:
    """Return a string in base64, as in Secrets."""
    return base64.b64encode(value.encode()).decode()


def allocate(cluster: SimulatedCluster, service: JSONDict) -> None:
    """Set clusterIP(s), families and node ports, in place. Raises APIError 422 when the requested address is in use."""
    spec = service["spec"]
    if spec.get("type") == "ExternalName":
        return
    others = cluster.store.collection(SERVICES).objects.values()
    taken = {(item.get("spec") or {}).get("clusterIP") for item in others}
    wanted = spec.get("clusterIP")
    if wanted and wanted != "None":
        why = "provided IP is already allocated" if wanted in taken else ""
        if not why and ipaddress.ip_address(wanted) not in RANGE:
            why = "the provided network does not match the current range"
        if why:
            cause = field_invalid("spec.clusterIPs", [wanted], f"failed to allocate IP {wanted}: {why}")
            raise invalid("", "Service", service["metadata"]["name"], [cause])
    address = wanted or _free_address(cluster, taken)
    spec.update({"clusterIP": address, "clusterIPs": [address]})
    _set_families(spec, any_family=address == "None" and not spec.get("selector"))
    if spec.get("type") in ("NodePort", "LoadBalancer"):
        used = {port.get("nodePort") for item in others for port in (item.get("spec") or {}).get("ports") or ()}
        for port in spec.get("ports") or ():
            if not port.get("nodePort"):
                port["nodePort"] = next(
                    number
                    for number in iter(lambda: cluster.random.randint(FIRST_NODE_PORT, LAST_NODE_PORT), None)
                    if number not in used
                )
                used.add(port["nodePort"])


def _set_families(spec: JSONDict, *, any_family: bool) -> None:
    """Set policy and families; a headless Service without selector has both unless it says SingleStack.

    Source: `initIPFamilyFields` of kubernetes `pkg/registry/core/service/storage/alloc.go`.
    """
    families = spec.setdefault("ipFamilies", ["IPv4"])
    policy = "RequireDualStack" if any_family and len(families) < 2 else "SingleStack"
    spec.setdefault("ipFamilyPolicy", policy if len(families) < 2 else "RequireDualStack")
    if any_family and len(families) < 2 and spec["ipFamilyPolicy"] != "SingleStack":
        families.append("IPv6" if families == ["IPv4"] else "IPv4")


def _free_address(cluster: SimulatedCluster, taken: set[Any]) -> str:
    while True:
        address = f"10.96.{cluster.random.randint(1, 255)}.{cluster.random.randint(1, 254)}"
        if address not in taken:
            return address
