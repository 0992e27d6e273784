"""Events are put together of what is remembered, and are byte for byte what encoding them as a whole gives."""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as quote
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from mcproxy.kube.requestinfo import parse
from mcproxy.kube.user import UserInfo
from mcproxy.observe.audit import values
from mcproxy.observe.audit.event import (
    API_VERSION,
    COMPLETE,
    KIND,
    METADATA,
    RECEIVED,
    STARTED,
    AuditEvent,
    annotations_of,
    received,
)
from mcproxy.observe.audit.log import encode, later


class WholeAnnotations(
    msgspec.Struct,
    omit_defaults=True,
    rename={
        "decision": "authorization.k8s.io/decision",
        "decision_reason": "authorization.k8s.io/reason",
        "cluster": "mcproxy.io/cluster",
        "endpoint": "mcproxy.io/endpoint",
        "policy": "mcproxy.io/policy",
        "process": "mcproxy.io/process",
        "reason": "mcproxy.io/reason",
        "server": "mcproxy.io/server",
    },
):
    """The annotations as a struct, which is encoded for each event."""

    decision: str | None = None
    decision_reason: Any = None
    cluster: str | None = None
    endpoint: str | None = None
    policy: Any = None
    process: str | None = None
    reason: str | None = None
    server: str | None = None


def whole_text(value: str) -> str | Raw:
    cut = value if len(value) <= 4096 else value[:4096] + "..."
    return cut if cut.isascii() else Raw(quote(cut))


NAMES = st.none() | st.text(st.characters(min_codepoint=0, max_codepoint=127), max_size=20)
TEXTS = st.none() | st.text(max_size=20) | st.sampled_from(["x" * 4096, "y" * 4097, "é" * 4097, '\x7f\x00\b\f"\\', ""])


@given(st.sampled_from([None, "allow", "forbid"]), TEXTS, NAMES, NAMES, TEXTS, NAMES, NAMES, NAMES)
def test_annotations_are_those_of_a_struct(
    decision: str | None,
    decision_reason: str | None,
    cluster: str | None,
    endpoint: str | None,
    policy: str | None,
    process: str | None,
    reason: str | None,
    server: str | None,
) -> None:
    whole = WholeAnnotations(
        decision,
        None if decision_reason is None else whole_text(decision_reason),
        cluster,
        endpoint,
        None if policy is None else whole_text(policy),
        process,
        reason,
        server,
    )
    made = annotations_of(decision, decision_reason, cluster, endpoint, policy, process, reason, server)
    assert bytes(made) == msgspec.json.encode(whole)


@given(
    st.sampled_from([STARTED, COMPLETE]),
    st.text(max_size=20),
    st.booleans(),
    st.sampled_from([b"/api/v1/namespaces/a/pods/b?x=y", b"/healthz"]),
    st.sampled_from(["", "kubectl/v1"]),
    st.sampled_from([(), ("10.0.0.1", "::1")]),
)
def test_a_later_event_has_all_of_the_first_and_leaves_that_as_it_is(
    stage: str, name: str, impersonates: bool, target: bytes, agent: str, addresses: tuple[str, ...]
) -> None:
    user, other = values.user_of(UserInfo(name)), values.user_of(UserInfo("other")) if impersonates else UNSET
    info, status = parse(b"GET", target), values.status_of(200, None)
    uri, origin = values.uri_of(target), values.source_ips_of(addresses)
    client, ref = values.user_agent_of(agent), values.object_ref_of(info)
    annotations = annotations_of("allow", name, reason="ok")
    first = received("id", uri, info.verb, user, origin, client, ref, "t")
    before = encode([first])
    last = later(first, stage, other, status, "u", annotations)
    whole = AuditEvent(
        KIND, API_VERSION, METADATA, "id", stage, uri, info.verb, user, other, origin, client, ref, status, "t", "u",
        annotations,
    )  # fmt: skip
    assert encode([last]) == encode([whole])
    assert encode([first]) == before
    assert RECEIVED.encode() in before
