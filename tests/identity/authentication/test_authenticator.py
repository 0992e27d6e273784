"""One set of authenticators: their order, and what is 401."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred

from mcproxy.config.model import (
    Anonymous,
    Authentication,
    ClusterConfig,
    ClusterTLS,
    PEMFile,
    RequestHeader,
    Secret,
    StaticToken,
    TokenFileConfig,
)
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.identity.authentication.authenticator import NO_AUTHENTICATION, Authenticator
from mcproxy.identity.authentication.token_union import UnionTokenAuthenticator
from mcproxy.identity.authentication.x509.peer import TLSPeer
from mcproxy.identity.authentication.x509.verifier import certificate_homes
from mcproxy.identity.client_identity_headers import IdentityHeaders, split_identity_headers
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import ANONYMOUS, UserInfo
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.requests.coroutines import OrPending, known, settled, start
from tests.identity.certificates import CLIENT, NOW, Held, authority, name, user
from tests.identity.conftest import Logged, event_text
from tests.support.clock import Clock

GOLDEN = Path(__file__).parents[2] / "golden"
CLIENT_CA, FRONT_CA, OTHER_CA = authority("clients"), authority("front"), authority("other")
ALICE, FRONT, STRANGER = CLIENT_CA.client("alice", "dev"), FRONT_CA.client("front-proxy-client"), OTHER_CA.client("eve")
BOB = AuthenticatedUser(UserInfo("bob", ("system:authenticated",)))
PODS = b"/api/v1/pods"
UNAUTHORIZED = json.loads((GOLDEN / "errors/401-bad-token-anonymous-on.json").read_text())["response"]["body"].encode()


class Tokens:
    """A chain of authenticators that knows `good` at once, can ask about `asked`, and refuses all else."""

    def __init__(self) -> None:
        self.asked: Deferred[AuthenticatedUser] = Deferred()

    def key_of(self, token: bytes) -> bytes:
        return b"key of " + token

    def authenticate(
        self, token: bytes, client: str = "", key: bytes | None = None, server: str = ""
    ) -> OrPending[AuthenticatedUser]:
        if token == b"asked":
            return self._ask()
        if token == b"good":
            return BOB
        raise StatusError(503, "down") if token == b"down" else StatusError(401, "Unauthorized")

    async def _ask(self) -> AuthenticatedUser:
        return await self.asked


def config(
    *,
    clients: Held | None = CLIENT_CA,
    front: Held | None = None,
    allowed_names: tuple[str, ...] = (),
    anonymous: Anonymous | None = None,
) -> Authentication:
    return Authentication(
        name="corp",
        client_ca=PEMFile("clients.crt", clients.pem) if clients else None,
        request_header=RequestHeader(ca=PEMFile("front.crt", front.pem), allowed_names=allowed_names)
        if front
        else None,
        anonymous=anonymous or Anonymous(),
    )


def clock() -> Clock:
    return Clock(NOW)


def built(chosen: Authentication, tokens: Tokens | None = None, at: Clock | None = None) -> Authenticator:
    return Authenticator.build(chosen, tokens=tokens, clock=at or clock())


def peer(held: Held | None) -> TLSPeer | None:
    return None if held is None else TLSPeer(held.certificate)


def fields(*lines: str) -> IdentityHeaders:
    return split_identity_headers("".join(line + "\r\n" for line in lines).encode())


def called(authenticator: Authenticator, held: Held | None, *lines: str, path: bytes = PODS) -> str:
    caller = known(authenticator.authenticate(peer(held), fields(*lines), path))
    assert caller is not None
    return caller.user.name


def refused(authenticator: Authenticator, held: Held | None, *lines: str, path: bytes = PODS) -> None:
    with pytest.raises(StatusError) as caught:
        known(authenticator.authenticate(peer(held), fields(*lines), path))
    assert caught.value.code == 401
    assert caught.value.body() == UNAUTHORIZED


SUCCESS, BAD = "Authorization: Bearer good", "Authorization: Bearer bad"
AS_PROTOCOL = "base64url.bearer.authorization.k8s.io.YWxpY2UtdG9rZW4"
CAROL = "X-Remote-User: carol"
ALL = Anonymous(enabled=True)


class TestOrder:
    def test_a_client_certificate_is_its_user(self) -> None:
        caller = known(built(config()).authenticate(peer(ALICE), fields(), PODS))
        assert caller is not None
        assert (caller.user.name, caller.user.groups, caller.cluster) == ("alice", ("dev", "system:authenticated"), "")

    def test_a_good_certificate_beside_a_bad_token_is_good(self) -> None:
        for line in (BAD, SUCCESS, "Authorization: Bearer down", "Authorization: Basic x"):
            assert called(built(config(), Tokens()), ALICE, line) == "alice"

    def test_a_good_token_beside_a_bad_certificate_is_good(self) -> None:
        for held in (STRANGER, CLIENT_CA.issue(user("alice"), CLIENT, valid=(-2, -1)), None):
            assert called(built(config(), Tokens()), held, SUCCESS) == "bob"

    def test_a_front_proxy_speaks_before_its_own_certificate(self) -> None:
        both = config(clients=FRONT_CA, front=FRONT_CA)
        assert called(built(both), FRONT, CAROL) == "carol"
        assert called(built(both), FRONT) == "front-proxy-client"
        assert called(built(both), FRONT, "X-Remote-User:") == "front-proxy-client"

    def test_a_front_proxy_may_also_bring_a_users_token(self) -> None:
        chosen = config(front=FRONT_CA)
        assert called(built(chosen, Tokens()), FRONT, SUCCESS) == "bob"
        assert called(built(chosen, Tokens()), FRONT, CAROL, SUCCESS) == "carol"

    def test_remote_names_from_others_are_ignored(self) -> None:
        for chosen in (config(front=FRONT_CA), config()):
            assert called(built(chosen), ALICE, CAROL) == "alice"
            assert called(built(chosen, Tokens()), None, CAROL, SUCCESS) == "bob"
            refused(built(chosen), STRANGER, CAROL)
            refused(built(chosen), None, CAROL)

    def test_good_for_one_bundle_is_not_good_for_the_other(self) -> None:
        chosen = config(front=FRONT_CA)
        refused(built(chosen), FRONT)
        assert called(built(chosen), ALICE, "X-Remote-User: carol") == "alice"
        refused(built(config(clients=FRONT_CA, front=OTHER_CA)), ALICE, CAROL)

    def test_what_a_token_is_has_to_be_asked(self) -> None:
        tokens = Tokens()
        authenticator = built(config(), tokens)
        presented = fields("Authorization: Bearer asked")
        assert known(authenticator.authenticate(None, presented, PODS)) is None
        callers: list[AuthenticatedUser] = []

        async def ask() -> None:
            callers.append(await settled(authenticator.authenticate(None, presented, PODS)))
            callers.append(await settled(authenticator.authenticate(peer(ALICE), presented, PODS)))

        start(ask())
        assert callers == []
        tokens.asked.callback(BOB)
        assert [caller.user.name for caller in callers] == ["bob", "alice"]


class TestRefused:
    def test_without_a_credential(self) -> None:
        refused(built(config(), Tokens()), None)
        refused(built(config(), Tokens()), None, "Authorization: Basic YTpi")
        refused(built(config(), Tokens()), None, "Authorization: Bearer  good")

    def test_a_token_that_nobody_accepts_is_never_anonymous(self) -> None:
        for tokens in (Tokens(), None):
            refused(built(config(anonymous=ALL), tokens), None, BAD)
            refused(built(config(anonymous=ALL), tokens), STRANGER, BAD)

    def test_a_token_that_can_be_nobodys_is_never_anonymous(self) -> None:
        authenticator = built(config(anonymous=ALL), Tokens())
        refused(authenticator, None, "Sec-WebSocket-Protocol: v5, base64url.bearer.authorization.k8s.io.====")

    def test_a_reviewer_that_is_down_is_503(self) -> None:
        with pytest.raises(StatusError) as caught:
            known(built(config(), Tokens()).authenticate(None, fields("Authorization: Bearer down"), PODS))
        assert caught.value.code == 503

    def test_a_certificate_that_nobody_vouches_for_is_never_anonymous(self) -> None:
        expired = CLIENT_CA.issue(user("alice"), CLIENT, valid=(-2, -1))
        for held in (STRANGER, expired, FRONT):
            refused(built(config(anonymous=ALL)), held)
            refused(built(config(clients=None, front=CLIENT_CA, anonymous=ALL)), held)
        refused(built(config(front=FRONT_CA, anonymous=ALL)), FRONT)

    def test_a_front_proxy_without_an_allowed_name(self) -> None:
        refused(built(config(clients=None, front=FRONT_CA, allowed_names=("other",))), FRONT, CAROL)

    def test_a_front_proxy_whose_word_is_refused_is_not_taken_for_itself(self) -> None:
        authenticator = built(config(clients=FRONT_CA, front=FRONT_CA), Tokens())
        refused(authenticator, FRONT, "X-Remote-User: system:admin", SUCCESS)
        refused(authenticator, FRONT, "X-Remote-User: carol", "X-Remote-Extra-%00: x")

    def test_an_expired_certificate_on_a_connection_that_is_up(self) -> None:
        time = clock()
        authenticator = built(config(), at=time)
        shown = peer(CLIENT_CA.issue(user("alice"), CLIENT, valid=(-1, 1)))
        assert known(authenticator.authenticate(shown, fields(), PODS)) is not None
        time.advance(86400 + 1)
        with pytest.raises(StatusError):
            known(authenticator.authenticate(shown, fields(), PODS))


class TestAnonymous:
    def test_without_any_credential(self) -> None:
        authenticator = built(config(anonymous=ALL), Tokens())
        caller = known(authenticator.authenticate(None, fields(), PODS))
        assert caller == AuthenticatedUser(ANONYMOUS)
        for line in ("Authorization: Basic YTpi", CAROL, "Impersonate-User: admin"):
            assert called(authenticator, None, line) == "system:anonymous"

    def test_a_certificate_is_no_credential_where_certificates_are_none(self) -> None:
        assert called(built(config(clients=None, anonymous=ALL)), STRANGER) == "system:anonymous"

    def test_nor_is_a_good_one_that_names_nobody(self) -> None:
        unnamed = CLIENT_CA.issue(name(), CLIENT)
        assert called(built(config(anonymous=ALL)), unnamed) == "system:anonymous"
        refused(built(config()), unnamed)

    def test_a_front_proxy_that_says_nothing(self) -> None:
        assert called(built(config(clients=None, front=FRONT_CA, anonymous=ALL)), FRONT) == "system:anonymous"

    def test_only_on_its_paths(self) -> None:
        authenticator = built(config(anonymous=Anonymous(enabled=True, paths=("/healthz", "/version"))))
        assert called(authenticator, None, path=b"/healthz") == "system:anonymous"
        for path in (b"/", b"/healthz/", b"/healthz/etcd", b"/Healthz", b"/%68ealthz", b"//healthz", PODS):
            refused(authenticator, None, path=path)


class TestTokenFile:
    def built(self) -> Authenticator:
        chosen = replace(
            config(anonymous=ALL),
            token_file=TokenFileConfig(
                "users.csv", (StaticToken(Secret("alice-token"), "alice", "uid-alice", ("dev",)),)
            ),
        )
        assert chosen.token_file is not None
        tokens = UnionTokenAuthenticator.build(
            chosen,
            cluster=None,
            live=None,
            shared=cast(Any, SimpleNamespace(reactor=clock(), metrics=Metrics())),
        )
        return Authenticator.build(chosen, tokens=tokens, clock=clock())

    def test_its_tokens_are_known_at_once_as_a_kube_apiserver_tells_them(self) -> None:
        exchange = json.loads((GOLDEN / "auth/selfsubjectreview-token.json").read_text())
        recorded = json.loads(exchange["response"]["body"])["status"]["userInfo"]
        lines = ("Authorization: Bearer alice-token", "Sec-WebSocket-Protocol: v5, " + AS_PROTOCOL)
        for line in lines:
            caller = known(self.built().authenticate(None, fields(line), PODS))
            assert caller == AuthenticatedUser(
                UserInfo(recorded["username"], tuple(recorded["groups"]), recorded["uid"])
            )

    def test_any_other_token_is_refused(self, logged: Logged) -> None:
        refused(self.built(), None, "Authorization: Bearer alice-toke")
        assert [event["log_level"].name for event in logged] == ["info"]
        assert "alice-toke" not in logged.everything()


class TestReload:
    def test_known_peers_stay_known_if_the_authorities_are_the_same(self) -> None:
        shown = peer(ALICE)
        assert shown is not None
        before = built(config(front=FRONT_CA))
        known(before.authenticate(shown, fields(CAROL), PODS))
        verified = dict(shown._verifications)
        after = Authenticator.build(config(front=FRONT_CA, anonymous=ALL), tokens=None, clock=clock(), previous=before)
        known(after.authenticate(shown, fields(CAROL), PODS))
        assert len(verified) == 2
        assert shown._verifications == verified

    def test_a_replaced_authority_stops_working_on_connections_that_are_up(self) -> None:
        shown = peer(ALICE)
        before = built(config())
        assert known(before.authenticate(shown, fields(), PODS)) is not None
        after = Authenticator.build(config(clients=OTHER_CA), tokens=None, clock=clock(), previous=before)
        with pytest.raises(StatusError):
            known(after.authenticate(shown, fields(), PODS))


class TestLog:
    @pytest.mark.parametrize(
        ("held", "lines"),
        [
            (STRANGER, ()),
            (None, (CAROL,)),
            (None, ("Authorization: Bearer " + "secret" * 10_000,)),
            (None, ("Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.c2VjcmV0",)),
            (FRONT, ("X-Remote-User: system:secret",)),
            (None, ("Authorization: Bearer secret",)),
        ],
    )
    def test_a_refusal_is_one_line_that_says_what_to_do_and_tells_no_secret(
        self, logged: Logged, held: Held | None, lines: tuple[str, ...]
    ) -> None:
        refused(built(config(front=FRONT_CA, anonymous=Anonymous(enabled=True, paths=("/healthz",)))), held, *lines)
        (event,) = logged
        assert event["log_level"].name == "info"
        assert "corp" in event_text(event)
        assert event["cause"]
        assert event["todo"]
        assert "secret" not in logged.everything()
        assert "c2VjcmV0" not in logged.everything()

    def test_a_request_without_credentials_is_no_news(self, logged: Logged) -> None:
        refused(built(config()), None)
        assert [event["log_level"].name for event in logged] == ["debug"]


def test_a_server_without_authentication_takes_everybody_for_nobody() -> None:
    presented = fields(CAROL, BAD)
    assert known(NO_AUTHENTICATION.authenticate(peer(ALICE), presented, PODS)) == AuthenticatedUser(ANONYMOUS)
    answers: list[AuthenticatedUser] = []

    async def ask() -> None:
        answers.append(await settled(NO_AUTHENTICATION.authenticate(peer(ALICE), presented, PODS)))

    start(ask())
    assert answers == [AuthenticatedUser(ANONYMOUS)]


def test_authorities_that_cannot_be_read() -> None:
    with pytest.raises(ValueError, match="PEM"):
        built(Authentication(name="corp", client_ca=PEMFile("a.crt", b"nothing")))


class TestCertificatesOfClusters:
    """system:masters of a test cluster was the master of all others."""

    MASTER = CLIENT_CA.client("root", "system:masters", "dev")
    MANAGER = CLIENT_CA.client("system:kube-controller-manager")
    NODE = CLIENT_CA.client("system:node:n1", "system:nodes")

    def caller(self, held: Held, *clusters: tuple[str, Held], **options: Any) -> AuthenticatedUser:
        homes = certificate_homes(
            [
                ClusterConfig(name=name, endpoints=(), tls=ClusterTLS(ca=PEMFile(f"{name}.crt", authority.pem)))
                for name, authority in clusters
            ]
        )
        chosen = replace(config(clients=CLIENT_CA), **options)
        found = known(
            Authenticator.build(chosen, tokens=None, clock=clock(), homes=homes).authenticate(
                peer(held), fields(), PODS
            )
        )
        assert found is not None
        return found

    def test_its_system_names_count_in_the_cluster_of_their_authority_alone(self) -> None:
        clusters = ("east", CLIENT_CA), ("west", OTHER_CA)
        master = self.caller(self.MASTER, *clusters)
        assert "system:masters" in master.for_cluster("east").groups
        assert master.for_cluster("west").groups == ("dev", "system:authenticated")
        manager = self.caller(self.MANAGER, *clusters)
        assert manager.for_cluster("east").name == "system:kube-controller-manager"
        with pytest.raises(StatusError) as caught:
            manager.for_cluster("west")
        assert caught.value.code == 403

    def test_other_names_count_everywhere(self) -> None:
        assert self.caller(ALICE, ("east", CLIENT_CA), ("west", OTHER_CA)).cluster == ""

    def test_those_of_another_authority_are_used_as_they_stand(self) -> None:
        assert self.caller(self.MASTER, ("east", FRONT_CA), ("west", OTHER_CA)).cluster == ""

    def test_the_file_may_say_whose_authority_it_is(self) -> None:
        caller = self.caller(self.MASTER, ("east", FRONT_CA), ("west", OTHER_CA), cluster_ca="west")
        assert caller.cluster == "west"

    def test_one_that_all_clusters_have_is_no_clusters_own(self) -> None:
        assert self.caller(self.MASTER, ("east", CLIENT_CA), ("west", CLIENT_CA)).cluster == ""
        some = ("east", CLIENT_CA), ("west", CLIENT_CA), ("north", OTHER_CA)
        master = self.caller(self.MASTER, *some)
        assert "system:masters" in master.for_cluster("east").groups
        assert "system:masters" in master.for_cluster("west").groups, "it is the master there by the same certificate"
        assert "system:masters" not in master.for_cluster("north").groups
        with pytest.raises(StatusError):
            self.caller(self.MANAGER, *some).for_cluster("north")

    def test_nodes_may_be_shared(self) -> None:
        clusters = ("east", CLIENT_CA), ("west", OTHER_CA)
        shared = self.caller(self.NODE, *clusters, share_service_accounts=True)
        assert shared.for_cluster("west").groups == ("system:nodes", "system:authenticated")
        master = self.caller(self.MASTER, *clusters, share_service_accounts=True)
        assert "system:masters" not in master.for_cluster("west").groups
