"""X-Remote-* of a front proxy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.model import PEMFile, RequestHeader
from mcproxy.http.messages import Header
from mcproxy.identity.authentication.request_header import (
    RequestHeaderAuthenticator,
    RequestHeaderRefusedError,
    remote_user,
)
from mcproxy.identity.authentication.x509.peer import TLSPeer
from mcproxy.identity.authentication.x509.verifier import ClientCertificateVerifier
from mcproxy.identity.client_identity_headers import split_identity_headers
from mcproxy.kube.user import UserInfo
from tests.identity.certificates import NOW, SERVER, authority, user

GOLDEN = Path(__file__).parents[2] / "golden"
CA = authority("front-proxy-ca")
FRONT = TLSPeer(CA.client("front-proxy-client").certificate)
ALICE: tuple[Header, ...] = ((b"x-remote-user", b"alice"),)


def remote(*fields: tuple[str, str]) -> tuple[Header, ...]:
    return split_identity_headers("".join(f"{name}: {value}\r\n" for name, value in fields).encode()).remote


def front_proxies(*names: str, allow_system_names: bool = False) -> RequestHeaderAuthenticator:
    config = RequestHeader(ca=PEMFile("ca.crt", CA.pem), allowed_names=names)
    return RequestHeaderAuthenticator(config, ClientCertificateVerifier(CA.pem), allow_system_names=allow_system_names)


@pytest.mark.parametrize("file", ["user.json", "user-only.json"])
def test_the_user_is_that_of_a_kube_apiserver(file: str) -> None:
    exchange = json.loads((GOLDEN / "frontproxy" / file).read_text())
    recorded = json.loads(exchange["response"]["body"])["status"]["userInfo"]
    extra = tuple((key, tuple(values)) for key, values in sorted(recorded.get("extra", {}).items()))
    caller = front_proxies().caller(FRONT, remote(*map(tuple, exchange["request"]["headers"])), NOW)
    assert caller is not None
    assert caller.user == UserInfo(recorded["username"], tuple(recorded["groups"]), recorded.get("uid", ""), extra)
    assert caller.cluster == ""


@pytest.mark.parametrize(
    "name", ["X_Remote_Group", "X-Remote_Group", "X_Remote-Uid", "X-Remote_Extra_a", "x_remote_user"]
)
def test_a_header_with_underscores_is_not_none(name: str) -> None:
    with pytest.raises(RequestHeaderRefusedError, match="underscores"):
        front_proxies().caller(FRONT, remote(("X-Remote-User", "alice"), (name, "x")), NOW)


@pytest.mark.parametrize("name", ["X-Remote-Email", "X_Remote_Email", "X-Remote-Extra-a_b", "X-Remote-Groups"])
def test_other_headers_of_the_family_are_no_reason(name: str) -> None:
    caller = front_proxies().caller(FRONT, remote(("X-Remote-User", "alice"), (name, "x")), NOW)
    assert caller is not None
    assert caller.user.name == "alice"


def test_of_doubled_names_the_first_counts_and_groups_add_up() -> None:
    fields = (
        ("X-Remote-User", "alice"),
        ("X-Remote-User", "admin"),
        ("X-Remote-Uid", "1"),
        ("x-remote-uid", "2"),
        ("X-Remote-Group", "b"),
        ("X-REMOTE-GROUP", "a"),
        ("X-Remote-Group", ""),
        ("X-Remote-Group", "b"),
        ("X-Remote-Group", "a,c"),
    )
    assert remote_user(remote(*fields)) == UserInfo("alice", ("b", "a", "a,c"), "1")


def test_an_empty_name_names_nobody_even_before_another() -> None:
    assert remote_user(remote(("X-Remote-User", ""), ("X-Remote-User", "admin"))) is None
    assert remote_user(remote(("X-Remote-Group", "a"))) is None
    assert remote_user(()) is None


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("X-Remote-Extra-Scopes", "scopes"),
        ("X-Remote-Extra-example.com%2Fkey", "example.com/key"),
        ("X-Remote-Extra-Example.Com%2fKEY", "example.com/key"),
        ("X-Remote-Extra-a%zz", "a%zz"),
        ("X-Remote-Extra-a%2Fb%2", "a%2fb%2"),
        ("X-Remote-Extra-a+b", "a+b"),
        ("X-Remote-Extra-%C3%BC", "ü"),
        ("X-Remote-Extra-", ""),
    ],
)
def test_keys_of_extras_are_lower_cased_and_percent_decoded(header: str, key: str) -> None:
    found = remote_user((*ALICE, *remote((header, "v"), (header, ""))))
    assert found is not None
    assert found.extra == ((key, ("v", "")),)


def test_extras_are_sorted_and_values_keep_their_order() -> None:
    fields = (("X-Remote-Extra-B", "1"), ("X-Remote-Extra-a", "2"), ("x-remote-extra-b", "0"))
    found = remote_user((*ALICE, *remote(*fields)))
    assert found is not None
    assert found.extra == (("a", ("2",)), ("b", ("1", "0")))


@pytest.mark.parametrize(
    "field",
    [
        (b"x-remote-user", b"\xff"),
        (b"x-remote-user", b"a\tb"),
        (b"x-remote-group", b"\xc3"),
        (b"x-remote-uid", b"a\x7f"),
        (b"x-remote-extra-a", b"\xff"),
        (b"x-remote-extra-a%0d%0aimpersonate-user:%20x", b"v"),
        (b"x-remote-extra-%00", b"v"),
        (b"x-remote-extra-%ff", b"v"),
    ],
)
def test_what_is_no_clean_text_ends_the_request(field: Header) -> None:
    fields = (field,) if field[0] == b"x-remote-user" else (*ALICE, field)
    with pytest.raises(RequestHeaderRefusedError):
        front_proxies().caller(FRONT, fields, NOW)


def test_utf8_is_text() -> None:
    assert remote_user(((b"x-remote-user", "jürgen".encode()),)) == UserInfo("jürgen")


def test_nobody_else_is_believed() -> None:
    other = authority("front-proxy-ca")
    peers = [other.client("front-proxy-client"), CA.issue(user("front-proxy-client"), SERVER)]
    for one in peers:
        peer = TLSPeer(one.certificate)
        assert front_proxies().caller(peer, ALICE, NOW) is None
        assert front_proxies().refusal_cause(peer, NOW) != ""


def test_only_allowed_names_where_there_are_some() -> None:
    assert front_proxies("front-proxy-client", "b").caller(FRONT, ALICE, NOW) is not None
    for names in (["b"], ["front-proxy"], ["front-proxy-client2", "kubernetes"]):
        assert front_proxies(*names).caller(FRONT, ALICE, NOW) is None
        assert "allowedNames" in front_proxies(*names).refusal_cause(FRONT, NOW)


def test_system_names_are_not_a_front_proxys_to_give_unless_allowed() -> None:
    admin = remote(("X-Remote-User", "system:admin"))
    masters = remote(("X-Remote-User", "alice"), ("X-Remote-Group", "system:masters"), ("X-Remote-Group", "dev"))
    with pytest.raises(RequestHeaderRefusedError):
        front_proxies().caller(FRONT, admin, NOW)
    caller = front_proxies().caller(FRONT, masters, NOW)
    assert caller is not None
    assert caller.user.groups == ("dev", "system:authenticated")
    for fields, groups in ((admin, ()), (masters, ("system:masters", "dev"))):
        caller = front_proxies(allow_system_names=True).caller(FRONT, fields, NOW)
        assert caller is not None
        assert caller.user.groups == (*groups, "system:authenticated")


def test_what_is_said_often_is_read_once() -> None:
    proxies = front_proxies()
    said = remote(("X-Remote-User", "alice"), ("X-Remote-Group", "dev"))
    again = remote(("X-Remote-User", "alice"), ("X-Remote-Group", "dev"))
    assert proxies.caller(FRONT, said, NOW) is proxies.caller(FRONT, again, NOW)
    other = proxies.caller(FRONT, remote(("X-Remote-User", "alice"), ("X-Remote-Group", "ops")), NOW)
    assert other is not None
    assert other.user.groups == ("ops", "system:authenticated")
    long = remote(("X-Remote-User", "a" * 2000))
    assert proxies.caller(FRONT, long, NOW) == proxies.caller(FRONT, long, NOW)
    assert proxies.caller(FRONT, long, NOW) is not proxies.caller(FRONT, long, NOW)


tails = st.binary(max_size=12)


@given(st.lists(st.tuples(st.sampled_from([b"user", b"uid", b"group", b"extra-", b"extra-a", b"new"]), tails, tails)))
def test_any_headers_make_a_clean_user_or_an_error(fields: list[tuple[bytes, bytes, bytes]]) -> None:
    headers = tuple((b"x-remote-" + name + (tail if name == b"extra-" else b""), value) for name, tail, value in fields)
    try:
        found = remote_user(headers)
    except ValueError:
        return
    if found is not None:
        texts = [found.name, found.uid, *found.groups]
        for key, values in found.extra:
            texts += [key, *values]
        assert all(char >= " " and char != "\x7f" for text in texts for char in text)
