"""Table printers of pods and workloads (pkg/printers/internalversion/printers.go)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from kubesim.printing.formatting import (
    AGE,
    NONE,
    TEMPLATE_CONTAINERS,
    TEMPLATE_IMAGES,
    UNSET,
    Cells,
    JSONDict,
    Printer,
    age,
    condition,
    is_true,
    labels,
    meta,
    name,
    parse_time,
    selector,
    since,
    spec,
    status,
    template_cells,
)
from mcproxy.kube.duration import human_duration


def _restart_policy_always(container: JSONDict) -> bool:
    return container.get("restartPolicy") == "Always"


def _terminated_reason(terminated: JSONDict) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    signal = terminated.get("signal")
    return f"Signal:{signal}" if signal else f"ExitCode:{terminated.get('exitCode', 0)}"


def _pod_reason(pod: JSONDict) -> str:
    scheduled = condition(pod, "PodScheduled") or {}
    if scheduled.get("reason") == "SchedulingGated":
        return "SchedulingGated"
    return str(status(pod).get("reason") or status(pod).get("phase", ""))


def _init_reason(pod: JSONDict) -> tuple[str | None, int]:
    """Return the Init:… status while init containers run (None when they are done), and how many sidecars are ready."""
    containers = spec(pod).get("initContainers") or []
    sidecars = {item.get("name") for item in containers if _restart_policy_always(item)}
    ready = 0
    for at, item in enumerate(status(pod).get("initContainerStatuses") or ()):
        state = item.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if terminated is not None and not terminated.get("exitCode"):
            continue
        if item.get("name") in sidecars and item.get("started"):
            ready += bool(item.get("ready"))
            continue
        if terminated is not None:
            return f"Init:{_terminated_reason(terminated)}", ready
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}", ready
        return f"Init:{at}/{len(containers)}", ready
    return None, ready


def _last_restart(items: list[JSONDict]) -> str | None:
    times = [((item.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for item in items]
    return max((text for text in times if text), default=None)


def _container_states(pod: JSONDict, reason: str) -> tuple[str, int]:
    """Return the pod's status by its containers' states, and the number of ready ones."""
    ready, running = 0, False
    for item in reversed(status(pod).get("containerStatuses") or []):
        state = item.get("state") or {}
        if (state.get("waiting") or {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif state.get("terminated") is not None:
            reason = _terminated_reason(state["terminated"])
        elif item.get("ready") and state.get("running") is not None:
            running = True
            ready += 1
    if reason == "Completed" and running:
        reason = "Running" if is_true(pod, "Ready") else "NotReady"
    return reason, ready


def pod(obj: JSONDict, now: datetime) -> Cells:
    state = status(obj)
    inits = spec(obj).get("initContainers") or []
    sidecars = {item.get("name") for item in inits if _restart_policy_always(item)}
    total = len(spec(obj).get("containers") or ()) + len(sidecars)
    init_statuses = state.get("initContainerStatuses") or []
    reason = _pod_reason(obj)
    initializing, ready = _init_reason(obj)
    if initializing is not None:
        reason = initializing
    counted = init_statuses
    if initializing is None or is_true(obj, "Initialized"):
        reason, running = _container_states(obj, reason)
        ready += running
        counted = [item for item in init_statuses if item.get("name") in sidecars]
        counted += state.get("containerStatuses") or []
    restarts = sum(item.get("restartCount", 0) for item in counted)
    last = _last_restart(counted)
    if meta(obj).get("deletionTimestamp"):
        if state.get("reason") == "NodeLost":
            reason = "Unknown"
        elif state.get("phase") not in ("Succeeded", "Failed"):
            reason = "Terminating"
    address = next((item.get("ip") for item in state.get("podIPs") or ()), None) or state.get("podIP") or NONE
    return [
        name(obj),
        f"{ready}/{total}",
        reason,
        f"{restarts} ({since(last, now)} ago)" if restarts and last else str(restarts),
        age(obj, now),
        address,
        spec(obj).get("nodeName") or NONE,
        state.get("nominatedNodeName") or NONE,
        _gates(obj),
    ]


def _gates(obj: JSONDict) -> str:
    gates = spec(obj).get("readinessGates") or []
    if not gates:
        return NONE
    return f"{sum(is_true(obj, item['conditionType']) for item in gates)}/{len(gates)}"


def pod_conditions(obj: JSONDict) -> list[JSONDict]:
    """Return the row conditions, by which older kubectls hid finished pods."""
    texts = {"Succeeded": "The pod has completed successfully.", "Failed": "The pod failed."}
    phase = status(obj).get("phase", "")
    if phase not in texts:
        return []
    return [{"type": "Completed", "status": "True", "reason": phase, "message": texts[phase]}]


def deployment(obj: JSONDict, now: datetime) -> Cells:
    state = status(obj)
    return [
        name(obj),
        f"{state.get('readyReplicas', 0)}/{spec(obj).get('replicas', 0)}",
        state.get("updatedReplicas", 0),
        state.get("availableReplicas", 0),
        age(obj, now),
        *template_cells(obj),
        selector(spec(obj).get("selector")),
    ]


def replica_set(obj: JSONDict, now: datetime) -> Cells:
    state, chosen = status(obj), spec(obj).get("selector") or {}
    by_labels = "matchLabels" in chosen or "matchExpressions" in chosen
    return [
        name(obj),
        spec(obj).get("replicas", 0),
        state.get("replicas", 0),
        state.get("readyReplicas", 0),
        age(obj, now),
        *template_cells(obj),
        selector(chosen) if by_labels else labels(chosen),
    ]


def stateful_set(obj: JSONDict, now: datetime) -> Cells:
    return [
        name(obj),
        f"{status(obj).get('readyReplicas', 0)}/{spec(obj).get('replicas', 0)}",
        age(obj, now),
        *template_cells(obj),
    ]


def daemon_set(obj: JSONDict, now: datetime) -> Cells:
    state = status(obj)
    return [
        name(obj),
        state.get("desiredNumberScheduled", 0),
        state.get("currentNumberScheduled", 0),
        state.get("numberReady", 0),
        state.get("updatedNumberScheduled", 0),
        state.get("numberAvailable", 0),
        labels(spec(spec(obj).get("template") or {}).get("nodeSelector")),
        age(obj, now),
        *template_cells(obj),
        selector(spec(obj).get("selector")),
    ]


def _job_status(obj: JSONDict) -> str:
    for kind in ("Complete", "Failed"):
        if is_true(obj, kind):
            return kind
    if meta(obj).get("deletionTimestamp"):
        return "Terminating"
    return next(
        (kind for kind in ("Suspended", "FailureTarget", "SuccessCriteriaMet") if is_true(obj, kind)), "Running"
    )


def job(obj: JSONDict, now: datetime) -> Cells:
    state = status(obj)
    succeeded = state.get("succeeded", 0)
    completions, parallelism = spec(obj).get("completions"), spec(obj).get("parallelism", 0)
    if completions is not None:
        done = f"{succeeded}/{completions}"
    else:
        done = f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"
    start, end = parse_time(state.get("startTime")), parse_time(state.get("completionTime"))
    took = human_duration(((end or now) - start).total_seconds()) if start else ""
    return [
        name(obj),
        _job_status(obj),
        done,
        took,
        age(obj, now),
        *template_cells(obj),
        selector(spec(obj).get("selector")),
    ]


def cron_job(obj: JSONDict, now: datetime) -> Cells:
    last = status(obj).get("lastScheduleTime")
    suspend = spec(obj).get("suspend")
    inner = spec(spec(obj).get("jobTemplate") or {})
    return [
        name(obj),
        spec(obj).get("schedule", ""),
        spec(obj).get("timeZone") or NONE,
        UNSET if suspend is None else str(bool(suspend)),
        len(status(obj).get("active") or ()),
        since(last, now) if last else NONE,
        age(obj, now),
        *template_cells({"spec": inner}),
        selector(inner.get("selector")),
    ]


def autoscaler(obj: JSONDict, now: datetime) -> Cells:
    target = spec(obj).get("scaleTargetRef") or {}
    least = spec(obj).get("minReplicas")
    return [
        name(obj),
        f"{target.get('kind', '')}/{target.get('name', '')}",
        _metrics(obj),
        UNSET if least is None else str(least),
        spec(obj).get("maxReplicas", 0),
        status(obj).get("currentReplicas", 0),
        age(obj, now),
    ]


def _metrics(obj: JSONDict) -> str:
    """Format the targets of resource metrics; autoscaling/v1 has only that of the CPU."""
    if "metrics" not in spec(obj):
        wanted = spec(obj).get("targetCPUUtilizationPercentage")
        current = status(obj).get("currentCPUUtilizationPercentage")
        return NONE if wanted is None else f"cpu: {'<unknown>' if current is None else f'{current}%'}/{wanted}%"
    found: list[str] = []
    now_values = status(obj).get("currentMetrics") or []
    for at, metric in enumerate(spec(obj)["metrics"]):
        kind = str(metric.get("type", ""))
        details = metric.get(kind[:1].lower() + kind[1:]) or {}
        target = details.get("target") or {}
        current = (
            (now_values[at].get(kind[:1].lower() + kind[1:]) or {}).get("current", {}) if at < len(now_values) else {}
        )
        label = f"{details['name']}: " if kind in ("Resource", "ContainerResource") else ""
        if target.get("averageUtilization") is not None:
            value = current.get("averageUtilization")
            found.append(f"{label}{'<unknown>' if value is None else f'{value}%'}/{target['averageUtilization']}%")
        elif target.get("averageValue") is not None:
            average = "" if label else " (avg)"
            found.append(f"{label}{current.get('averageValue', '<unknown>')}/{target['averageValue']}{average}")
        else:
            found.append(f"{label}{current.get('value', '<unknown>')}/{target.get('value', '')}")
    if len(found) > 2:
        return f"{', '.join(found[:2])} + {len(found) - 2} more..."
    return ", ".join(found) or NONE


def budget(obj: JSONDict, now: datetime) -> Cells:
    least, most = spec(obj).get("minAvailable"), spec(obj).get("maxUnavailable")
    return [
        name(obj),
        "N/A" if least is None else str(least),
        "N/A" if most is None else str(most),
        status(obj).get("disruptionsAllowed", 0),
        age(obj, now),
    ]


def controller_revision(obj: JSONDict, now: datetime) -> Cells:
    owner = next((item for item in meta(obj).get("ownerReferences") or () if item.get("controller")), None)
    group = owner["apiVersion"].rpartition("/")[0] if owner else ""
    controller = NONE if owner is None else f"{owner['kind'].lower()}{'.' + group if group else ''}/{owner['name']}"
    return [name(obj), controller, obj.get("revision", 0), age(obj, now)]


PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("", "Pod"): Printer(
        (
            "Ready|string|0|The aggregate readiness state of this pod for accepting traffic.",
            "Status|string|0|The aggregate status of the containers in this pod.",
            "Restarts|string|0|The number of times the containers in this pod have been restarted and when the last "
            "container in this pod has restarted.",
            AGE,
            "IP|string|1|@core.v1.PodStatus.podIP",
            "Node|string|1|@core.v1.PodSpec.nodeName",
            "Nominated Node|string|1|@core.v1.PodStatus.nominatedNodeName",
            "Readiness Gates|string|1|@core.v1.PodSpec.readinessGates",
        ),
        pod,
        conditions=pod_conditions,
    ),
    ("apps", "Deployment"): Printer(
        (
            "Ready|string|0|Number of the pod with ready state",
            "Up-to-date|string|0|@apps.v1.DeploymentStatus.updatedReplicas",
            "Available|string|0|@apps.v1.DeploymentStatus.availableReplicas",
            AGE,
            TEMPLATE_CONTAINERS,
            TEMPLATE_IMAGES,
            "Selector|string|1|@apps.v1.DeploymentSpec.selector",
        ),
        deployment,
    ),
    ("apps", "ReplicaSet"): Printer(
        (
            "Desired|integer|0|@apps.v1.ReplicaSetSpec.replicas",
            "Current|integer|0|@apps.v1.ReplicaSetStatus.replicas",
            "Ready|integer|0|@apps.v1.ReplicaSetStatus.readyReplicas",
            AGE,
            TEMPLATE_CONTAINERS,
            TEMPLATE_IMAGES,
            "Selector|string|1|@apps.v1.ReplicaSetSpec.selector",
        ),
        replica_set,
    ),
    ("", "ReplicationController"): Printer(
        (
            "Desired|integer|0|@core.v1.ReplicationControllerSpec.replicas",
            "Current|integer|0|@core.v1.ReplicationControllerStatus.replicas",
            "Ready|integer|0|@core.v1.ReplicationControllerStatus.readyReplicas",
            AGE,
            TEMPLATE_CONTAINERS,
            TEMPLATE_IMAGES,
            "Selector|string|1|@core.v1.ReplicationControllerSpec.selector",
        ),
        replica_set,
    ),
    ("apps", "StatefulSet"): Printer(
        ("Ready|string|0|Number of the pod with ready state", AGE, TEMPLATE_CONTAINERS, TEMPLATE_IMAGES), stateful_set
    ),
    ("apps", "DaemonSet"): Printer(
        (
            "Desired|integer|0|@apps.v1.DaemonSetStatus.desiredNumberScheduled",
            "Current|integer|0|@apps.v1.DaemonSetStatus.currentNumberScheduled",
            "Ready|integer|0|@apps.v1.DaemonSetStatus.numberReady",
            "Up-to-date|integer|0|@apps.v1.DaemonSetStatus.updatedNumberScheduled",
            "Available|integer|0|@apps.v1.DaemonSetStatus.numberAvailable",
            "Node Selector|string|0|@core.v1.PodSpec.nodeSelector",
            AGE,
            TEMPLATE_CONTAINERS,
            TEMPLATE_IMAGES,
            "Selector|string|1|@apps.v1.DaemonSetSpec.selector",
        ),
        daemon_set,
    ),
    ("batch", "Job"): Printer(
        (
            "Status|string|0|Status of the job.",
            "Completions|string|0|@batch.v1.JobStatus.succeeded",
            "Duration|string|0|Time required to complete the job.",
            AGE,
            TEMPLATE_CONTAINERS,
            TEMPLATE_IMAGES,
            "Selector|string|1|@batch.v1.JobSpec.selector",
        ),
        job,
    ),
    ("batch", "CronJob"): Printer(
        (
            "Schedule|string|0|@batch.v1.CronJobSpec.schedule",
            "Timezone|string|0|@batch.v1.CronJobSpec.timeZone",
            "Suspend|boolean|0|@batch.v1.CronJobSpec.suspend",
            "Active|integer|0|@batch.v1.CronJobStatus.active",
            "Last Schedule|string|0|@batch.v1.CronJobStatus.lastScheduleTime",
            AGE,
            TEMPLATE_CONTAINERS,
            TEMPLATE_IMAGES,
            "Selector|string|1|@batch.v1.JobSpec.selector",
        ),
        cron_job,
    ),
    ("autoscaling", "HorizontalPodAutoscaler"): Printer(
        (
            "Reference|string|0|@autoscaling.v2.HorizontalPodAutoscalerSpec.scaleTargetRef",
            "Targets|string|0|@autoscaling.v2.HorizontalPodAutoscalerSpec.metrics",
            "MinPods|string|0|@autoscaling.v2.HorizontalPodAutoscalerSpec.minReplicas",
            "MaxPods|string|0|@autoscaling.v2.HorizontalPodAutoscalerSpec.maxReplicas",
            "Replicas|string|0|@autoscaling.v2.HorizontalPodAutoscalerStatus.currentReplicas",
            AGE,
        ),
        autoscaler,
    ),
    ("policy", "PodDisruptionBudget"): Printer(
        (
            "Min Available|string|0|The minimum number of pods that must be available.",
            "Max Unavailable|string|0|The maximum number of pods that may be unavailable.",
            "Allowed Disruptions|integer|0|Calculated number of pods that may be disrupted at this time.",
            AGE,
        ),
        budget,
    ),
    ("apps", "ControllerRevision"): Printer(
        (
            "Controller|string|0|Controller of the object",
            "Revision|string|0|@apps.v1.ControllerRevision.revision",
            AGE,
        ),
        controller_revision,
    ),
}
