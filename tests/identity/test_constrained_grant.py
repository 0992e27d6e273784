"""Service accounts and nodes are told by their names alone where the proxy has the rights of their modes alone."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.identity.authorization.access_review import NOBODY, Decision, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.identity.own_grants import ConstrainedGrant
from mcproxy.identity.upstream_identity_headers import UpstreamIdentityHeaders, named_alone
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import OrPending, known, settled
from tests.support.clock import Clock

IDENTITY = model.UpstreamIdentity.IMPERSONATE
ACCOUNT = UserInfo(
    "system:serviceaccount:demo:builder",
    ("system:authenticated", "system:serviceaccounts", "system:serviceaccounts:demo"),
    "u-1",
    (("authentication.kubernetes.io/credential-id", ("JTI=x",)),),
)
NODE = UserInfo("system:node:n1", ("system:nodes", "system:authenticated"))
IN_FULL, ACCOUNTS, NODES = (
    "impersonate groups",
    "impersonate:serviceaccount serviceaccounts",
    "impersonate:arbitrary-node nodes",
)


class Reviewer:
    """What the proxy may do; `known` decisions are cached, others are asked for."""

    def __init__(self, *granted: str, known: bool = False, away: bool = False) -> None:
        self.granted = granted
        self.known = known
        self.away = away

    def decide(self, user: UserInfo, attributes: Attributes) -> OrPending[Decision]:
        assert user is NOBODY
        decision = Decision(f"{attributes.verb} {attributes.resource}" in self.granted)
        return decision if self.known else self._review(decision)

    async def _review(self, decision: Decision) -> Decision:
        if self.away:
            raise ReviewUnavailable("east", unreachable=True)
        return decision


def grant_of(reviewer: Reviewer, clock: Clock | None = None) -> ConstrainedGrant:
    return ConstrainedGrant(lambda: reviewer, (clock or Clock()).seconds)


@pytest.mark.parametrize(
    ("granted", "account", "node"),
    [
        ((), False, False),
        ((IN_FULL,), False, False),
        (
            (IN_FULL, ACCOUNTS, NODES),
            False,
            False,
        ),  # also by `*`: a cluster before 1.36 would take its groups from a node
        ((ACCOUNTS,), True, False),
        ((NODES,), False, True),
        ((ACCOUNTS, NODES), True, True),
    ],
)
def test_the_cluster_says_how_they_are_told(granted: tuple[str, ...], account: bool, node: bool) -> None:
    for name, expected in ((ACCOUNT.name, account), (NODE.name, node)):
        assert known(grant_of(Reviewer(*granted, known=True)).by_name(name)) is expected
        grant = grant_of(Reviewer(*granted))
        assert known(grant.by_name(name)) is None
        results: list[Any] = []
        Deferred.fromCoroutine(settled(grant.by_name(name))).addBoth(results.append)
        assert results == [expected]


def test_they_are_told_in_full_where_the_cluster_does_not_say() -> None:
    results: list[Any] = []
    grant = grant_of(Reviewer(ACCOUNTS, away=True))
    Deferred.fromCoroutine(settled(grant.by_name(ACCOUNT.name))).addBoth(results.append)
    assert results == [False]


def test_a_decision_is_kept_for_a_second() -> None:
    clock, reviewer = Clock(), Reviewer(ACCOUNTS, known=True)
    grant = grant_of(reviewer, clock)
    assert (grant.by_name(ACCOUNT.name), grant.by_name(NODE.name)) == (True, False)
    reviewer.granted = (NODES,)
    clock.advance(0.9)
    assert (grant.by_name(ACCOUNT.name), grant.by_name(NODE.name)) == (True, False)
    clock.advance(0.2)
    assert (grant.by_name(ACCOUNT.name), grant.by_name(NODE.name)) == (False, True)
    reviewer.known = False
    clock.advance(1.1)
    assert known(grant.by_name(ACCOUNT.name)) is None, "no decision is kept for longer than its review"


def cluster(*extras: str, identity: model.UpstreamIdentity = IDENTITY) -> model.ClusterConfig:
    return model.ClusterConfig(name="east", endpoints=(), identity=identity, impersonate_extras=extras)


@pytest.mark.parametrize("extras", [(), ("scopes",), ("*",)])
def test_the_name_alone(extras: tuple[str, ...]) -> None:
    headers = UpstreamIdentityHeaders(cluster(*extras), grant_of(Reviewer()))
    for user in (ACCOUNT, NODE):
        alone = headers.alone(user)
        assert alone is not None
        assert headers.headers_for(alone) == f"Impersonate-User: {user.name}\r\n".encode()


@pytest.mark.parametrize(
    "user",
    [
        UserInfo("bob", ("system:authenticated",)),
        UserInfo("system:kube-scheduler", ("system:authenticated",)),
        UserInfo(ACCOUNT.name, (*ACCOUNT.groups, "dev")),
        UserInfo(ACCOUNT.name, ACCOUNT.groups[:2]),
        UserInfo(ACCOUNT.name, ACCOUNT.groups, "", (("scopes", ("user:info",)),)),
        # by the verb `impersonate` a node has no group of nodes, and would get it
        UserInfo(NODE.name, ("system:authenticated",)),
        UserInfo("system:node:N_1", NODE.groups),
    ],
)
def test_who_would_be_another_user_by_the_name_alone(user: UserInfo) -> None:
    assert named_alone(cluster("scopes"), user) is None


def test_the_form_of_a_user_is_kept_for_equal_users_alone() -> None:
    headers = UpstreamIdentityHeaders(cluster("scopes"), grant_of(Reviewer()))
    restricted = UserInfo(ACCOUNT.name, ACCOUNT.groups, "", (("scopes", ("user:info",)),))
    for _ in range(2):
        alone = headers.alone(ACCOUNT)
        assert alone == UserInfo(ACCOUNT.name)
        assert headers.alone(restricted) is None
    assert headers.alone(UserInfo(ACCOUNT.name, ACCOUNT.groups, ACCOUNT.uid, ACCOUNT.extra)) is alone


def test_other_identities_are_told_as_they_are() -> None:
    for identity in set(model.UpstreamIdentity) - {IDENTITY}:
        headers = UpstreamIdentityHeaders(cluster(identity=identity), grant_of(Reviewer()))
        assert headers.alone(ACCOUNT) is None
