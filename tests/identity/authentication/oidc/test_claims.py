"""Claims: which tokens are good now and for us, and which user they name."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.identity.authentication.oidc.jwt import InvalidTokenError, check_claims, user_of
from mcproxy.kube.user import UserInfo
from tests.identity.issuer import ISSUER, NOW, claims, config


def check(**changed: Any) -> float:
    return check_claims(claims(**changed), config(), NOW)


def user(changed: dict[str, Any], **configured: Any) -> UserInfo:
    return user_of(claims(**changed), config(**configured))


def test_a_good_token_ends_with_its_exp_in_whole_seconds() -> None:
    assert check() == NOW + 600
    assert check(exp=NOW + 30.5) == NOW + 30


@pytest.mark.parametrize("issuer", [ISSUER + "/", ISSUER.upper(), "https://login.example.org", None, 3, [ISSUER]])
def test_the_issuer_must_be_the_same_byte_for_byte(issuer: Any) -> None:
    with pytest.raises(InvalidTokenError, match="another issuer"):
        check(iss=issuer)


@pytest.mark.parametrize("audience", ["k8s", "kubernetes", ["k8s"], ["web", "kubernetes"]])
def test_any_of_the_audiences_will_do(audience: Any) -> None:
    check(aud=audience)


@pytest.mark.parametrize(
    "audience", ["web", "", None, [], ["web"], {"k8s": 1}, 7, ["k8", "s"], [["k8s"]], [{}], [7, "k8s"], ["k8s", None]]
)
def test_a_token_for_another_audience_is_refused(audience: Any) -> None:
    with pytest.raises(InvalidTokenError, match="audience"):
        check(aud=audience)


@pytest.mark.parametrize(("late", "good"), [(-1, True), (0, True), (1, False), (9, False), (3600, False)])
def test_exp_has_no_leeway(late: float, good: bool) -> None:
    if good:
        check(exp=NOW - late)
    else:
        with pytest.raises(InvalidTokenError, match=f"expired {late} s ago"):
            check(exp=NOW - late)


@pytest.mark.parametrize("ahead", [-3600, 0, 11, 58, 59, 60, 60.9])
def test_nbf_may_be_a_minute_ahead(ahead: float) -> None:
    check(nbf=NOW + ahead)


@pytest.mark.parametrize("ahead", [61, 65, 3600, 1e308])
def test_nbf_may_not_be_more_than_a_minute_ahead(ahead: float) -> None:
    with pytest.raises(InvalidTokenError, match=r"its nbf is \d+ s in the future"):
        check(nbf=NOW + ahead)


@pytest.mark.parametrize("iat", [None, 0, -5, 5.5, NOW + 30, NOW + 500, 1e308, "1790000500", "1.79e9"])
def test_iat_is_never_a_reason(iat: Any) -> None:
    check(iat=iat)


def test_exp_is_required_the_other_times_are_not() -> None:
    check(nbf=None, iat=None)
    with pytest.raises(InvalidTokenError, match="has no exp"):
        check(exp=None)


@pytest.mark.parametrize("exp", [NOW + 600, 1e18, "1790000600", "1790000600.25", "1.7900006e9"])
def test_numbers_are_read_as_go_reads_them(exp: Any) -> None:
    assert check(exp=exp) == int(float(exp))


@pytest.mark.parametrize("exp", [1e308, 2**63 - 1, 10**30])
def test_an_exp_beyond_gos_time_is_refused(exp: Any) -> None:
    with pytest.raises(InvalidTokenError, match="its exp is too late"):
        check(exp=exp)


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
@pytest.mark.parametrize(
    "value",
    [
        *("soon", "", " 1790000600", "0x7fffffff", "1_790_000_600", "+1790000600", "1e999", "1" * 65),
        *(True, [], {}, float("inf"), float("-inf"), float("nan"), 10**400),
    ],
)
def test_a_time_that_is_no_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidTokenError, match=f"its {name} is no time"):
        check(**{name: value})


@pytest.mark.parametrize("name", ["sub", "nonce", "at_hash"])
def test_a_claim_that_is_a_string_everywhere_is_one(name: str) -> None:
    check(**{name: "text"})
    for value in (7, ["x"], {"x": "y"}, True):
        with pytest.raises(InvalidTokenError, match=f"its {name} is no string"):
            check(**{name: value})


SOURCES = {"s": {"endpoint": "https://directory.example.com/x", "access_token": "t"}}
ELSEWHERE = {"_claim_names": {"groups": "s"}, "_claim_sources": SOURCES}
GROUPS = config(groups_claim="groups")


def expand(changed: dict[str, Any], configured: model.OIDC = GROUPS) -> None:
    check_claims(claims(**changed), configured, NOW)


@pytest.mark.parametrize(
    "changed",
    [
        ELSEWHERE,
        {**ELSEWHERE, "_claim_sources": {"s": {"JWT": "an.aggregated.claim"}}},
        {**ELSEWHERE, "_claim_sources": {"s": {}}},
        {"_claim_names": {"groups": "s"}},
        {"_claim_names": {"groups": ""}},
        {"_claim_names": {"groups": None}},
        {"_claim_names": ["groups"]},
        {"_claim_names": "groups"},
        {"_claim_names": {"groups": "other"}, "_claim_sources": SOURCES},
        {"_claim_sources": ["s"]},
        {"_claim_sources": {"s": "https://directory.example.com/x"}},
        {"_claim_sources": {"s": {"endpoint": 7}}},
        {"groups": ["dev"], "_claim_names": {"groups": "s"}},
        {"_claim_names": {"address": "s"}},
    ],
)
def test_a_claim_that_is_elsewhere_is_not_none(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidTokenError, match="could not expand distributed claims"):
        expand(changed)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"groups": ["dev"], **ELSEWHERE},
        {"groups": [], **ELSEWHERE},
        {"_claim_names": {"address": "s"}, "_claim_sources": SOURCES},
        {"_claim_names": {}},
        {"_claim_sources": SOURCES},
    ],
)
def test_a_claim_that_nobody_reads_may_be_elsewhere(changed: dict[str, Any]) -> None:
    expand(changed)


def test_the_groups_may_be_elsewhere_where_none_are_asked_for() -> None:
    expand(ELSEWHERE, config())


@pytest.mark.parametrize(
    ("name", "configured"),
    [
        ("upn", config(username_claim="upn")),
        ("email_verified", config(username_claim="email")),
        ("hd", config(required_claims=(("hd", "example.com"),))),
    ],
)
def test_other_claims_that_are_read_may_not_be_elsewhere_either(name: str, configured: model.OIDC) -> None:
    changed = {"email": "a@example.com", "_claim_names": {name: "s"}, "_claim_sources": SOURCES}
    with pytest.raises(InvalidTokenError, match=f"its claim {name} is elsewhere"):
        expand(changed, configured)


def test_distributed_claims_are_ignored_where_the_file_says_so() -> None:
    ignoring = config(groups_claim="groups", distributed_claims=model.DistributedClaims.IGNORE)
    for changed in (ELSEWHERE, {"_claim_names": ["groups"]}):
        expand(changed, ignoring)
        assert user_of(claims(**changed), ignoring).groups == ()


@pytest.mark.parametrize("value", ["example.com", ["example.com"], ["other.org", "example.com"]])
def test_a_required_claim_has_its_value_alone_or_in_a_list(value: Any) -> None:
    required = config(required_claims=(("hd", "example.com"), ("tid", "7")))
    check_claims(claims(hd=value, tid="7"), required, NOW)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "example.com ",
        "Example.com",
        [],
        ["other.org"],
        [["example.com"]],
        7,
        {"example.com": 1},
        ["example.com", 7],
    ],
)
def test_a_token_without_a_required_claim_is_refused(value: Any) -> None:
    with pytest.raises(InvalidTokenError, match=r"its claim hd is not example\.com"):
        check_claims(claims(hd=value), config(required_claims=(("hd", "example.com"),)), NOW)
    with pytest.raises(InvalidTokenError, match="its claim tid is not 7"):
        check_claims(
            claims(hd="example.com", tid=7), config(required_claims=(("hd", "example.com"), ("tid", "7"))), NOW
        )


def test_user_groups_and_credential_id() -> None:
    named = user({"jti": "j-1", "groups": ["dev", "ops", "dev"]}, groups_claim="groups")
    assert named == UserInfo(
        "alice", ("dev", "ops"), "", (("authentication.kubernetes.io/credential-id", ("JTI=j-1",)),)
    )


@pytest.mark.parametrize("token_id", ["", None, 7, ["x"]])
def test_a_token_without_an_id_has_no_credential_id(token_id: Any) -> None:
    assert user({"jti": token_id}).extra == ()


def test_prefixes_come_before_user_and_groups() -> None:
    named = user({"groups": "dev"}, groups_claim="groups", username_prefix="oidc:", groups_prefix="g:")
    assert (named.name, named.groups) == ("oidc:alice", ("g:dev",))


@pytest.mark.parametrize("name", ["", None, 7, ["alice"], {"a": 1}, True])
def test_a_user_name_that_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(InvalidTokenError, match="claim sub is no user name"):
        user({"sub": name}, username_prefix="oidc:")


@pytest.mark.parametrize("verified", [False, "true", "false", 1, 0, [], ""])
def test_an_email_that_is_not_verified_is_no_user(verified: Any) -> None:
    with pytest.raises(InvalidTokenError, match="not verified"):
        user({"email": "a@example.com", "email_verified": verified}, username_claim="email")


def test_an_email_is_a_user_if_verified_or_not_said() -> None:
    for more in ({"email_verified": True}, {}):
        assert user({"email": "a@example.com", **more}, username_claim="email").name == "a@example.com"
    assert user({"email_verified": False}).name == "alice"


@pytest.mark.parametrize("groups", [7, True, {"dev": 1}, ["dev", 7], ["dev", None], [["dev"]]])
def test_groups_of_another_kind_are_refused(groups: Any) -> None:
    with pytest.raises(InvalidTokenError, match="claim groups"):
        user({"groups": groups}, groups_claim="groups")


def test_groups_are_none_where_the_claim_is_absent_or_not_asked_for() -> None:
    assert user({}, groups_claim="groups").groups == ()
    assert user({"groups": ["dev"]}).groups == ()
    assert user_of({**claims(), "groups": None}, config(groups_claim="groups")).groups == ()
