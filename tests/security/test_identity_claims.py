"""Identity headers of clients that are not entitled to send them: removed or refused, and what is forwarded."""

from __future__ import annotations

import pytest

from mcproxy.config import model
from tests.proxy.harness import NAME, OK, plain
from tests.security.authenticating_proxy import (
    ALICE_TOKEN,
    ALL,
    BOSS_TOKEN,
    LENT,
    OTHER,
    UNAUTHORIZED,
    AuthenticatingProxy,
    bearer,
    holder,
    request,
    status,
)

ALICE = b"Impersonate-User: alice\r\nImpersonate-Group: dev\r\nImpersonate-Group: system:authenticated\r\n"
POD = b"/api/v1/namespaces/a/pods/b"


def forwarded_head(
    proxy: AuthenticatingProxy, port: int, lines: bytes, *, host: str = NAME, target: bytes = POD
) -> bytes:
    """A request as a cluster must hear it, byte for byte."""
    return (
        b"GET %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%bX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: https\r\n"
        b"X-Forwarded-Host: %b\r\n" % (target, port, lines, host.encode())
    )


CLAIMS = [
    (b"X-Remote-User: admin", b"X-Remote-Group: system:masters"),
    (b"x-remote-user: admin",),
    (b"X-REMOTE-USER: admin", b"X-REMOTE-GROUP: system:masters"),
    (b"X_Remote_User: admin", b"x_remote_group: system:masters"),
    (b"X-Remote_User: admin", b"X_Remote-User: admin"),
    (b"X-Remote-User: admin", b"X-Remote-User: root", b"X-Remote-Uid: 0"),
    (b"X-Remote-Extra-Scopes: all", b"X-Remote-Extra-a%0D%0Ab: c"),
    (b"X-Forwarded-User: admin", b"X_Forwarded_Groups: system:masters"),
    (b"X-Remote-User:\tadmin\t",),
    ("X-Remote-User: ädmin".encode(),),
    (b"X-Remote-User: \xff\xfe",),
]


@pytest.mark.parametrize("fields", CLAIMS, ids=lambda fields: fields[0].decode("latin-1"))
class TestXRemoteOfSomebodyUnentitled:
    async def test_goes_on_as_who_he_is(
        self, authenticating_proxy: AuthenticatingProxy, fields: tuple[bytes, ...]
    ) -> None:
        proxy = authenticating_proxy
        await proxy.passes(request(b"A: b", *fields, bearer(ALICE_TOKEN), target=POD))
        expected = (
            forwarded_head(proxy, proxy.east.port, b"A: b\r\n" + ALICE) + b"Authorization: Bearer " + LENT + b"\r\n\r\n"
        )
        assert proxy.forwarded == expected

    async def test_is_nobody_without_a_credential(
        self, authenticating_proxy: AuthenticatingProxy, fields: tuple[bytes, ...]
    ) -> None:
        await authenticating_proxy.refuses(request(*fields), 401, UNAUTHORIZED)

    async def test_does_not_reach_a_cluster_that_is_told_by_headers(
        self, authenticating_proxy: AuthenticatingProxy, fields: tuple[bytes, ...]
    ) -> None:
        proxy = authenticating_proxy
        lines = request(*fields, bearer(ALICE_TOKEN), host=ALL, target=b"/clusters/headers" + POD)
        await proxy.passes(lines, server_name=ALL)
        remote = ALICE.replace(b"Impersonate-", b"X-Remote-")
        assert proxy.forwarded == forwarded_head(proxy, proxy.headers.port, remote, host=ALL) + b"\r\n"

    async def test_does_not_pass_where_the_clients_own_word_passes(
        self, authenticating_proxy: AuthenticatingProxy, fields: tuple[bytes, ...]
    ) -> None:
        proxy = authenticating_proxy
        lines = request(*fields, bearer(ALICE_TOKEN), host=ALL, target=b"/clusters/pass" + POD)
        await proxy.passes(lines, server_name=ALL)
        own = b"Authorization: Bearer " + ALICE_TOKEN + b"\r\n"
        assert proxy.forwarded == forwarded_head(proxy, proxy.pass_.port, own, host=ALL) + b"\r\n"


class TestXRemoteOfAFrontProxy:
    REMOTE = (b"X-Remote-User: bob", b"X-Remote-Group: dev", b"X-Remote-Group: system:masters")

    async def test_is_believed_without_the_groups_of_kubernetes(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        await proxy.passes(request(*self.REMOTE, target=POD), certificate=holder("front", "front"))
        bob = ALICE.replace(b"alice", b"bob")
        assert (
            proxy.forwarded
            == forwarded_head(proxy, proxy.east.port, bob) + b"Authorization: Bearer " + LENT + b"\r\n\r\n"
        )

    @pytest.mark.parametrize(
        "certificate",
        [
            ("front", "somebody"),  # of the right authorities, but not an allowed name
            ("others", "front"),  # the name of a front proxy, by authorities of another server
        ],
    )
    async def test_is_not_believed_of_others(
        self, authenticating_proxy: AuthenticatingProxy, certificate: tuple[str, str]
    ) -> None:
        await authenticating_proxy.refuses(request(*self.REMOTE), 401, UNAUTHORIZED, certificate=holder(*certificate))

    async def test_a_client_with_the_name_of_a_front_proxy_is_itself(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        await proxy.passes(request(*self.REMOTE), certificate=holder("clients", "front"))
        assert b"Impersonate-User: front\r\nImpersonate-Group: system:authenticated\r\n" in proxy.forwarded
        assert b"bob" not in proxy.forwarded

    async def test_a_front_proxy_that_says_nothing_is_nobody(self, authenticating_proxy: AuthenticatingProxy) -> None:
        await authenticating_proxy.refuses(request(), 401, UNAUTHORIZED, certificate=holder("front", "front"))

    @pytest.mark.parametrize(
        "field", [b"X-Remote-User: system:admin", b"X-Remote-User: \xff", b"X-Remote-User: a\tb", b"X-Remote-User: "]
    )
    async def test_what_it_may_not_say_is_401(self, authenticating_proxy: AuthenticatingProxy, field: bytes) -> None:
        await authenticating_proxy.refuses(request(field), 401, UNAUTHORIZED, certificate=holder("front", "front"))

    async def test_underscores_are_never_believed(self, authenticating_proxy: AuthenticatingProxy) -> None:
        lines = request(b"X_Remote_User: bob", b"X-Remote_Group: dev")
        await authenticating_proxy.refuses(lines, 401, UNAUTHORIZED, certificate=holder("front", "front"))


def not_allowed(resource: str, name: str, who: str = "alice") -> bytes:
    return status(
        403,
        "Forbidden",
        f'{resource} "{name}" is forbidden: User "{who}" cannot impersonate resource "{resource}" in API group "" at '
        "the cluster scope",
        details={"name": name, "kind": resource},
    )


class TestImpersonation:
    @pytest.mark.parametrize(
        "fields",
        [
            (b"Impersonate-User: admin",),
            (b"impersonate-user: admin",),
            (b"IMPERSONATE-USER: admin", b"Impersonate-User: alice"),
            (b"Impersonate-User: admin", b"Impersonate-Group: system:masters"),
        ],
    )
    async def test_by_somebody_who_may_not_is_403(
        self, authenticating_proxy: AuthenticatingProxy, fields: tuple[bytes, ...]
    ) -> None:
        await authenticating_proxy.refuses(request(*fields, bearer(ALICE_TOKEN)), 403, not_allowed("users", "admin"))

    @pytest.mark.parametrize("field", [b"Impersonate_User: admin", b"impersonate_group: system:masters"])
    @pytest.mark.parametrize("token", [ALICE_TOKEN, BOSS_TOKEN])
    async def test_with_underscores_is_refused_of_anybody(
        self, authenticating_proxy: AuthenticatingProxy, field: bytes, token: bytes
    ) -> None:
        message = f"the header {field.decode().lower().partition(':')[0]} is not known here"
        await authenticating_proxy.refuses(request(field, bearer(token)), 400, status(400, "BadRequest", message))

    async def test_an_unknown_header_of_the_family_is_refused(self, authenticating_proxy: AuthenticatingProxy) -> None:
        body = status(400, "BadRequest", "the header impersonate-fate is not known here")
        await authenticating_proxy.refuses(request(b"Impersonate-Fate: x", bearer(BOSS_TOKEN)), 400, body)

    async def test_without_a_credential_is_401(self, authenticating_proxy: AuthenticatingProxy) -> None:
        await authenticating_proxy.refuses(request(b"Impersonate-User: admin"), 401, UNAUTHORIZED)

    async def test_by_anybody_of_a_server_that_authenticates_nobody_is_403(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        east = model.ClusterBackend("east")
        server = model.Server(name="open", listeners=("tls",), default=True, backend=east, authorization="rules")
        await proxy.serve(proxy.configuration(servers=(server,)))
        asked = not_allowed("users", "admin", "system:anonymous")
        await proxy.refuses(request(b"Impersonate-User: admin", bearer(BOSS_TOKEN)), 403, asked)
        await proxy.refuses(request(b"Impersonate-User: admin"), 403, asked, certificate=holder("clients", "boss"))

    async def test_a_group_without_a_user_is_400(self, authenticating_proxy: AuthenticatingProxy) -> None:
        message = "requested [{Group  system:masters    }] without impersonating a user"
        lines = request(b"Impersonate-Group: system:masters", bearer(BOSS_TOKEN))
        await authenticating_proxy.refuses(lines, 400, status(400, "BadRequest", message))

    async def test_where_the_proxys_own_rights_are_lent_is_403_even_of_who_may(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        message = "impersonation is not possible here: requests to the cluster have the proxy's own identity"
        lines = request(b"Impersonate-User: x", bearer(BOSS_TOKEN), host=ALL, target=b"/clusters/own/api/v1/pods")
        await authenticating_proxy.refuses(lines, 403, status(403, "Forbidden", message), server_name=ALL)

    @pytest.mark.parametrize("away", ["own", "pass", "west"])
    async def test_a_policy_that_sends_it_elsewhere_is_no_way_round(
        self, authenticating_proxy: AuthenticatingProxy, away: str
    ) -> None:
        proxy = authenticating_proxy
        everything = model.Rule(verbs=("*",), api_groups=("*",), resources=("*",), non_resource_urls=("*",))
        server = model.Server(
            name=NAME,
            listeners=("tls",),
            server_names=(NAME,),
            backend=model.ClusterBackend("east"),
            authentication="corp",
            authorization="rules",
            dispatch=(model.Policy(name="away", rules=(everything,), backend=model.ClusterBackend(away)),),
        )
        rules = model.Authorization(
            name="rules",
            rules=(
                model.Rule(verbs=("get", "list"), api_groups=("*",), resources=("*",)),
                model.Rule(
                    users=("boss",), verbs=("impersonate",), api_groups=("*",), resources=("*",), clusters=("east",)
                ),
            ),
        )
        await proxy.serve(proxy.configuration(servers=(server,), authorization=(rules,)))
        body = not_allowed("users", "carol", "boss")
        if away == "own":
            message = "impersonation is not possible here: requests to the cluster have the proxy's own identity"
            body = status(403, "Forbidden", message)
        await proxy.refuses(request(b"Impersonate-User: carol", bearer(BOSS_TOKEN)), 403, body)
        await proxy.passes(request(bearer(BOSS_TOKEN)))

    async def test_by_somebody_who_may_is_told_exactly_once(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        fields = (b"Impersonate-User: carol", b"Impersonate-Group: dev", b"impersonate-group: dev")
        await proxy.passes(request(*fields, bearer(BOSS_TOKEN), target=POD))
        carol = ALICE.replace(b"alice", b"carol")
        assert (
            proxy.forwarded
            == forwarded_head(proxy, proxy.east.port, carol) + b"Authorization: Bearer " + LENT + b"\r\n\r\n"
        )
        assert (proxy.records[-1].user, proxy.records[-1].impersonated) == ("boss", "carol")

    @pytest.mark.parametrize("name", [b"a\tb", b" ", "x\u0085y".encode()])
    async def test_a_name_that_would_not_survive_is_refused(
        self, authenticating_proxy: AuthenticatingProxy, name: bytes
    ) -> None:
        proxy = authenticating_proxy
        code, _ = await proxy.answer(
            request(b"Impersonate-User: carol", b"Impersonate-Group: " + name, bearer(BOSS_TOKEN))
        )
        assert (code, proxy.forwarded) == (403, b"") or not name.strip()


CONNECTION = status(400, "BadRequest", "Connection lists an end-to-end field")


@pytest.mark.parametrize(
    "name",
    [b"Authorization", b"Impersonate-User", b"impersonate_user", b"X-Remote-User", b"X_Remote-Group"],
)
async def test_connection_may_not_name_what_says_who_calls(
    authenticating_proxy: AuthenticatingProxy, name: bytes
) -> None:
    lines = request(b"Connection: close, " + name, name + b": alice", bearer(ALICE_TOKEN))
    await authenticating_proxy.refuses(lines, 400, CONNECTION)


@pytest.mark.parametrize(
    "trailer",
    [
        b"X-Remote-User: admin",
        b"x_remote_group: system:masters",
        b"Impersonate-User: admin",
        b"impersonate_user: admin",
        b"Authorization: Bearer x",
        b"X-Forwarded-For: 6.6.6.6",
        b"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.eHg",
    ],
)
async def test_trailers_say_nothing_of_identity(authenticating_proxy: AuthenticatingProxy, trailer: bytes) -> None:
    proxy = authenticating_proxy
    head = request(b"Transfer-Encoding: chunked", bearer(ALICE_TOKEN), target=POD, method=b"PUT")
    proxy.east.reply = lambda end: end.send(OK) if b"0\r\n" in end.received else None
    await proxy.passes(head + b"2\r\n{}\r\n0\r\n" + trailer + b"\r\nKept: yes\r\n\r\n")
    assert proxy.forwarded.endswith(b"\r\n\r\n2\r\n{}\r\n0\r\nKept: yes\r\n\r\n")


UPGRADE = (b"Connection: Upgrade", b"Upgrade: websocket")
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
EXEC = POD + b"/exec?command=sh"


class TestUpgradedConnections:
    async def test_the_head_is_judged_as_any_other(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        proxy.east.reply = lambda end: end.send(SWITCH)
        claims = (b"X-Remote-User: admin", b"X_Remote_Group: system:masters")
        client = await proxy.asks(request(*UPGRADE, *claims, bearer(ALICE_TOKEN), target=EXEC))
        await proxy.until(lambda: b" 101 " in client.received)
        expected = (
            forwarded_head(proxy, proxy.east.port, ALICE, target=EXEC) + b"Authorization: Bearer " + LENT + b"\r\n"
        )
        upgrade = b"X-Forwarded-Uri: " + EXEC + b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert proxy.forwarded == expected + upgrade

    @pytest.mark.parametrize("claim", [b"X-Remote-User: admin", b"Sec-WebSocket-Protocol: v4.channel.k8s.io"])
    async def test_without_a_credential_it_is_401(
        self, authenticating_proxy: AuthenticatingProxy, claim: bytes
    ) -> None:
        await authenticating_proxy.refuses(request(*UPGRADE, claim, target=EXEC), 401, UNAUTHORIZED)

    async def test_impersonation_is_reviewed(self, authenticating_proxy: AuthenticatingProxy) -> None:
        lines = request(*UPGRADE, b"Impersonate-User: admin", bearer(ALICE_TOKEN), target=EXEC)
        await authenticating_proxy.refuses(lines, 403, not_allowed("users", "admin"))

    async def test_a_connection_that_is_not_upgraded_does_not_become_a_way_round(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        smuggled = request(b"X-Remote-User: admin", b"Impersonate-User: admin", b"Smuggled: yes")
        client = await proxy.asks(request(*UPGRADE, bearer(ALICE_TOKEN), target=EXEC) + smuggled)
        await proxy.until(lambda: client.received.endswith(UNAUTHORIZED))
        assert plain(client.received).startswith(OK)
        assert b"Smuggled" not in proxy.forwarded

    async def test_what_is_said_in_a_tunnel_is_not_for_others(self, authenticating_proxy: AuthenticatingProxy) -> None:
        """The bytes of a tunnel go to its own connection, which serves no other client afterwards."""
        proxy = authenticating_proxy
        proxy.east.reply = lambda end: end.send(SWITCH)
        client = await proxy.asks(request(*UPGRADE, bearer(ALICE_TOKEN), target=EXEC))
        await proxy.until(lambda: b" 101 " in client.received)
        proxy.east.reply = None
        inside = request(b"X-Remote-User: admin", b"Impersonate-User: admin")
        client.send(inside)
        await proxy.until(lambda: proxy.forwarded.endswith(inside))
        client.close()
        await proxy.until(lambda: proxy.east.last.over)
        proxy.east.reply = lambda end: end.send(OK)
        await proxy.passes(request(bearer(ALICE_TOKEN)))
        assert len(proxy.east.connections) == 2


MALFORMED = [
    b"Impersonate-User: a\rX-Remote-User: admin",
    b"Impersonate-User: a\nX-Remote-User: admin",
    b"X-Remote-User: a\x00b",
    b"X-Remote-User : admin",
    b"X-Remote-User\t: admin",
    b"A: b\r\n X-Remote-User: admin",
    b"A: b\r\n\tImpersonate-User: admin",
    "X-R\u00e9mote-User: admin".encode(),
    b"X-Remote-User\x00: admin",
    b": admin",
    b"X-Remote-User",
]


@pytest.mark.parametrize("field", MALFORMED)
async def test_what_is_no_field_is_400_and_one_line(authenticating_proxy: AuthenticatingProxy, field: bytes) -> None:
    proxy = authenticating_proxy
    code, body = await proxy.answer(request(field, bearer(ALICE_TOKEN)))
    assert (code, body[:8]) == (400, b'{"kind":')
    assert proxy.forwarded == b""
    assert len(proxy.log_lines()) == 1
    assert ALICE_TOKEN.decode() not in proxy.output()


async def test_another_host_on_a_kept_connection_is_another_server(authenticating_proxy: AuthenticatingProxy) -> None:
    """Without a TLS name Host chooses, request by request, and with it who vouches for the client."""
    proxy = authenticating_proxy
    client = await proxy.client("127.0.0.1", certificate=holder("clients", "alice", "dev"))
    client.send(request(target=POD))
    assert await proxy.answered(client) == (200, b"{}")
    forwarded = proxy.forwarded
    for host, answer in (
        (OTHER, UNAUTHORIZED),
        (NAME, b"{}"),
        (OTHER.upper(), UNAUTHORIZED),
        (f"{OTHER}.", UNAUTHORIZED),
    ):
        client.received = b""
        client.send(request(host=host, target=POD))
        assert (await proxy.answered(client))[1] == answer
    assert proxy.west.received == b""
    assert proxy.forwarded == forwarded * 2
