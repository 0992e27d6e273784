"""Who calls is the same through the proxy as it is directly, for kubectl with certificates and with tokens."""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.identity_environment import CREDENTIAL_ID, IdentityEnvironment
from tests.e2e.kubectl_output import SPDY, WEBSOCKET
from tests.e2e.processes import Kubectl, Result, in_parallel
from tests.e2e.test_kubectl import seen_of

TOLD = ("east", "token", "front")
"""Impersonate with a certificate, Impersonate with a token, RequestHeader."""
WAYS_OF = {
    "admin-certificate": ("east", "front"),
    "alice-certificate": ("token", "front"),
    "admin-token": ("token", "own"),
    "alice-token": ("east", "own"),
}
"""Each route with a certificate and a token; what differs between the users has little to do with the route."""
USERS = pytest.mark.parametrize("user", WAYS_OF)
STREAMS = [("certificate", WEBSOCKET), ("token", SPDY)]
OVER_STREAMS = pytest.mark.parametrize(("credential", "environ"), STREAMS, ids=["websocket", "spdy"])
ADMINS = pytest.mark.parametrize("user", ["admin-certificate", "admin-token"])
ALICES = pytest.mark.parametrize("user", ["alice-certificate", "alice-token"])

Scenario = Callable[[Kubectl], list[Result]]
Compare = Callable[[str, Scenario], list[Result]]


@pytest.fixture
def everywhere(identities: IdentityEnvironment, kubectl: str) -> Compare:
    """Run a scenario of a user directly and through the proxy; fail unless all see the same. Gives what was seen.

    All ways are gone at a time, so a scenario must not disturb another.
    """

    def compare(user: str, scenario: Scenario) -> list[Result]:
        ways = ("direct", *WAYS_OF[user])
        seen = in_parallel(lambda route: seen_of(scenario, identities.kubectl(kubectl, user, route)), ways)
        for route in WAYS_OF[user]:
            for step, expected in zip(seen[route], seen["direct"], strict=True):
                assert step == expected, route
        return seen["direct"]

    return compare


@USERS
def test_whoami_names_the_user_groups_and_uid(identities: IdentityEnvironment, kubectl: str, user: str) -> None:
    ways = (*TOLD, "own") if "token" in user else TOLD
    seen = in_parallel(
        lambda route: identities.kubectl(kubectl, user, route)("auth", "whoami"), ("direct", "lent", *ways)
    )
    direct = seen["direct"]
    assert direct.status == 0
    assert user.partition("-")[0] in direct.stdout
    for route in ways:
        told = seen[route]
        expected = direct
        if route == "east":  # does not pass on the certificate's extra, as impersonateExtras does not name it
            lines = [line for line in direct.stdout.splitlines(keepends=True) if CREDENTIAL_ID not in line]
            expected = Result(0, "".join(lines), "")
        spaced = [re.sub(" +", " ", result.stdout) for result in (told, expected)]
        assert spaced[0] == spaced[1], route
        assert (told.status, told.stderr) == (0, "")
    assert re.search(r"^Username +mcproxy$", seen["lent"].stdout, re.M)


@pytest.mark.parametrize("user", ["admin-certificate", "alice-token"])
def test_can_i_yes_no_and_list(everywhere: Compare, user: str) -> None:
    def scenario(kubectl: Kubectl) -> list[Result]:
        return [
            kubectl("auth", "can-i", "list", "pods"),
            kubectl("auth", "can-i", "delete", "pods", "-n", "shop"),
            kubectl("auth", "can-i", "--list"),
        ]

    yes, delete, everything = everywhere(user, scenario)
    assert (yes.status, yes.stdout) == (0, "yes\n")
    assert (delete.status, delete.stdout) == ((0, "yes\n") if user.startswith("admin") else (1, "no\n"))
    assert ("*.*" in everything.stdout) is user.startswith("admin")


@USERS
def test_what_is_allowed_and_what_is_not(everywhere: Compare, user: str) -> None:
    def scenario(kubectl: Kubectl) -> list[Result]:
        return [
            kubectl("get", "pods"),
            kubectl("get", "secrets", "-n", "shop"),
            kubectl("logs", "db-0", "--tail=1"),
        ]

    pods, secrets, logs = everywhere(user, scenario)
    assert (pods.status, logs.status) == (0, 0)
    if user.startswith("alice"):
        assert 'User "alice" cannot list resource "secrets" in API group "" in the namespace "shop"' in secrets.stderr


def test_an_unknown_token_is_unauthorized(identities: IdentityEnvironment, kubectl: str) -> None:
    ways = ("direct", *TOLD, "own", "lent")
    seen = in_parallel(lambda route: identities.kubectl(kubectl, "nobody", route)("auth", "whoami"), ways)
    assert seen["direct"].status == 1
    assert "Unauthorized" in seen["direct"].stderr
    assert set(seen.values()) == {seen["direct"]}


@pytest.mark.slow
@ADMINS
def test_impersonation_with_the_right_is_allowed(everywhere: Compare, user: str) -> None:
    account = "--as=system:serviceaccount:demo:default"

    def scenario(kubectl: Kubectl) -> list[Result]:
        return [
            kubectl("auth", "whoami", "--as=alice"),
            kubectl("auth", "whoami", "--as=alice", "--as-group=dev", "--as-group=ops", "--as-uid=u-7"),
            kubectl("auth", "whoami", account),
            kubectl("get", "secrets", "--as=alice"),
            kubectl("get", "pods", "--as-group=dev"),
            kubectl("logs", "db-0", "--tail=1", "--as=alice"),
            kubectl("exec", "db-0", "--as=alice", "--", "hostname"),
        ]

    _, whole, service, secrets, group, logs, exec_ = everywhere(user, scenario)
    assert [word in whole.stdout for word in ("alice", "u-7", "dev ops")]
    assert "system:serviceaccounts:demo" in service.stdout
    assert [step.status for step in (secrets, group, logs, exec_)] == [1, 1, 0, 1]
    assert 'User "alice"' in secrets.stderr


@ALICES
def test_impersonation_without_the_right_is_forbidden(everywhere: Compare, user: str) -> None:
    def scenario(kubectl: Kubectl) -> list[Result]:
        return [
            kubectl("get", "pods", "--as=bob"),
            kubectl("get", "pods", "--as=alice", "--as-group=system:masters"),
            kubectl("exec", "db-0", "--as=admin", "--", "hostname"),
        ]

    bob, *_ = everywhere(user, scenario)
    assert 'User "alice" cannot impersonate resource "users" in API group "" at the cluster scope' in bob.stderr


@OVER_STREAMS
def test_exec_cp_and_port_forward(
    everywhere: Compare, credential: str, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "sent").write_bytes(bytes(range(256)) * 100)
    numbers = itertools.count()

    def scenario(kubectl: Kubectl) -> list[Result]:
        number = next(numbers)
        script = "cat; echo problem >&2; exit 7"
        steps = [
            kubectl("exec", "-i", "db-0", "--", "sh", "-c", script, stdin="one\n", environ=environ),
            kubectl("cp", "sent", f"db-0:/tmp/sent-{number}", environ=environ, cwd=tmp_path),
            kubectl("cp", f"db-0:/tmp/sent-{number}", f"back-{number}", environ=environ, cwd=tmp_path),
        ]
        assert (tmp_path / f"back-{number}").read_bytes() == (tmp_path / "sent").read_bytes()
        with kubectl.begin("port-forward", "pod/db-0", ":5432", environ=environ) as forwarding:
            forwarding.wait_for("-> 5432")
            found = re.search(r"127\.0\.0\.1:(\d+) ->", forwarding.output.decode())
            assert found is not None
            with socket.create_connection(("127.0.0.1", int(found[1])), timeout=20) as connection:
                connection.sendall(b"echo this\n")
                steps.append(Result(0, connection.makefile("rb").readline().decode(), ""))
        return steps

    talk, *_, echoed = everywhere(f"admin-{credential}", scenario)
    assert (talk.status, talk.stdout, echoed.stdout) == (7, "one\n", "echo this\n")


@OVER_STREAMS
def test_who_may_not_exec_is_refused(everywhere: Compare, credential: str, environ: dict[str, str]) -> None:
    def scenario(kubectl: Kubectl) -> list[Result]:
        return [
            kubectl("exec", "db-0", "--", "hostname", environ=environ),
            kubectl("port-forward", "pod/db-0", ":5432", environ=environ),
        ]

    refused, _ = everywhere(f"alice-{credential}", scenario)
    assert refused.status == 1
    assert 'User "alice" cannot create resource "pods/exec"' in refused.stderr
