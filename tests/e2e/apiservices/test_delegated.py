"""API servers that ask the proxy who has a token, and who may do what."""

from __future__ import annotations

import pytest

from tests.e2e.apiservices.environment import GADGETS, RULED, WIDGETS, APIServices
from tests.e2e.http_client import ask

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def bearer(token: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {token}")]


def test_a_token_of_the_proxy_is_good_at_the_api_server(services: APIServices) -> None:
    services.things.forget()
    assert ask(services.direct(services.things), WIDGETS, headers=bearer("alice")).status == 200
    (seen,) = services.things.seen(WIDGETS)
    assert seen["user"] == {
        "name": "alice",
        "uid": "uid-alice",
        "groups": ["dev", "system:authenticated"],
        "extra": {},
        "by": "token",
    }


def test_a_token_of_the_cluster_is_good_there_too(services: APIServices) -> None:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    made = services.ask("admin", "/api/v1/namespaces/demo/serviceaccounts/default/token", "POST", body)
    assert made.status == 201
    services.things.forget()
    token = made.json["status"]["token"]
    assert ask(services.direct(services.things), WIDGETS, headers=bearer(token)).status == 403  # known, and may not
    (seen,) = services.things.seen(WIDGETS)
    assert seen["user"]["name"] == "system:serviceaccount:demo:default"
    assert "system:serviceaccounts:demo" in seen["user"]["groups"]
    assert ask(services.direct(services.things), WIDGETS, headers=bearer("nonsense")).status == 401


@pytest.mark.parametrize(("user", "status"), [("maker", 200), ("alice", 403), ("stranger", 403)])
def test_rules_of_the_server_decide_about_its_api_service(services: APIServices, user: str, status: int) -> None:
    # `others` asks the server with rules.
    answer = ask(services.direct(services.others), GADGETS, headers=bearer(user))
    assert answer.status == status
    assert services.ask(user, GADGETS, server_name=RULED).status == status


def test_of_the_clusters_own_both_must_allow(services: APIServices) -> None:
    secrets = {"verb": "list", "version": "v1", "resource": "secrets", "namespace": "demo"}

    def may(name: str, group: str, server_name: str) -> bool:
        spec = {"user": name, "groups": [group], "resourceAttributes": secrets}
        answer = services.ask("api-server", ACCESS, "POST", {"spec": spec}, server_name=server_name)
        assert answer.status == 201
        return bool(answer.json["status"]["allowed"])

    # Rules allow makers everything, the cluster does not.
    assert not may("maker", "makers", RULED)
    assert may("root", "system:masters", RULED)
    # The cluster allows alice to list pods, rules do not; the server without rules only passes on.
    secrets["resource"] = "pods"
    assert not may("alice", "dev", RULED)
    assert may("alice", "dev", "")


def test_nobody_else_may_ask(services: APIServices) -> None:
    for user, server_name in (("alice", ""), ("stranger", ""), ("maker", RULED)):
        for path, spec in ((TOKENS, {"token": "admin"}), (TOKENS, {"token": "nonsense"}), (ACCESS, {"user": "admin"})):
            answer = services.ask(user, path, "POST", {"spec": spec}, server_name=server_name)
            assert (answer.status, answer.json["reason"]) == (403, "Forbidden")
            assert f'User "{user}" cannot create resource' in answer.json["message"]


def test_what_is_no_review_is_refused_in_the_clusters_words(services: APIServices) -> None:
    empty = services.ask("api-server", TOKENS, "POST", {"spec": {"token": ""}})
    assert (empty.status, empty.json["message"]) == (400, "token is required for TokenReview in authentication")
    nothing = services.ask("api-server", ACCESS, "POST", {"spec": {"user": "alice"}})
    assert (nothing.status, nothing.json["reason"]) == (422, "Invalid")
    unknown = services.ask("api-server", TOKENS, "POST", {"spec": {"token": "nonsense"}})
    assert (unknown.status, unknown.json["status"]["error"]) == (201, "invalid bearer token")


@pytest.mark.parametrize("server_name", ["", RULED])
def test_the_config_map_of_trusted_front_proxies_is_ours_over_the_clusters(
    services: APIServices, server_name: str
) -> None:
    # `others` has no option about front proxies: it reads this, and so believes whom the proxy names.
    path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
    data = services.ask("api-server", path, server_name=server_name).json["data"]
    assert data["client-ca-file"] == "of the cluster"
    certificates = [(server.directory / "front-proxy.crt").read_text() for server in services.servers.values()]
    assert data["requestheader-client-ca-file"] == "".join(certificates)
    assert services.ask("stranger", path, server_name=server_name).status == 403
    services.others.forget()
    assert services.ask("maker", GADGETS).status == 200
    (seen,) = services.others.seen(GADGETS)
    assert (seen["user"]["name"], seen["user"]["by"]) == ("maker", "front proxy")
