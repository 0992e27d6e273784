"""Service accounts and nodes are told by their names alone where only their modes are granted (KEP-5284)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mcproxy.config import model
from tests.proxy.harness import OK, Harness, always, cluster, config, get

ACCOUNT = "system:serviceaccount:demo:builder"
NODE = "system:node:n1"
TOKENS = model.TokenFileConfig(
    "users.csv",
    (
        model.StaticToken(
            model.Secret("sa"), ACCOUNT, "u-1", ("system:serviceaccounts", "system:serviceaccounts:demo")
        ),
        model.StaticToken(model.Secret("node"), NODE, "", ("system:nodes",)),
        model.StaticToken(model.Secret("more"), ACCOUNT, "", ("system:serviceaccounts", "dev")),
        model.StaticToken(model.Secret("bob"), "bob"),
    ),
)
REVIEWED = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {}}
MODES = {"impersonate:serviceaccount", "impersonate:arbitrary-node"}


async def told(harness: Harness, granted: set[str], *tokens: str) -> tuple[list[list[str]], list[str]]:
    """The Impersonate-* lines of a request with each token, and the verbs that the cluster was asked for."""
    asked: list[str] = []

    def rights(review: bytes) -> bytes:
        spec = json.loads(review.partition(b"\r\n\r\n")[2])["spec"]
        asked.append(spec["resourceAttributes"]["verb"])
        return json.dumps({**REVIEWED, "status": {"allowed": asked[-1] in granted}}).encode()

    upstream = harness.upstream()
    upstream.rights = rights
    own = model.Credentials(token=model.Secret("own"))
    east = cluster(upstream.endpoint(), identity=model.UpstreamIdentity.IMPERSONATE, credentials=own)
    users = model.Authentication(name="users", token_file=TOKENS, allow_system_names=True)
    made = config([east], authentication=(users,))
    await harness.serve(replace(made, servers=(replace(made.servers[0], authentication="users"),)))
    found = []
    for token in tokens:
        upstream.reply = always(OK)
        client = await harness.asks(get(b"/api/v1/pods", b"Authorization: Bearer " + token.encode()))
        await harness.until(lambda: b"200 OK" in client.received, "the answer")  # noqa: B023
        lines = upstream.received.decode().split("\r\n")
        found.append(sorted(line for line in lines if line.startswith("Impersonate-")))
        upstream.forget()
    return found, asked


async def test_by_the_name_alone(harness: Harness) -> None:
    found, asked = await told(harness, MODES, "sa", "node", "sa")
    assert found == [[f"Impersonate-User: {name}"] for name in (ACCOUNT, NODE, ACCOUNT)]
    assert asked == ["impersonate", "impersonate:serviceaccount", "impersonate:arbitrary-node"]  # kept for 5 minutes


@pytest.mark.parametrize("granted", [set(), {"impersonate"}, {"impersonate", *MODES}])
async def test_in_full_with_the_verb_impersonate_or_without_the_modes(harness: Harness, granted: set[str]) -> None:
    (account, node), _ = await told(harness, granted, "sa", "node")
    assert {"Impersonate-Uid: u-1", "Impersonate-Group: system:serviceaccounts:demo"} < set(account)
    assert "Impersonate-Group: system:nodes" in node


async def test_nothing_is_asked_for_others(harness: Harness) -> None:
    found, asked = await told(harness, MODES, "bob", "more")
    assert [len(lines) for lines in found] == [2, 4]
    assert asked == []
