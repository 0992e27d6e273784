"""Impersonation that a client asks for: what is reviewed, who it becomes, and the refusals of a kube-apiserver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from mcproxy.identity.authorization.access_review import Decision
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.identity.client_identity_headers import IdentityHeaders, split_identity_headers
from mcproxy.identity.impersonation import (
    ImpersonationRequest,
    authorize_impersonation,
    impersonation_unsupported,
    requested_impersonation,
)
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo, service_account

GOLDEN = Path(__file__).parents[1] / "golden" / "impersonation-legacy"
AUTHENTICATION = "authentication.k8s.io"


def headers_of(*lines: tuple[str, str | bytes]) -> IdentityHeaders:
    block = b""
    for name, value in lines:
        block += name.encode() + b": " + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
    return split_identity_headers(block)


def wanted(*lines: tuple[str, str | bytes]) -> ImpersonationRequest:
    asked = requested_impersonation(headers_of(*lines))
    assert asked is not None
    return asked


def refusal(*lines: tuple[str, str | bytes]) -> StatusError:
    with pytest.raises(StatusError) as caught:
        requested_impersonation(headers_of(*lines))
    return caught.value


class FakeAuthenticator:
    """Allows what is not in `refused`; keeps the questions."""

    def __init__(self, *refused: str, reason: str = "") -> None:
        self.refused = refused
        self.reason = reason
        self.asked: list[tuple[str, Attributes]] = []

    async def __call__(self, user: UserInfo, attributes: Attributes) -> Decision:
        self.asked.append((user.name, attributes))
        allowed = attributes.resource not in self.refused
        return Decision(allowed, "" if allowed else self.reason)


def authenticator(caller: str, asked: ImpersonationRequest, decide: Any) -> UserInfo:
    done = Deferred.fromCoroutine(authorize_impersonation(UserInfo(caller), asked, decide))
    result: list[Any] = []
    done.addBoth(result.append)
    if isinstance(result[0], UserInfo):
        return result[0]
    raise result[0].value


def outcome(caller: str, block: IdentityHeaders, decide: Any) -> UserInfo | StatusError:
    try:
        asked = requested_impersonation(block)
        assert asked is not None
        return authenticator(caller, asked, decide)
    except StatusError as error:
        return error


def recordings() -> list[str]:
    return sorted(path.stem for path in GOLDEN.glob("*.json"))


@pytest.mark.parametrize("name", recordings())
def test_as_a_kube_apiserver_answers(name: str) -> None:
    recording = json.loads((GOLDEN / f"{name}.json").read_text())
    block = split_identity_headers(
        "".join(f"{key}: {value}\r\n" for key, value in recording["request"]["headers"]).encode()
    )
    caller = "alice" if "CN=alice" in recording["auth"] else "mcproxy"
    said = recording["response"]["body"]
    refused = {"alice": ("users", "serviceaccounts"), "mcproxy": ("userextras",)}[caller]
    decide = FakeAuthenticator(
        *(refused if name in ("extra-not-allowed", *(n for n in recordings() if "forbidden" in n)) else ())
    )
    answer = outcome(caller, block, decide)
    if isinstance(answer, StatusError):
        assert (answer.code, answer.body().decode()) == (recording["response"]["status"], said)
        return
    user = answer
    if recording["response"]["status"] == 201:
        info = json.loads(said)["status"]["userInfo"]
        assert user.name == info["username"]
        assert list(user.groups) == info["groups"]
        assert user.uid == info.get("uid", "")
        assert {key: list(values) for key, values in user.extra} == info.get("extra", {})
    else:  # allowed, and then refused as the impersonated user
        assert f'User \\"{user.name}\\" cannot' in said


def test_all_recordings_are_covered() -> None:
    assert len(recordings()) == 12


def test_nothing_asked_for_is_nothing() -> None:
    assert requested_impersonation(headers_of(("accept", "*/*"))) is None
    assert requested_impersonation(headers_of(("Impersonate-User", ""))) is None
    assert requested_impersonation(headers_of(("Impersonate-User", ""), ("Impersonate-Uid", ""))) is None


def test_reviews_come_in_kubernetes_order() -> None:
    asked = wanted(
        ("Impersonate-Uid", "u-1"),
        ("Impersonate-Extra-Scopes", "a"),
        ("Impersonate-Extra-example.com%2Forigin", "east"),
        ("Impersonate-Extra-Scopes", "b"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-User", "bob"),
    )
    shown = [(review.resource, review.subresource, review.group, review.name) for review in asked.reviews]
    assert shown == [
        ("users", "", "", "bob"),
        ("groups", "", "", "dev"),
        ("groups", "", "", "ops"),
        ("userextras", "scopes", AUTHENTICATION, "a"),
        ("userextras", "scopes", AUTHENTICATION, "b"),
        ("userextras", "example.com/origin", AUTHENTICATION, "east"),
        ("uids", "", AUTHENTICATION, "u-1"),
    ]
    assert {review.verb for review in asked.reviews} == {"impersonate"}
    extra = (("example.com/origin", ("east",)), ("scopes", ("a", "b")))
    assert asked.user == UserInfo("bob", ("dev", "ops", "system:authenticated"), "u-1", extra)


def test_the_first_refusal_ends_it() -> None:
    decide = FakeAuthenticator("groups", reason="not today")
    asked = wanted(("Impersonate-User", "bob"), ("Impersonate-Group", "ops"), ("Impersonate-Uid", "1"))
    with pytest.raises(StatusError) as caught:
        authenticator("alice", asked, decide)
    assert [attributes.resource for _, attributes in decide.asked] == ["users", "groups"]
    assert caught.value.message == (
        'groups "ops" is forbidden: User "alice" cannot impersonate resource "groups" in API group "" '
        "at the cluster scope: not today"
    )


def test_the_questions_are_about_the_caller() -> None:
    decide = FakeAuthenticator()
    authenticator("alice", wanted(("Impersonate-User", "bob"), ("Impersonate-Group", "ops")), decide)
    assert {user for user, _ in decide.asked} == {"alice"}


def test_the_first_of_two_users_counts() -> None:
    assert wanted(("Impersonate-User", "bob"), ("Impersonate-User", "carol")).user.name == "bob"
    assert requested_impersonation(headers_of(("Impersonate-User", ""), ("Impersonate-User", "carol"))) is None


def test_a_service_account_is_reviewed_as_one_and_has_its_groups() -> None:
    asked = wanted(("Impersonate-User", "system:serviceaccount:demo:builder"))
    assert asked.reviews == (Attributes("impersonate", "", "v1", "serviceaccounts", "", "demo", "builder"),)
    assert asked.user.groups == ("system:serviceaccounts", "system:serviceaccounts:demo", "system:authenticated")


def test_groups_that_are_named_are_all_a_service_account_has() -> None:
    asked = wanted(("Impersonate-User", "system:serviceaccount:demo:builder"), ("Impersonate-Group", "dev"))
    assert asked.user.groups == ("dev", "system:authenticated")


@pytest.mark.parametrize("name", ["system:serviceaccount:demo", "system:serviceaccount:demo:a:b", "system:node:n1"])
def test_other_names_with_a_system_prefix_are_users(name: str) -> None:
    assert [review.resource for review in wanted(("Impersonate-User", name)).reviews] == ["users"]


@pytest.mark.parametrize(
    ("user", "group", "groups"),
    [
        ("bob", None, ("system:authenticated",)),
        ("bob", "system:unauthenticated", ("system:unauthenticated",)),
        ("bob", "system:authenticated", ("system:authenticated",)),
        ("system:anonymous", None, ("system:unauthenticated",)),
        ("system:anonymous", "dev", ("dev", "system:unauthenticated")),
    ],
)
def test_group_system_authenticated_is_added(user: str, group: str | None, groups: tuple[str, ...]) -> None:
    lines = [("Impersonate-User", user), *([("Impersonate-Group", group)] if group else [])]
    assert wanted(*lines).user.groups == groups


def test_several_kinds_without_a_user_are_printed_as_go_prints_them() -> None:
    error = refusal(
        ("Impersonate-Uid", "x"),
        ("Impersonate-Extra-Scopes", "a"),
        ("Impersonate-Group", "g"),
        ("Impersonate-Group", "h"),
    )
    assert error.code == 400
    assert error.message == (
        "requested [{Group  g    } {Group  h    } {UserExtra  a  authentication.k8s.io/v1  scopes} "
        "{UID  x  authentication.k8s.io/v1  }] without impersonating a user"
    )


def test_names_with_underscores_are_never_believed() -> None:
    assert refusal(("Impersonate_User", "bob")).code == 400
    assert refusal(("Impersonate-User", "bob"), ("Impersonate_Group", "system:masters")).code == 400


def test_an_unknown_header_is_refused() -> None:
    assert refusal(("Impersonate-User", "bob"), ("Impersonate-Scope", "read-only")).code == 400
    assert refusal(("Impersonate-User", "bob"), ("Impersonate-Extra_Scopes", "a")).code == 400


def test_names_are_utf8() -> None:
    assert wanted(("Impersonate-User", "Jürgen")).user.name == "Jürgen"
    assert refusal(("Impersonate-User", b"J\xfcrgen")).code == 400
    assert refusal(("Impersonate-User", "a"), ("Impersonate-Extra-%ff", "x")).code == 400


def test_a_key_with_a_bad_escape_is_taken_as_it_is() -> None:
    assert wanted(("Impersonate-User", "a"), ("Impersonate-Extra-%zz%41", "x")).user.extra == (("%zz%41", ("x",)),)


def test_the_key_that_is_reviewed_is_the_key_that_is_sent() -> None:
    asked = wanted(("Impersonate-User", "a"), ("Impersonate-Extra-%41bc", "x"))
    assert asked.reviews[-1].subresource == asked.user.extra[0][0] == "abc"


def test_with_identity_proxy_impersonation_is_refused() -> None:
    assert impersonation_unsupported().code == 403


NAMES = st.sampled_from(
    [
        "bob",
        "system:anonymous",
        "system:serviceaccount:demo:builder",
        "system:serviceaccount:",
        "system:masters",
        "ü",
        "",
    ]
)
LINES = st.lists(
    st.tuples(
        st.sampled_from(
            ["Impersonate-User", "impersonate-group", "Impersonate-Uid", "Impersonate-Extra-A", "Impersonate-Extra-%41",
             "IMPERSONATE-EXTRA-b%2Fc", "Impersonate-Extra-", "Impersonate_User", "Impersonate-Scope", "Accept"]
        ),
        NAMES,
    ),
    max_size=8,
)  # fmt: skip
IMPLIED = {
    "system:authenticated",
    "system:unauthenticated",
    "system:serviceaccounts",
    "system:serviceaccounts:demo",
}


@given(lines=LINES)
@settings(max_examples=300)
def test_every_attribute_of_the_impersonated_user_was_reviewed(lines: list[tuple[str, str]]) -> None:
    try:
        asked = requested_impersonation(headers_of(*lines))
    except StatusError:
        return
    if asked is None:
        return
    user = asked.user
    seen = {(review.resource, review.subresource, review.namespace, review.name) for review in asked.reviews}
    needed = {("groups", "", "", group) for group in user.groups if group not in IMPLIED}
    needed |= {("userextras", key, "", value) for key, values in user.extra for value in values}
    if user.uid:
        needed.add(("uids", "", "", user.uid))
    account = service_account(user.name)
    needed.add(("serviceaccounts", "", *account) if account else ("users", "", "", user.name))
    assert needed <= seen
    assert len(set(user.groups)) == len(user.groups)
    assert user.extra == tuple(sorted(user.extra))
    implied = IMPLIED & set(user.groups)
    if user.name != "system:serviceaccount:demo:builder":
        assert implied <= {"system:authenticated", "system:unauthenticated"}
