"""Each authenticator, the identity that clusters get, the access log and the log."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes.client.exceptions import ApiException

from tests.e2e.http_client import Address, Answer, ask
from tests.e2e.identity_environment import REVIEWERS, IdentityEnvironment, bearer
from tests.e2e.processes import wait_until
from tests.identity import issuer
from tests.simulated_cluster.control_client import header_values

kubernetes: Any = importlib.import_module("kubernetes")  # it has no types
streams: Any = importlib.import_module("kubernetes.stream")

Headers = Sequence[tuple[str, str]]

PODS = "/api/v1/namespaces/demo/pods"
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
BUILDER = "system:serviceaccount:demo:builder"
ACCOUNT_GROUPS = ["system:serviceaccounts", "system:serviceaccounts:demo", "system:authenticated"]
WEBSOCKET = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
]


@pytest.fixture(scope="module")
def account(identities: IdentityEnvironment, kubectl: str) -> str:
    """A token of the service account demo/builder, made by `kubectl create token` through the proxy."""
    metadata = {"name": "builder", "namespace": "demo"}
    identities.control().create([{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}])
    admin = identities.kubectl(kubectl, "admin-certificate", "east")
    return admin.good("create", "token", "builder").strip()


def whoami(address: Address, prefix: str = "/clusters/east", headers: Headers = ()) -> Answer:
    body = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).encode()
    fields = [("Content-Type", "application/json"), *headers]
    return ask(address, prefix + REVIEWS, method="POST", headers=fields, body=body)


def user_of(answer: Answer) -> dict[str, Any]:
    assert answer.status == 201, answer
    user: dict[str, Any] = answer.json["status"]["userInfo"]
    return user


def seen_as(identities: IdentityEnvironment, address: Address, target: str, headers: Headers = ()) -> str:
    """The user that the cluster sees in a request."""
    mark = identities.control().mark()
    assert ask(address, target, headers=headers).status == 200
    (record,) = identities.control().audit(mark, path="/version")
    return str(record["user"])


def refused(answer: Answer, status: int, word: str) -> None:
    assert (answer.status, answer.json["kind"]) == (status, "Status")
    assert word in answer.json["message"], answer.json


# Tokens.


def test_a_token_of_the_file_names_its_user(identities: IdentityEnvironment) -> None:
    for route in ("east", "token", "front"):
        user = user_of(whoami(identities.proxy(), f"/clusters/{route}", bearer("filed-token")))
        assert user == {"username": "filed", "uid": "u-1", "groups": ["dev", "filers", "system:authenticated"]}


def test_a_service_account_is_itself_towards_its_cluster(identities: IdentityEnvironment, account: str) -> None:
    direct = user_of(whoami(identities.direct(), "", bearer(account)))
    assert (direct["username"], direct["groups"]) == (BUILDER, ACCOUNT_GROUPS)
    for route in ("token", "front"):  # other names of the same cluster, and so other clusters to the proxy
        assert user_of(whoami(identities.proxy("shared"), f"/clusters/{route}", bearer(account))) == direct
    told = user_of(whoami(identities.proxy(), "/clusters/east", bearer(account)))
    assert told == {key: value for key, value in direct.items() if key != "extra"}


def test_a_service_account_is_no_user_of_another_cluster(identities: IdentityEnvironment, account: str) -> None:
    answer = whoami(identities.proxy(), "/clusters/west", bearer(account))
    refused(answer, 403, f'User "{BUILDER}" of cluster "east" is not a user of cluster "west"')
    as_another = [*bearer(account), ("Impersonate-User", "alice")]
    refused(whoami(identities.proxy(), "/clusters/west", as_another), 403, "is not a user of cluster")
    shared = user_of(whoami(identities.proxy("shared"), "/clusters/west", bearer(account)))
    assert (shared["username"], shared["groups"]) == (BUILDER, ACCOUNT_GROUPS)


def test_a_token_for_another_audience_is_not_good(identities: IdentityEnvironment, account: str) -> None:
    token = identities.account_token("builder", audience="vault")
    refused(whoami(identities.proxy(), "/clusters/east", bearer(token)), 401, "Unauthorized")


def test_issuers_whose_keys_come_from_a_file_a_url_and_discovery(identities: IdentityEnvironment, account: str) -> None:
    offline = user_of(whoami(identities.proxy("offline"), "/clusters/west", bearer(account)))
    assert offline == {"username": f"east:{BUILDER}", "groups": ["system:authenticated"]}
    url = user_of(whoami(identities.proxy("url"), "/clusters/west", bearer(account)))
    assert url["username"] == BUILDER
    now = time.time()
    claims = {
        "iss": f"{identities.site.url}/realm",
        "aud": "k8s",
        "sub": "carol",
        "exp": now + 300,
        "groups": ["ops", "system:masters"],
    }
    token = issuer.token(claims, alg="ES256", kid="realm", key=issuer.ec_key("P-256", "realm")).decode()
    found = user_of(whoami(identities.proxy("discovery"), "/clusters/east", bearer(token)))
    assert found["username"] == "oidc:carol"
    assert found["groups"] == ["ops", "system:authenticated"]
    refused(whoami(identities.proxy("offline"), "/clusters/east", bearer(token)), 401, "Unauthorized")
    refused(whoami(identities.proxy("discovery"), "/clusters/east", bearer(account)), 401, "Unauthorized")
    stale = issuer.token({**claims, "exp": now - 60}, alg="ES256", kid="realm", key=issuer.ec_key("P-256", "realm"))
    refused(whoami(identities.proxy("discovery"), "/clusters/east", bearer(stale.decode())), 401, "Unauthorized")


# Nobody, front proxies, servers without authentication.


def test_who_shows_nothing_is_anonymous_where_that_is_allowed(identities: IdentityEnvironment) -> None:
    version = "/clusters/{}/version"
    for route in ("east", "front"):
        assert seen_as(identities, identities.proxy("anonymous"), version.format(route)) == "system:anonymous"
    assert seen_as(identities, identities.proxy("none"), "/version") == "system:anonymous"
    for user, token in (("admin", "wrong"), ("", "admin-test-token")):
        address = identities.proxy("none", user)
        assert seen_as(identities, address, "/version", bearer(token)) == "system:anonymous"
    answer = ask(identities.proxy("anonymous"), f"/clusters/east{PODS}")
    refused(answer, 403, 'pods is forbidden: User "system:anonymous" cannot list resource "pods"')
    refused(ask(identities.proxy(), "/clusters/east/version"), 401, "Unauthorized")
    refused(ask(identities.proxy("anonymous"), "/clusters/east/version", headers=bearer("wrong")), 401, "Unauthorized")
    assert ask(identities.proxy("probes"), "/clusters/east/version").status == 200
    refused(ask(identities.proxy("probes"), "/clusters/east/healthz"), 401, "Unauthorized")


def test_only_a_front_proxy_may_name_users(identities: IdentityEnvironment) -> None:
    remote = [("X-Remote-User", "carol"), ("X-Remote-Group", "ops"), ("X-Remote-Extra-Scopes", "a")]
    for route in ("east", "token", "front"):
        user = user_of(whoami(identities.proxy("anonymous", "corp-front-proxy"), f"/clusters/{route}", remote))
        groups = ["ops", "system:authenticated"]
        assert user == {"username": "carol", "groups": groups, "extra": {"scopes": ["a"]}}
    refused(whoami(identities.proxy("anonymous", "corp-front-proxy"), "/clusters/east"), 401, "Unauthorized")
    refused(whoami(identities.proxy("anonymous", "another-front-proxy"), "/clusters/east", remote), 401, "Unauthorized")
    for certificate, name in (("alice", "alice"), ("", "system:anonymous")):
        address = identities.proxy("anonymous", certificate)
        assert seen_as(identities, address, "/clusters/east/version", remote) == name


def test_a_bad_token_beside_a_good_certificate_does_no_harm(identities: IdentityEnvironment) -> None:
    assert user_of(whoami(identities.proxy("", "alice"), "/clusters/east", bearer("wrong")))["username"] == "alice"


# What the cluster is told, and who may be somebody else.


@pytest.mark.parametrize(
    ("route", "own", "subject"),
    [("east", "", "CN=mcproxy,O=mcproxy"), ("token", "mcproxy-test-token", ""), ("front", "", "CN=front-proxy")],
)
def test_the_clients_credentials_stay_here(identities: IdentityEnvironment, route: str, own: str, subject: str) -> None:
    mark = identities.control().mark()
    protocols = "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWRtaW4tdGVzdC10b2tlbg"
    exec_path = f"/clusters/{route}{PODS}/db-0/exec?command=hostname&stdout=true"
    server = route if route in REVIEWERS else ""
    ask(identities.proxy(server, "alice"), f"/clusters/{route}{PODS}", headers=bearer("alice-test-token"))
    ask(identities.proxy(server), f"/clusters/{route}{PODS}", headers=bearer("alice-test-token"))
    answer = ask(identities.proxy(server), exec_path, headers=[*WEBSOCKET, ("Sec-WebSocket-Protocol", protocols)])
    assert answer.status == 101
    records = identities.control().audit(mark, path=PODS)
    assert [record["user"] for record in records] == ["alice", "alice", "admin"]
    assert {record["client_subject"] for record in records} == {subject}
    for record in records:
        assert header_values(record, "Authorization") == ([f"Bearer {own}"] if own else [])
        assert "test-token" not in json.dumps([value for name, value in record["headers"] if name != "Authorization"])
        prefix = "X-Remote" if route == "front" else "Impersonate"
        groups = header_values(record, f"{prefix}-Group")
        assert len(groups) == len(set(groups)) == 2
    assert header_values(records[2], "Sec-WebSocket-Protocol") == ["v5.channel.k8s.io"]


NAMES = ("alice", "", " alice ", "a b", "\xc3\xa9va", "a%41", "system:anonymous", "system:node:n1", "x" * 300)
ACCOUNTS = ("system:serviceaccount:demo:default", "system:serviceaccount:demo", "system:serviceaccount:demo:a:b")
GROUPS = (
    "dev",
    "system:masters",
    "system:serviceaccounts",
    "system:authenticated",
    "system:unauthenticated",
    "a,b",
    "",
)
EXTRAS = ("scopes", "SCOPES", "scop%65s")


@settings(max_examples=40, deadline=None)
@given(
    user=st.sampled_from((*NAMES, *ACCOUNTS)),
    groups=st.lists(st.sampled_from(GROUPS), max_size=3, unique=True),
    uids=st.lists(st.sampled_from(("u-1", "u-2", "")), max_size=2),
    extras=st.lists(st.tuples(st.sampled_from(EXTRAS), st.sampled_from(("a", "b", ""))), max_size=2),
)
def test_whoever_is_asked_for_is_who_it_would_be_directly(
    identities: IdentityEnvironment, user: str, groups: list[str], uids: list[str], extras: list[tuple[str, str]]
) -> None:
    headers = [("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups)]
    headers += [("impersonate-uid", uid) for uid in uids]
    headers += [(f"Impersonate-Extra-{key}", value) for key, value in extras]
    direct = whoami(identities.direct("admin"), "", headers)
    for route in ("token", "front"):
        found = whoami(identities.proxy("", "admin"), f"/clusters/{route}", headers)
        assert found.status == direct.status
        if direct.status == 201:
            assert user_of(found) == user_of(direct)
        else:
            assert found.json == direct.json


def test_own_credentials_pass_once_the_proxy_knows_the_caller(identities: IdentityEnvironment) -> None:
    mark = identities.control().mark()
    headers = [*bearer("admin-test-token"), ("Impersonate-User", "alice"), ("X-Remote-User", "root")]
    assert ask(identities.proxy("own"), f"/clusters/own{PODS}", headers=headers).status == 200
    (record,) = identities.control().audit(mark, path=PODS)
    assert header_values(record, "Authorization") == ["Bearer admin-test-token"]
    assert header_values(record, "Impersonate-User") == ["alice"]
    assert header_values(record, "X-Remote-User") == []
    assert record["client_subject"] == ""


def test_health_is_asked_with_the_proxys_own_credential_whatever_the_way(identities: IdentityEnvironment) -> None:
    records = identities.control().audit(path="/readyz")
    assert {(record["user"], record["status"]) for record in records} == {("mcproxy", 200)}
    assert {record["client_subject"] for record in records} == {"", "CN=mcproxy,O=mcproxy"}


def test_impersonation_needs_the_clients_own_rights(identities: IdentityEnvironment) -> None:
    mark = identities.control().mark()
    headers = [*bearer("admin-test-token"), ("Impersonate-User", "alice")]
    refused(ask(identities.proxy(), f"/clusters/lent{PODS}", headers=headers), 403, "impersonation is not possible")
    assert identities.control().audit(mark, path=PODS) == []


def test_rules_alone_say_who_may_what_where_a_server_has_them(identities: IdentityEnvironment) -> None:
    masters = identities.proxy("masters", "admin")
    assert ask(masters, f"/clusters/east{PODS}").status == 200
    answer = ask(identities.proxy("masters", "alice"), f"/clusters/east{PODS}")
    refused(answer, 403, 'pods is forbidden: User "alice" cannot list resource "pods" in API group ""')
    as_alice = [("Impersonate-User", "alice")]
    refused(ask(masters, f"/clusters/east{PODS}", headers=as_alice), 403, 'User "alice" cannot list resource "pods"')


# The kubernetes package.


@pytest.mark.parametrize("user", ["admin-certificate", "admin-token", "alice-certificate", "alice-token"])
def test_the_python_client_is_the_same_user(identities: IdentityEnvironment, user: str) -> None:
    def scenario(route: str) -> list[object]:
        with kubernetes.config.new_client_from_config(str(identities.kubeconfig), context=f"{user}@{route}") as client:
            api = kubernetes.client.CoreV1Api(client)
            authentication = kubernetes.client.AuthenticationV1Api(client)
            info = authentication.create_self_subject_review({}).status.user_info
            seen = [info.username, info.groups, [pod.metadata.name for pod in api.list_namespaced_pod("demo").items]]
            try:
                seen.append(len(api.list_namespaced_secret("shop").items))
            except ApiException as refusal:
                seen.append((refusal.status, refusal.body))
            run = api.connect_get_namespaced_pod_exec
            try:
                seen.append(streams.stream(run, "db-0", "demo", command=["hostname"], stdout=True))
            except ApiException as refusal:
                seen.append(str(refusal.reason).partition(" -+-+- ")[0])
            return seen

    direct = scenario("direct")
    assert direct[0] == user.partition("-")[0]
    for route in ("east", "front", *(["own"] if user.endswith("token") else [])):
        assert scenario(route) == direct


# The logs.


def test_the_access_log_has_the_user_and_the_impersonated_user(identities: IdentityEnvironment) -> None:
    targets = [f"/clusters/east{PODS}?who={number}" for number in range(4)]
    ask(identities.proxy("", "alice"), targets[0])
    ask(identities.proxy("", "admin"), targets[1], headers=[("Impersonate-User", "alice")])
    ask(identities.proxy("", "alice"), targets[2], headers=[("Impersonate-User", "bob")])
    ask(identities.proxy(), targets[3])
    log = identities.directory / "access.log"

    def records() -> dict[str, dict[str, Any]]:
        found = (json.loads(line) for line in log.read_text().splitlines())
        return {record["uri"]: record for record in found if record["uri"] in targets}

    wait_until("all are in the access log", lambda: len(records()) == 4)
    seen = [records()[target] for target in targets]
    assert [record.get("user") for record in seen] == ["alice", "admin", "alice", "-"]
    assert [record.get("impersonatedUser") for record in seen] == [None, "alice", None, None]
    assert [record["status"] for record in seen] == [200, 200, 403, 401]


def test_a_refusal_is_one_line_without_the_secret(identities: IdentityEnvironment, account: str) -> None:
    secrets = [f"eyJhbGciOiJSUzI1NiJ9.secret-{number}.c2ln" for number in range(4)]
    masters = [*bearer("admin-test-token"), ("Impersonate-User", "alice")]
    alice, bob = identities.proxy("", "alice"), [("Impersonate-User", "bob")]
    cases = [
        (401, identities.proxy(), "east", bearer(secrets[0])),
        (401, identities.proxy("offline"), "east", bearer(secrets[1])),
        (401, identities.proxy("probes"), "east", bearer(secrets[2])),
        (401, identities.proxy("anonymous", "another-front-proxy"), "east", [("X-Remote-User", secrets[3])]),
        (403, identities.proxy(), "lent", masters),
        (403, alice, "east", bob),
        (403, alice, "east", bob),
        (400, alice, "east", [("Impersonate-Group", "dev")]),
        (403, identities.proxy(), "west", bearer(account)),
        (403, identities.proxy(), "west", [*bearer(account), *bob]),
    ]
    identities.daemon.log_is_written()
    before = len(identities.daemon.log.splitlines())
    for number, (status, address, cluster, headers) in enumerate(cases):
        # Each from an address of its own: lines that one address causes are limited.
        address = replace(address, source=f"127.0.1.{number}")
        assert ask(address, f"/clusters/{cluster}{PODS}", headers=headers).status == status
    identities.daemon.log_is_written()
    *lines, _ = identities.daemon.log.splitlines()[before:]
    # A health check may be late on a busy machine, and a summary of what the tests before have caused may be due.
    lines = [line for line in lines if "event=endpoint_" not in line and "suppressed=" not in line]
    assert [line for line in lines if "refused" not in line] == []
    assert len(lines) == len(cases)
    everything = identities.daemon.log + (identities.directory / "access.log").read_text()
    for secret in ("secret-", account, "admin-test-token", "alice-test-token", "mcproxy-test-token", "filed-token"):
        assert secret not in everything
