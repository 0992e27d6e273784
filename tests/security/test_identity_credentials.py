"""Forged, stolen, foreign and misplaced credentials: 401 or 403, and no cluster receives the request."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from twisted.internet.threads import deferToThread

from mcproxy.config import model
from tests.identity import issuer
from tests.identity.certificates import Held, revocations, user
from tests.proxy.harness import NAME, UpstreamEnd
from tests.security.authenticating_proxy import (
    ALICE_TOKEN,
    ALL,
    BOSS_TOKEN,
    MALLORY_TOKEN,
    OTHER,
    ROOT_TOKEN,
    UNAUTHORIZED,
    AuthenticatingProxy,
    bearer,
    ca,
    claims,
    corp,
    holder,
    id_token,
    issued,
    pem,
    request,
    status,
)

NO_NAME = "127.0.0.1"  # for which a client sends no TLS name


def with_hs256(key: bytes) -> bytes:
    start = issuer.unsigned(claims(), alg="HS256", kid="one", typ="JWT")
    return issuer.with_signature(start, hmac.new(key, start, hashlib.sha256).digest())


def public(form: PublicFormat, encoding: Encoding) -> bytes:
    return issuer.rsa_key().public_key().public_bytes(encoding, form)


def spoilt(token: bytes) -> bytes:
    head, payload, signature = token.split(b".")
    return b".".join([head, payload, signature[::-1]])


def with_claims_of_another(token: bytes) -> bytes:
    head, _, signature = token.split(b".")
    return b".".join([head, issuer.b64(json.dumps(claims(sub="admin")).encode()).encode(), signature])


FORGED: dict[str, Callable[[], bytes]] = {
    "none": lambda: issuer.unsigned(claims(), alg="none") + b".",
    "None": lambda: issuer.unsigned(claims(), alg="None", kid="one") + b".",
    "no alg": lambda: issuer.unsigned(claims(), kid="one") + b".",
    "none with a signature": lambda: issuer.with_signature(issuer.unsigned(claims(), alg="none"), b"x" * 256),
    "HS256 with the public key": lambda: with_hs256(public(PublicFormat.SubjectPublicKeyInfo, Encoding.PEM)),
    "HS256 with the public key in DER": lambda: with_hs256(public(PublicFormat.SubjectPublicKeyInfo, Encoding.DER)),
    "HS256 with the key set": lambda: with_hs256(issuer.jwks(issuer.rsa_jwk())),
    "HS256 with nothing": lambda: with_hs256(b""),
    "another audience": lambda: id_token(aud="other"),
    "no audience": lambda: id_token(aud=None),
    "another issuer": lambda: id_token(iss="https://login.example.com/"),
    "expired": lambda: id_token(exp=time.time() - 2),
    "no exp": lambda: id_token(exp=None),
    "not yet": lambda: id_token(nbf=time.time() + 120),
    "groups elsewhere": lambda: id_token(_claim_names={"groups": "s"}, _claim_sources={"s": {"endpoint": "https://x"}}),
    "a kid that does not exist": lambda: issuer.token(claims(), kid="two"),
    "another key": lambda: issuer.token(claims(), key=issuer.rsa_key("two")),
    "its own key": lambda: issuer.token(claims(), key=issuer.rsa_key("two"), jwk=issuer.rsa_jwk("two")),
    "a key elsewhere": lambda: issuer.token(claims(), key=issuer.rsa_key("two"), jku="https://evil.example.com/"),
    "crit": lambda: issuer.token(claims(), crit=["exp"]),
    "a signature turned round": lambda: spoilt(id_token()),
    "the claims of another": lambda: with_claims_of_another(id_token()),
    "an administrator of Kubernetes": lambda: id_token(sub="system:admin"),
    "no subject": lambda: id_token(sub=None),
    "deep": lambda: issuer.token(b'{"iss":' + b"[" * 5000 + b"]" * 5000 + b"}"),
}


class TestTokens:
    @pytest.mark.parametrize("make", FORGED.values(), ids=FORGED)
    async def test_a_forged_one_is_401(
        self, authenticating_proxy: AuthenticatingProxy, make: Callable[[], bytes]
    ) -> None:
        token = make()
        await authenticating_proxy.refuses(request(bearer(token)), 401, UNAUTHORIZED)
        assert all(part.decode() not in authenticating_proxy.output() for part in token.split(b".") if len(part) > 3)

    async def test_a_good_one_is_who_it_says_without_the_groups_of_kubernetes(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        await proxy.passes(request(bearer(id_token(groups=["dev", "system:masters", "system:nodes"]))))
        groups = b"Impersonate-Group: dev\r\nImpersonate-Group: system:authenticated\r\n"
        assert b"Impersonate-User: alice\r\n" + groups + b"X-Forwarded-For" in proxy.forwarded

    async def test_a_line_of_the_token_file_gives_no_group_of_kubernetes(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        await proxy.passes(request(bearer(MALLORY_TOKEN)))
        assert b"Impersonate-Group: dev\r\n" in proxy.forwarded
        assert b"system:masters" not in proxy.forwarded

    @pytest.mark.parametrize(
        "field",
        [
            bearer(ROOT_TOKEN),  # of a line that names system:admin
            bearer(b"guess"),
            bearer(ALICE_TOKEN[:-1]),
            bearer(ALICE_TOKEN + b"x"),
            bearer(ALICE_TOKEN.upper()),
            bearer(b"\xff\xfe"),
            bearer("aé".encode()),
            b"Authorization: Bearer",
            b"Authorization: Bearer  " + ALICE_TOKEN,
            b"Authorization: Basic YWxpY2U6YQ==",
            b"Authorization: " + ALICE_TOKEN,
            b"Authorization_: Bearer " + ALICE_TOKEN,
            b"X-Authorization: Bearer " + ALICE_TOKEN,
            b"Proxy-Authorization: Bearer " + ALICE_TOKEN,
            b"Cookie: token=" + ALICE_TOKEN,
            b"Sec_WebSocket_Protocol: x, base64url.bearer.authorization.k8s.io." + issuer.b64(ALICE_TOKEN).encode(),
            b"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io." + issuer.b64(ALICE_TOKEN).encode(),
            b"Sec-WebSocket-Protocol: x, base64url.bearer.authorization.k8s.io.%%%",
        ],
    )
    async def test_what_is_no_token_of_ours_is_401(
        self, authenticating_proxy: AuthenticatingProxy, field: bytes
    ) -> None:
        await authenticating_proxy.refuses(request(field), 401, UNAUTHORIZED)
        assert "0123456789" not in authenticating_proxy.output()

    @pytest.mark.parametrize("name", [b"access_token", b"token", b"bearer_token", b"authorization", b"%74oken"])
    async def test_one_in_the_query_is_none(self, authenticating_proxy: AuthenticatingProxy, name: bytes) -> None:
        target = b"/api/v1/pods?%b=%b&watch=0" % (name, ALICE_TOKEN)
        await authenticating_proxy.refuses(request(target=target), 401, UNAUTHORIZED)
        assert "0123456789" not in authenticating_proxy.output().replace(repr(target), "")

    async def test_two_are_400(self, authenticating_proxy: AuthenticatingProxy) -> None:
        body = status(400, "BadRequest", "a request has one Authorization header at the most")
        await authenticating_proxy.refuses(request(bearer(ALICE_TOKEN), bearer(BOSS_TOKEN)), 400, body)
        await authenticating_proxy.refuses(request(bearer(ALICE_TOKEN), b"authorization: x"), 400, body)

    @pytest.mark.parametrize("size", [16 * 1024 + 1, 60_000])
    async def test_a_long_one_is_401(self, authenticating_proxy: AuthenticatingProxy, size: int) -> None:
        await authenticating_proxy.refuses(request(bearer(b"0123456789" * (size // 10 + 1))), 401, UNAUTHORIZED)
        assert "0123456789" not in authenticating_proxy.output()

    @pytest.mark.parametrize("token", [b"0123456789" * 100_000, b"a." * 500_000])
    async def test_a_huge_one_is_431(self, authenticating_proxy: AuthenticatingProxy, token: bytes) -> None:
        proxy = authenticating_proxy
        body = status(431, "", "the request head is longer than 65536 bytes")
        await proxy.refuses(request(bearer(token)), 431, body)
        assert "0123456789" not in proxy.output()
        assert "a.a.a" not in proxy.output()

    async def test_a_bad_one_beside_a_good_certificate_is_good(self, authenticating_proxy: AuthenticatingProxy) -> None:
        await authenticating_proxy.passes(request(bearer(b"guess")), certificate=holder("clients", "alice"))
        assert b"guess" not in authenticating_proxy.forwarded

    async def test_where_anonymous_requests_pass_a_bad_one_is_401_all_the_same(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        known = (corp(anonymous=model.Anonymous(enabled=True)), model.Authentication(name="guests"))
        await proxy.serve(proxy.configuration(authentication=known))
        await proxy.passes(request())
        forwarded = proxy.forwarded
        assert b"Impersonate-User: system:anonymous\r\nImpersonate-Group: system:unauthenticated\r\nX-" in forwarded
        await proxy.refuses(request(bearer(b"guess")), 401, UNAUTHORIZED)
        await proxy.refuses(request(), 401, UNAUTHORIZED, certificate=holder("others", "alice"))
        assert proxy.forwarded == forwarded


def vouched(name: str, *groups: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda _: {"authenticated": True, "user": {"username": name, "groups": list(groups)}}


def nobody_in(name: str, cluster: str) -> bytes:
    message = f'forbidden: User "{name}" of cluster "judge" is not a user of cluster "{cluster}"'
    return status(403, "Forbidden", message, details={})


class TestAccountsOfOneCluster:
    @pytest.mark.parametrize("name", ["system:serviceaccount:kube-system:default", "system:node:worker-1"])
    async def test_are_nobody_in_another(self, authenticating_proxy: AuthenticatingProxy, name: str) -> None:
        proxy = authenticating_proxy
        proxy.verdict = vouched(name, "system:serviceaccounts")
        await proxy.refuses(request(bearer(b"of-the-account")), 403, nobody_in(name, "east"))
        for other in ("west", "pass", "own", "headers"):
            lines = request(bearer(b"of-the-account"), host=ALL, target=f"/clusters/{other}/api/v1/pods".encode())
            await proxy.refuses(lines, 403, nobody_in(name, other), server_name=ALL)
        await proxy.passes(
            request(bearer(b"of-the-account"), host=ALL, target=b"/clusters/judge/api/v1/pods"), server_name=ALL
        )
        assert f"Impersonate-User: {name}\r\n".encode() in proxy.judge.received
        assert len(proxy.asked) == 1
        assert "of-the-account" not in proxy.output()

    async def test_do_not_get_there_by_impersonation_either(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        name = "system:serviceaccount:a:b"
        proxy.verdict = vouched(name)
        anybody = model.Rule(verbs=("*",), api_groups=("*",), resources=("*",))
        rules = model.Authorization(name="rules", rules=(anybody,))
        await proxy.serve(proxy.configuration(authorization=(rules,)))
        lines = request(bearer(b"of-the-account"), b"Impersonate-User: alice")
        await proxy.refuses(lines, 403, nobody_in(name, "east"))

    async def test_do_not_get_there_by_a_policy(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        name = "system:serviceaccount:a:b"
        proxy.verdict = vouched(name)
        everything = model.Rule(verbs=("*",), api_groups=("*",), resources=("*",), non_resource_urls=("*",))
        away = model.Policy(name="away", rules=(everything,), backend=model.ClusterBackend("west"))
        server = model.Server(
            name=NAME,
            listeners=("tls",),
            server_names=(NAME,),
            backend=model.ClusterBackend("judge"),
            authentication="corp",
            dispatch=(away,),
        )
        await proxy.serve(proxy.configuration(servers=(server,)))
        await proxy.refuses(request(bearer(b"of-the-account")), 403, nobody_in(name, "west"))

    async def test_another_user_of_its_reviews_is_known_everywhere(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        authenticating_proxy.verdict = vouched("carol")
        await authenticating_proxy.passes(request(bearer(b"of-carol")))
        assert b"Impersonate-User: carol\r\n" in authenticating_proxy.forwarded


class TestRevokedCertificates:
    def crl(self, *revoked: Held, valid: tuple[float, float] = (-400, 3600)) -> model.PEMFile:
        return model.PEMFile(
            "clients.crl", revocations(ca("clients"), *revoked, valid=valid).public_bytes(Encoding.DER)
        )

    async def test_are_401_and_a_reload_takes_new_lists(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        alice = holder("clients", "alice")
        await proxy.serve(proxy.configuration(authentication=(corp(client_crl=self.crl()),), servers=(CORP,)))
        client = await proxy.asks(request(), certificate=alice)
        assert (await proxy.answered(client))[0] == 200
        await proxy.serve(proxy.configuration(authentication=(corp(client_crl=self.crl(alice)),), servers=(CORP,)))
        await proxy.refuses(request(), 401, UNAUTHORIZED, certificate=alice)
        client.received = b""
        client.send(request())  # on the connection that is open
        assert (await proxy.answered(client))[0] == 401
        await proxy.passes(request(), certificate=holder("clients", "bob"))

    async def test_after_the_lists_end_none_is_accepted_and_one_line_says_so(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        expired = corp(client_crl=self.crl(valid=(-400, -300)))
        await proxy.serve(proxy.configuration(authentication=(expired,), servers=(CORP,)))
        for name in ("alice", "bob"):
            code, _ = await proxy.answer(request(), certificate=holder("clients", name))
            assert code == 401
        assert len([line for line in proxy.log_lines() if "revocation list unusable" in line]) == 1
        await proxy.passes(request(bearer(ALICE_TOKEN)), certificate=holder("clients", "alice"))


class TestRequiredClaims:
    async def test_a_token_needs_them(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        oidc = issuer.config(username_prefix="", required_claims=(("hd", "example.com"),))
        await proxy.serve(proxy.configuration(authentication=(corp(oidc=(oidc,)),), servers=(CORP,)))
        await proxy.refuses(request(bearer(id_token())), 401, UNAUTHORIZED)
        await proxy.refuses(request(bearer(id_token(hd="evil.com"))), 401, UNAUTHORIZED)
        await proxy.passes(request(bearer(id_token(hd="example.com"))))
        await proxy.passes(request(bearer(id_token(hd=["a", "example.com"]))))


CORP = model.Server(
    name=NAME, listeners=("tls",), server_names=(NAME,), backend=model.ClusterBackend("east"), authentication="corp"
)


class TestCertificates:
    @pytest.mark.parametrize("server_name", [NAME, NO_NAME])
    @pytest.mark.parametrize("who", [("others", "alice"), ("front", "alice"), ("front", "front")])
    async def test_of_other_authorities_are_nobodys(
        self, authenticating_proxy: AuthenticatingProxy, server_name: str, who: tuple[str, str]
    ) -> None:
        certificate = holder(*who)
        await authenticating_proxy.refuses(
            request(), 401, UNAUTHORIZED, server_name=server_name, certificate=certificate
        )

    @pytest.mark.parametrize("server_name", [OTHER, NO_NAME])
    async def test_the_other_way_round(self, authenticating_proxy: AuthenticatingProxy, server_name: str) -> None:
        how: dict[str, Any] = {"server_name": server_name, "certificate": holder("clients", "alice")}
        await authenticating_proxy.refuses(request(host=OTHER), 401, UNAUTHORIZED, **how)
        how["certificate"] = holder("others", "alice")
        await authenticating_proxy.passes(request(host=OTHER), **how)
        assert b"Impersonate-User: alice\r\n" in authenticating_proxy.west.received

    async def test_without_any_name_the_default_server_judges(self, authenticating_proxy: AuthenticatingProxy) -> None:
        how: dict[str, Any] = {"server_name": NO_NAME, "certificate": holder("others", "alice")}
        await authenticating_proxy.refuses(request(host="127.0.0.1"), 401, UNAUTHORIZED, **how)
        await authenticating_proxy.refuses(b"GET /api/v1/pods HTTP/1.0\r\n\r\n", 401, UNAUTHORIZED, **how)

    async def test_one_server_by_tls_and_another_by_host_is_neither(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        message = "the Host header and the TLS server name are those of different servers; open a connection for each"
        body = status(421, "MisdirectedRequest", message)
        for server_name, host in ((NAME, OTHER), (OTHER, NAME), (NAME, ALL)):
            for of in ("clients", "others"):
                how: dict[str, Any] = {"server_name": server_name, "certificate": holder(of, "alice")}
                await authenticating_proxy.refuses(request(host=host), 421, body, **how)

    async def test_authorities_that_a_reload_replaced_vouch_for_nobody_on_a_kept_connection(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        client = await proxy.client(certificate=holder("clients", "alice"))
        client.send(request())
        assert await proxy.answered(client) == (200, b"{}")
        forwarded = proxy.forwarded
        await proxy.serve(
            proxy.configuration(authentication=(corp(client_ca=pem("others")), model.Authentication(name="guests")))
        )
        client.received = b""
        client.send(request())
        assert await proxy.answered(client) == (401, UNAUTHORIZED)
        assert proxy.forwarded == forwarded

    async def test_an_expired_one_is_nobodys(self, authenticating_proxy: AuthenticatingProxy) -> None:
        old = ca("clients").issue(user("alice"), valid=(-300, -200))
        await authenticating_proxy.refuses(request(), 401, UNAUTHORIZED, certificate=old)


def subject(*attributes: tuple[x509.ObjectIdentifier, str]) -> Held:
    """A certificate of CLIENTS whose subject holds what a careless authority might sign."""
    names = [x509.NameAttribute(oid, value, _validate=False) for oid, value in attributes]
    return issued("clients", x509.Name(names))


def untold(what: str, why: str) -> bytes:
    return status(403, "Forbidden", f"forbidden: the user cannot be sent to the cluster: {what}: {why}", details={})


CN, ORG = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME
CONTROL, BLANK = "it holds a control character", "it begins or ends with a blank"


@pytest.mark.filterwarnings("ignore:Attribute's length")
class TestHostileSubjects:
    @pytest.mark.parametrize(
        ("attributes", "what", "why"),
        [
            ([(CN, "alice\r\nImpersonate-Group: system:masters")], "user name", CONTROL),
            ([(CN, "alice\nX: y")], "user name", CONTROL),
            ([(CN, "alice\x00")], "user name", CONTROL),
            ([(CN, "alice\x7f")], "user name", CONTROL),
            ([(CN, "alice\u0085x")], "user name", CONTROL),
            ([(CN, " alice")], "user name", BLANK),
            ([(CN, "alice\u00a0")], "user name", BLANK),
            ([(ORG, "dev\r\nImpersonate-User: admin"), (CN, "alice")], "group", CONTROL),
            ([(ORG, "dev "), (CN, "alice")], "group", BLANK),
        ],
    )
    async def test_a_name_that_would_break_a_header_is_403(
        self, authenticating_proxy: AuthenticatingProxy, attributes: list[Any], what: str, why: str
    ) -> None:
        await authenticating_proxy.refuses(request(), 403, untold(what, why), certificate=subject(*attributes))
        assert all(
            line.count("\n") == 1 for line in (*authenticating_proxy.lines, *authenticating_proxy.access_lines())
        )

    @pytest.mark.parametrize("attributes", [[], [(ORG, "system:masters")], [(CN, "")]])
    async def test_without_a_name_it_is_401(
        self, authenticating_proxy: AuthenticatingProxy, attributes: list[Any]
    ) -> None:
        await authenticating_proxy.refuses(request(), 401, UNAUTHORIZED, certificate=subject(*attributes))

    @pytest.mark.parametrize("name", ["alice,O=system:masters", "alice, bob", "älice", "a" * 5000, "a: b", "*", "-"])
    async def test_other_names_arrive_as_they_are(self, authenticating_proxy: AuthenticatingProxy, name: str) -> None:
        await authenticating_proxy.passes(request(), certificate=subject((CN, name)))
        expected = (
            f"\r\nImpersonate-User: {name}\r\nImpersonate-Group: system:authenticated\r\nX-Forwarded-For".encode()
        )
        assert expected in authenticating_proxy.forwarded

    async def test_a_thousand_groups_arrive_once_each(self, authenticating_proxy: AuthenticatingProxy) -> None:
        groups = [(ORG, f"group-{number}") for number in range(1000)]
        await authenticating_proxy.passes(request(), certificate=subject(*groups, *groups[:10], (CN, "alice")))
        expected = b"".join(b"Impersonate-Group: group-%d\r\n" % number for number in range(1000))
        assert expected + b"Impersonate-Group: system:authenticated\r\nX-F" in authenticating_proxy.forwarded
        assert authenticating_proxy.forwarded.count(b"Impersonate-Group: ") == 1001


class TestTLS:
    """With a client of another make, in a thread."""

    @pytest.fixture
    def pair(self, tmp_path: Any) -> str:
        held = holder("clients", "alice")
        key = held.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path = tmp_path / "alice.pem"
        path.write_bytes(held.pem + key)
        return str(path)

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    async def test_no_session_is_resumed_on_the_same_server_or_another(
        self, authenticating_proxy: AuthenticatingProxy, pair: str, version: ssl.TLSVersion
    ) -> None:
        port = authenticating_proxy.port()
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        context.load_cert_chain(pair)

        def visit(name: str, session: ssl.SSLSession | None) -> tuple[bytes, bool | None, ssl.SSLSession | None]:
            plain = socket.create_connection(("127.0.0.1", port), 60)
            with context.wrap_socket(plain, server_hostname=name, session=session) as tls:
                tls.sendall(request(b"Connection: close", host=name))
                received = b""
                while data := tls.recv(65536):
                    received += data
                return received, tls.session_reused, tls.session

        first, reused, session = await deferToThread(visit, NAME, None)
        assert (first[:15], reused) == (b"HTTP/1.1 200 OK", False)
        for name, answer in ((OTHER, b"HTTP/1.1 401"), (NAME, b"HTTP/1.1 200")):
            received, reused, _ = await deferToThread(visit, name, session)
            assert (received[:12], reused) == (answer, False)
        assert authenticating_proxy.west.received == b""

    async def test_renegotiation_ends_in_nothing(self, authenticating_proxy: AuthenticatingProxy, pair: str) -> None:
        """A client that is alice cannot become somebody else on the way."""
        port = authenticating_proxy.port()
        context = SSL.Context(SSL.TLS_METHOD)
        context.set_max_proto_version(SSL.TLS1_2_VERSION)

        def attempt(renegotiating: bool) -> bytes:
            plain = socket.create_connection(("127.0.0.1", port), 60)
            tls = SSL.Connection(context, plain)
            tls.set_tlsext_host_name(NAME.encode())
            tls.set_connect_state()
            plain.setblocking(True)  # pyOpenSSL does not wait itself
            received = b""
            try:
                tls.do_handshake()
                tls.use_certificate(_x509(pair))
                tls.use_privatekey(_key(pair))
                assert not renegotiating or tls.renegotiate()
                tls.send(request())
                while b"\r\n\r\n" not in received:
                    received += tls.recv(65536)
            except SSL.Error:
                pass
            finally:
                plain.close()
            return received

        assert (await deferToThread(attempt, False)).startswith(b"HTTP/1.1 401 ")
        assert await deferToThread(attempt, True) == b""
        assert authenticating_proxy.forwarded == b""


def _x509(path: str) -> Any:
    with open(path, "rb") as file:
        return x509.load_pem_x509_certificate(file.read())


def _key(path: str) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    with open(path, "rb") as file:
        return load_pem_private_key(file.read(), None)


UNKNOWN = b"of-nobody-0123456789"


class TestReviewsUnderWay:
    """The moment between a question and its answer."""

    async def held(self, proxy: AuthenticatingProxy, raw: bytes) -> Any:
        """A client whose token is being reviewed, without an answer yet."""
        before = len(proxy.asked)
        client = await proxy.asks(raw)
        await proxy.until(lambda: len(proxy.asked) > before, "the review")
        return client

    def let_go(self, proxy: AuthenticatingProxy, name: str) -> None:
        self.answer(proxy, proxy.judge.connections[0], proxy.asked[0], name)

    def answer(self, proxy: AuthenticatingProxy, end: UpstreamEnd, review: dict[str, Any], name: str) -> None:
        proxy.answer_review(end, {**review, "status": {"authenticated": True, "user": {"username": name}}})

    async def one_at_a_time(self, proxy: AuthenticatingProxy) -> None:
        one = model.FlowControl(name="one", type=model.FlowControlType.MAX_REQUESTS_INFLIGHT, max=1)
        await proxy.serve(proxy.configuration(east={"flow_controls": ("one",)}, flow_controls=(one,)))
        proxy.verdict = lambda _: None

    async def test_a_client_that_leaves_sends_nothing_and_holds_nothing(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        await self.one_at_a_time(proxy)
        client = await self.held(proxy, request(bearer(UNKNOWN), method=b"DELETE"))
        client.abort()
        await proxy.until(lambda: proxy.records, "the end of the request")
        self.let_go(proxy, "carol")
        await proxy.turns()
        assert proxy.forwarded == b""
        assert [record.reason for record in proxy.records] == ["client_closed"]
        await proxy.passes(request(bearer(ALICE_TOKEN)))  # the one permit is free
        await proxy.passes(request(bearer(UNKNOWN)))  # the answer was not lost
        assert len(proxy.asked) == 1

    @pytest.mark.usefixtures("patient_reviews")  # which outlast the handshakes of 64 clients
    async def test_nothing_is_asked_for_one_that_left_before_its_turn(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        proxy.verdict = lambda _: None
        at_once = 64
        stay = [await proxy.asks(request(bearer(b"of-nobody-%d" % number))) for number in range(at_once)]
        await proxy.until(lambda: len(proxy.asked) == at_once, "the reviews")
        leaves = await proxy.asks(request(bearer(UNKNOWN)))
        await proxy.until(lambda: proxy.waiting() == 1, "the one that waits")
        leaves.abort()
        await proxy.until(lambda: proxy.records, "the end of the request")
        proxy.verdict = lambda _: {"authenticated": False}
        for end in proxy.judge.connections:
            proxy.answer_review(end, {**proxy.asked[0], "status": {"authenticated": False}})
        for client in stay:
            assert await proxy.answered(client) == (401, UNAUTHORIZED)
        assert len(proxy.asked) == at_once

    async def test_nor_does_one_that_leaves_amidst_a_body(self, authenticating_proxy: AuthenticatingProxy) -> None:
        """It is not read on meanwhile, so that it left is seen only afterwards."""
        proxy = authenticating_proxy
        await self.one_at_a_time(proxy)
        client = await self.held(proxy, request(bearer(UNKNOWN), b"Content-Length: 5", method=b"PUT") + b"he")
        client.abort()
        self.let_go(proxy, "carol")
        await proxy.until(lambda: proxy.records, "the end of the request")
        assert [record.reason for record in proxy.records] == ["client_closed"]
        await proxy.passes(request(bearer(ALICE_TOKEN)))

    async def test_each_request_gets_the_answer_about_its_own_token(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        proxy.verdict = lambda _: None
        tokens = [b"token-of-carol", b"token-of-dave", b"token-of-carol"]
        clients = [await proxy.asks(request(bearer(token))) for token in tokens]
        await proxy.until(lambda: len(proxy.asked) == 2, "two reviews")
        ends = {end.received.rpartition(b"token-of-")[2].partition(b'"')[0]: end for end in proxy.judge.connections}
        for review in reversed(proxy.asked):
            name = review["spec"]["token"].removeprefix("token-of-")
            self.answer(proxy, ends[name.encode()], review, name)
            await proxy.turns(1)
        for client in clients:
            assert (await proxy.answered(client))[0] == 200
        assert proxy.forwarded.count(b"Impersonate-User: carol\r\n") == 2
        assert proxy.forwarded.count(b"Impersonate-User: dave\r\n") == 1

    async def test_a_request_keeps_its_configuration_and_the_next_has_the_new_one(
        self, authenticating_proxy: AuthenticatingProxy
    ) -> None:
        proxy = authenticating_proxy
        proxy.verdict = lambda _: None
        client = await self.held(proxy, request(bearer(UNKNOWN)))
        alone = corp(token_review=None, token_file=None, oidc=())
        await proxy.serve(proxy.configuration(authentication=(alone, model.Authentication(name="guests"))))
        self.let_go(proxy, "carol")
        assert await proxy.answered(client) == (200, b"{}")
        client.received = b""
        client.send(request(bearer(UNKNOWN)))
        assert await proxy.answered(client) == (401, UNAUTHORIZED)
        assert proxy.forwarded.count(b"Impersonate-User: carol\r\n") == 1

    async def test_a_reviewer_that_is_down_is_503(self, authenticating_proxy: AuthenticatingProxy) -> None:
        proxy = authenticating_proxy
        proxy.judge_breaks()
        message = "the token cannot be checked now; try again later"
        body = status(503, "ServiceUnavailable", message, details={"retryAfterSeconds": 1})
        await proxy.refuses(request(bearer(UNKNOWN)), 503, body)
        await proxy.refuses(request(bearer(id_token(aud="other"))), 401, UNAUTHORIZED)
        assert UNKNOWN.decode() not in proxy.output()
