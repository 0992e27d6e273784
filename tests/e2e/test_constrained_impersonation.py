"""With what `mcproxy rbac --constrained` prints, and nothing else, the proxy names all users of its configuration."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.identity_environment import bearer
from tests.e2e.processes import mcproxy, wait_until
from tests.e2e.test_rbac import RBAC, RightsEnvironment, failing

WITHOUT_DOMAIN = ["extra"]  # the key `scopes`, which no mode takes


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[RightsEnvironment]:
    environment = RightsEnvironment(tmp_path)
    try:
        yield environment.start()
    finally:
        environment.stop()


@pytest.mark.slow
def test_constrained_impersonation_is_enough_but_for_what_it_never_gives(
    environment: RightsEnvironment, kubectl: str
) -> None:
    file = str(environment.directory / "mcproxy.yaml")
    printed = mcproxy("rbac", "-c", file, "--cluster", "east", "--user", "mcproxy", "--constrained")
    assert printed.returncode == 0, printed.stderr
    command = [kubectl, "--kubeconfig", environment.cluster.kubeconfig, "apply", "--validate=false", "-f", "-"]
    subprocess.run(command, input=printed.stdout, capture_output=True, text=True, timeout=60, check=True)
    wait_until("users are named", lambda: failing(environment) == WITHOUT_DOMAIN)
    account = environment.whoami(*bearer(environment.account))
    groups = ["system:serviceaccounts", "system:serviceaccounts:demo", "system:authenticated"]
    assert (account["groups"], account.get("uid")) == (groups, None)  # by its name alone
    # system:masters
    assert environment.ask("/api/v1/namespaces", user="admin").status == 503
    assert environment.daemon is not None
    (line, *_) = environment.daemon.wait_for("event=impersonation_not_permitted", "system:masters")
    assert "without --constrained, which never gives the group" in line
    environment.daemon.reload()
    environment.daemon.wait_for("event=rights_complete", "cluster=east")
    checked = mcproxy("check", "--connect", file)
    assert (
        "cluster east: lets the proxy name users by constrained impersonation alone" in checked.stdout + checked.stderr
    )
    assert "extras without a domain (impersonateExtras): scopes" in checked.stdout + checked.stderr
    # a client that may impersonate by a mode
    verbs = {"pods": ["impersonate-on:user-info:list"], "users": ["impersonate:user-info"]}
    rules = [
        {"apiGroups": ["", "authentication.k8s.io"], "resources": [what], "verbs": verb} for what, verb in verbs.items()
    ]
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "deputy"}, "rules": rules}
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": "deputy"}
    subjects = [{"apiGroup": group, "kind": "User", "name": "alice"}]
    binding = {"kind": "ClusterRoleBinding", "metadata": {"name": "deputy"}, "roleRef": reference, "subjects": subjects}
    as_bob = ("Impersonate-User", "bob")
    for path, body in (("clusterroles", role), ("clusterrolebindings", binding)):
        assert (
            'User "alice" cannot impersonate' in environment.ask("/api/v1/pods", as_bob, user="alice").json["message"]
        )
        assert environment.direct("POST", f"{RBAC}/{path}", body).status == 201
    answer = environment.ask("/api/v1/pods", as_bob, user="alice")
    assert 'User "bob" cannot list' in answer.json["message"]
    answer = environment.ask("/api/v1/nodes", as_bob, user="alice")
    assert 'User "alice" cannot impersonate' in answer.json["message"]
