"""The columns of each kind in Tables, and their cells (pkg/printers/internalversion/printers.go).

They are those of the kinds that fixtures and recordings have; another kind has the default ones, Name and Created At.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from kubesim.apimachinery.resources import JSONDict
from kubesim.printing import printers_workloads
from kubesim.printing.cells import (
    AGE,
    NONE,
    UNKNOWN,
    UNSET,
    Column,
    Printer,
    at,
    condition,
    count,
    first_three,
    is_set,
    labels,
    or_default,
    selector_of,
    since,
)

ROLE_LABEL = "node-role.kubernetes.io/"
ACCESS = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _node_status(node: JSONDict, now: datetime) -> str:
    ready = condition(node, "Ready")
    state = "Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"
    return state + (",SchedulingDisabled" if at(node, "spec.unschedulable") else "")


def _node_roles(node: JSONDict, now: datetime) -> str:
    own = at(node, "metadata.labels", {})
    return ",".join(sorted(key.removeprefix(ROLE_LABEL) for key in own if key.startswith(ROLE_LABEL))) or NONE


def _node_address(kind: str) -> Callable[[JSONDict, datetime], str]:
    def cell(node: JSONDict, now: datetime) -> str:
        addresses = at(node, "status.addresses", ())
        return next((item["address"] for item in addresses if item.get("type") == kind), NONE)

    return cell


def _kernel(node: JSONDict, now: datetime) -> str:
    kernel, architecture = at(node, "status.nodeInfo.kernelVersion", UNKNOWN), at(node, "status.nodeInfo.architecture")
    return f"{kernel} ({architecture})" if architecture else str(kernel)


def _first_seen(event: JSONDict, now: datetime) -> str:
    return since(event.get("firstTimestamp") or event.get("deprecatedFirstTimestamp") or event.get("eventTime"), now)


def _last_seen(event: JSONDict, now: datetime) -> str:
    last = at(event, "series.lastObservedTime", event.get("lastTimestamp") or event.get("deprecatedLastTimestamp"))
    return since(last, now) if last else _first_seen(event, now)


def _event_object(event: JSONDict, now: datetime) -> str:
    target = event.get("involvedObject") or event.get("regarding") or {}
    kind = str(target.get("kind", "")).lower()
    return f"{kind}/{target['name']}" if target.get("name") else kind


def _event_source(event: JSONDict, now: datetime) -> str:
    source = event.get("source") or event.get("deprecatedSource") or {}
    component = source.get("component") or event.get("reportingComponent") or event.get("reportingController") or ""
    instance = source.get("host") or event.get("reportingInstance")
    return f"{component}, {instance}" if instance else component


def _message(event: JSONDict, now: datetime) -> str:
    return str(event.get("message") or event.get("note") or "").strip()


def _quota(*, limits: bool) -> Callable[[JSONDict, datetime], str]:
    def cell(quota: JSONDict, now: datetime) -> str:
        hard, used = at(quota, "status.hard", {}), at(quota, "status.used", {})
        keys = [key for key in sorted(hard) if key.startswith("limits.") == limits]
        return ", ".join(f"{key}: {used.get(key, '0')}/{hard[key]}" for key in keys)

    return cell


def _external(service: JSONDict, now: datetime) -> str:
    kind, own = at(service, "spec.type", "ClusterIP"), at(service, "spec.externalIPs", [])
    if kind == "ExternalName":
        return str(at(service, "spec.externalName"))
    if kind == "LoadBalancer":
        return ",".join([*_balanced(service), *own]) or "<pending>"
    return ",".join(own) or NONE


def _balanced(obj: JSONDict) -> list[str]:
    ingress = at(obj, "status.loadBalancer.ingress", ())
    return sorted({item.get("ip") or item.get("hostname", "") for item in ingress})


def _service_ports(service: JSONDict, now: datetime) -> str:
    ports = [
        f"{port['port']}{':' + str(port['nodePort']) if port.get('nodePort') else ''}/{port.get('protocol', 'TCP')}"
        for port in at(service, "spec.ports", ())
    ]
    return ",".join(ports) or NONE


def _endpoints(obj: JSONDict, now: datetime) -> str:
    found: list[str] = []
    for subset in obj.get("subsets") or ():
        addresses = [item["ip"] for item in subset.get("addresses") or ()]
        ports = subset.get("ports") or ()
        found += [f"{ip}:{port['port']}" for port in ports for ip in addresses] if ports else addresses
    return first_three(found, none=NONE)


def _slice_ports(piece: JSONDict, now: datetime) -> str:
    ports = [UNSET if item.get("port") is None else item["port"] for item in piece.get("ports") or ()]
    return first_three(ports, none=UNSET)


def _slice_addresses(piece: JSONDict, now: datetime) -> str:
    addresses = [ip for item in piece.get("endpoints") or () for ip in item.get("addresses") or ()]
    return first_three(addresses, none=UNSET)


def _hosts(ingress: JSONDict, now: datetime) -> str:
    return first_three([item["host"] for item in at(ingress, "spec.rules", ()) if item.get("host")], none="*")


def _tls_ports(ingress: JSONDict, now: datetime) -> str:
    return "80, 443" if at(ingress, "spec.tls") else "80"


def _ingress_class_parameters(obj: JSONDict, now: datetime) -> str:
    found = at(obj, "spec.parameters", {})
    group = f".{found['apiGroup']}" if found.get("apiGroup") else ""
    return f"{found.get('kind', '')}{group}/{found.get('name', '')}" if found else NONE


def _claim_phase(claim: JSONDict, now: datetime) -> str:
    return "Terminating" if at(claim, "metadata.deletionTimestamp") else str(at(claim, "status.phase"))


def _access_modes(claim: JSONDict, now: datetime) -> str:
    modes = at(claim, "status.accessModes", ()) if at(claim, "spec.volumeName") else ()
    return ",".join(ACCESS[mode] for mode in ACCESS if mode in modes)


def _storage_class_name(obj: JSONDict, now: datetime) -> str:
    default = at(obj, "metadata.annotations", {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    return str(at(obj, "metadata.name")) + (" (default)" if default else "")


def _subjects(kind: str) -> Callable[[JSONDict, datetime], str]:
    def cell(binding: JSONDict, now: datetime) -> str:
        found = [item for item in binding.get("subjects") or () if item.get("kind") == kind]
        named = kind == "ServiceAccount"
        return ", ".join(f"{item.get('namespace')}/{item['name']}" if named else item.get("name", "") for item in found)

    return cell


def _role(binding: JSONDict, now: datetime) -> str:
    return f"{at(binding, 'roleRef.kind')}/{at(binding, 'roleRef.name')}"


def _role_binding(definition: str, kind: str) -> Printer:
    return Printer(
        (f"Role|string|0|@rbac.v1.{definition}.roleRef", _role),
        AGE,
        (f"Users|string|1|Users in the {kind}", _subjects("User")),
        (f"Groups|string|1|Groups in the {kind}", _subjects("Group")),
        (f"ServiceAccounts|string|1|ServiceAccounts in the {kind}", _subjects("ServiceAccount")),
    )


def _api_service_backend(obj: JSONDict, now: datetime) -> str:
    return f"{at(obj, 'spec.service.namespace')}/{at(obj, 'spec.service.name')}" if at(obj, "spec.service") else "Local"


def _availability(obj: JSONDict, now: datetime) -> str:
    found = condition(obj, "Available") or {"status": "Unknown"}
    unavailable = found.get("status") != "True" and found.get("reason")
    return f"{found.get('status', '')} ({found['reason']})" if unavailable else str(found.get("status", ""))


_field_path = or_default("involvedObject.fieldPath", "regarding.fieldPath")
_EVENT = Printer(
    ("Last Seen|string|0|@core.v1.Event.lastTimestamp", _last_seen),
    ("Type|string|0|@core.v1.Event.type", "type"),
    ("Reason|string|0|@core.v1.Event.reason", "reason"),
    ("Object|string|0|@core.v1.Event.involvedObject", _event_object),
    ("Subobject|string|1|@core.v1.ObjectReference.fieldPath", _field_path),
    ("Source|string|1|@core.v1.Event.source", _event_source),
    ("Message|string|0|@core.v1.Event.message", _message),
    ("First Seen|string|1|@core.v1.Event.firstTimestamp", _first_seen),
    ("Count|string|1|@core.v1.Event.count", or_default("series.count", "count", "deprecatedCount", default=1)),
    ("Name|string|1|", "metadata.name"),
    named=False,
)
PRINTERS: Mapping[tuple[str, str], Printer] = {
    **printers_workloads.PRINTERS,
    ("", "ConfigMap"): Printer(("Data|string|0|@core.v1.ConfigMap.data", count("data", "binaryData")), AGE),
    ("", "Endpoints"): Printer(("Endpoints|string|0|@core.v1.Endpoints.subsets", _endpoints), AGE),
    ("", "Event"): _EVENT,
    ("events.k8s.io", "Event"): _EVENT,
    ("", "Namespace"): Printer(("Status|string|0|The status of the namespace", "status.phase"), AGE),
    ("", "Node"): Printer(
        ("Status|string|0|The status of the node", _node_status),
        ("Roles|string|0|The roles of the node", _node_roles),
        AGE,
        ("Version|string|0|@core.v1.NodeSystemInfo.kubeletVersion", "status.nodeInfo.kubeletVersion"),
        ("Internal-IP|string|1|@core.v1.NodeStatus.addresses", _node_address("InternalIP")),
        ("External-IP|string|1|@core.v1.NodeStatus.addresses", _node_address("ExternalIP")),
        ("OS-Image|string|1|@core.v1.NodeSystemInfo.osImage", f"status.nodeInfo.osImage={UNKNOWN}"),
        ("Kernel-Version|string|1|@core.v1.NodeSystemInfo.kernelVersion", _kernel),
        (
            "Container-Runtime|string|1|@core.v1.NodeSystemInfo.containerRuntimeVersion",
            f"status.nodeInfo.containerRuntimeVersion={UNKNOWN}",
        ),
    ),
    ("", "PersistentVolumeClaim"): Printer(
        ("Status|string|0|@core.v1.PersistentVolumeClaim.status", _claim_phase),
        ("Volume|string|0|@core.v1.PersistentVolumeClaimSpec.volumeName", "spec.volumeName"),
        ("Capacity|string|0|@core.v1.PersistentVolumeClaimStatus.capacity", "status.capacity.storage"),
        ("Access Modes|string|0|@core.v1.PersistentVolumeClaimStatus.accessModes", _access_modes),
        ("StorageClass|string|0|StorageClass of the pvc", "spec.storageClassName"),
        ("VolumeAttributesClass|string|0|VolumeAttributesClass of the pvc", f"spec.volumeAttributesClassName={UNSET}"),
        AGE,
        ("VolumeMode|string|1|@core.v1.PersistentVolumeClaimSpec.volumeMode", f"spec.volumeMode={UNSET}"),
    ),
    ("", "ResourceQuota"): Printer(
        (
            "Request|string|0|Request represents a minimum amount of cpu/memory that a container may consume.",
            _quota(limits=False),
        ),
        (
            "Limit|string|0|Limits control the maximum amount of cpu/memory that a container may use independent of "
            "contention on the node.",
            _quota(limits=True),
        ),
        AGE,
    ),
    ("", "Secret"): Printer(
        ("Type|string|0|@core.v1.Secret.type", "type"), ("Data|string|0|@core.v1.Secret.data", count("data")), AGE
    ),
    ("", "Service"): Printer(
        ("Type|string|0|@core.v1.ServiceSpec.type", "spec.type=ClusterIP"),
        ("Cluster-IP|string|0|@core.v1.ServiceSpec.clusterIP", f"spec.clusterIP={NONE}"),
        ("External-IP|string|0|@core.v1.ServiceSpec.externalIPs", _external),
        ("Port(s)|string|0|@core.v1.ServiceSpec.ports", _service_ports),
        AGE,
        ("Selector|string|1|@core.v1.ServiceSpec.selector", lambda o, now: labels(at(o, "spec.selector", {}))),
    ),
    ("", "ServiceAccount"): Printer(("Secrets|string|0|@core.v1.ServiceAccount.secrets", count("secrets")), AGE),
    ("apiregistration.k8s.io", "APIService"): Printer(
        ("Service|string|0|The reference to the service that hosts this API endpoint.", _api_service_backend),
        ("Available|string|0|Whether this service is available.", _availability),
        AGE,
    ),
    ("coordination.k8s.io", "Lease"): Printer(
        ("Holder|string|0|@coordination.v1.LeaseSpec.holderIdentity", "spec.holderIdentity"), AGE
    ),
    ("discovery.k8s.io", "EndpointSlice"): Printer(
        ("AddressType|string|0|@discovery.v1.EndpointSlice.addressType", "addressType"),
        ("Ports|string|0|@discovery.v1.EndpointSlice.ports", _slice_ports),
        ("Endpoints|string|0|@discovery.v1.EndpointSlice.endpoints", _slice_addresses),
        AGE,
    ),
    ("networking.k8s.io", "Ingress"): Printer(
        (
            "Class|string|0|The name of the IngressClass resource that should be used for additional configuration",
            f"spec.ingressClassName={NONE}",
        ),
        ("Hosts|string|0|Hosts that incoming requests are matched against before the ingress rule", _hosts),
        (
            "Address|string|0|Address is a list containing ingress points for the load-balancer",
            lambda o, now: ",".join(_balanced(o)),
        ),
        ("Ports|string|0|Ports of TLS configurations that open", _tls_ports),
        AGE,
    ),
    ("networking.k8s.io", "IngressClass"): Printer(
        ("Controller|string|0|Controller that is responsible for handling this class", "spec.controller"),
        ("Parameters|string|0|A reference to a resource with additional parameters", _ingress_class_parameters),
        AGE,
    ),
    ("networking.k8s.io", "NetworkPolicy"): Printer(
        ("Pod-Selector|string|0|@networking.v1.NetworkPolicySpec.podSelector", selector_of("spec.podSelector")), AGE
    ),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _role_binding("ClusterRoleBinding", "clusterRoleBinding"),
    ("rbac.authorization.k8s.io", "RoleBinding"): _role_binding("RoleBinding", "roleBinding"),
    ("scheduling.k8s.io", "PriorityClass"): Printer(
        ("Value|integer|0|@scheduling.v1.PriorityClass.value", "value=0"),
        ("Global-Default|boolean|0|@scheduling.v1.PriorityClass.globalDefault", is_set("globalDefault")),
        AGE,
        ("PreemptionPolicy|string|0|@scheduling.v1.PriorityClass.preemptionPolicy", "preemptionPolicy"),
    ),
    ("storage.k8s.io", "StorageClass"): Printer(
        ("Name|string|0|", _storage_class_name),
        ("Provisioner|string|0|@storage.v1.StorageClass.provisioner", "provisioner"),
        ("ReclaimPolicy|string|0|@storage.v1.StorageClass.reclaimPolicy", "reclaimPolicy"),
        ("VolumeBindingMode|string|0|@storage.v1.StorageClass.volumeBindingMode", f"volumeBindingMode={UNSET}"),
        ("AllowVolumeExpansion|string|0|@storage.v1.StorageClass.allowVolumeExpansion", is_set("allowVolumeExpansion")),
        AGE,
        named=False,
    ),
}
CREATED_AT: tuple[Column, ...] = (("Created At|date|0|", lambda obj, now: at(obj, "metadata.creationTimestamp", None)),)
