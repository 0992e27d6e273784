"""`mcproxy check --explain` on a server of an aggregate: which members a request touches, and who answers it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mcproxy.cli import explain
from mcproxy.config import model
from tests.cli.test_explain import cluster, parse

Explain = Callable[..., tuple[int, dict[str, list[str]]]]

EVERYTHING = model.Rule(verbs=("*",), api_groups=("*",), resources=("*",))
URLS = model.Rule(verbs=("*",), non_resource_urls=("*",))
LISTS_OF_WEST = model.Rule(verbs=("list",), api_groups=("",), resources=("pods",), clusters=("west",))
FLEET = model.Aggregate(
    name="fleet",
    clusters=("east", "west"),
    primary="hub",
    cache=model.Cache(
        resources=(
            model.CachedResource(group="", version="v1", resource="pods"),
            model.CachedResource(
                group="", version="v1", resource="configmaps", namespaces=("demo",), clusters=("east",)
            ),
            model.CachedResource(group="apps", version="v1", resource="*"),
            model.CachedResource(group="", version="v1", resource="*", clusters=("west",)),
        )
    ),
    create=(
        model.CreateRule(api_groups=("apps",), resources=("deployments",), to="west"),
        model.CreateRule(api_groups=("apps",), resources=("*",), to="Label"),
        model.CreateRule(api_groups=("*",), resources=("pods",), to="Primary"),
    ),
)
SERVER = model.Server(
    name="fleet", listeners=("l",), default=True, backend=model.AggregateBackendConfig("fleet", ("east", "west"), "hub")
)
CONFIG = model.Config(
    clusters=(cluster("east", flow_controls=("busy",)), cluster("west"), cluster("hub")),
    flow_controls=(
        model.FlowControl(name="busy", type=model.FlowControlType.MAX_REQUESTS_INFLIGHT, max=5),
        model.FlowControl(name="shut", type=model.FlowControlType.MAX_REQUESTS_INFLIGHT, max=0),
    ),
    authorization=(
        model.Authorization(
            name="eastern",
            rules=(model.Rule(verbs=("*",), api_groups=("*",), resources=("*",), clusters=("east",)),),
        ),
    ),
    aggregates=(FLEET,),
    servers=(SERVER,),
)


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Explain:
    """Explain a request; returns the exit status and the texts by their words."""

    def ask(method: str, path: str, config: model.Config = CONFIG) -> tuple[int, dict[str, list[str]]]:
        status = explain.run(parse("--explain", method, path), config)
        told: dict[str, list[str]] = {}
        for line in capsys.readouterr().out.splitlines():
            told.setdefault(line[:15].rstrip(), []).append(line[15:])
        return status, told

    return ask


def with_server(config: model.Config = CONFIG, **more: Any) -> model.Config:
    return replace(config, servers=(replace(SERVER, **more),))


def with_aggregate(**more: Any) -> model.Config:
    return replace(CONFIG, aggregates=(replace(FLEET, **more),))


def test_each_cluster_has_its_own_policy_and_one_that_refuses_is_left_out(ask: Explain) -> None:
    policies = (
        model.Policy(name="dispatch[0]", rules=(LISTS_OF_WEST,), reject=model.Reject(403, "not from west")),
        model.Policy(name="rest", rules=(EVERYTHING,)),
    )
    status, told = ask("GET", "/api/v1/pods", with_server(dispatch=policies))
    assert status == 0
    assert told == {
        "server": ['"fleet"'],
        "aggregate": ['"fleet": members "east", "west", primary "hub"'],
        "request": ['list "pods", group "", version "v1", no namespace, no name'],
        "user": ['"system:anonymous", groups "system:unauthenticated"'],
        "clusters": ['"east"', '"west"', '"hub"'],
        "tried": [
            'dispatch[0], rules[0]: clusters ["west"] does not admit "east"',
            'dispatch[1] "rest", rules[0]: matches',
            "dispatch[0], rules[0]: matches",
            'dispatch[0], rules[0]: clusters ["west"] does not admit "hub"',
            'dispatch[1] "rest", rules[0]: matches',
        ],
        "policy": ['dispatch[1] "rest", rules[0]', "dispatch[0], rules[0]", 'dispatch[1] "rest", rules[0]'],
        "access log": ["on", "on", "on"],
        "flow control": ['"busy" (MaxRequestsInflight, max 5), of cluster "east", for what is sent there'],
        "authorization": ["none here: the cluster decides"] * 3,
        "left out": ["403, not from west"],
        "scope": ['cache.resources[0] of members "east", "west"', 'cache.resources[3] of members "west"'],
        "reads": ["each member is asked whether the user may list pods; one that denies it is left out"],
        "unavailable": ["Stale, for a member that is down"],
        "versions": [
            "a member that serves pods in other versions than v1 alone is left out with a Warning; "
            "mcproxy status names it"
        ],
        "result": ['answered from the cache of members "east"'],
    }


def test_a_request_that_all_clusters_refuse_is_refused(ask: Explain) -> None:
    status, told = ask("GET", "/api/v1/pods", with_server(dispatch=()))
    assert status == 1
    assert told["clusters"] == ['"east", "west", "hub"']
    assert told["result"] == ['refused: 403, no dispatch policy of server "fleet" matches']
    assert "scope" not in told


def test_the_authorizer_of_the_server_decides_for_each_cluster(ask: Explain) -> None:
    config = with_server(authorization="eastern")
    status, told = ask("GET", "/api/v1/namespaces/demo/pods/web", config)
    assert status == 0
    assert told["left out"] == ['403, authorization "eastern" does not allow it'] * 2
    assert told["result"] == ['answered from the cache of members "east"']
    assert ask("GET", "/api/v1/services", config)[1]["result"] == [
        "refused: 403, no member that has it in the scope is left"
    ]


@pytest.mark.parametrize(
    ("method", "path", "result"),
    [
        ("GET", "/api/v1/pods?watch=1", 'answered from the cache of members "east", "west"'),
        ("GET", "/api/v1/services", 'answered from the cache of members "west"'),
        ("GET", "/api/v1/namespaces/demo/configmaps/a", 'answered from the cache of members "east", "west"'),
        ("GET", "/api/v1/namespaces/x/configmaps", 'answered from the cache of members "west"'),
        ("GET", "/api/v1/namespaces/x/pods/a/log", 'goes to the one of members "east", "west" that has the object'),
        ("PUT", "/apis/apps/v1/namespaces/x/deployments/a/scale",
         'goes to the one of members "east", "west" that has the object'),
        ("DELETE", "/api/v1/namespaces/x/pods/a", 'goes to the one of members "east", "west" that has the object'),
        ("DELETE", "/api/v1/namespaces/x/pods", 'goes to members "east", "west", and their answers are merged'),
        ("POST", "/apis/apps/v1/namespaces/x/deployments", 'goes to "west", which may have its own say'),
        ("POST", "/apis/apps/v1/namespaces/x/daemonsets",
         "goes to the member that the label mcproxy.io/cluster of the object names"),
        ("POST", "/api/v1/namespaces/x/pods", 'goes to "hub", which may have its own say'),
        ("POST", "/api/v1/namespaces/x/pods/a/eviction",
         'goes to the one of members "east", "west" that has the object'),
        ("POST", "/api/v1/namespaces/x/services", "refused: 405, no create rule of the aggregate matches"),
        ("GET", "/api/v1/secrets", 'goes to the primary "hub", which may have its own say'),
        ("GET", "/apis/apps/v1beta1/deployments", 'goes to the primary "hub", which may have its own say'),
        ("GET", "/metrics", 'goes to the primary "hub", which may have its own say'),
        ("GET", "/apis/apps/v1", 'answered for members "east", "west" together'),
        ("GET", "/openapi/v3?hash=1", 'answered for members "east", "west" together'),
        ("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", "the proxy itself says who the user is"),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
         'goes to "hub", "east", "west"; the answer is the first that allows it'),
        ("GET", "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/api/v1/pods",
         'answered from the cache of members "east", "west"'),
    ],
)  # fmt: skip
def test_from_where_a_request_is_answered(ask: Explain, method: str, path: str, result: str) -> None:
    status, told = ask(method, path)
    assert told["result"] == [result]
    assert status == int(result.startswith("refused"))


def test_a_member_has_its_own_api_below_its_path(ask: Explain) -> None:
    status, told = ask("GET", "/clusters/west/api/v1/pods")
    assert (status, told["cluster"]) == (0, ['"west"'])
    assert "aggregate" not in told
    assert ask("GET", "/clusters/north/api/v1/pods")[1]["result"] == ['refused: 404, clusters "north" not found']


def test_without_a_primary_what_is_not_aggregated_is_404(ask: Explain) -> None:
    config = replace(
        with_aggregate(primary=None),
        servers=(replace(SERVER, backend=model.AggregateBackendConfig("fleet", ("east", "west"))),),
    )
    status, told = ask("GET", "/api/v1/secrets", config)
    assert status == 1
    assert told["aggregate"] == ['"fleet": members "east", "west", no primary']
    assert told["result"] == ["refused: 404, it is not aggregated, and the aggregate has no primary"]


def test_a_namespace_that_no_entry_covers_is_empty(ask: Explain) -> None:
    config = with_aggregate(cache=model.Cache(resources=FLEET.cache.resources[1:2]))
    status, told = ask("GET", "/api/v1/namespaces/x/configmaps", config)
    assert status == 0
    assert told["scope"] == ['cache.resources[1] of members "east", namespaces "demo"'.replace("[1]", "[0]")]
    assert told["result"] == ['an empty list with a Warning: no entry covers namespace "x"']
    for method in ("GET", "DELETE"):
        status, told = ask(method, "/api/v1/namespaces/x/configmaps/a", config)
        assert (status, told["result"]) == (1, ['refused: 404, no entry of cache.resources covers namespace "x"'])


def test_an_update_may_create(ask: Explain) -> None:
    told = ask("PATCH", "/apis/apps/v1/namespaces/x/daemonsets/a")[1]
    assert told["create"] == ["an object that is not there is created by create[1], to: Label"]
    assert "create" not in ask("PATCH", "/apis/apps/v1/namespaces/x/daemonsets/a/status")[1]


def test_the_server_may_decide_who_reads(ask: Explain) -> None:
    config = with_aggregate(
        reads=model.ReadsConfig(authorize=model.ReadAuthorization.SERVER), unavailable=model.UnavailableMembers.FAIL
    )
    told = ask("GET", "/api/v1/pods", config)[1]
    assert told["reads"] == ["the authorization of the server alone decides"]
    assert told["unavailable"] == ["Fail, for a member that is down"]


def test_what_is_for_a_cluster_that_is_left_out_is_refused(ask: Explain) -> None:
    policies = (
        model.Policy(
            name="members", rules=(replace(EVERYTHING, clusters=("east",)), replace(URLS, clusters=("east",)))
        ),
    )
    config = with_server(dispatch=policies)
    assert ask("GET", "/metrics", config)[1]["result"] == [
        'refused: 403, it is for the primary "hub", which is left out'
    ]
    assert ask("POST", "/apis/apps/v1/namespaces/x/deployments", config)[1]["result"] == [
        'refused: 403, it would go to "west", which is left out'
    ]


def test_limits_of_a_cluster_count_only_what_is_sent_to_it(ask: Explain) -> None:
    config = replace(CONFIG, clusters=(cluster("east", flow_controls=("shut",)), *CONFIG.clusters[1:]))
    told = ask("GET", "/api/v1/pods", config)[1]
    assert told["flow control"] == ['"shut" (MaxRequestsInflight, max 0), of cluster "east", for what is sent there']
    assert told["result"] == ['answered from the cache of members "east", "west"']
    config = with_server(dispatch=(model.Policy(name="none", rules=(EVERYTHING,), flow_control="shut"),))
    assert ask("GET", "/api/v1/pods", config)[1]["result"] == [
        'refused: 429, flow control "shut" lets none of these through'
    ]


CONFLICTS = (
    model.ConflictRule(api_groups=("apps",), resources=("*",), namespaces=("x",), to="west", show=model.Show.ONE),
    model.ConflictRule(api_groups=("*",), resources=("*",), to="Primary"),
)


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("DELETE", "/api/v1/namespaces/x/pods/a", "conflicts[1], to: Primary, of a name that several members have"),
        (
            "GET",
            "/apis/apps/v1/namespaces/x/deployments/a",
            "conflicts[0], to: west, of a name that several members have",
        ),
        ("PATCH", "/apis/apps/v1/namespaces/y/deployments/a", "conflicts[1], to: Primary, of a name that several"),
        ("GET", "/apis/apps/v1/namespaces/x/deployments", "conflicts[0], to: west, show: One: one object of each name"),
        (
            "GET",
            "/apis/apps/v1/deployments?watch=1",
            'conflicts[0], to: west, show: One: one object of each name in namespaces "x"',
        ),
        ("GET", "/apis/apps/v1/namespaces/y/deployments", ""),
        ("GET", "/api/v1/pods", ""),
    ],
)
def test_which_member_is_meant_by_a_name_that_several_have(ask: Explain, method: str, path: str, told: str) -> None:
    _, found = ask(method, path, with_aggregate(conflicts=CONFLICTS, primary="east"))
    assert found.get("conflicts", [""])[0].startswith(told)
    assert len(found.get("conflicts", [])) == bool(told)


def test_without_a_rule_for_it_the_first_is_read_and_none_is_written(ask: Explain) -> None:
    assert ask("GET", "/api/v1/namespaces/x/pods/a")[1]["conflicts"] == [
        "no rule: of a name that several members have it is the first member's, with a Warning"
    ]
    assert ask("DELETE", "/api/v1/namespaces/x/pods/a")[1]["conflicts"] == [
        "no rule: of a name that several members have it is 409, unless a label chooses"
    ]


def test_a_rule_whose_member_is_left_out_does_not_count(ask: Explain) -> None:
    found = ask("GET", "/api/v1/namespaces/x/pods/a", with_aggregate(conflicts=CONFLICTS, primary="hub"))[1]
    assert found["conflicts"][0].endswith("which is left out, so the rule does not count")
