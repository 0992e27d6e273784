"""Nobody gets more by the proxy than the cluster gives: stars in rules, shells for readers, names of the system, two
credentials at once."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.config import model
from tests.proxy.harness import NAME, OK, plain
from tests.security.authenticating_proxy import (
    ALICE_TOKEN,
    ALL,
    BOSS_TOKEN,
    LENT,
    UNAUTHORIZED,
    AuthenticatingProxy,
    bearer,
    corp,
    holder,
    request,
    status,
)

EVERYTHING: dict[str, Any] = {"api_groups": ("*",), "resources": ("*",), "non_resource_urls": ("*",)}
SECRETS = b"/api/v1/namespaces/kube-system/secrets"
MASTERS = (b"Impersonate-User: root", b"Impersonate-Group: system:masters")
POD = b"/api/v1/namespaces/a/pods/b"
UPGRADE = (b"Connection: Upgrade", b"Upgrade: websocket")
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


def rules(*listed: model.Rule, **more: Any) -> tuple[model.Authorization, ...]:
    return (model.Authorization(name="rules", rules=listed, **more),)


def cannot(verb: str, resource: str, name: str, where: str = "at the cluster scope", kind: str = "") -> bytes:
    kind = kind or resource
    message = f'{kind} "{name}" is forbidden: User "alice" cannot {verb} resource "{resource}" in API group "" {where}'
    return status(403, "Forbidden", message, details={"name": name, "kind": kind})


class TestImpersonation:
    @pytest.mark.parametrize("verbs", [("*",), ("-get",), ("-get", "*")])
    async def test_a_star_never_makes_somebody_system_masters(
        self, authenticating_proxy: AuthenticatingProxy, verbs: tuple[str, ...]
    ) -> None:
        proxy = authenticating_proxy
        proxy.allows = lambda _: True
        await proxy.serve(proxy.configuration(authorization=rules(model.Rule(verbs=verbs, **EVERYTHING))))
        lines = request(*MASTERS, bearer(ALICE_TOKEN), target=SECRETS)
        await proxy.refuses(lines, 403, cannot("impersonate", "users", "root"))
        assert proxy.reviewed == []

    @pytest.mark.parametrize("path", [b"/clusters/east", b"/clusters/west", b"/clusters/headers"])
    async def test_a_rule_that_allows_it_does_not_replace_the_clusters_word(
        self, authenticating_proxy: AuthenticatingProxy, path: bytes
    ) -> None:
        proxy = authenticating_proxy
        proxy.allows = lambda spec: spec["resourceAttributes"]["resource"] == "users"
        everybody = model.Rule(verbs=("impersonate", "get", "list"), **EVERYTHING)
        await proxy.serve(proxy.configuration(authorization=rules(everybody)))
        lines = request(*MASTERS, bearer(ALICE_TOKEN), host=ALL, target=path + SECRETS)
        await proxy.refuses(lines, 403, cannot("impersonate", "groups", "system:masters"), server_name=ALL)
        asked = [spec["resourceAttributes"] for spec in proxy.reviewed]
        assert asked == [
            {"verb": "impersonate", "version": "v1", "resource": "users", "name": "root"},
            {"verb": "impersonate", "version": "v1", "resource": "groups", "name": "system:masters"},
        ]
        assert {(spec["user"], *spec["groups"]) for spec in proxy.reviewed} == {
            ("alice", "dev", "system:authenticated")
        }

    async def test_both_allowing_it_is_enough(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        await proxy.passes(request(b"Impersonate-User: carol", bearer(BOSS_TOKEN)))
        assert b"Impersonate-User: carol\r\n" in proxy.forwarded

    async def test_an_extra_that_would_be_lost_is_403_that_names_it(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        fields = (b"Impersonate-User: carol", b"Impersonate-Extra-Scopes: read", b"Impersonate-Extra-A%2Fb: c")
        message = 'forbidden: the extra "a/b" is not passed on to cluster "east"'
        lines = request(*fields, bearer(BOSS_TOKEN))
        await proxy.refuses(lines, 403, status(403, "Forbidden", message, details={}))
        await proxy.passes(request(*fields[:2], bearer(BOSS_TOKEN)))
        assert b"Impersonate-Extra-scopes: read\r\n" in proxy.forwarded
        await proxy.serve(proxy.configuration(east={"impersonate_extras": ("*",)}))
        await proxy.passes(lines)
        assert b"Impersonate-Extra-a%2Fb: c\r\n" in proxy.forwarded

    async def test_with_passthrough_the_cluster_judges_what_a_rule_allows(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        proxy.allows = lambda _: False
        lines = request(b"Impersonate-User: x", bearer(BOSS_TOKEN), host=ALL, target=b"/clusters/pass" + POD)
        await proxy.passes(lines, server_name=ALL)
        assert b"Impersonate-User: x\r\nAuthorization: Bearer " + BOSS_TOKEN not in proxy.forwarded
        assert b"Authorization: Bearer " + BOSS_TOKEN + b"\r\nImpersonate-User: x\r\n" in proxy.forwarded

    async def test_a_cluster_that_cannot_be_asked_is_503(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        proxy.east.reply = lambda end: end.send(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n")
        code, _ = await proxy.answer(request(b"Impersonate-User: carol", bearer(BOSS_TOKEN)))
        assert code == 503
        assert b"carol" not in proxy.forwarded.replace(b'"name":"carol"', b"")


READERS = rules(model.Rule(verbs=("get", "list", "watch"), **EVERYTHING))
OPENERS = rules(model.Rule(verbs=("create",), **EVERYTHING))
BOTH = rules(model.Rule(verbs=("get", "create"), **EVERYTHING))
IN_A = 'in the namespace "a"'


class TestStreams:
    """exec, attach and port-forward are a `create`, whichever method opens them."""

    @pytest.mark.parametrize("cluster", [b"own", b"east"])
    @pytest.mark.parametrize("stream", ["exec", "attach", "portforward"])
    @pytest.mark.parametrize("fields", [UPGRADE, ()], ids=["upgrade", "plain"])
    async def test_a_reader_gets_none(
        self, authenticating_proxy: AuthenticatingProxy, cluster: bytes, stream: str, fields: tuple[bytes, ...]
    ) -> None:
        proxy = authenticating_proxy
        await proxy.serve(proxy.configuration(authorization=READERS))
        target = b"/clusters/" + cluster + POD + b"/" + stream.encode() + b"?command=sh"
        lines = request(*fields, bearer(ALICE_TOKEN), host=ALL, target=target)
        body = cannot("create", f"pods/{stream}", "b", IN_A, "pods")
        await proxy.refuses(lines, 403, body, server_name=ALL)
        assert proxy.records[-1].verb == "get"  # as a kube-apiserver's audit log has it

    async def test_who_may_only_create_gets_none_by_get(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        await proxy.serve(proxy.configuration(authorization=OPENERS))
        body = cannot("get", "pods/exec", "b", IN_A, "pods")
        await proxy.refuses(request(*UPGRADE, bearer(ALICE_TOKEN), target=POD + b"/exec"), 403, body)
        proxy.east.reply = lambda end: end.send(SWITCH)
        client = await proxy.asks(request(*UPGRADE, bearer(ALICE_TOKEN), target=POD + b"/exec", method=b"POST"))
        await proxy.until(lambda: b" 101 " in client.received)

    async def test_who_may_do_both_gets_it(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        await proxy.serve(proxy.configuration(authorization=BOTH))
        proxy.own.reply = lambda end: end.send(SWITCH)
        lines = request(*UPGRADE, bearer(ALICE_TOKEN), host=ALL, target=b"/clusters/own" + POD + b"/exec")
        client = await proxy.asks(lines, server_name=ALL)
        await proxy.until(lambda: b" 101 " in client.received)

    async def test_reviews_ask_for_both(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        review = model.SubjectAccessReview()
        await proxy.serve(
            proxy.configuration(authorization=(model.Authorization(name="rules", subject_access_review=review),))
        )
        proxy.allows = lambda spec: spec["resourceAttributes"]["verb"] == "get"
        body = cannot("create", "pods/exec", "b", IN_A, "pods")
        await proxy.refuses(request(*UPGRADE, bearer(ALICE_TOKEN), target=POD + b"/exec"), 403, body)
        verbs = [
            (spec["resourceAttributes"]["verb"], spec["resourceAttributes"]["subresource"]) for spec in proxy.reviewed
        ]
        assert verbs == [("get", "exec"), ("create", "exec")]

    @pytest.mark.parametrize("method", [b"GET", b"POST"])
    async def test_policies_see_a_create(self, authenticating_proxy: AuthenticatingProxy, method: bytes) -> None:
        proxy = authenticating_proxy
        pods: dict[str, Any] = {"api_groups": ("",), "resources": ("*",)}
        dispatch = (
            model.Policy(name="readers", rules=(model.Rule(verbs=("get", "list", "watch"), **pods),)),
            model.Policy(
                name="no-writes", rules=(model.Rule(verbs=("*",), **pods),), reject=model.Reject(message="read only")
            ),
        )
        server = model.Server(
            name=NAME,
            listeners=("tls",),
            server_names=(NAME,),
            backend=model.ClusterBackend("east"),
            authentication="corp",
            dispatch=dispatch,
        )
        await proxy.serve(proxy.configuration(servers=(server,)))
        lines = request(*UPGRADE, bearer(ALICE_TOKEN), target=POD + b"/exec?command=sh", method=method)
        await proxy.refuses(lines, 403, status(403, "Forbidden", "read only", details={}))
        await proxy.passes(request(bearer(ALICE_TOKEN), target=POD))


def vouched(name: str, *groups: str) -> Any:
    return lambda _: {"authenticated": True, "user": {"username": name, "groups": list(groups)}}


def of_judge(target: str) -> bytes:
    return request(bearer(b"a-token-of-judge"), host=ALL, target=target.encode())


class TestNamesOfTheSystem:
    """What cluster "judge" says in its TokenReviews in the name of the system is for "judge" alone."""

    @pytest.mark.parametrize("share", [False, True])
    @pytest.mark.parametrize(
        "name",
        [
            "system:bootstrap:abcdef",
            "system:kube-controller-manager",
            "system:admin",
            "system:apiserver",
            "system:serviceaccount:",
            "system:node:",
            "system:anonymous",
        ],
    )
    async def test_its_users_are_nobody_elsewhere(
        self, authenticating_proxy: AuthenticatingProxy, name: str, share: bool
    ) -> None:
        proxy = authenticating_proxy
        proxy.verdict = vouched(name, "system:masters")
        await proxy.serve(
            proxy.configuration(authentication=(corp(share_service_accounts=share),), servers=(EVERYWHERE,))
        )
        for cluster in ("east", "pass", "own", "headers"):
            message = f'forbidden: User "{name}" of cluster "judge" is not a user of cluster "{cluster}"'
            body = status(403, "Forbidden", message, details={})
            await proxy.refuses(of_judge(f"/clusters/{cluster}/api/v1/pods"), 403, body, server_name=ALL)
        await proxy.passes(of_judge("/clusters/judge/api/v1/pods"), server_name=ALL)
        assert f"Impersonate-User: {name}\r\nImpersonate-Group: system:masters\r\n".encode() in proxy.judge.received

    @pytest.mark.parametrize("share", [False, True])
    async def test_its_groups_are_dropped_elsewhere(
        self, authenticating_proxy: AuthenticatingProxy, share: bool
    ) -> None:
        proxy = authenticating_proxy
        proxy.verdict = vouched("carol", "system:masters", "dev", "system:nodes", "system:bootstrappers")
        await proxy.serve(
            proxy.configuration(authentication=(corp(share_service_accounts=share),), servers=(EVERYWHERE,))
        )
        await proxy.passes(of_judge("/clusters/east/api/v1/pods"), server_name=ALL)
        carol = b"Impersonate-User: carol\r\nImpersonate-Group: dev\r\nImpersonate-Group: system:authenticated\r\n"
        assert carol + b"X-F" in proxy.forwarded
        assert b"masters" not in proxy.forwarded
        assert proxy.records[-1].impersonated == ""

    async def test_shared_accounts_keep_their_own_groups_alone(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        name = "system:serviceaccount:a:b"
        proxy.verdict = vouched(name, "system:serviceaccounts", "system:serviceaccounts:a", "system:masters")
        await proxy.serve(
            proxy.configuration(authentication=(corp(share_service_accounts=True),), servers=(EVERYWHERE,))
        )
        await proxy.passes(of_judge("/clusters/east/api/v1/pods"), server_name=ALL)
        assert b"Impersonate-Group: system:serviceaccounts:a\r\n" in proxy.forwarded
        assert b"masters" not in proxy.forwarded

    async def test_rules_do_not_see_them_elsewhere(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        proxy.verdict = vouched("carol", "system:masters")
        masters = model.Rule(user_groups=("system:masters",), verbs=("*",), **EVERYTHING)
        await proxy.serve(proxy.configuration(servers=(EVERYWHERE,), authorization=rules(masters)))
        code, _ = await proxy.answer(of_judge("/clusters/own/api/v1/pods"), server_name=ALL)
        assert (code, proxy.forwarded) == (403, b"")
        await proxy.passes(of_judge("/clusters/judge/api/v1/pods"), server_name=ALL)

    @pytest.mark.parametrize("name", ["system:serviceaccount:a:b", "carol"])
    async def test_nor_does_another_cluster_that_reviews_access(
        self, authenticating_proxy: AuthenticatingProxy, name: str
    ) -> None:
        proxy = authenticating_proxy
        proxy.verdict = vouched(name, "system:masters", "dev")
        proxy.allows = lambda _: True
        review = model.Authorization(
            name="rules", subject_access_review=model.SubjectAccessReview(cluster="east", cache_allowed=0)
        )
        await proxy.serve(proxy.configuration(servers=(EVERYWHERE,), authorization=(review,)))
        code, _ = await proxy.answer(of_judge("/clusters/judge/api/v1/pods"), server_name=ALL)
        if name == "carol":
            assert code == 200
            assert [(spec["user"], spec["groups"]) for spec in proxy.reviewed] == [
                ("carol", ["dev", "system:authenticated"])
            ]
        else:
            assert (code, proxy.reviewed) == (403, [])


EVERYWHERE = model.Server(
    name=ALL,
    listeners=("tls",),
    server_names=(ALL,),
    backend=model.ClustersBackend(("east", "west", "pass", "own", "headers", "judge")),
    authentication="corp",
    authorization="rules",
)


class TestWebPages:
    """A server that asks for no credential, of a cluster that gets the proxy's own identity."""

    SITE = b"https://ui.example.com"

    def server(self, **more: Any) -> model.Server:
        backend = model.ClusterBackend("own")
        return model.Server(name=NAME, listeners=("tls",), server_names=(NAME,), backend=backend, **more)

    @pytest.mark.parametrize("cors", [False, True])
    @pytest.mark.parametrize(
        "fields",
        [
            (b"Origin: https://evil.test",),
            (b"Origin: null",),
            (b"Sec-Fetch-Site: cross-site",),
            (b"Sec-Fetch-Site: same-site",),
        ],
    )
    @pytest.mark.parametrize("method", [b"GET", b"POST"])
    async def test_pages_of_another_origin_are_refused(
        self, authenticating_proxy: AuthenticatingProxy, method: bytes, fields: tuple[bytes, ...], cors: bool
    ) -> None:
        proxy = authenticating_proxy
        allowed = model.CORS(allowed_origins=(self.SITE.decode(),)) if cors else None
        await proxy.serve(proxy.configuration(servers=(self.server(cors=allowed),)))
        message = "web pages of another origin may not use the proxy's own rights"
        lines = request(*fields, b"Content-Length: 0", method=method)
        await proxy.refuses(lines, 403, status(403, "Forbidden", message))
        await proxy.passes(request(b"Origin: https://" + NAME.encode(), b"Sec-Fetch-Site: same-origin"))

    async def test_those_that_the_file_allows_are_not(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        cors = model.CORS(allowed_origins=(self.SITE.decode(),))
        await proxy.serve(proxy.configuration(servers=(self.server(cors=cors),)))
        await proxy.passes(request(b"Origin: " + self.SITE, b"Sec-Fetch-Site: cross-site"))

    async def test_where_a_credential_is_asked_for_it_is_the_credentials_say(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        await proxy.serve(proxy.configuration(servers=(self.server(authentication="corp", authorization="rules"),)))
        await proxy.passes(request(b"Origin: https://ui.test", b"Sec-Fetch-Site: cross-site", bearer(ALICE_TOKEN)))

    async def test_a_certificate_is_shown_by_the_browser_whichever_page_asks(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy, alice = authenticating_proxy, holder("clients", "alice")
        cors = model.CORS(allowed_origins=(self.SITE.decode(),))
        server = self.server(authentication="corp", authorization="rules", cors=cors)
        await proxy.serve(proxy.configuration(servers=(server,)))
        message = "web pages of another origin may not use the proxy's own rights"
        for fields in ((b"Origin: https://evil.test",), (b"Sec-Fetch-Site: cross-site",)):
            lines = request(*fields, b"Content-Length: 0", method=b"POST")
            await proxy.refuses(lines, 403, status(403, "Forbidden", message), certificate=alice)
        await proxy.passes(request(b"Origin: " + self.SITE, b"Sec-Fetch-Site: cross-site"), certificate=alice)
        await proxy.passes(request(), certificate=alice)


SUBPROTOCOL = b"Sec-WebSocket-Protocol: v5.channel.k8s.io, base64url.bearer.authorization.k8s.io."


def passing(*fields: bytes, host: str = ALL, target: bytes = b"/clusters/pass" + POD) -> bytes:
    return request(*fields, host=host, target=target)


class TestPassthrough:
    """What passes is what was judged."""

    async def test_the_token_decides_even_beside_a_good_certificate(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        certificate = holder("clients", "boss")
        await proxy.passes(passing(bearer(ALICE_TOKEN)), server_name=ALL, certificate=certificate)
        assert proxy.records[-1].user == "alice"
        assert b"Authorization: Bearer " + ALICE_TOKEN + b"\r\n" in proxy.forwarded
        await proxy.refuses(passing(bearer(b"guess")), 401, UNAUTHORIZED, server_name=ALL, certificate=certificate)

    async def test_nor_does_a_front_proxys_word_count_beside_a_token(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        lines = passing(b"X-Remote-User: boss", bearer(ALICE_TOKEN))
        await proxy.passes(lines, server_name=ALL, certificate=holder("front", "front"))
        assert proxy.records[-1].user == "alice"

    async def test_elsewhere_a_good_certificate_beside_a_bad_token_is_good(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        await proxy.passes(request(bearer(b"guess")), certificate=holder("clients", "alice"))
        assert proxy.records[-1].user == "alice"

    @pytest.mark.parametrize("scheme", [b"Basic YTpi", b"Bearer  two-blanks", b"Negotiate x"])
    async def test_what_was_not_judged_does_not_pass_beside_a_certificate(
        self, authenticating_proxy: AuthenticatingProxy, scheme: bytes
    ) -> None:
        proxy = authenticating_proxy
        lines = passing(b"Authorization: " + scheme)
        await proxy.passes(lines, server_name=ALL, certificate=holder("clients", "alice"))
        assert b"uthorization" not in proxy.forwarded

    async def test_of_two_tokens_only_the_one_that_was_judged_passes(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        lines = passing(bearer(ALICE_TOKEN), SUBPROTOCOL + b"Ym9zcw", *UPGRADE)
        client = await proxy.asks(lines, server_name=ALL)
        await proxy.until(lambda: plain(client.received).endswith(OK))
        assert b"Authorization: Bearer " + ALICE_TOKEN + b"\r\n" in proxy.forwarded
        assert b"bearer.authorization" not in proxy.forwarded
        assert b"Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n" in proxy.forwarded

    async def test_what_follows_the_token_does_not_pass(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        await proxy.passes(passing(bearer(ALICE_TOKEN) + b" " + BOSS_TOKEN), server_name=ALL)
        assert b"Authorization: Bearer " + ALICE_TOKEN + b"\r\n" in proxy.forwarded
        assert BOSS_TOKEN not in proxy.forwarded

    async def test_a_policy_that_sends_it_there_passes_no_token_that_was_not_judged(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        everything = model.Rule(verbs=("*",), **EVERYTHING)
        server = model.Server(
            name=NAME,
            listeners=("tls",),
            server_names=(NAME,),
            backend=model.ClusterBackend("east"),
            authentication="corp",
            dispatch=(model.Policy(name="away", rules=(everything,), backend=model.ClusterBackend("pass")),),
        )
        await proxy.serve(proxy.configuration(servers=(server,)))
        await proxy.passes(request(bearer(BOSS_TOKEN)), certificate=holder("clients", "alice"))
        assert proxy.records[-1].user == "alice"
        assert b"GET /api/v1/pods" in proxy.pass_.received
        assert b"uthorization" not in proxy.forwarded
        assert LENT not in proxy.forwarded
