"""What was decided, refusals, users and reviews arrive as they were."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.http.messages import CHUNKED, RequestHead
from mcproxy.identity.authorization.access_review import Decision, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.kube.user import UserInfo
from mcproxy.proxy.keeper import wire
from mcproxy.proxy.keeper.keeper_frames import FrameError
from tests.support.attributes import attributes_of

TEXT = st.text(st.characters(), max_size=12)  # with lone surrogates, which UTF-8 cannot hold
EXTRA = st.lists(st.tuples(TEXT, st.lists(TEXT, max_size=2).map(tuple)), max_size=2).map(tuple)
USERS = st.builds(UserInfo, TEXT, st.lists(TEXT, max_size=3).map(tuple), TEXT, EXTRA)


@given(USERS)
def test_users(user: UserInfo) -> None:
    assert wire.decode_user(wire.encode_user(user)) == user


@given(TEXT, TEXT, st.binary(max_size=9), st.booleans())
def test_refusals(message: str, name: str, value: bytes, indented: bool) -> None:
    refusal = StatusError(
        410, message, details={"name": name}, headers=((b"X-A", value),), metadata={"a": [name]}, indented=indented
    )
    found = wire.decode_refusal(wire.encode_refusal(refusal))
    assert vars(found) == vars(refusal)
    assert found.args == refusal.args


def test_what_was_decided() -> None:
    alice, bob = UserInfo("alice", ("dev",)), UserInfo("bob")
    refusal = retry_after(503, "away", 5)
    members = wire.members_of({"a": alice, "b": bob}, {"a": "all", "b": ""}, {"c": refusal}, wire.encode_user)
    opened = wire.decoder(wire.Redecided)(wire.encode(wire.Redecided(3, members, None)))
    assert [(each.cluster, each.policy) for each in opened.members] == [("a", "all"), ("b", ""), ("c", None)]
    assert [wire.decode_user(each.user) for each in opened.members if each.user is not None] == [alice, bob]
    assert opened.members[2].refusal is not None
    assert wire.decode_refusal(opened.members[2].refusal).status() == refusal.status()


def test_heads() -> None:
    head = RequestHead()
    head.method, head.target, head.host, head.fields = b"POST", b"/a?b", b"h", b"X: \xff\r\n"
    head.http11, head.keep_alive, head.length, head.upgrade = True, False, CHUNKED, b"SPDY/3.1"
    head.expects_continue, head.te_trailers = True, True
    found = wire.request_head(wire.head_of(head, expects_continue=False))
    assert not found.expects_continue
    found.expects_continue = True
    assert attributes_of(found) == attributes_of(head)


@given(TEXT, TEXT)
def test_reviews(name: str, reason: str) -> None:
    attributes = Attributes("list", resource="pods", namespace=name, is_resource=False, label_selector=reason)
    assert wire.decode_attributes(wire.encode_attributes(attributes)) == attributes
    for decision in (Decision(True), Decision(False, reason)):
        assert wire.decision_of(wire.reviewed(decision), "east") == decision


@pytest.mark.parametrize("unreachable", [True, False])
def test_a_review_without_a_decision(unreachable: bool) -> None:
    sent = wire.reviewed(ReviewUnavailable("east", unreachable=unreachable))
    with pytest.raises(ReviewUnavailable) as raised:
        wire.decision_of(sent, "east")
    assert raised.value.unreachable is unreachable


DECODERS: list[Any] = [
    *(wire.decoder(kind) for kind in (wire.Opened, wire.Response, wire.Whole, wire.Redecided, wire.Review)),
    wire.decode_user,
    wire.decode_refusal,
    wire.decode_attributes,
]


@given(st.sampled_from(DECODERS), st.binary(max_size=60))
def test_anything_else_is_an_error_of_the_protocol(decode: Any, data: bytes) -> None:
    try:
        decode(data)
    except FrameError:
        pass
