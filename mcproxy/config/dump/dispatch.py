"""Dispatch policies and flow controls in the form of the file; see `config.dump`."""

from __future__ import annotations

from typing import Any

from mcproxy.config.dump.rules import rule
from mcproxy.config.model import ClusterBackend, FlowControl, FlowControlType, Policy, Server
from mcproxy.config.units import format_duration

Document = dict[str, Any]


def dispatch(server: Server) -> list[Document] | None:
    if server.dispatch is None:
        return None
    one = isinstance(server.backend, ClusterBackend)
    return [_policy(policy, f"dispatch[{number}]", one) for number, policy in enumerate(server.dispatch)]


def _policy(policy: Policy, unnamed: str, one_cluster: bool) -> Document:
    document: Document = {
        "name": policy.name if policy.name != unnamed else None,
        "rules": [rule(each) for each in policy.rules],
    }
    if policy.reject is not None:
        document["reject"] = {"code": policy.reject.code, "message": policy.reject.message}
    elif one_cluster:
        document["endpoints"] = list(policy.endpoints)
        document["strategy"] = str(policy.strategy)
        document["backend"] = {"cluster": policy.backend.cluster} if policy.backend is not None else None
    return {**document, "flowControl": policy.flow_control, "accessLog": policy.access_log}


def flow_control(control: FlowControl) -> Document:
    document: Document = {"name": control.name, "type": str(control.type), "shared": control.shared}
    if control.type is FlowControlType.EXEMPT:
        return document
    if control.type is FlowControlType.TOKEN_BUCKET:
        # A whole number is written as one.
        document |= {"qps": int(control.qps) if control.qps.is_integer() else control.qps, "burst": control.burst}
    else:
        document |= {"max": control.max, "maxLongRunning": control.max_long_running}
    queue = control.queue
    waiting = {"size": queue.size, "timeout": format_duration(queue.timeout)} if queue is not None else None
    return {**document, "per": str(control.per), "queue": waiting}
