"""What of a head speaks of identity and origin, and that nothing of it stays among the rest."""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.http.h1.head_parser import parse_request_head
from mcproxy.http.messages import ProtocolError
from mcproxy.identity.client_identity_headers import BEARER_PROTOCOL, split_identity_headers
from mcproxy.kube.status import StatusError

TOKEN = BEARER_PROTOCOL + b"c2VjcmV0"


def block(*lines: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in lines)


def protocol(token: bytes) -> bytes:
    return BEARER_PROTOCOL + urlsafe_b64encode(token).rstrip(b"=")


def test_ordinary_fields_stay_as_they_are() -> None:
    fields = block(
        b"Accept: */*",
        b"X-Custom: 1",
        b"x-remotely: 2",
        b"Authorizations: 3",
        b"X-Authorization: 4",
        b"My-Impersonate-User: 5",
        b"Cookie: Authorization: Bearer x",
        b"Sec-WebSocket-Protocol: v5.channel.k8s.io",
        b"Empty:",
    )
    headers = split_identity_headers(fields)
    assert headers.fields == fields
    assert (headers.own, headers.token, headers.bad_token) == (b"", None, "")
    assert headers.remote == headers.impersonate == ()
    assert split_identity_headers(b"").fields == b""


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
        b"X-Remote-",
        b"X-Forwarded-For",
        b"x-forwarded-proto",
        b"X_Forwarded_Host",
        b"X-Forwarded-Uri",
        b"X-Forwarded-Client-Cert",
        b"Forwarded",
        b"X-Real-IP",
        b"X_Real_Ip",
    ],
)
def test_these_never_pass_in_any_case_with_underscores_nor_doubled(name: bytes) -> None:
    for fields in (block(name + b": a"), block(b"A: b", name + b":a", b"C: d", name + b": again")):
        headers = split_identity_headers(fields)
        assert name.lower() not in headers.fields.lower()
        assert headers.own == b""
    assert split_identity_headers(block(b"A: b", name + b":a", b"C: d")).fields == block(b"A: b", b"C: d")


@pytest.mark.parametrize(
    "name",
    [b"Impersonate-User", b"impersonate-group", b"IMPERSONATE-UID", b"Impersonate-Extra-scopes", b"Impersonate-New"],
)
def test_impersonation_is_split_off_and_is_the_clients_own(name: bytes) -> None:
    headers = split_identity_headers(block(b"A: b", name + b":  admin ", name + b": other", b"C: d"))
    assert headers.fields == block(b"A: b", b"C: d")
    assert headers.own == block(name + b":  admin ", name + b": other")
    assert headers.impersonate == ((name.lower(), b"admin"), (name.lower(), b"other"))


def test_names_that_only_look_like_it_are_cut_out_and_not_believed() -> None:
    headers = split_identity_headers(block(b"A: b", b"Impersonate: admin"))
    assert headers.fields == block(b"A: b")
    assert headers.own == b""
    assert headers.remote == headers.impersonate == ()


@pytest.mark.parametrize("name", [b"X_Remote_User", b"X-Remote_User"])
def test_names_of_front_proxies_with_underscores_are_kept_to_be_refused_and_never_passed_on(name: bytes) -> None:
    headers = split_identity_headers(block(b"A: b", name + b": admin"))
    assert headers.fields == block(b"A: b")
    assert headers.own == b""
    assert headers.remote == ((name.lower(), b"admin"),)


def test_an_impersonation_with_underscores_is_refused_and_never_passed_on() -> None:
    headers = split_identity_headers(block(b"A: b", b"Impersonate_User: admin"))
    assert headers.impersonate == ((b"impersonate_user", b"admin"),)
    assert (headers.fields, headers.own) == (block(b"A: b"), b"")


def test_remote_headers_are_in_their_order() -> None:
    headers = split_identity_headers(
        block(b"X-Remote-User: a", b"X-REMOTE-Group: \t g ", b"A: b", b"x-remote-extra-k%2Fv:x")
    )
    assert headers.remote == (
        (b"x-remote-user", b"a"),
        (b"x-remote-group", b"g"),
        (b"x-remote-extra-k%2fv", b"x"),
    )


@pytest.mark.parametrize(
    ("value", "token"),
    [
        (b"Bearer abc", b"abc"),
        (b"bearer abc", b"abc"),
        (b"BEARER abc", b"abc"),
        (b"Bearer abc def", b"abc"),
        (b"Bearer a:b,c", b"a:b,c"),
        (b"Bearer  abc", None),  # Kubernetes ignores a token with a space too many before it
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"", None),
        (b"Basic YTpi", None),
        (b"abc", None),
        (b"BearerToken abc", None),
    ],
)
@pytest.mark.parametrize("name", [b"Authorization", b"authorization", b"AUTHORIZATION"])
def test_the_token_of_an_authorization_header_is_read_as_kubernetes_reads_it(
    name: bytes, value: bytes, token: bytes | None
) -> None:
    line = name + b": " + value
    headers = split_identity_headers(block(b"A: b", line))
    assert headers.fields == block(b"A: b")
    assert headers.own == block(line)
    assert headers.token == token
    assert headers.bad_token == ""


def test_two_authorization_headers_are_refused_as_ambiguous() -> None:
    with pytest.raises(StatusError) as caught:
        split_identity_headers(block(b"Authorization: Bearer x", b"A: b", b"authorization: Bearer y"))
    assert (caught.value.code, caught.value.reason) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("offered", "left"),
    [
        (b"v5.channel.k8s.io, " + TOKEN, b"v5.channel.k8s.io"),
        (TOKEN + b",v5.channel.k8s.io,  v4.channel.k8s.io", b"v5.channel.k8s.io, v4.channel.k8s.io"),
    ],
)
@pytest.mark.parametrize("name", [b"Sec-WebSocket-Protocol", b"sec-websocket-protocol"])
def test_a_bearer_token_among_the_subprotocols_is_taken_off(name: bytes, offered: bytes, left: bytes) -> None:
    headers = split_identity_headers(block(b"A: b", name + b": " + offered))
    assert headers.fields == block(b"A: b", name + b": " + left)
    assert headers.own == block(b"Sec-WebSocket-Protocol: " + TOKEN)
    assert headers.token == b"secret"


def test_subprotocols_may_stand_in_several_lines() -> None:
    line = b"Sec-WebSocket-Protocol: "
    headers = split_identity_headers(block(line + TOKEN, line + b"v5.channel.k8s.io"))
    assert headers.fields == block(line + b"v5.channel.k8s.io")
    assert headers.token == b"secret"


@pytest.mark.parametrize(
    ("offered", "why"),
    [
        (TOKEN, "no other"),
        (TOKEN + b",", "no other"),
        (b"v5, " + TOKEN + b" , " + TOKEN, "more than one"),
        (b"v5, " + BEARER_PROTOCOL + b"c2VjcmV0IQ==", "base64url"),
        (b"v5, " + BEARER_PROTOCOL + b"a/b+", "base64url"),
        (b"v5, " + BEARER_PROTOCOL + b"abcde", "base64url"),
        (b"v5, " + protocol(b"\xff\xfe"), "UTF-8"),
    ],
)
def test_a_subprotocol_that_is_no_proper_token_is_a_bad_one(offered: bytes, why: str) -> None:
    headers = split_identity_headers(block(b"Sec-WebSocket-Protocol: " + offered))
    assert headers.token is None
    assert why in headers.bad_token
    assert BEARER_PROTOCOL not in headers.fields
    assert "c2VjcmV0" not in headers.bad_token


def test_an_empty_token_among_the_subprotocols_is_none() -> None:
    headers = split_identity_headers(block(b"Sec-WebSocket-Protocol: v5, " + BEARER_PROTOCOL))
    assert (headers.token, headers.bad_token) == (None, "")
    assert headers.fields == block(b"Sec-WebSocket-Protocol: v5")


@pytest.mark.parametrize(
    "line", [b"Sec_WebSocket_Protocol: v5, " + TOKEN, b"Sec-WebSocket-Protocol: v5, " + TOKEN.upper()]
)
def test_what_only_looks_like_a_token_among_the_subprotocols_is_taken_off_too(line: bytes) -> None:
    headers = split_identity_headers(block(line))
    assert headers.fields == block(line.partition(b":")[0] + b": v5")
    assert (headers.own, headers.token, headers.bad_token) == (b"", None, "")


def test_authorization_comes_before_the_subprotocols() -> None:
    line = b"Sec-WebSocket-Protocol: v5, " + TOKEN
    assert split_identity_headers(block(line, b"Authorization: Bearer x")).token == b"x"
    assert split_identity_headers(block(line, b"Authorization: Basic x")).token == b"secret"


def test_a_token_may_be_as_long_as_the_head() -> None:
    longest = b"x" * 60_000
    for line in (b"Authorization: Bearer " + longest, b"Sec-WebSocket-Protocol: v5, " + protocol(longest)):
        assert split_identity_headers(block(line)).token == longest


def test_nothing_of_it_shows_in_repr() -> None:
    assert "secret" not in repr(split_identity_headers(block(b"Authorization: Bearer secret")))


def test_a_token_in_the_query_is_none() -> None:
    raw = b"GET /api?access_token=secret&Authorization=Bearer%20secret HTTP/1.1\r\nHost: a\r\n\r\n"
    assert split_identity_headers(parse_request_head(raw, 1000, 100).fields).token is None


@pytest.mark.parametrize(
    "name", [b"Authorization", b"impersonate-user", b"X-Remote-User", b"x_remote_user", b"Sec-WebSocket-Protocol"]
)
def test_connection_may_not_name_what_speaks_of_identity(name: bytes) -> None:
    raw = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close, %b\r\n%b: x\r\n\r\n" % (name, name)
    with pytest.raises(ProtocolError) as caught:
        parse_request_head(raw, 1000, 100)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "line",
    [
        b"X-Remote-User: a\nX-Remote-Group: system:masters",
        b"X-Remote-User: a\rb",
        b"X-Remote-User: a\x00b",
        b"Impersonate-User: a\r\n b",
        b"Impersonate-User : a",
        b" Impersonate-User: a",
        b"Impersonate-\xc3\xbcser: a",
    ],
)
def test_heads_with_line_ends_nul_spaces_or_non_ascii_names_in_such_fields_are_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_request_head(b"GET / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n\r\n", 1000, 100)
    assert caught.value.status == 400


WORDS = (
    "authorization impersonate impersonate-user impersonate-extra- forwarded x-remote-user x-remote-extra-a "
    "x-forwarded-for x-forwarded- x-real-ip sec-websocket-protocol x-remote x a accept cookie user-agent"
)
words = st.sampled_from(WORDS.split())


@st.composite
def names(draw: st.DrawFn) -> bytes:
    word = draw(words)
    upper = draw(st.lists(st.booleans(), min_size=len(word), max_size=len(word)))
    word = "".join(char.upper() if up else char for char, up in zip(word, upper, strict=True))
    if draw(st.booleans()):
        word = word.replace("-", "_", draw(st.integers(0, 3)))
    return (draw(st.sampled_from(["", "", "x", "-"])) + word + draw(st.sampled_from(["", "", "s", "-b"]))).encode()


values = st.one_of(
    st.sampled_from([b"", b" ", b"Impersonate-User: x", TOKEN, b"v5, " + TOKEN, b"a:b", b"Bearer x", b"\xff"]),
    st.from_regex(rb"[\x20-\x7e\x80-\xff]{0,20}", fullmatch=True),
)
IDENTITY = re.compile(
    rb"(authorization|impersonate.*|x-remote-.*|x-forwarded-.*|forwarded|x-real-ip)", re.IGNORECASE | re.DOTALL
)


def is_of_identity(line: bytes) -> bool:
    return IDENTITY.fullmatch(line.partition(b":")[0].replace(b"_", b"-")) is not None


@given(st.lists(st.tuples(names(), values), max_size=8))
def test_nothing_of_identity_stays_and_nothing_else_is_lost(fields: list[tuple[bytes, bytes]]) -> None:
    came = [b"%b: %b" % field for field in fields]
    try:
        headers = split_identity_headers(block(*came))
    except StatusError:
        assert sum(name.lower() == b"authorization" for name, _ in fields) > 1
        return
    left = headers.fields.split(b"\r\n")
    assert not left.pop()
    assert not any(is_of_identity(line) for line in left)
    assert BEARER_PROTOCOL not in b"".join(
        line for line in left if line.lower().replace(b"_", b"-").startswith(b"sec-websocket-protocol:")
    )

    def others(lines: list[bytes]) -> list[bytes]:
        return [line for line in lines if not line.lower().replace(b"_", b"-").startswith(b"sec-websocket-protocol:")]

    assert others(left) == [line for line in others(came) if not is_of_identity(line)]
    own = headers.own.split(b"\r\n")[:-1]
    assert set(own) <= {*came, b"Sec-WebSocket-Protocol: " + TOKEN}
    assert [value for name, value in headers.impersonate] == [
        value.strip(b" \t") for name, value in fields if name.lower().startswith((b"impersonate-", b"impersonate_"))
    ]
    assert [name for name, _ in headers.remote] == [
        name.lower() for name, _ in fields if name.lower().replace(b"_", b"-").startswith(b"x-remote-")
    ]


@given(st.binary(max_size=200))
def test_any_block_is_taken_without_an_error(data: bytes) -> None:
    try:
        split_identity_headers(data + b"\r\n")
    except StatusError:
        assert data.lower().count(b"authorization") > 1


def test_a_bearer_token_among_very_many_subprotocols_is_refused_unread() -> None:
    with pytest.raises(StatusError) as caught:
        split_identity_headers(
            b"Sec-WebSocket-Protocol: " + b"a," * 101 + b"base64url.bearer.authorization.k8s.io.eA\r\n"
        )
    assert (caught.value.code, caught.value.message) == (
        400,
        "more than 100 WebSocket subprotocols beside a bearer token",
    )


def test_the_key_of_a_token_is_computed_once_for_each_function() -> None:
    headers = split_identity_headers(b"Authorization: Bearer secret\r\n")
    asked: list[bytes] = []

    def key_of(token: bytes) -> bytes:
        asked.append(token)
        return b"key"

    assert headers.token_key(key_of) == headers.token_key(key_of) == b"key"
    assert asked == [b"secret"]
    assert headers.token_key(lambda token: token[::-1]) == b"terces"  # another set of authenticators, another secret
    assert headers.token_key(key_of) == b"key"
