"""Where the names that a cluster's TokenReview vouches for count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo

AUTHENTICATED = "system:authenticated"


def of_east(name: str, *groups: str, share: bool = False) -> AuthenticatedUser:
    return AuthenticatedUser(UserInfo(name, (*groups, AUTHENTICATED)), "east", share)


def refused(user: AuthenticatedUser, cluster: str = "west") -> str:
    with pytest.raises(StatusError) as caught:
        user.for_cluster(cluster)
    assert (caught.value.code, caught.value.details) == (403, {})
    return caught.value.message


SYSTEM = [
    "system:serviceaccount:demo:builder",
    "system:node:a",
    "system:admin",
    "system:bootstrap:abcdef",
    "system:kube-controller-manager",
    "system:anonymous",
    "system:",
]


@pytest.mark.parametrize("name", SYSTEM)
def test_a_system_user_of_one_cluster_is_nobody_in_another(name: str) -> None:
    user = of_east(name, "dev")
    assert refused(user) == f'forbidden: User "{name}" of cluster "east" is not a user of cluster "west"'
    assert user.for_cluster("east") is user.user


@pytest.mark.parametrize("share", [False, True])
def test_system_groups_are_dropped_from_whoever_has_them(share: bool) -> None:
    groups = ("system:masters", "dev", "system:bootstrappers", "system:nodes", "system:serviceaccounts")
    user = of_east("alice", *groups, share=share)
    assert user.for_cluster("west") == UserInfo("alice", ("dev", AUTHENTICATED))
    assert user.seen_by("west") == UserInfo("alice", ("dev", AUTHENTICATED))
    assert user.for_cluster("east").groups == (*groups, AUTHENTICATED)


def test_shared_are_service_accounts_and_nodes_with_their_own_groups_and_nothing_else() -> None:
    accounts = ("system:serviceaccounts", "system:serviceaccounts:demo", "system:serviceaccountsx", "system:masters")
    account = of_east("system:serviceaccount:demo:builder", *accounts, "system:nodes", share=True)
    assert account.for_cluster("west").groups == (
        "system:serviceaccounts",
        "system:serviceaccounts:demo",
        AUTHENTICATED,
    )
    node = of_east("system:node:a", "system:nodes", "system:masters", "system:serviceaccounts", share=True)
    assert node.for_cluster("west").groups == ("system:nodes", AUTHENTICATED)
    for name in SYSTEM[2:]:
        refused(of_east(name, share=True))


def test_who_is_of_no_cluster_is_the_same_everywhere() -> None:
    user = AuthenticatedUser(UserInfo("system:admin", ("system:masters",)))
    assert user.for_cluster("west") is user.seen_by("west") is user.user


@given(
    st.sampled_from([*SYSTEM, "alice"]),
    st.lists(st.sampled_from(["system:masters", "system:nodes", "system:serviceaccounts:a", "dev", "system:x"])),
    st.booleans(),
)
def test_no_power_of_the_system_ever_reaches_another_cluster(name: str, groups: list[str], share: bool) -> None:
    user = of_east(name, *groups, share=share)
    try:
        seen = user.for_cluster("west")
    except StatusError:
        assert name != "alice"
        return
    accounts = name.startswith(("system:serviceaccount:", "system:node:"))
    assert name == "alice" or (share and accounts)
    for group in seen.groups:
        assert not group.startswith("system:") or group == AUTHENTICATED or (share and accounts)
        assert group not in ("system:masters", "system:x")
