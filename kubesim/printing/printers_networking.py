"""Table printers of Services, endpoints, ingresses and network policies (pkg/printers/internalversion/printers.go)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from kubesim.printing.formatting import (
    AGE,
    NONE,
    UNSET,
    Cells,
    JSONDict,
    Printer,
    age,
    first_three,
    labels,
    name,
    selector,
    simple,
    spec,
    status,
)


def service(obj: JSONDict, now: datetime) -> Cells:
    ips = spec(obj).get("clusterIPs") or [spec(obj).get("clusterIP")]
    ports = [
        f"{item['port']}:{item['nodePort']}/{item.get('protocol', 'TCP')}"
        if item.get("nodePort")
        else f"{item['port']}/{item.get('protocol', 'TCP')}"
        for item in spec(obj).get("ports") or ()
    ]
    return [
        name(obj),
        spec(obj).get("type", "ClusterIP"),
        ips[0] or NONE,
        _external(obj),
        ",".join(ports) or NONE,
        age(obj, now),
        labels(spec(obj).get("selector")),
    ]


def _external(obj: JSONDict) -> str:
    kind, own = spec(obj).get("type", "ClusterIP"), spec(obj).get("externalIPs") or []
    if kind == "ExternalName":
        return str(spec(obj).get("externalName", ""))
    if kind == "LoadBalancer":
        return ",".join([*_balanced(obj), *own]) or "<pending>"
    return ",".join(own) or NONE


def _balanced(obj: JSONDict) -> list[str]:
    ingress = (status(obj).get("loadBalancer") or {}).get("ingress") or ()
    return sorted({item.get("ip") or item.get("hostname", "") for item in ingress})


def endpoints(obj: JSONDict, now: datetime) -> Cells:
    found: list[str] = []
    for subset in obj.get("subsets") or ():
        addresses = [item["ip"] for item in subset.get("addresses") or ()]
        ports = subset.get("ports") or ()
        found += [f"{ip}:{port['port']}" for port in ports for ip in addresses] if ports else addresses
    return [name(obj), first_three(found, none=NONE), age(obj, now)]


def endpoint_slice(obj: JSONDict, now: datetime) -> Cells:
    ports = [UNSET if item.get("port") is None else item["port"] for item in obj.get("ports") or ()]
    addresses = [ip for item in obj.get("endpoints") or () for ip in item.get("addresses") or ()]
    return [
        name(obj),
        obj.get("addressType", ""),
        first_three(ports, none=UNSET),
        first_three(addresses, none=UNSET),
        age(obj, now),
    ]


def ingress(obj: JSONDict, now: datetime) -> Cells:
    hosts = [item["host"] for item in spec(obj).get("rules") or () if item.get("host")]
    return [
        name(obj),
        spec(obj).get("ingressClassName") or NONE,
        first_three(hosts, none="*"),
        ",".join(_balanced(obj)),
        "80, 443" if spec(obj).get("tls") else "80",
        age(obj, now),
    ]


def ingress_class(obj: JSONDict, now: datetime) -> Cells:
    parameters = spec(obj).get("parameters") or {}
    text = NONE
    if parameters:
        group = f".{parameters['apiGroup']}" if parameters.get("apiGroup") else ""
        text = f"{parameters.get('kind', '')}{group}/{parameters.get('name', '')}"
    return [name(obj), spec(obj).get("controller", ""), text, age(obj, now)]


def network_policy(obj: JSONDict, now: datetime) -> Cells:
    return [name(obj), selector(spec(obj).get("podSelector")), age(obj, now)]


PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("", "Service"): Printer(
        (
            "Type|string|0|@core.v1.ServiceSpec.type",
            "Cluster-IP|string|0|@core.v1.ServiceSpec.clusterIP",
            "External-IP|string|0|@core.v1.ServiceSpec.externalIPs",
            "Port(s)|string|0|@core.v1.ServiceSpec.ports",
            AGE,
            "Selector|string|1|@core.v1.ServiceSpec.selector",
        ),
        service,
    ),
    ("", "Endpoints"): simple(endpoints, "Endpoints|string|0|@core.v1.Endpoints.subsets"),
    ("discovery.k8s.io", "EndpointSlice"): simple(
        endpoint_slice,
        "AddressType|string|0|@discovery.v1.EndpointSlice.addressType",
        "Ports|string|0|@discovery.v1.EndpointSlice.ports",
        "Endpoints|string|0|@discovery.v1.EndpointSlice.endpoints",
    ),
    ("networking.k8s.io", "Ingress"): simple(
        ingress,
        "Class|string|0|The name of the IngressClass resource that should be used for additional configuration",
        "Hosts|string|0|Hosts that incoming requests are matched against before the ingress rule",
        "Address|string|0|Address is a list containing ingress points for the load-balancer",
        "Ports|string|0|Ports of TLS configurations that open",
    ),
    ("networking.k8s.io", "IngressClass"): simple(
        ingress_class,
        "Controller|string|0|Controller that is responsible for handling this class",
        "Parameters|string|0|A reference to a resource with additional parameters",
    ),
    ("networking.k8s.io", "NetworkPolicy"): simple(
        network_policy, "Pod-Selector|string|0|@networking.v1.NetworkPolicySpec.podSelector"
    ),
}
