"""What a server's authenticators and authorizer answer to API servers, and what is left to the backend."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.identity.authorization.access_review import Decision
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.identity.authorization.authorizer import Authorizer
from mcproxy.identity.own_grants import MastersGrant
from mcproxy.identity.review_api.review_body import AccessReview, TokenReviewSpec
from mcproxy.identity.review_api.server_reviewer import ServerReviewer
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import OrPending

SERVICE = model.APIService(group="things.example.com", version="v1", cluster="things", authority="east")
ALICE = UserInfo("alice", ("dev", "system:authenticated"), "u-1", (("scope", ("a", "b")),))
ACCOUNT = UserInfo("system:serviceaccount:demo:api", ("system:serviceaccounts", "system:authenticated"))
GET_WIDGET = Attributes("get", "things.example.com", "v1", "widgets", namespace="demo", name="a")
GET_POD = Attributes("get", "", "v1", "pods", namespace="demo", name="a")
CREATE = Attributes("create", "authentication.k8s.io", "v1", "tokenreviews")


class Tokens:
    """A union of authenticators that knows some tokens."""

    key_of = staticmethod(bytes)

    def __init__(self, known: dict[bytes, AuthenticatedUser | StatusError]) -> None:
        self.known = known
        self.waits = False

    def authenticate(self, token: bytes, client: str, key: bytes | None, server: str) -> OrPending[AuthenticatedUser]:
        return self._ask(token) if self.waits else self._found(token)

    async def _ask(self, token: bytes) -> AuthenticatedUser:
        return self._found(token)

    def _found(self, token: bytes) -> AuthenticatedUser:
        found = self.known.get(token, StatusError(401, "Unauthorized"))
        if isinstance(found, StatusError):
            raise found
        return found


class Reviews:
    """A cluster that allows what the test says."""

    def __init__(self, *allowed: tuple[str, str]) -> None:
        self.allowed = set(allowed)
        self.asked: list[tuple[str, Attributes]] = []

    async def decide(self, user: UserInfo, attributes: Attributes) -> Decision:
        self.asked.append((user.name, attributes))
        allowed = (user.name, attributes.resource or attributes.path) in self.allowed
        return Decision(allowed, "" if allowed else "RBAC: no")


def run(waiting: Coroutine[Any, Any, Any]) -> Any:
    result: list[Any] = []
    Deferred.fromCoroutine(waiting).addBoth(result.append)
    (found,) = result
    if not hasattr(found, "value"):
        return found
    raise found.value


def reviewer(clusters: dict[str, Reviews] | None = None, **fields: Any) -> ServerReviewer:
    clusters = clusters or {"east": Reviews(("api", "tokenreviews"))}
    given: dict[str, Any] = {"tokens": None, "authorizer": None, **fields}
    if isinstance(given["authorizer"], model.Authorization):
        given["authorizer"] = Authorizer.build(given["authorizer"], clusters.__getitem__)
    services = {SERVICE.group_version: SERVICE}
    given.setdefault("masters", MastersGrant(model.UpstreamIdentity.IMPERSONATE, Reviews()))
    return ServerReviewer(home="east", rights=clusters["east"], services=services, **given)


def token_status(known: AuthenticatedUser | StatusError, *audiences: str, **fields: Any) -> Any:
    tokens = Tokens({b"token": known})
    statuses = []
    for tokens.waits in (False, True):
        review = TokenReviewSpec(b"token", audiences)
        statuses.append(run(reviewer(tokens=tokens, **fields).token_status(review, "10.0.0.1", "main")))
    assert statuses[0] == statuses[1]
    return statuses[0]


def test_a_token_of_the_server_is_answered_with_the_whole_user() -> None:
    assert token_status(AuthenticatedUser(ALICE, authenticator="tokenFile")) == {
        "authenticated": True,
        "user": {
            "username": "alice",
            "uid": "u-1",
            "groups": ["dev", "system:authenticated"],
            "extra": {"scope": ["a", "b"]},
        },
    }


@pytest.mark.parametrize(("granted", "groups"), [(True, ["system:masters", "dev"]), (False, ["dev"])])
def test_an_administrator_here_is_one_there_only_if_the_backend_would_be_told_so(
    granted: bool, groups: list[str]
) -> None:
    may = Reviews(("", "groups")) if granted else Reviews()
    root = AuthenticatedUser(UserInfo("root", ("system:masters", "dev")), authenticator="tokenFile")
    found = token_status(root, masters=MastersGrant(model.UpstreamIdentity.IMPERSONATE, may))
    assert found["user"]["groups"] == groups


def test_what_nobody_here_knows_is_asked_of_the_backend() -> None:
    assert token_status(StatusError(401, "Unauthorized")) is None
    assert run(reviewer().token_status(TokenReviewSpec(b"token", ()), "", "main")) is None


def test_an_authenticator_that_is_away_is_no_refusal() -> None:
    with pytest.raises(StatusError) as caught:
        token_status(StatusError(503, "the token cannot be checked now; try again later"))
    assert caught.value.code == 503


def test_an_account_of_another_cluster_is_nobody_in_the_backend() -> None:
    assert token_status(AuthenticatedUser(ACCOUNT, "west")) is None
    assert token_status(AuthenticatedUser(ACCOUNT, "east"))["user"]["username"] == ACCOUNT.name


def test_audiences_are_those_that_the_tokens_of_the_server_are_for() -> None:
    filed, own = AuthenticatedUser(ALICE, authenticator="oidc"), AuthenticatedUser(ALICE, authenticator="tokenReview")
    assert token_status(filed, "a", audiences=("b",)) is None
    assert token_status(filed, "a", "c", audiences=("c", "d"))["audiences"] == ["c"]
    assert token_status(filed, audiences=("c", "d"))["audiences"] == ["c", "d"]
    assert token_status(filed, "a") is None
    # Whether a cluster's own token is for an audience its cluster says.
    assert token_status(own, "c", audiences=("c",)) is None
    assert "audiences" not in token_status(own, audiences=("c",))


RULES = model.Authorization(
    name="rules",
    rules=(
        model.Rule(users=("alice",), verbs=("get",), api_groups=("*",), resources=("*",)),
        model.Rule(users=("alice",), verbs=("get",), non_resource_urls=("*",)),
    ),
)


def access(name: str, attributes: Attributes, authorizer: Any, clusters: dict[str, Reviews] | None = None) -> Any:
    review = AccessReview(UserInfo(name), attributes)
    return run(reviewer(clusters, authorizer=authorizer).access_status(review))


def test_an_api_services_requests_are_decided_by_the_authorizer() -> None:
    assert access("alice", GET_WIDGET, RULES) == {"allowed": True}
    assert access("bob", GET_WIDGET, RULES) == {"allowed": False}
    path = Attributes("get", path="/apis/things.example.com/v1", is_resource=False)
    assert access("alice", path, RULES) == {"allowed": True}


@pytest.mark.parametrize(
    "attributes",
    [
        GET_POD,
        GET_WIDGET._replace(version="v2"),
        GET_WIDGET._replace(version=""),
        GET_WIDGET._replace(version="*"),
        GET_WIDGET._replace(group="*"),
        Attributes("get", path="/metrics", is_resource=False),
        Attributes("get", path="/apis/things.example.com", is_resource=False),
        Attributes("get", path="/apis/things.example.com/v11", is_resource=False),
        Attributes("get", path="x/apis/things.example.com/v1", is_resource=False),
    ],
)
def test_of_anything_else_rules_only_refuse(attributes: Attributes) -> None:
    assert access("alice", attributes, RULES) is None  # the backend has the last word
    assert access("bob", attributes, RULES) == {"allowed": False}


def test_without_an_authorizer_the_backend_answers() -> None:
    assert access("alice", GET_WIDGET, None) is None


def test_a_review_goes_to_the_authority_and_its_reason_comes_back() -> None:
    east, things = Reviews(("alice", "widgets")), Reviews()
    authorizer = model.Authorization(name="x", subject_access_review=model.SubjectAccessReview())
    clusters = {"east": east, "things": things}
    assert access("alice", GET_WIDGET, authorizer, clusters) == {"allowed": True}
    assert access("bob", GET_WIDGET, authorizer, clusters) == {"allowed": False, "reason": "RBAC: no"}
    assert (len(east.asked), things.asked) == (2, [])


def test_names_of_the_backends_accounts_are_not_reviewed_by_another_cluster() -> None:
    east, west = Reviews(), Reviews((ACCOUNT.name, "widgets"))
    review = model.SubjectAccessReview(cluster="west")
    authorizer = model.Authorization(name="x", subject_access_review=review)
    status = access(ACCOUNT.name, GET_WIDGET, authorizer, {"east": east, "west": west})
    assert status["allowed"] is False
    assert 'of cluster "east" is not a user of cluster "west"' in status["reason"]
    assert west.asked == []
    of_masters = AccessReview(UserInfo("alice", ("system:masters",)), GET_WIDGET)
    built = reviewer({"east": east, "west": west}, authorizer=authorizer)
    assert run(built.access_status(of_masters)) == {"allowed": False, "reason": "RBAC: no"}


def test_who_asks_needs_the_backends_right_whatever_rules_allow() -> None:
    star = model.Rule(verbs=("*",), api_groups=("*",), resources=("*",))
    built = reviewer(authorizer=model.Authorization(name="x", rules=(star,)))
    run(built.check_right(UserInfo("api"), CREATE))
    with pytest.raises(StatusError) as caught:
        run(built.check_right(UserInfo("mallory"), CREATE))
    assert caught.value.code == 403
    assert caught.value.message == (
        'tokenreviews.authentication.k8s.io is forbidden: User "mallory" cannot create resource "tokenreviews" in API '
        'group "authentication.k8s.io" at the cluster scope: RBAC: no'
    )


def test_a_backend_that_knows_no_users_is_asked_what_it_lets_the_proxy_do() -> None:
    east = Reviews(("alice", "pods"))  # of the proxy, whoever is named
    built = reviewer({"east": east}, authorizer=RULES, as_proxy=True, right_needed=False)
    run(built.check_right(UserInfo("alice"), CREATE))
    assert east.asked == []
    asked = AccessReview(UserInfo("alice"), GET_POD)
    assert run(built.access_status(asked)) == {"allowed": True}
    metrics = AccessReview(UserInfo("alice"), Attributes("get", path="/metrics", is_resource=False))
    assert run(built.access_status(metrics)) == {"allowed": False, "reason": "RBAC: no"}
    assert run(built.access_status(AccessReview(UserInfo("bob"), GET_POD))) == {"allowed": False}
    assert len(east.asked) == 2
    assert run(built.access_status(AccessReview(UserInfo("alice"), GET_WIDGET))) == {"allowed": True}
    assert len(east.asked) == 2  # an API service's requests are the authorizer's alone
