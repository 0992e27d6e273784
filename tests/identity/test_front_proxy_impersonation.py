"""X-Remote-* as kube-aggregator sends it (client-go `transport/round_trippers.go`) and a kube-apiserver reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from mcproxy.config import model
from mcproxy.identity.upstream_identity_headers import upstream_fields_for
from mcproxy.kube.user import UserInfo

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "frontproxy" / "user.json").read_text())
TOLD = model.ClusterConfig(name="metrics", endpoints=(), identity=model.UpstreamIdentity.REQUEST_HEADER)
# Go's net/http isTokenTable, of which client-go has a copy, without the percent sign, which it always encodes.
PLAIN = set(b"!#$&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


def fields(user: UserInfo) -> list[tuple[str, str]]:
    lines = upstream_fields_for(TOLD, user).decode().removesuffix("\r\n").split("\r\n")
    return [(name, value) for name, _, value in (line.partition(": ") for line in lines)]


def test_a_recorded_user_is_told_in_the_recorded_headers() -> None:
    seen: dict[str, Any] = json.loads(RECORDED["response"]["body"])["status"]["userInfo"]
    user = UserInfo(
        seen["username"],
        tuple(seen["groups"]),
        seen["uid"],
        tuple((key, tuple(values)) for key, values in seen["extra"].items()),
    )
    sent = {(name.lower(), value) for name, value in fields(user)}
    recorded = {(name.lower(), value) for name, value in RECORDED["request"]["headers"] if name.startswith("X-Remote-")}
    # The API server adds this group itself; kube-aggregator tells all groups of a user, it too.
    assert sent - recorded == {("x-remote-group", "system:authenticated")}
    assert recorded <= sent


def test_a_key_of_an_extra_is_encoded_where_a_headers_name_cannot_hold_it() -> None:
    for byte in range(0x20, 0x7F):
        key = f"a{chr(byte)}b"
        _, (name, value) = fields(UserInfo("alice", (), "", ((key, ("x",)),)))
        encoded = name.removeprefix("X-Remote-Extra-")
        assert encoded == (key if byte in PLAIN else f"a%{byte:02X}b")
        assert (unquote_to_bytes(encoded).decode(), value) == (key, "x")


def test_what_is_not_known_of_a_user_is_no_header() -> None:
    assert fields(UserInfo("alice", (), "", ())) == [("X-Remote-User", "alice")]
