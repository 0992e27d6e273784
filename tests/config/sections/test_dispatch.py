"""Dispatch policies, flow controls and rules that are right, and what they become; faults are in cases/."""

from pathlib import Path

import pytest

from mcproxy.config.load import load
from mcproxy.config.model import (
    ClusterBackend,
    Config,
    FlowControl,
    FlowControlType,
    Per,
    Policy,
    Queue,
    Reject,
    Rule,
    Strategy,
)
from mcproxy.config.problem import ConfigErrors, Problem
from tests.config.pki import NOW

CLUSTERS = """
version: 1
listeners: [{name: l, bind: "127.0.0.1:1"}]
clusters:
  - name: east
    endpoints:
      - {name: a, url: "https://10.0.0.1", weight: 3}
      - {url: "https://10.0.0.2:6443/x", disabled: true}
    identity: Passthrough
    flowControls: [bulk, few]
  - {name: west, endpoints: [{url: "https://10.0.1.1"}], identity: Passthrough, flowControls: [free]}
authentication: [{name: all, anonymous: {enabled: true}}]
flowControls:
  - {name: few, type: MaxRequestsInflight, max: 200, maxLongRunning: 5000, queue: {size: 100, timeout: 5s}}
  - {name: bulk, type: TokenBucket, qps: 0.5, burst: 100, per: User, shared: false}
  - {name: watches, type: MaxRequestsInflight, maxLongRunning: 0, per: Cluster}
  - {name: free, type: Exempt}
"""
PODS = '{verbs: [get], apiGroups: [""], resources: [pods]}'


def loaded(folder: Path, text: str) -> tuple[Config, tuple[Problem, ...]]:
    file = folder / "mcproxy.yaml"
    file.write_text(CLUSTERS + text)
    found = load(str(file), environ={}, now=NOW)
    return found.config, found.warnings


def policies(folder: Path, dispatch: str, backend: str = "{cluster: east}") -> tuple[Policy, ...]:
    text = f"servers: [{{name: s, default: true, backend: {backend}, authentication: all, dispatch: {dispatch}}}]\n"
    found = loaded(folder, text)[0].servers[0].dispatch
    assert found is not None
    return found


def rule(folder: Path, text: str) -> Rule:
    return policies(folder, f"[{{rules: [{text}]}}]")[0].rules[0]


def test_flow_controls(tmp_path: Path) -> None:
    config, _ = loaded(tmp_path, "")
    kinds = FlowControlType
    assert config.flow_controls == (
        FlowControl(
            name="few", type=kinds.MAX_REQUESTS_INFLIGHT, max=200, max_long_running=5000,
            queue=Queue(size=100, timeout=5.0),
        ),
        FlowControl(name="bulk", type=kinds.TOKEN_BUCKET, qps=0.5, burst=100, per=Per.USER),
        FlowControl(name="watches", type=kinds.MAX_REQUESTS_INFLIGHT, max_long_running=0, per=Per.CLUSTER),
        FlowControl(name="free", type=kinds.EXEMPT),
    )  # fmt: skip
    assert [cluster.flow_controls for cluster in config.clusters] == [("bulk", "few"), ("free",)]


def test_endpoints_have_weights_and_may_be_disabled(tmp_path: Path) -> None:
    config, _ = loaded(tmp_path, "")
    assert [(e.name, e.weight, e.disabled) for e in config.clusters[0].endpoints] == [
        ("a", 3, False),
        ("https://10.0.0.2:6443/x", 1, True),
    ]


def test_a_server_without_dispatch_is_not_one_with_an_empty_one(tmp_path: Path) -> None:
    assert policies(tmp_path, "[]") == ()
    config, _ = loaded(tmp_path, "servers: [{name: s, default: true, backend: {cluster: east}}]\n")
    assert config.servers[0].dispatch is None


def test_policies(tmp_path: Path) -> None:
    found = policies(
        tmp_path,
        f"""[
          {{name: no, rules: [{PODS}], reject: {{code: 451, message: "not here"}}}},
          {{rules: [{PODS}], reject: {{}}}},
          {{name: all, rules: [{PODS}, {PODS}], endpoints: ["HTTPS://10.0.0.2:6443/x/", a], strategy: LeastRequests,
            flowControl: bulk, accessLog: false}},
          {{rules: [{PODS}], backend: {{cluster: west}}, accessLog: true, endpoints: ["https://10.0.1.1:443"]}}]""",
    )
    pods = Rule(verbs=("get",), api_groups=("",), resources=("pods",))
    assert found == (
        Policy(name="no", rules=(pods,), reject=Reject(code=451, message="not here")),
        Policy(name="dispatch[1]", rules=(pods,), reject=Reject(code=403, message="this request is not served here")),
        Policy(
            name="all",
            rules=(pods, pods),
            endpoints=("https://10.0.0.2:6443/x", "a"),
            strategy=Strategy.LEAST_REQUESTS,
            flow_control="bulk",
            access_log=False,
        ),
        Policy(
            name="dispatch[3]",
            rules=(pods,),
            endpoints=("https://10.0.1.1:443",),
            access_log=True,
            backend=ClusterBackend("west"),
        ),
    )


def test_every_list_of_a_rule_stays_as_it_is_written(tmp_path: Path) -> None:
    text = """{
        verbs: ["-get", -list], users: [a, "a-*"], serviceAccounts: [{namespace: n, name: s}], userGroups: ["-g*"],
        apiGroups: ["-"], resources: ["*/status", pods/log], resourceNames: ["", "x*"],
        namespaces: ["", kube-system], nonResourceURLs: ["/a/*", /]}"""
    assert rule(tmp_path, text) == Rule(
        verbs=("-get", "-list"),
        users=("a", "a-*"),
        service_accounts=(("n", "s"),),
        user_groups=("-g*",),
        api_groups=("-",),
        resources=("*/status", "pods/log"),
        resource_names=("", "x*"),
        namespaces=("", "kube-system"),
        non_resource_urls=("/a/*", "/"),
    )


def test_clusters_are_for_servers_of_several(tmp_path: Path) -> None:
    [policy] = policies(
        tmp_path, '[{rules: [{verbs: [get], nonResourceURLs: [/], clusters: ["-west"]}]}]', '{clusters: "*"}'
    )
    assert policy.rules[0].clusters == ("-west",)


@pytest.mark.parametrize(
    "text",
    [
        "{verbs: [GET], apiGroups: ['*'], resources: ['*']}",
        "{verbs: ['g*'], apiGroups: ['*'], resources: ['*']}",
        "{verbs: ['-*'], apiGroups: ['*'], resources: ['*']}",
        "{verbs: [trace], nonResourceURLs: ['*']}",  # no request has it: the method is refused
        "{verbs: ['*'], apiGroups: ['*'], resources: ['pods/*']}",
        "{verbs: ['*'], apiGroups: ['*'], resources: ['*'], serviceAccounts: [{namespace: '', name: sa}]}",
        "{verbs: ['*'], nonResourceURLs: ['-/healthz']}",
        "{verbs: ['*'], nonResourceURLs: ['-/healthz', '/healthz']}",
        "{verbs: ['*'], nonResourceURLs: ['/a/*/b']}",
        "{verbs: ['*'], nonResourceURLs: ['**']}",
    ],
)
def test_the_reference_calls_it_a_load_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        rule(tmp_path, text)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("users", ["[a, 'b*c']", "[1]", "['-*']"])
def test_a_rule_with_a_fault_hides_nothing(tmp_path: Path, users: str) -> None:
    fault = f'{{verbs: ["*"], apiGroups: ["*"], resources: ["*"], users: {users}}}'
    with pytest.raises(ConfigErrors) as caught:
        policies(tmp_path, f"[{{rules: [{fault}]}}, {{rules: [{PODS[:-1]}, users: [a]}}]}}]")
    assert [warning for warning in caught.value.warnings if "never reached" in warning.what] == []


def test_what_only_authorizers_are_asked_is_no_fault_of_an_authorizer(tmp_path: Path) -> None:
    rules = (
        '[{verbs: [impersonate], apiGroups: ["", authentication.k8s.io], resources: [users, userextras/scopes], '
        "clusters: [east], resourceNames: [a]}]"
    )
    _, warnings = loaded(tmp_path, f"authorization: [{{name: a, rules: {rules}}}]\n")
    assert [warning for warning in warnings if ".rules" in warning.key] == []


def test_one_control_may_be_named_by_a_policy_and_by_its_cluster(tmp_path: Path) -> None:
    dispatch = f"[{{rules: [{PODS}], flowControl: bulk}}]"
    text = f"servers: [{{name: s, default: true, backend: {{cluster: east}}, dispatch: {dispatch}}}]"
    _, warnings = loaded(tmp_path, text)
    assert [warning for warning in warnings if "bulk" in str(warning)] == []
