"""The line of an event is byte for byte the JSON of the whole event, whatever a client chose."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.requestinfo import parse
from mcproxy.kube.user import UserInfo
from mcproxy.observe.audit import values
from mcproxy.observe.audit.event import COMPLETE, RECEIVED, STARTED, AuditTrail, annotations_of
from mcproxy.observe.log_values import json_string

NAMES = st.none() | st.text(max_size=20)
TEXTS = st.text(max_size=20) | st.sampled_from(["x" * 4096, "y" * 4097, "\u00e9" * 4097, '\x7f\x00\b\f"\\', ""])


def cut(text: str) -> str:
    return text if len(text) <= 4096 else text[:4096] + "..."


@given(
    st.sampled_from([None, "allow", "forbid"]), st.none() | TEXTS, NAMES, NAMES, st.none() | TEXTS, NAMES, NAMES, NAMES
)
def test_annotations_are_in_the_order_of_their_keys_and_bounded(
    decision: str | None,
    decision_reason: str | None,
    cluster: str | None,
    endpoint: str | None,
    policy: str | None,
    process: str | None,
    reason: str | None,
    server: str | None,
) -> None:
    whole = {
        "authorization.k8s.io/decision": decision,
        "authorization.k8s.io/reason": None if decision_reason is None else cut(decision_reason),
        "mcproxy.io/cluster": cluster,
        "mcproxy.io/endpoint": endpoint,
        "mcproxy.io/policy": None if policy is None else cut(policy),
        "mcproxy.io/process": process,
        "mcproxy.io/reason": reason,
        "mcproxy.io/server": server,
    }
    made = annotations_of(decision, decision_reason, cluster, endpoint, policy, process, reason, server)
    assert list(json.loads(made.removeprefix(',"annotations":')).items()) == [
        (key, value) for key, value in whole.items() if value is not None
    ]


@given(
    st.sampled_from([STARTED, COMPLETE]),
    TEXTS,
    st.booleans(),
    st.sampled_from(
        ["/api/v1/namespaces/a/pods/b?x=y", "/healthz", '/api/v1/namespaces/%22x%09"/pods', "/apis/apps/v1/x/"]
    ),
    TEXTS,
    st.sampled_from([[], ["10.0.0.1", "::1"]]),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=64),
)
def test_the_events_of_a_request_are_whole(
    stage: str, name: str, impersonates: bool, target: str, agent: str, addresses: list[str], audit_id: str
) -> None:
    info = parse(b"GET", target.encode())
    ref = {"resource": info.resource, "namespace": info.namespace, "name": info.name, "apiGroup": info.group}
    ref |= {"apiVersion": info.version, "subresource": info.subresource}
    trail = AuditTrail(
        info,
        audit_id,
        values.uri_of(target.encode()),
        json_string(name),
        values.user_of(UserInfo("alice")),
        values.source_ips_of(tuple(addresses)) + values.user_agent_of(agent),
        values.ObjectReferences().member(info),
        "t",
    )
    before = trail.received()
    impersonated = values.user_of(UserInfo("other")) if impersonates else ""
    later = trail.later(stage, impersonated, values.status_of(200, None), "u", annotations_of("allow", reason="ok"))
    cut_agent = agent if len(agent) <= 1024 else agent[:1024] + "...TRUNCATED"
    whole: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": audit_id,
        "stage": RECEIVED,
        "requestURI": target,
        "verb": cut(name),
        "user": {"username": "alice"},
        **({"sourceIPs": addresses} if addresses else {}),
        **({"userAgent": cut_agent} if agent else {}),
        **({"objectRef": {key: value for key, value in ref.items() if value}} if info.is_resource else {}),
        "requestReceivedTimestamp": "t",
        "stageTimestamp": "t",
    }
    assert before == json.dumps(whole, separators=(",", ":")) + "\n"
    assert trail.received() == before
    changed = {**whole, "stage": stage, "stageTimestamp": "u"}
    changed |= {"impersonatedUser": {"username": "other"}} if impersonates else {}
    changed |= {"responseStatus": {"metadata": {}, "code": 200}}
    changed |= {"annotations": {"authorization.k8s.io/decision": "allow", "mcproxy.io/reason": "ok"}}
    assert json.loads(later) == changed
    assert (later.isascii(), later.count("\n")) == (True, 1)
    order = "kind apiVersion level auditID stage requestURI verb user impersonatedUser sourceIPs userAgent objectRef"
    keys = (order + " responseStatus requestReceivedTimestamp stageTimestamp annotations").split()
    assert list(json.loads(later)) == [key for key in keys if key in changed]
