"""Which of a client's fields reach a cluster, by identity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.model import Identity
from mcproxy.identity.headers import passing
from mcproxy.kube.status import StatusError

BOTH = pytest.mark.parametrize("identity", [Identity.PROXY, Identity.PASSTHROUGH])
TOKEN = b"base64url.bearer.authorization.k8s.io.c2VjcmV0"


def block(*lines: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in lines)


@BOTH
def test_ordinary_fields_pass_as_they_are(identity: Identity) -> None:
    fields = block(
        b"Accept: */*",
        b"X-Custom: 1",
        b"x-remotely: 2",
        b"Authorizations: 3",
        b"Sec-WebSocket-Protocol: v5.channel.k8s.io",
    )
    assert passing(identity, fields) == fields
    assert passing(identity, b"") == b""


@BOTH
@pytest.mark.parametrize(
    "name",
    [
        b"X-Remote-User",
        b"x-remote-group",
        b"X-REMOTE-EXTRA-Scopes",
        b"X-Remote-Uid",
        b"X_Remote_User",
        b"x-remote_user",
        b"X-Remote-Anything-New",
        b"X-Forwarded-For",
        b"x-forwarded-proto",
        b"X_Forwarded_Host",
        b"X-Forwarded-Uri",
        b"X-Forwarded-Client-Cert",
    ],
)
def test_these_never_pass(identity: Identity, name: bytes) -> None:
    for fields in (block(name + b": a"), block(b"A: b", name + b":a", b"C: d", name + b": again")):
        assert name.lower() not in passing(identity, fields).lower()
    assert passing(identity, block(b"A: b", name + b":a", b"C: d")) == block(b"A: b", b"C: d")


@pytest.mark.parametrize("name", [b"Authorization", b"authorization", b"AUTHORIZATION"])
def test_the_clients_authorization(name: bytes) -> None:
    fields = block(b"A: b", name + b": Bearer x", name + b": Basic y")
    assert passing(Identity.PROXY, fields) == block(b"A: b")
    assert passing(Identity.PASSTHROUGH, fields) == fields


@pytest.mark.parametrize(
    "name",
    [
        b"Impersonate-User",
        b"impersonate-group",
        b"IMPERSONATE-UID",
        b"Impersonate-Extra-scopes",
        b"Impersonate_User",
        b"Impersonate-Something-New",
    ],
)
def test_impersonation_is_refused_where_rights_are_lent_and_passes_where_they_are_not(name: bytes) -> None:
    fields = block(b"A: b", name + b": admin")
    with pytest.raises(StatusError) as caught:
        passing(Identity.PROXY, fields)
    assert (caught.value.code, caught.value.reason) == (403, "Forbidden")
    assert passing(Identity.PASSTHROUGH, fields) == fields


@pytest.mark.parametrize(
    ("offered", "left"),
    [
        (b"v5.channel.k8s.io, " + TOKEN, b"v5.channel.k8s.io"),
        (TOKEN + b",v5.channel.k8s.io,  v4.channel.k8s.io", b"v5.channel.k8s.io, v4.channel.k8s.io"),
        (TOKEN, None),
        (TOKEN + b" , " + TOKEN, None),
    ],
)
@pytest.mark.parametrize("name", [b"Sec-WebSocket-Protocol", b"sec-websocket-protocol", b"Sec_WebSocket_Protocol"])
def test_a_bearer_token_among_the_subprotocols_is_taken_off(name: bytes, offered: bytes, left: bytes | None) -> None:
    fields = block(b"A: b", name + b": " + offered)
    expected = block(b"A: b") + (b"" if left is None else block(b"Sec-WebSocket-Protocol: " + left))
    assert passing(Identity.PROXY, fields) == expected
    assert passing(Identity.PASSTHROUGH, fields) == fields


names = st.sampled_from(
    [
        b"A",
        b"Accept",
        b"X-Remote-User",
        b"Authorization",
        b"Impersonate-User",
        b"X-Forwarded-For",
        b"Sec-WebSocket-Protocol",
    ]
)
values = st.sampled_from([b"", b"a", b"Impersonate-User: x", TOKEN, b"a:b", b"\xff"])


@given(st.lists(st.tuples(names, values), max_size=6))
def test_what_passes_is_a_part_of_what_came_in_its_order(fields: list[tuple[bytes, bytes]]) -> None:
    came = [b"%b: %b" % field for field in fields]
    passed = passing(Identity.PASSTHROUGH, block(*came))
    assert passed == block(*[line for line in came if not line.startswith((b"X-Remote", b"X-Forwarded"))])
