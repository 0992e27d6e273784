"""Names that Kubernetes keeps to itself."""

from __future__ import annotations

import pytest

from mcproxy.identity.authentication.authenticated_user import authenticated, without_system_names
from mcproxy.kube.user import ANONYMOUS, UserInfo


@pytest.mark.parametrize("name", ["system:admin", "system:", "system:serviceaccount:a:b", "system:anonymous"])
def test_a_system_user_is_refused(name: str) -> None:
    assert without_system_names(UserInfo(name)) is None


def test_system_groups_are_dropped_and_all_else_stays() -> None:
    user = UserInfo("alice", ("dev", "system:masters", "systems", "system:"), "u", (("k", ("v",)),))
    assert without_system_names(user) == UserInfo("alice", ("dev", "systems"), "u", (("k", ("v",)),))
    assert without_system_names(UserInfo("System:admin", ("a",))) == UserInfo("System:admin", ("a",))


def test_whoever_was_authenticated_is_in_the_group_of_all_who_were() -> None:
    assert authenticated(UserInfo("a", ("g",))).groups == ("g", "system:authenticated")
    assert authenticated(UserInfo("a", ("system:authenticated", "g"))).groups == ("system:authenticated", "g")
    assert authenticated(ANONYMOUS) is ANONYMOUS
