"""Allocation of Services' addresses and node ports."""

from __future__ import annotations

import base64
import ipaddress
import json
from typing import Any

from kubesim.apimachinery.status import Cause, invalid
from kubesim.cluster import SimulatedCluster

JSONDict = dict[str, Any]
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
    if wanted and wanted != "None" and wanted in taken:
        shown = json.dumps([wanted])
        text = f"Invalid value: {shown}: failed to allocate IP {wanted}: provided IP is already allocated"
        name = service["metadata"]["name"]
        raise invalid("", "Service", name, [Cause("FieldValueInvalid", text, "spec.clusterIPs")])
    if wanted and wanted != "None" and ipaddress.ip_address(wanted) not in RANGE:
        refused = "the provided network does not match the current range"
        text = f"Invalid value: {json.dumps([wanted])}: failed to allocate IP {wanted}: {refused}"
        name = service["metadata"]["name"]
        raise invalid("", "Service", name, [Cause("FieldValueInvalid", text, "spec.clusterIPs")])
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
