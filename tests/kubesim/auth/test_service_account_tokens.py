"""ServiceAccount tokens of a simulated cluster."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubesim.auth.authentication import ISSUER, Invalid, Issuer, issuer_of
from kubesim.cluster import SimulatedCluster

ACCOUNT: dict[str, Any] = {"metadata": {"name": "builder", "namespace": "demo", "uid": "u-1"}}


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def issuer(clock: Clock) -> Issuer:
    cluster = SimulatedCluster("east", now=clock)
    cluster.store.put(("", "serviceaccounts"), ACCOUNT)
    return issuer_of(cluster)


def test_a_token_names_its_account_and_credential(issuer: Issuer) -> None:
    verified = issuer.verify(issuer.issue("demo", ACCOUNT))
    assert verified.user.name == "system:serviceaccount:demo:builder"
    assert verified.user.uid == "u-1"
    assert verified.user.groups == ("system:serviceaccounts", "system:serviceaccounts:demo")
    assert verified.user.extra["authentication.kubernetes.io/credential-id"][0].startswith("JTI=")
    assert verified.audiences == (ISSUER,)


def test_a_token_expires(issuer: Issuer, clock: Clock) -> None:
    token = issuer.issue("demo", ACCOUNT, seconds=600)
    clock.time += timedelta(seconds=600)
    with pytest.raises(Invalid, match="has expired"):
        issuer.verify(token)


def test_another_audience_is_refused(issuer: Issuer) -> None:
    with pytest.raises(Invalid, match=r'token audiences \["a"\] is invalid for the target audiences \["b"\]'):
        issuer.verify(issuer.issue("demo", ACCOUNT, audiences=["a"]), ["b"])


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "eyJhbGciOiJub25lIn0.e30."])
def test_what_is_no_token_of_this_issuer_is_refused_without_a_reason(issuer: Issuer, token: str) -> None:
    with pytest.raises(Invalid) as caught:
        issuer.verify(token)
    assert caught.value.reason == ""


def test_another_clusters_token_is_refused(issuer: Issuer) -> None:
    other = issuer_of(SimulatedCluster("west"))
    with pytest.raises(Invalid, match="no keys found"):
        issuer.verify(other.issue("demo", ACCOUNT))


def test_a_changed_token_is_refused(issuer: Issuer) -> None:
    head, claims, signature = issuer.issue("demo", ACCOUNT).split(".")
    changed = json.loads(base64.urlsafe_b64decode(claims + "=="))
    changed["sub"] = "system:serviceaccount:kube-system:admin"
    forged = base64.urlsafe_b64encode(json.dumps(changed).encode()).rstrip(b"=").decode()
    with pytest.raises(Invalid, match="cryptographic primitive"):
        issuer.verify(f"{head}.{forged}.{signature}")
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    with pytest.raises(Invalid):
        issuer.verify(f"{unsigned}.{claims}.")


def test_a_token_ends_with_its_account_and_its_pod(clock: Clock) -> None:
    cluster = SimulatedCluster("east", now=clock)
    issuer = issuer_of(cluster)
    cluster.store.put(("", "serviceaccounts"), ACCOUNT)
    cluster.store.put(("", "pods"), {"metadata": {"name": "web", "namespace": "demo", "uid": "p-1"}})
    bound = issuer.issue("demo", ACCOUNT, bound={"pod": {"name": "web", "uid": "p-1"}})
    assert issuer.verify(bound).user.extra["authentication.kubernetes.io/pod-name"] == ("web",)
    cluster.store.delete(("", "pods"), "demo", "web")
    with pytest.raises(Invalid, match="invalidated"):
        issuer.verify(bound)
    plain = issuer.issue("demo", ACCOUNT)
    cluster.store.delete(("", "serviceaccounts"), "demo", "builder")
    with pytest.raises(Invalid, match="invalidated"):
        issuer.verify(plain)
