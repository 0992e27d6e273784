"""Table printers of RBAC, certificates, priorities, webhooks and flow control (internalversion/printers.go)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from kubesim.printing.formatting import (
    AGE,
    NONE,
    Cells,
    JSONDict,
    Printer,
    age,
    condition,
    is_true,
    name,
    simple,
    spec,
    status,
)
from mcproxy.kube.duration import human_duration

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


def priority_class(obj: JSONDict, now: datetime) -> Cells:
    return [
        name(obj),
        obj.get("value", 0),
        bool(obj.get("globalDefault")),
        age(obj, now),
        obj.get("preemptionPolicy") or "PreemptLowerPriority",
    ]


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


def _role_binding(definition: str, kind: str) -> Printer:
    columns = tuple(text.format(kind=kind) for text in _BINDING)
    return Printer((f"Role|string|0|@rbac.v1.{definition}.roleRef", *columns), binding)


PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("rbac.authorization.k8s.io", "RoleBinding"): _role_binding("RoleBinding", "roleBinding"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _role_binding("ClusterRoleBinding", "clusterRoleBinding"),
    ("coordination.k8s.io", "Lease"): simple(lease, "Holder|string|0|@coordination.v1.LeaseSpec.holderIdentity"),
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
    ("scheduling.k8s.io", "PriorityClass"): Printer(
        (
            "Value|integer|0|@scheduling.v1.PriorityClass.value",
            "Global-Default|boolean|0|@scheduling.v1.PriorityClass.globalDefault",
            AGE,
            "PreemptionPolicy|string|0|@scheduling.v1.PriorityClass.preemptionPolicy",
        ),
        priority_class,
    ),
    ("apiregistration.k8s.io", "APIService"): simple(
        api_service,
        "Service|string|0|The reference to the service that hosts this API endpoint.",
        "Available|string|0|Whether this service is available.",
    ),
    **{
        ("admissionregistration.k8s.io", f"{kind}WebhookConfiguration"): simple(
            webhooks, "Webhooks|integer|0|Webhooks indicates the number of webhooks registered in this configuration"
        )
        for kind in ("Mutating", "Validating")
    },
    ("node.k8s.io", "RuntimeClass"): simple(runtime_class, "Handler|string|0|@node.v1.RuntimeClass.handler"),
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
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"): simple(
        priority_level,
        "Type|string|0|@flowcontrol.v1.PriorityLevelConfigurationSpec.type",
        "NominalConcurrencyShares|string|0|@flowcontrol.v1.LimitedPriorityLevelConfiguration.nominalConcurrencyShares",
        "Queues|string|0|@flowcontrol.v1.QueuingConfiguration.queues",
        "HandSize|string|0|@flowcontrol.v1.QueuingConfiguration.handSize",
        "QueueLengthLimit|string|0|@flowcontrol.v1.QueuingConfiguration.queueLengthLimit",
    ),
}
