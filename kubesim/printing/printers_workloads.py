"""The Table columns of pods, workloads, autoscalers and disruption budgets; those of other kinds are in `printers`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from kubesim.apimachinery.resources import JSONDict
from kubesim.printing.cells import (
    AGE,
    NONE,
    TEMPLATE,
    UNSET,
    Printer,
    as_text,
    at,
    count,
    is_true,
    labels,
    parse_time,
    selector_of,
    since,
)
from mcproxy.kube.duration import human_duration


def _terminated_reason(terminated: JSONDict) -> str:
    return str(terminated.get("reason") or f"ExitCode:{terminated.get('exitCode', 0)}")


def _pod_status(pod: JSONDict, now: datetime) -> str:
    reason, running = str(at(pod, "status.reason") or at(pod, "status.phase")), False
    for item in reversed(at(pod, "status.containerStatuses", [])):
        state = item.get("state") or {}
        if (state.get("waiting") or {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif state.get("terminated") is not None:
            reason = _terminated_reason(state["terminated"])
        running = running or _runs(item)
    if reason == "Completed" and running:
        reason = "Running" if is_true(pod, "Ready") else "NotReady"
    ended = at(pod, "status.phase") in ("Succeeded", "Failed")
    return "Terminating" if at(pod, "metadata.deletionTimestamp") and not ended else reason


def _runs(container: JSONDict) -> bool:
    return bool(container.get("ready")) and (container.get("state") or {}).get("running") is not None


def _pod_ready(pod: JSONDict, now: datetime) -> str:
    ready = sum(map(_runs, at(pod, "status.containerStatuses", ())))
    return f"{ready}/{len(at(pod, 'spec.containers', ()))}"


def _pod_restarts(pod: JSONDict, now: datetime) -> str:
    containers = at(pod, "status.containerStatuses", ())
    restarts = sum(item.get("restartCount", 0) for item in containers)
    last = max((at(item, "lastState.terminated.finishedAt") for item in containers), default="")
    return f"{restarts} ({since(last, now)} ago)" if restarts and last else str(restarts)


def _pod_address(pod: JSONDict, now: datetime) -> str:
    return next((item.get("ip") for item in at(pod, "status.podIPs", ())), None) or str(at(pod, "status.podIP", NONE))


def _pod_conditions(pod: JSONDict) -> list[JSONDict]:
    """Return the row conditions, by which older kubectls hid finished pods."""
    texts = {"Succeeded": "The pod has completed successfully.", "Failed": "The pod failed."}
    phase = at(pod, "status.phase")
    if phase not in texts:
        return []
    return [{"type": "Completed", "status": "True", "reason": phase, "message": texts[phase]}]


def _ready_replicas(obj: JSONDict, now: datetime) -> str:
    return f"{at(obj, 'status.readyReplicas', 0)}/{at(obj, 'spec.replicas', 0)}"


def _job_status(job: JSONDict, now: datetime) -> str:
    return next((kind for kind in ("Complete", "Failed") if is_true(job, kind)), "Running")


def _completions(job: JSONDict, now: datetime) -> str:
    completions, parallelism = at(job, "spec.completions", None), at(job, "spec.parallelism", 0)
    wanted = completions if completions is not None else f"1 of {parallelism}" if parallelism > 1 else 1
    return f"{at(job, 'status.succeeded', 0)}/{wanted}"


def _duration(job: JSONDict, now: datetime) -> str:
    start, end = parse_time(at(job, "status.startTime")), parse_time(at(job, "status.completionTime"))
    return human_duration(((end or now) - start).total_seconds()) if start else ""


def _last_schedule(obj: JSONDict, now: datetime) -> str:
    last = at(obj, "status.lastScheduleTime")
    return since(last, now) if last else NONE


def _metrics(scaler: JSONDict, now: datetime) -> str:
    """Format the targets of CPU and memory; in autoscaling/v1 the target of the CPU is a separate field."""
    if "metrics" not in scaler.get("spec", {}):
        wanted = at(scaler, "spec.targetCPUUtilizationPercentage", None)
        current = at(scaler, "status.currentCPUUtilizationPercentage", None)
        return NONE if wanted is None else f"cpu: {'<unknown>' if current is None else f'{current}%'}/{wanted}%"
    found = []
    current_metrics = at(scaler, "status.currentMetrics", [])
    for index, metric in enumerate(scaler["spec"]["metrics"]):
        current = at(current_metrics[index], "resource.current", {}) if index < len(current_metrics) else {}
        value = current.get("averageUtilization")
        shown = "<unknown>" if value is None else f"{value}%"
        found.append(f"{at(metric, 'resource.name')}: {shown}/{at(metric, 'resource.target.averageUtilization')}%")
    return ", ".join(found) or NONE


PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("", "Pod"): Printer(
        ("Ready|string|0|The aggregate readiness state of this pod for accepting traffic.", _pod_ready),
        ("Status|string|0|The aggregate status of the containers in this pod.", _pod_status),
        (
            "Restarts|string|0|The number of times the containers in this pod have been restarted and when the last "
            "container in this pod has restarted.",
            _pod_restarts,
        ),
        AGE,
        ("IP|string|1|@core.v1.PodStatus.podIP", _pod_address),
        ("Node|string|1|@core.v1.PodSpec.nodeName", f"spec.nodeName={NONE}"),
        ("Nominated Node|string|1|@core.v1.PodStatus.nominatedNodeName", f"status.nominatedNodeName={NONE}"),
        ("Readiness Gates|string|1|@core.v1.PodSpec.readinessGates", lambda pod, now: NONE),
        conditions=_pod_conditions,
    ),
    ("apps", "DaemonSet"): Printer(
        ("Desired|integer|0|@apps.v1.DaemonSetStatus.desiredNumberScheduled", "status.desiredNumberScheduled=0"),
        ("Current|integer|0|@apps.v1.DaemonSetStatus.currentNumberScheduled", "status.currentNumberScheduled=0"),
        ("Ready|integer|0|@apps.v1.DaemonSetStatus.numberReady", "status.numberReady=0"),
        ("Up-to-date|integer|0|@apps.v1.DaemonSetStatus.updatedNumberScheduled", "status.updatedNumberScheduled=0"),
        ("Available|integer|0|@apps.v1.DaemonSetStatus.numberAvailable", "status.numberAvailable=0"),
        (
            "Node Selector|string|0|@core.v1.PodSpec.nodeSelector",
            lambda o, now: labels(at(o, "spec.template.spec.nodeSelector", {})),
        ),
        AGE,
        *TEMPLATE,
        ("Selector|string|1|@apps.v1.DaemonSetSpec.selector", selector_of("spec.selector")),
    ),
    ("apps", "Deployment"): Printer(
        ("Ready|string|0|Number of the pod with ready state", _ready_replicas),
        ("Up-to-date|string|0|@apps.v1.DeploymentStatus.updatedReplicas", "status.updatedReplicas=0"),
        ("Available|string|0|@apps.v1.DeploymentStatus.availableReplicas", "status.availableReplicas=0"),
        AGE,
        *TEMPLATE,
        ("Selector|string|1|@apps.v1.DeploymentSpec.selector", selector_of("spec.selector")),
    ),
    ("apps", "ReplicaSet"): Printer(
        ("Desired|integer|0|@apps.v1.ReplicaSetSpec.replicas", "spec.replicas=0"),
        ("Current|integer|0|@apps.v1.ReplicaSetStatus.replicas", "status.replicas=0"),
        ("Ready|integer|0|@apps.v1.ReplicaSetStatus.readyReplicas", "status.readyReplicas=0"),
        AGE,
        *TEMPLATE,
        ("Selector|string|1|@apps.v1.ReplicaSetSpec.selector", selector_of("spec.selector")),
    ),
    ("apps", "StatefulSet"): Printer(
        ("Ready|string|0|Number of the pod with ready state", _ready_replicas), AGE, *TEMPLATE
    ),
    ("autoscaling", "HorizontalPodAutoscaler"): Printer(
        (
            "Reference|string|0|@autoscaling.v2.HorizontalPodAutoscalerSpec.scaleTargetRef",
            lambda o, now: f"{at(o, 'spec.scaleTargetRef.kind')}/{at(o, 'spec.scaleTargetRef.name')}",
        ),
        ("Targets|string|0|@autoscaling.v2.HorizontalPodAutoscalerSpec.metrics", _metrics),
        (
            "MinPods|string|0|@autoscaling.v2.HorizontalPodAutoscalerSpec.minReplicas",
            as_text("spec.minReplicas", UNSET),
        ),
        ("MaxPods|string|0|@autoscaling.v2.HorizontalPodAutoscalerSpec.maxReplicas", "spec.maxReplicas=0"),
        ("Replicas|string|0|@autoscaling.v2.HorizontalPodAutoscalerStatus.currentReplicas", "status.currentReplicas=0"),
        AGE,
    ),
    ("batch", "CronJob"): Printer(
        ("Schedule|string|0|@batch.v1.CronJobSpec.schedule", "spec.schedule"),
        ("Timezone|string|0|@batch.v1.CronJobSpec.timeZone", f"spec.timeZone={NONE}"),
        ("Suspend|boolean|0|@batch.v1.CronJobSpec.suspend", as_text("spec.suspend", UNSET)),
        ("Active|integer|0|@batch.v1.CronJobStatus.active", count("status.active")),
        ("Last Schedule|string|0|@batch.v1.CronJobStatus.lastScheduleTime", _last_schedule),
        AGE,
        *TEMPLATE,
        ("Selector|string|1|@batch.v1.JobSpec.selector", selector_of("spec.jobTemplate.spec.selector")),
    ),
    ("batch", "Job"): Printer(
        ("Status|string|0|Status of the job.", _job_status),
        ("Completions|string|0|@batch.v1.JobStatus.succeeded", _completions),
        ("Duration|string|0|Time required to complete the job.", _duration),
        AGE,
        *TEMPLATE,
        ("Selector|string|1|@batch.v1.JobSpec.selector", selector_of("spec.selector")),
    ),
    ("policy", "PodDisruptionBudget"): Printer(
        (
            "Min Available|string|0|The minimum number of pods that must be available.",
            as_text("spec.minAvailable", "N/A"),
        ),
        (
            "Max Unavailable|string|0|The maximum number of pods that may be unavailable.",
            as_text("spec.maxUnavailable", "N/A"),
        ),
        (
            "Allowed Disruptions|integer|0|Calculated number of pods that may be disrupted at this time.",
            "status.disruptionsAllowed=0",
        ),
        AGE,
    ),
}
