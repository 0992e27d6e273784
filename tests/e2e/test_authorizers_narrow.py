"""An authorizer narrows and never gives: rules with stars, and readers, before clusters with real roles."""

from __future__ import annotations

import pytest

from tests.e2e.http_client import Answer, ask
from tests.e2e.identity_environment import IdentityEnvironment

SECRETS = "/api/v1/namespaces/kube-system/secrets"
EXEC = "/api/v1/namespaces/demo/pods/db-0/exec?command=id&stdout=true"
MASTERS = (("Impersonate-User", "root"), ("Impersonate-Group", "system:masters"))
WEBSOCKET = (
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Protocol", "v5.channel.k8s.io"),
)


def message(answer: Answer) -> str:
    assert answer.status == 403, answer.body
    text: str = answer.json["message"]
    return text


@pytest.mark.parametrize("route", ["east", "token", "front", "own"])
def test_a_star_is_no_way_to_the_secrets_of_the_system(identities: IdentityEnvironment, route: str) -> None:
    alice = identities.proxy("stars", user="alice")
    target = f"/clusters/{route}{SECRETS}"
    assert 'cannot impersonate resource "users"' in message(ask(alice, target, headers=MASTERS))
    if route != "own":  # towards it she has no credential but her certificate, which ends at the proxy
        assert 'User "alice" cannot list resource "secrets"' in message(ask(alice, target))


def test_who_may_impersonate_in_the_cluster_still_needs_a_rule_that_says_so(identities: IdentityEnvironment) -> None:
    target = f"/clusters/east{SECRETS}"
    assert ask(identities.proxy(user="admin"), target, headers=MASTERS).status == 200
    refused = message(ask(identities.proxy("stars", user="admin"), target, headers=MASTERS))
    assert 'User "admin" cannot impersonate resource "users"' in refused


@pytest.mark.parametrize("headers", [WEBSOCKET, ()], ids=["websocket", "plain"])
def test_readers_of_everything_have_no_shell(
    identities: IdentityEnvironment, headers: tuple[tuple[str, str], ...]
) -> None:
    """`lent` gets the proxy's own identity: the rules are all that stands between a reader and a shell."""
    readers = identities.proxy("readers", user="alice")
    assert ask(readers, "/clusters/lent/api/v1/namespaces/demo/pods/db-0/status").status != 401
    refused = message(ask(readers, f"/clusters/lent{EXEC}", headers=headers))
    assert 'User "alice" cannot create resource "pods/exec" in API group "" in the namespace "demo"' in refused
