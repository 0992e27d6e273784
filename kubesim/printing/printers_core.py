"""Table printers of nodes, namespaces, configuration and events (pkg/printers/internalversion/printers.go)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from kubesim.printing.formatting import (
    AGE,
    NONE,
    UNKNOWN,
    Cells,
    JSONDict,
    Printer,
    age,
    condition,
    meta,
    name,
    simple,
    since,
    spec,
    status,
)

ROLE_LABEL = "node-role.kubernetes.io/"


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


def quota(obj: JSONDict, now: datetime) -> Cells:
    hard, used = status(obj).get("hard") or {}, status(obj).get("used") or {}
    texts = {key: f"{key}: {used.get(key, '0')}/{hard[key]}" for key in sorted(hard)}
    limits = [text for key, text in texts.items() if key.startswith("limits.")]
    requests = [text for key, text in texts.items() if not key.startswith("limits.")]
    return [name(obj), ", ".join(requests), ", ".join(limits), age(obj, now)]


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
    ("", "Namespace"): simple(namespace, "Status|string|0|The status of the namespace"),
    ("", "Secret"): simple(secret, "Type|string|0|@core.v1.Secret.type", "Data|string|0|@core.v1.Secret.data"),
    ("", "ConfigMap"): simple(config_map, "Data|string|0|@core.v1.ConfigMap.data"),
    ("", "ServiceAccount"): simple(service_account, "Secrets|string|0|@core.v1.ServiceAccount.secrets"),
    ("", "ResourceQuota"): simple(
        quota,
        "Request|string|0|Request represents a minimum amount of cpu/memory that a container may consume.",
        "Limit|string|0|Limits control the maximum amount of cpu/memory that a container may use independent of "
        "contention on the node.",
    ),
}
