"""Table printers of all kinds but workloads (pkg/printers/internalversion/printers.go)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from mcproxy.demo.printing.formatting import (
    AGE,
    NONE,
    UNKNOWN,
    UNSET,
    Cells,
    JSONDict,
    Printer,
    age,
    condition,
    first_three,
    human_duration,
    is_true,
    labels,
    meta,
    name,
    selector,
    since,
    spec,
    status,
)

ROLE_LABEL = "node-role.kubernetes.io/"
ACCESS = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def node(obj: JSONDict, now: datetime) -> Cells:
    ready = condition(obj, "Ready")
    states = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if spec(obj).get("unschedulable"):
        states.append("SchedulingDisabled")
    own = meta(obj).get("labels") or {}
    roles = {key.removeprefix(ROLE_LABEL) for key in own if key.startswith(ROLE_LABEL)} | {
        own.get("kubernetes.io/role")
    }
    info = status(obj).get("nodeInfo") or {}
    kernel = info.get("kernelVersion") or UNKNOWN
    return [
        name(obj),
        ",".join(states),
        ",".join(sorted(role for role in roles if role)) or NONE,
        age(obj, now),
        info.get("kubeletVersion", ""),
        _address(obj, "InternalIP"),
        _address(obj, "ExternalIP"),
        info.get("osImage") or UNKNOWN,
        f"{kernel} ({info['architecture']})" if info.get("architecture") else kernel,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _address(obj: JSONDict, kind: str) -> str:
    addresses = status(obj).get("addresses") or ()
    return next((item["address"] for item in addresses if item.get("type") == kind), NONE)


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


def event(obj: JSONDict, now: datetime) -> Cells:
    """Return the cells of an event of the core group or events.k8s.io, whose field names differ."""
    first = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp")
    last = obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp")
    first_seen = since(first, now) if first else since(obj.get("eventTime"), now)
    series = obj.get("series") or {}
    if series:
        last_seen = since(series.get("lastObservedTime"), now)
    else:
        last_seen = since(last, now) if last else first_seen
    target = obj.get("involvedObject") or obj.get("regarding") or {}
    kind = str(target.get("kind", "")).lower()
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    component = source.get("component") or obj.get("reportingComponent") or obj.get("reportingController") or ""
    instance = source.get("host") or obj.get("reportingInstance") or ""
    return [
        last_seen,
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{kind}/{target['name']}" if target.get("name") else kind,
        target.get("fieldPath", ""),
        f"{component}, {instance}" if instance else component,
        str(obj.get("message") or obj.get("note") or "").strip(),
        first_seen,
        series.get("count") or obj.get("count") or obj.get("deprecatedCount") or 1,
        name(obj),
    ]


def namespace(obj: JSONDict, now: datetime) -> Cells:
    return [name(obj), status(obj).get("phase", ""), age(obj, now)]


def secret(obj: JSONDict, now: datetime) -> Cells:
    return [name(obj), obj.get("type", ""), len(obj.get("data") or ()), age(obj, now)]


def config_map(obj: JSONDict, now: datetime) -> Cells:
    return [name(obj), len(obj.get("data") or ()) + len(obj.get("binaryData") or ()), age(obj, now)]


def service_account(obj: JSONDict, now: datetime) -> Cells:
    return [name(obj), len(obj.get("secrets") or ()), age(obj, now)]


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


def _modes(modes: list[str] | None) -> str:
    return ",".join(ACCESS[mode] for mode in ACCESS if mode in (modes or ()))


def volume(obj: JSONDict, now: datetime) -> Cells:
    claim = spec(obj).get("claimRef") or {}
    phase = "Terminating" if meta(obj).get("deletionTimestamp") else status(obj).get("phase", "")
    return [
        name(obj),
        (spec(obj).get("capacity") or {}).get("storage", ""),
        _modes(spec(obj).get("accessModes")),
        spec(obj).get("persistentVolumeReclaimPolicy", ""),
        phase,
        f"{claim.get('namespace')}/{claim['name']}" if claim.get("name") else "",
        spec(obj).get("storageClassName", ""),
        spec(obj).get("volumeAttributesClassName") or UNSET,
        status(obj).get("reason", ""),
        age(obj, now),
        spec(obj).get("volumeMode") or UNSET,
    ]


def claim(obj: JSONDict, now: datetime) -> Cells:
    phase = "Terminating" if meta(obj).get("deletionTimestamp") else status(obj).get("phase", "")
    bound = bool(spec(obj).get("volumeName"))
    return [
        name(obj),
        phase,
        spec(obj).get("volumeName", ""),
        (status(obj).get("capacity") or {}).get("storage", "") if bound else "",
        _modes(status(obj).get("accessModes")) if bound else "",
        spec(obj).get("storageClassName", ""),
        spec(obj).get("volumeAttributesClassName") or UNSET,
        age(obj, now),
        spec(obj).get("volumeMode") or UNSET,
    ]


def storage_class(obj: JSONDict, now: datetime) -> Cells:
    default = (meta(obj).get("annotations") or {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    return [
        name(obj) + (" (default)" if default else ""),
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy") or "Delete",
        obj.get("volumeBindingMode") or UNSET,
        bool(obj.get("allowVolumeExpansion")),
        age(obj, now),
    ]


def binding(obj: JSONDict, now: datetime) -> Cells:
    role = obj.get("roleRef") or {}
    subjects = obj.get("subjects") or []

    def of(kind: str) -> str:
        return ", ".join(item.get("name", "") for item in subjects if item.get("kind") == kind)

    accounts = [f"{item.get('namespace')}/{item['name']}" for item in subjects if item.get("kind") == "ServiceAccount"]
    return [
        name(obj),
        f"{role.get('kind', '')}/{role.get('name', '')}",
        age(obj, now),
        of("User"),
        of("Group"),
        ", ".join(accounts),
    ]


def lease(obj: JSONDict, now: datetime) -> Cells:
    return [name(obj), spec(obj).get("holderIdentity") or "", age(obj, now)]


def signing_request(obj: JSONDict, now: datetime) -> Cells:
    seconds = spec(obj).get("expirationSeconds")
    found = [kind for kind in ("Approved", "Denied", "Failed") if condition(obj, kind)]
    words = found or ["Pending"]
    if status(obj).get("certificate"):
        words.append("Issued")
    return [
        name(obj),
        age(obj, now),
        spec(obj).get("signerName") or NONE,
        spec(obj).get("username", ""),
        NONE if seconds is None else human_duration(seconds),
        ",".join(words),
    ]


def network_policy(obj: JSONDict, now: datetime) -> Cells:
    return [name(obj), selector(spec(obj).get("podSelector")), age(obj, now)]


def priority_class(obj: JSONDict, now: datetime) -> Cells:
    return [
        name(obj),
        obj.get("value", 0),
        bool(obj.get("globalDefault")),
        age(obj, now),
        obj.get("preemptionPolicy") or "PreemptLowerPriority",
    ]


def quota(obj: JSONDict, now: datetime) -> Cells:
    hard, used = status(obj).get("hard") or {}, status(obj).get("used") or {}
    texts = {key: f"{key}: {used.get(key, '0')}/{hard[key]}" for key in sorted(hard)}
    limits = [text for key, text in texts.items() if key.startswith("limits.")]
    requests = [text for key, text in texts.items() if not key.startswith("limits.")]
    return [name(obj), ", ".join(requests), ", ".join(limits), age(obj, now)]


def api_service(obj: JSONDict, now: datetime) -> Cells:
    backend = spec(obj).get("service")
    where = f"{backend.get('namespace')}/{backend.get('name')}" if backend else "Local"
    available = condition(obj, "Available")
    text = "Unknown" if available is None else available.get("status", "")
    if available is not None and not is_true(obj, "Available") and available.get("reason"):
        text = f"{text} ({available['reason']})"
    return [name(obj), where, text, age(obj, now)]


def webhooks(obj: JSONDict, now: datetime) -> Cells:
    return [name(obj), len(obj.get("webhooks") or ()), age(obj, now)]


def runtime_class(obj: JSONDict, now: datetime) -> Cells:
    return [name(obj), obj.get("handler", ""), age(obj, now)]


def csi_node(obj: JSONDict, now: datetime) -> Cells:
    return [name(obj), len(spec(obj).get("drivers") or ()), age(obj, now)]


def volume_attachment(obj: JSONDict, now: datetime) -> Cells:
    source = spec(obj).get("source") or {}
    return [
        name(obj),
        spec(obj).get("attacher", ""),
        source.get("persistentVolumeName", ""),
        spec(obj).get("nodeName", ""),
        bool(status(obj).get("attached")),
        age(obj, now),
    ]


def flow_schema(obj: JSONDict, now: datetime) -> Cells:
    level = (spec(obj).get("priorityLevelConfiguration") or {}).get("name") or NONE
    method = (spec(obj).get("distinguisherMethod") or {}).get("type") or NONE
    dangling = condition(obj, "Dangling")
    return [
        name(obj),
        level,
        spec(obj).get("matchingPrecedence", 0),
        method,
        age(obj, now),
        "?" if dangling is None else dangling.get("status", "?"),
    ]


def priority_level(obj: JSONDict, now: datetime) -> Cells:
    limited = spec(obj).get("limited") or {}
    response = limited.get("limitResponse") or {}
    queuing = response.get("queuing") or {}
    return [
        name(obj),
        spec(obj).get("type", ""),
        limited.get("nominalConcurrencyShares", NONE),
        *(queuing.get(key, NONE) for key in ("queues", "handSize", "queueLengthLimit")),
        age(obj, now),
    ]


def _simple(cells: Callable[[JSONDict, datetime], Cells], *columns: str) -> Printer:
    return Printer((*columns, AGE), cells)


SIGNER = """\
Requested signer for the request. It is a qualified name in the form: `scope-hostname.io/name`. \
If empty, it will be defaulted:
 1. If it's a kubelet client certificate, it is assigned
    "kubernetes.io/kube-apiserver-client-kubelet".
 2. If it's a kubelet serving certificate, it is assigned
    "kubernetes.io/kubelet-serving".
 3. Otherwise, it is assigned "kubernetes.io/legacy-unknown".
Distribution of trust for signers happens out of band. You can select on this field using `spec.signerName`."""

_BINDING = (
    AGE,
    "Users|string|1|Users in the {kind}",
    "Groups|string|1|Groups in the {kind}",
    "ServiceAccounts|string|1|ServiceAccounts in the {kind}",
)


def _role_binding(definition: str, kind: str) -> Printer:
    columns = tuple(text.format(kind=kind) for text in _BINDING)
    return Printer((f"Role|string|0|@rbac.v1.{definition}.roleRef", *columns), binding)


PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("", "Node"): Printer(
        (
            "Status|string|0|The status of the node",
            "Roles|string|0|The roles of the node",
            AGE,
            "Version|string|0|@core.v1.NodeSystemInfo.kubeletVersion",
            "Internal-IP|string|1|@core.v1.NodeStatus.addresses",
            "External-IP|string|1|@core.v1.NodeStatus.addresses",
            "OS-Image|string|1|@core.v1.NodeSystemInfo.osImage",
            "Kernel-Version|string|1|@core.v1.NodeSystemInfo.kernelVersion",
            "Container-Runtime|string|1|@core.v1.NodeSystemInfo.containerRuntimeVersion",
        ),
        node,
    ),
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
    ("", "Endpoints"): _simple(endpoints, "Endpoints|string|0|@core.v1.Endpoints.subsets"),
    ("discovery.k8s.io", "EndpointSlice"): _simple(
        endpoint_slice,
        "AddressType|string|0|@discovery.v1.EndpointSlice.addressType",
        "Ports|string|0|@discovery.v1.EndpointSlice.ports",
        "Endpoints|string|0|@discovery.v1.EndpointSlice.endpoints",
    ),
    **{
        (group, "Event"): Printer(
            (
                "Last Seen|string|0|@core.v1.Event.lastTimestamp",
                "Type|string|0|@core.v1.Event.type",
                "Reason|string|0|@core.v1.Event.reason",
                "Object|string|0|@core.v1.Event.involvedObject",
                "Subobject|string|1|@core.v1.ObjectReference.fieldPath",
                "Source|string|1|@core.v1.Event.source",
                "Message|string|0|@core.v1.Event.message",
                "First Seen|string|1|@core.v1.Event.firstTimestamp",
                "Count|string|1|@core.v1.Event.count",
                "Name|string|1|",
            ),
            event,
            named=False,
        )
        for group in ("", "events.k8s.io")
    },
    ("", "Namespace"): _simple(namespace, "Status|string|0|The status of the namespace"),
    ("", "Secret"): _simple(secret, "Type|string|0|@core.v1.Secret.type", "Data|string|0|@core.v1.Secret.data"),
    ("", "ConfigMap"): _simple(config_map, "Data|string|0|@core.v1.ConfigMap.data"),
    ("", "ServiceAccount"): _simple(service_account, "Secrets|string|0|@core.v1.ServiceAccount.secrets"),
    ("networking.k8s.io", "Ingress"): _simple(
        ingress,
        "Class|string|0|The name of the IngressClass resource that should be used for additional configuration",
        "Hosts|string|0|Hosts that incoming requests are matched against before the ingress rule",
        "Address|string|0|Address is a list containing ingress points for the load-balancer",
        "Ports|string|0|Ports of TLS configurations that open",
    ),
    ("networking.k8s.io", "IngressClass"): _simple(
        ingress_class,
        "Controller|string|0|Controller that is responsible for handling this class",
        "Parameters|string|0|A reference to a resource with additional parameters",
    ),
    ("", "PersistentVolume"): Printer(
        (
            "Capacity|string|0|@core.v1.PersistentVolumeSpec.capacity",
            "Access Modes|string|0|@core.v1.PersistentVolumeSpec.accessModes",
            "Reclaim Policy|string|0|@core.v1.PersistentVolumeSpec.persistentVolumeReclaimPolicy",
            "Status|string|0|@core.v1.PersistentVolume.status",
            "Claim|string|0|@core.v1.PersistentVolumeSpec.claimRef",
            "StorageClass|string|0|StorageClass of the pv",
            "VolumeAttributesClass|string|0|VolumeAttributesClass of the pv",
            "Reason|string|0|@core.v1.PersistentVolumeStatus.reason",
            AGE,
            "VolumeMode|string|1|@core.v1.PersistentVolumeSpec.volumeMode",
        ),
        volume,
    ),
    ("", "PersistentVolumeClaim"): Printer(
        (
            "Status|string|0|@core.v1.PersistentVolumeClaim.status",
            "Volume|string|0|@core.v1.PersistentVolumeClaimSpec.volumeName",
            "Capacity|string|0|@core.v1.PersistentVolumeClaimStatus.capacity",
            "Access Modes|string|0|@core.v1.PersistentVolumeClaimStatus.accessModes",
            "StorageClass|string|0|StorageClass of the pvc",
            "VolumeAttributesClass|string|0|VolumeAttributesClass of the pvc",
            AGE,
            "VolumeMode|string|1|@core.v1.PersistentVolumeClaimSpec.volumeMode",
        ),
        claim,
    ),
    ("storage.k8s.io", "StorageClass"): _simple(
        storage_class,
        "Provisioner|string|0|@storage.v1.StorageClass.provisioner",
        "ReclaimPolicy|string|0|@storage.v1.StorageClass.reclaimPolicy",
        "VolumeBindingMode|string|0|@storage.v1.StorageClass.volumeBindingMode",
        "AllowVolumeExpansion|string|0|@storage.v1.StorageClass.allowVolumeExpansion",
    ),
    ("rbac.authorization.k8s.io", "RoleBinding"): _role_binding("RoleBinding", "roleBinding"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _role_binding("ClusterRoleBinding", "clusterRoleBinding"),
    ("coordination.k8s.io", "Lease"): _simple(lease, "Holder|string|0|@coordination.v1.LeaseSpec.holderIdentity"),
    ("certificates.k8s.io", "CertificateSigningRequest"): Printer(
        (
            AGE,
            f"SignerName|string|0|{SIGNER}",
            "Requestor|string|0|Base64-encoded PKCS#10 CSR data",
            "RequestedDuration|string|0|@certificates.v1.CertificateSigningRequestSpec.expirationSeconds",
            "Condition|string|0|Conditions applied to the request, such as approval or denial.",
        ),
        signing_request,
    ),
    ("networking.k8s.io", "NetworkPolicy"): _simple(
        network_policy, "Pod-Selector|string|0|@networking.v1.NetworkPolicySpec.podSelector"
    ),
    ("scheduling.k8s.io", "PriorityClass"): Printer(
        (
            "Value|integer|0|@scheduling.v1.PriorityClass.value",
            "Global-Default|boolean|0|@scheduling.v1.PriorityClass.globalDefault",
            AGE,
            "PreemptionPolicy|string|0|@scheduling.v1.PriorityClass.preemptionPolicy",
        ),
        priority_class,
    ),
    ("", "ResourceQuota"): _simple(
        quota,
        "Request|string|0|Request represents a minimum amount of cpu/memory that a container may consume.",
        "Limit|string|0|Limits control the maximum amount of cpu/memory that a container may use independent of "
        "contention on the node.",
    ),
    ("apiregistration.k8s.io", "APIService"): _simple(
        api_service,
        "Service|string|0|The reference to the service that hosts this API endpoint.",
        "Available|string|0|Whether this service is available.",
    ),
    **{
        ("admissionregistration.k8s.io", f"{kind}WebhookConfiguration"): _simple(
            webhooks, "Webhooks|integer|0|Webhooks indicates the number of webhooks registered in this configuration"
        )
        for kind in ("Mutating", "Validating")
    },
    ("node.k8s.io", "RuntimeClass"): _simple(runtime_class, "Handler|string|0|@node.v1.RuntimeClass.handler"),
    ("storage.k8s.io", "CSINode"): _simple(
        csi_node, "Drivers|integer|0|Drivers indicates the number of CSI drivers registered on the node"
    ),
    ("storage.k8s.io", "VolumeAttachment"): _simple(
        volume_attachment,
        "Attacher|string|0|@storage.v1.VolumeAttachmentSpec.attacher",
        "PV|string|0|@storage.v1.VolumeAttachmentSource.persistentVolumeName",
        "Node|string|0|@storage.v1.VolumeAttachmentSpec.nodeName",
        "Attached|boolean|0|@storage.v1.VolumeAttachmentStatus.attached",
    ),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"): Printer(
        (
            "PriorityLevel|string|0|@flowcontrol.v1.PriorityLevelConfigurationReference.name",
            "MatchingPrecedence|string|0|@flowcontrol.v1.FlowSchemaSpec.matchingPrecedence",
            "DistinguisherMethod|string|0|@flowcontrol.v1.FlowSchemaSpec.distinguisherMethod",
            AGE,
            "MissingPL|string|0|references a broken or non-existent PriorityLevelConfiguration",
        ),
        flow_schema,
    ),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"): _simple(
        priority_level,
        "Type|string|0|@flowcontrol.v1.PriorityLevelConfigurationSpec.type",
        "NominalConcurrencyShares|string|0|@flowcontrol.v1.LimitedPriorityLevelConfiguration.nominalConcurrencyShares",
        "Queues|string|0|@flowcontrol.v1.QueuingConfiguration.queues",
        "HandSize|string|0|@flowcontrol.v1.QueuingConfiguration.handSize",
        "QueueLengthLimit|string|0|@flowcontrol.v1.QueuingConfiguration.queueLengthLimit",
    ),
}
