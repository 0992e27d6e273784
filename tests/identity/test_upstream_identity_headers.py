"""The headers that carry a user to a cluster: once each, encoded as by client-go, never values that would change."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.config import model
from mcproxy.identity.upstream_identity_headers import (
    UpstreamIdentityHeaders,
    check_extras_are_sent,
    upstream_fields_for,
)
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import ANONYMOUS, UserInfo

ALICE = UserInfo(
    "alice", ("dev", "system:authenticated"), "u-1", (("example.com/origin", ("east",)), ("scopes", ("a", "b")))
)


def cluster(identity: model.UpstreamIdentity = model.UpstreamIdentity.IMPERSONATE, *extras: str) -> model.ClusterConfig:
    return model.ClusterConfig(name="east", endpoints=(), identity=identity, impersonate_extras=extras)


def lines(identity: model.UpstreamIdentity, user: UserInfo, *extras: str) -> list[str]:
    block = upstream_fields_for(cluster(identity, *extras), user).decode()
    assert block.endswith("\r\n")
    return block.removesuffix("\r\n").split("\r\n")


def test_a_star_sends_all_extras() -> None:
    sent = lines(model.UpstreamIdentity.IMPERSONATE, ALICE, "*")
    assert [line for line in sent if "Extra" in line] == [
        "Impersonate-Extra-example.com%2Forigin: east",
        "Impersonate-Extra-scopes: a",
        "Impersonate-Extra-scopes: b",
    ]


def test_a_user_that_is_asked_for_is_sent_whole_or_not_at_all() -> None:
    for extras in (("scopes", "example.com/origin"), ("*",)):
        check_extras_are_sent(cluster(model.UpstreamIdentity.IMPERSONATE, *extras), ALICE)
    check_extras_are_sent(cluster(model.UpstreamIdentity.REQUEST_HEADER), ALICE)
    with pytest.raises(
        StatusError, match=r'the extra "example\.com/origin" is not passed on to cluster "east"'
    ) as caught:
        check_extras_are_sent(cluster(model.UpstreamIdentity.IMPERSONATE, "scopes"), ALICE)
    assert caught.value.code == 403


def test_impersonation_sends_all_but_the_extras() -> None:
    assert lines(model.UpstreamIdentity.IMPERSONATE, ALICE) == [
        "Impersonate-User: alice",
        "Impersonate-Group: dev",
        "Impersonate-Group: system:authenticated",
        "Impersonate-Uid: u-1",
    ]


def test_extras_that_are_named_pass_with_every_value_and_an_escaped_key() -> None:
    sent_lines = lines(model.UpstreamIdentity.IMPERSONATE, ALICE, "scopes", "example.com/origin", "other")
    assert sent_lines[4:] == [
        "Impersonate-Extra-example.com%2Forigin: east",
        "Impersonate-Extra-scopes: a",
        "Impersonate-Extra-scopes: b",
    ]


def test_request_headers_carry_everything() -> None:
    assert lines(model.UpstreamIdentity.REQUEST_HEADER, ALICE) == [
        "X-Remote-User: alice",
        "X-Remote-Group: dev",
        "X-Remote-Group: system:authenticated",
        "X-Remote-Uid: u-1",
        "X-Remote-Extra-example.com%2Forigin: east",
        "X-Remote-Extra-scopes: a",
        "X-Remote-Extra-scopes: b",
    ]


def test_the_anonymous_user_is_sent() -> None:
    assert lines(model.UpstreamIdentity.IMPERSONATE, ANONYMOUS) == [
        "Impersonate-User: system:anonymous",
        "Impersonate-Group: system:unauthenticated",
    ]


@pytest.mark.parametrize("identity", [model.UpstreamIdentity.PROXY, model.UpstreamIdentity.PASSTHROUGH])
def test_other_clusters_get_no_identity_headers(identity: model.UpstreamIdentity) -> None:
    assert (
        UpstreamIdentityHeaders(cluster(identity)).headers_for(ALICE)
        == upstream_fields_for(cluster(identity), ALICE)
        == b""
    )


def test_a_group_that_stands_twice_passes_once() -> None:
    assert lines(model.UpstreamIdentity.IMPERSONATE, UserInfo("a", ("g", "g"))).count("Impersonate-Group: g") == 1


def test_names_beyond_ascii_pass_as_utf8_and_in_keys_percent_encoded() -> None:
    user = UserInfo("Jürgen", ("山",), "", (("größe", ("ü",)),))
    assert lines(model.UpstreamIdentity.REQUEST_HEADER, user) == [
        "X-Remote-User: Jürgen",
        "X-Remote-Group: 山",
        "X-Remote-Extra-gr%C3%B6%C3%9Fe: ü",
    ]


BAD = [
    "a\r\nImpersonate-Group: system:masters",
    "a\n",
    "a\x00",
    "a\x7f",
    "a\tb",
    "a\x85b",
    " qa",
    "qa ",
    "\u00a0a",
    "\udc80",
]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("identity", [model.UpstreamIdentity.IMPERSONATE, model.UpstreamIdentity.REQUEST_HEADER])
@pytest.mark.parametrize("place", ["name", "groups", "uid", "extra"])
def test_what_would_not_arrive_is_refused(bad: str, identity: model.UpstreamIdentity, place: str) -> None:
    fields: dict[str, Any] = {"name": "bob", "groups": ("dev",)}
    values: dict[str, Any] = {"name": bad, "groups": ("dev", bad), "uid": bad, "extra": (("scopes", (bad,)),)}
    fields[place] = values[place]
    headers = UpstreamIdentityHeaders(cluster(identity, "scopes"))
    for _ in range(2):
        with pytest.raises(StatusError) as caught:
            headers.headers_for(UserInfo(**fields))
        assert caught.value.code == 403
        assert bad not in caught.value.message


def test_a_user_without_a_name_is_refused() -> None:
    with pytest.raises(StatusError):
        upstream_fields_for(cluster(), UserInfo(""))


@pytest.mark.parametrize("key", ["", "a\r\nb", "\udc80"])
def test_a_key_that_would_not_arrive_is_refused(key: str) -> None:
    with pytest.raises(StatusError):
        upstream_fields_for(cluster(model.UpstreamIdentity.REQUEST_HEADER), UserInfo("a", extra=((key, ("x",)),)))


@given(
    name=st.text(min_size=1, max_size=20),
    groups=st.lists(st.text(max_size=10), max_size=3),
    key=st.text(st.characters(exclude_categories=["Lu"]), max_size=8),
    value=st.text(max_size=10),
)
@settings(max_examples=150)
def test_headers_are_parsed_back_unchanged_or_refused(name: str, groups: list[str], key: str, value: str) -> None:
    user = UserInfo(name, tuple(dict.fromkeys(groups)), "", ((key, (value,)),))
    try:
        block = upstream_fields_for(cluster(model.UpstreamIdentity.REQUEST_HEADER), user)
    except StatusError:
        return
    read = [line.split(b": ", 1) for line in block.split(b"\r\n")[:-1]]
    assert read[0][0].lower() == b"x-remote-user"
    assert read[0][1].strip(b" \t").decode() == name
    assert tuple(text.strip(b" \t").decode() for field, text in read if field == b"X-Remote-Group") == user.groups
    assert len(read) == 2 + len(user.groups)
    last = read[-1]
    assert unquote(last[0].decode("ascii").lower().removeprefix("x-remote-extra-")) == key
    assert last[1].strip(b" \t").decode() == value


def test_users_that_were_here_are_remembered_in_bounds() -> None:
    headers = UpstreamIdentityHeaders(cluster())
    block = headers.headers_for(ALICE)
    assert headers.headers_for(ALICE) is block
    for number in range(1100):
        headers.headers_for(UserInfo(f"user-{number}"))
    headers.headers_for(UserInfo("x" * 5000))
    assert len(headers._blocks) <= 1024
    kept = set(headers._blocks)
    for number in range(3):
        headers.headers_for(UserInfo("long", tuple(f"group-{number}-{count}" for count in range(1000))))
    assert set(headers._blocks) == kept
    assert headers.headers_for(ALICE) == block
