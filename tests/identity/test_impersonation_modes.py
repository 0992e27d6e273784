"""Impersonation requested by a client, allowed by the modes of KEP-5284 first and then by the verb `impersonate`."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.identity.authorization.access_review import Decision
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.identity.authorization.authorizer import ImpersonationAuthorizer, LastModes
from mcproxy.identity.client_identity_headers import split_identity_headers
from mcproxy.identity.impersonation import authorize_impersonation, requested_impersonation
from mcproxy.kube.constrained_impersonation import UNKNOWN
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import settled

LIST = Attributes("list", "", "v1", "pods", namespace="demo", label_selector="a=b")
DEPUTY = UserInfo("deputy")
NODE_KEY = "authentication.kubernetes.io/node-name"
AGENT = UserInfo("system:serviceaccount:kube-system:agent", extra=((NODE_KEY, ("n1",)),))
ACCOUNT, NODE = "system:serviceaccount:demo:builder", "system:node:n1"
USER_INFO = ("impersonate-on:user-info:list pods", "impersonate:user-info users bob")


class Cluster:
    """Allows what is granted: `VERB RESOURCE NAME`, `VERB RESOURCE` or `*`."""

    def __init__(self, *granted: str) -> None:
        self.granted = set(granted)
        self.asked: list[str] = []
        self.callers: list[UserInfo] = []
        self.last_modes = LastModes()

    async def decide(self, user: UserInfo, attributes: Attributes) -> Decision:
        resource = "/".join(filter(None, (attributes.resource, attributes.subresource)))
        shown = f"{attributes.verb} {resource} {attributes.name}".strip()
        self.asked.append(shown)
        self.callers.append(user)
        return Decision(not self.granted.isdisjoint({shown, f"{attributes.verb} {resource}", "*"}))

    def ask(self, *headers: tuple[str, str], caller: UserInfo = DEPUTY) -> UserInfo:
        block = "".join(f"Impersonate-{name}: {value}\r\n" for name, value in headers).encode()
        wanted = requested_impersonation(split_identity_headers(block))
        assert wanted is not None
        self.asked.clear()
        authorizing = authorize_impersonation(caller, wanted, self.decide, LIST, self.last_modes, "east")
        results: list[Any] = []
        Deferred.fromCoroutine(authorizing).addBoth(results.append)
        if not isinstance(results[0], UserInfo):
            results[0].raiseException()
        found: UserInfo = results[0]
        return found


def test_the_verbs_of_a_mode_are_enough() -> None:
    cluster = Cluster(*USER_INFO, "impersonate:user-info groups dev", "impersonate:user-info uids")
    found = cluster.ask(("User", "bob"), ("Group", "dev"), ("Uid", "u"))
    assert (found.name, found.groups, found.uid) == ("bob", ("dev", "system:authenticated"), "u")
    assert cluster.asked == [*USER_INFO, "impersonate:user-info uids u", "impersonate:user-info groups dev",
                             f"{UNKNOWN} users bob"]  # fmt: skip


@pytest.mark.parametrize("missing", USER_INFO)
def test_each_of_them_is_needed_and_the_refusal_is_that_of_impersonate(missing: str) -> None:
    cluster = Cluster(*(verb for verb in USER_INFO if verb != missing))
    with pytest.raises(StatusError) as caught:
        cluster.ask(("User", "bob"))
    assert caught.value.code == 403
    assert caught.value.message.startswith(
        'users "bob" is forbidden: User "deputy" cannot impersonate resource "users"'
    )


def test_rights_by_a_star_are_no_sign_that_the_cluster_has_modes() -> None:
    """A cluster before 1.36 would refuse: `*` on what is asked for and in authentication.k8s.io was not meant so."""
    on, users = "impersonate-on:user-info:list pods", "impersonate:user-info users"
    with pytest.raises(StatusError):
        Cluster(on, users, f"{UNKNOWN} users").ask(("User", "bob"))
    assert Cluster("*").ask(("User", "bob")).name == "bob"


@pytest.mark.parametrize(
    "more", [("Group", "system:masters"), ("Group", ""), ("Extra-Scopes", "x"), ("Extra-Example.com%2Fa", "")]
)
def test_what_no_mode_gives(more: tuple[str, str]) -> None:
    everything = Cluster("impersonate-on:user-info:list pods", *(f"impersonate:user-info {what}" for what in (
        "users", "groups", "userextras/scopes", "userextras/example.com/a")))  # fmt: skip
    with pytest.raises(StatusError):
        everything.ask(("User", "bob"), more)
    everything.granted |= {f"impersonate {what}" for what in ("users", "groups", "userextras/scopes")}
    if more != ("Extra-Example.com%2Fa", ""):
        assert everything.ask(("User", "bob"), more).name == "bob"


def test_service_accounts_and_nodes_by_their_names_alone() -> None:
    accounts = Cluster("impersonate-on:serviceaccount:list pods", "impersonate:serviceaccount serviceaccounts builder")
    groups = ("system:serviceaccounts", "system:serviceaccounts:demo", "system:authenticated")
    assert accounts.ask(("User", ACCOUNT)).groups == groups
    nodes = Cluster("impersonate-on:arbitrary-node:list pods", "impersonate:arbitrary-node nodes n1")
    assert nodes.ask(("User", NODE)).groups == ("system:nodes", "system:authenticated")
    for cluster, name in ((accounts, ACCOUNT), (nodes, NODE)):
        cluster.granted |= {f"impersonate:user-info {what}" for what in ("users", "groups", "uids")}
        cluster.granted.add("impersonate-on:user-info:list pods")
        for more in (("Group", "dev"), ("Uid", "u")):
            with pytest.raises(StatusError):
                cluster.ask(("User", name), more)


def test_an_agent_may_be_the_node_that_it_is_on() -> None:
    cluster = Cluster("impersonate-on:associated-node:list pods", "impersonate:associated-node nodes *")
    assert cluster.ask(("User", NODE), caller=AGENT).groups == ("system:nodes", "system:authenticated")
    keys = ("authentication.kubernetes.io/associated-node-keys", (NODE_KEY,))
    assert cluster.callers[0].extra == (keys,)
    for caller, name in ((AGENT, "system:node:n2"), (DEPUTY, NODE)):
        with pytest.raises(StatusError):
            cluster.ask(("User", name), caller=caller)


def test_many_groups_are_asked_for_at_once_first() -> None:
    cluster = Cluster(*USER_INFO, "impersonate:user-info groups *")
    groups = [("Group", f"g{number}") for number in range(4)]
    assert len(cluster.ask(("User", "bob"), *groups).groups) == 5
    with pytest.raises(StatusError):
        cluster.ask(("User", "bob"), *groups[:3])


def test_the_way_by_which_a_caller_was_last_allowed_is_tried_first() -> None:
    cluster = Cluster("impersonate users")
    cluster.ask(("User", "bob"))
    assert cluster.asked == ["impersonate-on:user-info:list pods", "impersonate users bob"]
    cluster.ask(("User", "bob"))
    assert cluster.asked == ["impersonate users bob"]
    cluster.granted = set(USER_INFO)
    assert cluster.ask(("User", "bob")).name == "bob"


class Reviewer:
    """Allows all but the verb that only a star gives."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def decide(self, user: UserInfo, attributes: Attributes) -> Decision:
        self.asked.append(attributes.verb)
        return Decision(attributes.verb != UNKNOWN)


def rules(*verbs: str) -> model.Authorization:
    rule = model.Rule(verbs=verbs, api_groups=("*",), resources=("*",))
    return model.Authorization(name="r", rules=(rule,))


@pytest.mark.parametrize(
    ("verbs", "allowed"),
    [
        (("impersonate-on:user-info:list", "impersonate:user-info"), True),
        (("impersonate",), True),
        (("impersonate:user-info",), False),
        (("impersonate-on:user-info:get", "impersonate:user-info"), False),
        (("*",), False),
        (("-get",), False),
    ],
)
def test_a_server_with_rules_needs_the_verbs_written_there(verbs: tuple[str, ...], allowed: bool) -> None:
    reviewer = Reviewer()
    authorizer = ImpersonationAuthorizer(rules(*verbs), lambda _: reviewer)
    wanted = requested_impersonation(split_identity_headers(b"Impersonate-User: bob\r\n"))
    assert wanted is not None

    async def decide(user: UserInfo, attributes: Attributes) -> Decision:
        return await settled(authorizer.decide(user, attributes, "east"))

    results: list[Any] = []
    Deferred.fromCoroutine(authorize_impersonation(DEPUTY, wanted, decide, LIST)).addBoth(results.append)
    assert isinstance(results[0], UserInfo) is allowed
