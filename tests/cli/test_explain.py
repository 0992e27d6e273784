"""`mcproxy check --explain`: what the file makes of a request, step by step, and an exit status for scripts."""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcproxy.cli import check, explain
from mcproxy.config import model

Explain = Callable[..., tuple[int, dict[str, list[str]]]]


def cluster(name: str, **more: Any) -> model.ClusterConfig:
    endpoints = tuple(
        model.EndpointConfig(name=end, scheme="https", host=f"{end}.test", port=6443) for end in ("a", "b")
    )
    return model.ClusterConfig(name=name, endpoints=endpoints, **more)


def server(name: str, *, several: bool = False, **more: Any) -> model.Server:
    backend = model.ClustersBackend(("east", "west")) if several else model.ClusterBackend("east")
    return model.Server(name=name, listeners=("l",), backend=backend, **more)


LISTS = model.Rule(verbs=("list", "watch"), api_groups=("*",), resources=("*",), namespaces=("-kube-system",))
RESOURCES = model.Rule(verbs=("*",), api_groups=("*",), resources=("*",))
IN_EAST = model.Rule(verbs=("*",), api_groups=("*",), resources=("*",), clusters=("east",))
URLS = model.Rule(verbs=("*",), non_resource_urls=("*",))
SECRETS = model.Rule(verbs=("*",), api_groups=("",), resources=("secrets",), user_groups=("-system:masters",))
POLICIES = (
    model.Policy(name="secrets-stay", rules=(SECRETS,), reject=model.Reject(451, "secrets are not served here")),
    model.Policy(name="lists-on-b", rules=(LISTS,), endpoints=("b",), flow_control="bulk", access_log=False),
    model.Policy(name="dispatch[2]", rules=(URLS,), backend=model.ClusterBackend("west")),
)
CORP = model.Authentication(name="corp", anonymous=model.Anonymous(enabled=True, paths=("/healthz",)))
READERS = (model.Rule(verbs=("get", "list"), users=("alice",), api_groups=("*",), resources=("*",)),)
CONFIG = model.Config(
    clusters=(cluster("east", flow_controls=("busy",)), cluster("west")),
    authentication=(CORP,),
    authorization=(
        model.Authorization(name="local", rules=READERS),
        model.Authorization(name="asked", rules=READERS, subject_access_review=model.SubjectAccessReview()),
        model.Authorization(name="reviewed", subject_access_review=model.SubjectAccessReview(cluster="west")),
    ),
    flow_controls=(
        model.FlowControl(
            name="bulk", type=model.FlowControlType.TOKEN_BUCKET, qps=50, burst=100, per=model.Per.USER,
            queue=model.Queue(size=10, timeout=5),
        ),
        model.FlowControl(name="busy", type=model.FlowControlType.MAX_REQUESTS_INFLIGHT, max=200),
    ),
    servers=(
        server("east", dispatch=POLICIES, authentication="corp", server_names=("east.test", "*.east.test")),
        server("open", default=True),
        server("all", several=True, dispatch=(model.Policy(name="east only", rules=(IN_EAST,)),)),
        server("local", authorization="local"),
        server("local2", authorization="local", authentication="corp"),
        server("asked", authorization="asked", authentication="corp"),
        server("reviewed", authorization="reviewed", authentication="corp", access_log=False),
    ),
)  # fmt: skip


def parse(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    check.add_parser(parser.add_subparsers())
    return parser.parse_args(["check", *options])


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Explain:
    """Explain a request by CONFIG; returns the exit status and the texts by their words."""

    def ask(method: str, path: str, *options: str, config: model.Config = CONFIG) -> tuple[int, dict[str, list[str]]]:
        status = explain.run(parse("--explain", method, path, *options), config)
        captured = capsys.readouterr()
        told: dict[str, list[str]] = {"error": captured.err.splitlines()} if captured.err else {}
        for line in captured.out.splitlines():
            told.setdefault(line[:15].rstrip(), []).append(line[15:])
        return status, told

    return ask


def test_the_policy_that_applies_and_what_it_gives(ask: Explain) -> None:
    status, told = ask("GET", "/api/v1/namespaces/demo/pods?watch=1", "--server", "east", "--user", "alice")
    assert status == 0
    assert told == {
        "server": ['"east"'],
        "cluster": ['"east"'],
        "request": ['watch "pods", group "", version "v1", namespace "demo", no name, long-running'],
        "user": ['"alice", groups "system:authenticated"'],
        "authorization": ["none here: the cluster decides"],
        "tried": [
            'dispatch[0] "secrets-stay", rules[0]: resources ["secrets"] does not admit "pods"',
            'dispatch[1] "lists-on-b", rules[0]: matches',
        ],
        "policy": ['dispatch[1] "lists-on-b", rules[0]'],
        "flow control": [
            '"bulk" (TokenBucket, qps 50, burst 100, per User, queue of 10 for 5 s)',
            '"busy" (MaxRequestsInflight, max 200), of cluster "east"',
        ],
        "access log": ["off"],
        "endpoints": ["b"],
        "strategy": ["RoundRobin"],
        "result": ["goes to the cluster, which may have its own say"],
    }


def test_no_policy_is_403_with_the_field_that_said_no_for_each(ask: Explain) -> None:
    status, told = ask("PUT", "/api/v1/namespaces/kube-system/pods/web", "--server", "east", "--user", "alice")
    assert status == 1
    assert told["policy"] == ["none matches"]
    assert told["tried"] == [
        'dispatch[0] "secrets-stay", rules[0]: resources ["secrets"] does not admit "pods"',
        'dispatch[1] "lists-on-b", rules[0]: verbs ["list", "watch"] does not admit "update"; '
        'namespaces ["-kube-system"] does not admit "kube-system"',
        "dispatch[2], rules[0]: apiGroups is empty; resources is empty",
    ]
    assert told["result"] == ['refused: 403, no dispatch policy of server "east" matches']


@pytest.mark.parametrize(
    ("name", "server"),
    [("east.test", "east"), ("a.EAST.test.", "east"), ("other.example.com", "open"), ("local", "local")],
)
def test_the_server_may_be_named_as_a_client_would_by_tls(ask: Explain, name: str, server: str) -> None:
    assert ask("GET", "/version", "--server", name, "--user", "alice")[1]["server"] == [f'"{server}"']


def test_no_file_is_needed_but_the_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f.yaml").write_text("""version: 1
listeners: [{name: l, bind: "0.0.0.0:1", tls: {certificates: [c]}}]
certificates: [{name: c, certFile: no.crt, keyFile: no.key}]
clusters: [{name: a, kubeconfig: {file: no.kubeconfig}}]
authentication: [{name: c, clientCertificates: {caFile: no.crt}}]
servers: [{name: a, serverNames: [a.example.com], backend: {cluster: a}, authentication: c,
           dispatch: [{rules: [{verbs: [get], nonResourceURLs: ["*"]}], endpoints: ["https://a:6443"]}]}]
""")
    assert check.run(parse("-c", str(tmp_path / "f.yaml"), "--explain", "GET", "/version", "--user", "alice")) == 0
    assert "endpoints      that of the kubeconfig\n" in capsys.readouterr().out


def test_a_rejecting_policy_is_a_refusal(ask: Explain) -> None:
    request = ("DELETE", "/api/v1/namespaces/demo/secrets/key", "--server", "EAST.test", "--user", "alice")
    status, told = ask(*request)
    assert (status, told["result"]) == (1, ["refused: 451, secrets are not served here"])
    assert "endpoints" not in told
    status, told = ask(*request, "--group", "system:masters")
    assert told["tried"][0].endswith(
        'userGroups ["-system:masters"] does not admit "system:masters", "system:authenticated"'
    )


def test_another_backend_is_named_with_its_endpoints(ask: Explain) -> None:
    status, told = ask("get", "/healthz", "--server", "x.east.test")
    assert status == 0
    assert told["request"] == ['get "/healthz", no resource']
    assert told["user"] == ['"system:anonymous", groups "system:unauthenticated"']
    assert (told["backend"], told["endpoints"]) == (['cluster "west"'], ["a, b"])
    assert "flow control" not in told


def test_anonymous_is_401_where_a_credential_is_required(ask: Explain) -> None:
    status, told = ask("GET", "/version", "--server", "east")
    assert (status, told["result"]) == (1, ["refused: 401, Unauthorized"])
    assert told["policy"] == ["dispatch[2], rules[0]"], "the rest is told all the same"


def test_without_a_name_the_default_server_is_asked(ask: Explain) -> None:
    status, told = ask("GET", "/api/v1/pods")
    assert (status, told["server"]) == (0, ['"open"'])
    assert told["policy"] == ["none: the server has no dispatch, so everything passes"]
    only = model.Config(clusters=CONFIG.clusters, servers=CONFIG.servers[:1])
    assert ask("GET", "/api", config=only)[1]["server"] == ['"east"']


def test_an_ambiguous_server_is_wrong_usage(ask: Explain) -> None:
    without = model.Config(clusters=CONFIG.clusters, servers=(CONFIG.servers[0], CONFIG.servers[2]))
    status, told = ask("GET", "/api", config=without)
    assert (status, told) == (2, {"error": ["mcproxy check: --server must say which server; there are: east, all"]})
    status, told = ask("GET", "/api", "--server", "west", config=without)
    assert told == {"error": ['mcproxy check: no single server is called "west"; there are: east, all']}
    assert status == 2


def test_the_authorizer_is_asked_about_the_cluster_that_the_policy_sends_to(ask: Explain) -> None:
    policies = (model.Policy(name="away", rules=(RESOURCES,), backend=model.ClusterBackend("west")),)
    local = model.Authorization(name="local", rules=(IN_EAST,), subject_access_review=model.SubjectAccessReview())
    away = server("east", dispatch=policies, authorization="local", authentication="corp")
    config = dataclasses.replace(CONFIG, authorization=(local,), servers=(away,))
    _, told = ask("GET", "/api/v1/pods", "--user", "alice", config=config)
    assert told["authorization"] == [
        '"local", rules[0]: clusters ["east"] does not admit "west"',
        '"local": cluster "west" reviews it',
    ]


def test_the_authorizer_is_asked_what_kubernetes_would_ask(ask: Explain) -> None:
    """A selector's name counts for dispatch, and is not in the question about deletecollection."""
    named = dataclasses.replace(RESOURCES, resource_names=("web",))
    config = dataclasses.replace(
        CONFIG,
        authorization=(model.Authorization(name="local", rules=(named,)),),
        servers=(server("east", dispatch=(model.Policy(name="web", rules=(named,)),), authorization="local"),),
    )
    path = "/api/v1/namespaces/demo/pods?fieldSelector=metadata.name%3Dweb"
    assert ask("GET", path, config=config)[0] == 0
    status, told = ask("DELETE", path, config=config)
    assert (status, told["policy"]) == (1, ['dispatch[0] "web", rules[0]'])
    assert told["authorization"][0] == '"local", rules[0]: resourceNames ["web"] does not admit ""'


def test_limits_are_in_the_order_in_which_they_apply_and_each_once(ask: Explain) -> None:
    policies = (model.Policy(name="all", rules=(RESOURCES,), flow_control="busy"),)
    config = dataclasses.replace(
        CONFIG,
        clusters=(cluster("east", flow_controls=("busy", "bulk")), cluster("west")),
        servers=(server("east", dispatch=policies),),
    )
    assert ask("GET", "/api/v1/pods", config=config)[1]["flow control"] == [
        '"busy" (MaxRequestsInflight, max 200)',
        '"bulk" (TokenBucket, qps 50, burst 100, per User, queue of 10 for 5 s), of cluster "east"',
    ]


def test_an_exact_server_name_goes_before_a_wildcard(ask: Explain) -> None:
    config = dataclasses.replace(
        CONFIG,
        servers=(server("wide", server_names=("*.test",)), server("close", server_names=("east.test",))),
    )
    assert ask("GET", "/api", "--server", "east.test", config=config)[1]["server"] == ['"close"']
    assert ask("GET", "/api", "--server", "west.test", config=config)[1]["server"] == ['"wide"']


def test_a_path_of_several_clusters_is_matched_below_the_name(ask: Explain) -> None:
    status, told = ask("GET", "/clusters/east/apis/apps/v1/deployments", "--server", "all")
    assert (status, told["cluster"]) == (0, ['"east"'])
    assert told["request"] == ['list "deployments", group "apps", version "v1", no namespace, no name']
    status, told = ask("GET", "/clusters/west/apis/apps/v1/deployments", "--server", "all")
    assert status == 1
    assert told["tried"] == ['dispatch[0] "east only", rules[0]: clusters ["east"] does not admit "west"']
    status, told = ask("GET", "/clusters/north/api", "--server", "all")
    assert (status, told["result"]) == (1, ['refused: 404, clusters "north" not found'])
    assert ask("GET", "/api", "--server", "all")[1]["result"][0].startswith("refused: 404, ")


def test_rules_of_authorization_decide(ask: Explain) -> None:
    options = ("--server", "local2", "--user")
    status, told = ask("GET", "/api/v1/pods", *options, "alice")
    assert (status, told["authorization"]) == (0, ['"local", rules[0]: matches'])
    status, told = ask("GET", "/api/v1/pods", *options, "bob")
    assert (status, told["result"]) == (1, ['refused: 403, authorization "local" does not allow it'])
    assert told["authorization"] == [
        '"local", rules[0]: users ["alice"] does not admit "bob"',
        '"local": no rule allows it, and there is no review',
    ]


def test_a_review_is_named_and_not_asked_for(ask: Explain) -> None:
    status, told = ask("GET", "/api/v1/pods", "--server", "asked", "--user", "bob")
    assert (status, told["authorization"][-1]) == (0, '"asked": cluster "east" reviews it')
    status, told = ask("GET", "/api/v1/pods", "--server", "asked", "--user", "alice")
    assert (status, told["authorization"]) == (0, ['"asked", rules[0]: matches'])
    status, told = ask("GET", "/api/v1/pods", "--server", "reviewed", "--user", "bob")
    assert (status, told["authorization"]) == (0, ['"reviewed": cluster "west" reviews it'])
    assert told["access log"] == ["off"]


def test_a_server_without_authentication_knows_no_user(ask: Explain) -> None:
    status, told = ask("GET", "/api/v1/pods", "--server", "local", "--user", "alice")
    assert status == 1
    assert told["note"] == ['the server has no authentication: it does not know that the user is "alice"']
    assert told["user"] == ['"system:anonymous", groups "system:unauthenticated"']


def test_a_service_account_has_its_groups(ask: Explain) -> None:
    name = "system:serviceaccount:demo:robot"
    _, told = ask("GET", "/api/v1/pods", "--server", "east", "--user", name, "--group", "x", "--group", "x")
    groups = '"x", "system:serviceaccounts", "system:serviceaccounts:demo", "system:authenticated"'
    assert told["user"] == [f'"{name}", groups {groups}']


def test_an_ambiguous_path_is_400(ask: Explain) -> None:
    status, told = ask("GET", "/api/v1/../x")
    assert (status, told["result"]) == (1, ["refused: 400, the path holds a dot segment"])


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("watch", "/api", '"watch" is not an HTTP method'),
        ("GET", "api/v1/pods", '"api/v1/pods" is not a path'),
        ("GET", "/a b", '"/a b" is not a path'),
        ("GET", "/\x1b[31m", r'"/\u001b[31m" is not a path'),
        ("GET", "/ü", r'"/\u00fc" is not a path'),
    ],
)
def test_what_no_client_could_send_is_wrong_usage(ask: Explain, method: str, path: str, said: str) -> None:
    status, told = ask(method, path)
    assert status == 2
    assert told["error"][0].startswith(f"mcproxy check: {said}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--user", "x"], "--user goes with --explain"),
        (["--server", "x"], "--server goes with --explain"),
        (["--group", "x"], "--group goes with --explain"),
        (["--explain", "GET", "/", "--group", "x"], "--group goes with --user"),
        (["--explain", "GET", "/", "--strict"], "--strict does not go with --explain"),
        (["--explain", "GET", "/", "-q"], "--quiet does not go with --explain"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.run(parse(*options)) == 2
    assert capsys.readouterr().err == f"mcproxy: {said}\n"


def test_a_request_that_no_user_may_make_is_refused(ask: Explain) -> None:
    off = model.EndpointConfig(name="a", scheme="https", host="a.test", port=6443, disabled=True)
    none = model.FlowControl(name="none", type=model.FlowControlType.MAX_REQUESTS_INFLIGHT, max=0)
    closed = model.Config(
        clusters=(cluster("east", flow_controls=("none",)),), flow_controls=(none,), servers=(server("east"),)
    )
    refused = (1, ['refused: 429, flow control "none" lets none of these through'])
    status, told = ask("GET", "/api/v1/pods", config=closed)
    assert (status, told["result"]) == refused
    assert ask("GET", "/api/v1/pods?watch=1", config=closed)[0] == 0, "which is counted apart"
    disabled = model.Config(clusters=(model.ClusterConfig(name="east", endpoints=(off,)),), servers=(server("east"),))
    status, told = ask("GET", "/api/v1/pods", config=disabled)
    assert (status, told["endpoints"]) == (1, ["a (disabled)"])
    assert told["result"] == ["refused: 503, every endpoint that it could go to is disabled"]


def test_dispatch_of_a_file_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mcproxy.yaml"
    file.write_text("""
version: 1
listeners: [{name: a, bind: "127.0.0.1:0"}]
clusters:
  - {name: east, endpoints: [{name: a, url: "http://127.0.0.1:8001"}], identity: Passthrough}
  - {name: west, endpoints: [{name: b, url: "http://127.0.0.1:8002"}], identity: Passthrough}
daemon: {sharedState: {redis: {url: "unix:///run/redis.sock"}}}
flowControls: [{name: bulk, type: TokenBucket, qps: 0.5, burst: 100, per: User, shared: true}]
servers:
  - name: both
    default: true
    backend: {clusters: ["*"]}
    authentication: none
    dispatch:
      - name: secrets-stay
        rules: [{verbs: ["*"], apiGroups: [""], resources: [secrets], clusters: [west]}]
        reject: {code: 403, message: "secrets are not served here"}
      - rules: [{verbs: [get], apiGroups: ["*"], resources: ["*"], namespaces: ["-kube-*"]}]
        flowControl: bulk
""")
    secret = "/api/v1/namespaces/demo/secrets/key"
    assert check.run(parse("-c", str(file), "--explain", "GET", f"/clusters/east{secret}")) == 0
    told = capsys.readouterr().out
    assert "policy         dispatch[1], rules[0]\n" in told
    assert 'flow control   "bulk" (TokenBucket, qps 0.5, burst 100, per User, over all replicas)\n' in told
    assert check.run(parse("-c", str(file), "--explain", "GET", f"/clusters/west{secret}")) == 1
    assert "result         refused: 403, secrets are not served here\n" in capsys.readouterr().out


def test_a_file_is_read_as_by_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mcproxy.yaml"
    file.write_text("""
version: 1
listeners: [{name: a, bind: "127.0.0.1:0"}]
clusters: [{name: east, endpoints: [{url: "http://127.0.0.1:8001"}], identity: Passthrough}]
servers: [{name: east, default: true, backend: {cluster: east}}]
""")
    assert check.run(parse("-c", str(file), "--explain", "GET", "/api/v1/pods")) == 0
    assert 'list "pods"' in capsys.readouterr().out
    file.write_text("version: 2\n")
    assert check.run(parse("-c", str(file), "--explain", "GET", "/api/v1/pods")) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "mcproxy.yaml:1:10: version: " in captured.err


METRICS = model.APIService(group="metrics.k8s.io", version="v1", cluster="west", authority="east")
BESIDE = dataclasses.replace(
    CONFIG,
    clusters=(cluster("east", flow_controls=("busy",)), cluster("west"), cluster("north")),
    servers=(
        server(
            "beside",
            api_services=(METRICS,),
            authentication="corp",
            authorization="asked",
            dispatch=(
                model.Policy(
                    name="moved",
                    rules=(RESOURCES,),
                    backend=model.ClusterBackend("north"),
                    endpoints=("b",),
                    flow_control="bulk",
                ),
            ),
        ),
    ),
)


def test_an_api_services_request_goes_to_its_owner_whatever_the_policy_says(ask: Explain) -> None:
    status, told = ask("GET", "/apis/metrics.k8s.io/v1/nodes", "--user", "bob", config=BESIDE)
    assert status == 0
    assert told["API service"] == ['"metrics.k8s.io/v1", whose owner comes before the backend']
    assert told["cluster"] == ['"west"']
    assert told["note"] == ['the backend "north" of the policy does not count for an API service']
    assert told["endpoints"] == ["a, b"]
    assert told["flow control"] == ['"bulk" (TokenBucket, qps 50, burst 100, per User, queue of 10 for 5 s)']
    assert told["authorization"][-1] == '"asked": cluster "east" reviews it'


def test_all_else_goes_to_the_backend(ask: Explain) -> None:
    for path in ("/apis/metrics.k8s.io/v2/nodes", "/apis/apps/v1/deployments"):
        told = ask("GET", path, "--user", "alice", config=BESIDE)[1]
        assert ("API service" in told, told["cluster"], told["backend"]) == (False, ['"east"'], ['cluster "north"'])


def test_a_path_that_could_be_another_group_version_is_refused(ask: Explain) -> None:
    status, told = ask("GET", "/apis/apps/../metrics.k8s.io/v1/nodes", config=BESIDE)
    assert (status, told["result"]) == (1, ["refused: 400, the path holds a dot segment"])


@pytest.mark.parametrize("path", ["/apis", "/apis/metrics.k8s.io", "/openapi/v3"])
def test_documents_are_answered_for_the_cluster_and_its_api_services(ask: Explain, path: str) -> None:
    server = dataclasses.replace(BESIDE.servers[0], dispatch=None, authorization=None)
    beside = dataclasses.replace(BESIDE, servers=(server,))
    told = ask("GET", path, "--user", "alice", config=beside)[1]
    assert told["result"] == ["answered for the cluster and API services metrics.k8s.io/v1 together"]
    alone = dataclasses.replace(BESIDE, servers=(dataclasses.replace(server, api_services=()),))
    assert ask("GET", path, "--user", "alice", config=alone)[1]["result"][0].startswith("goes to the cluster")


def test_a_server_of_tunnels_has_nothing_to_explain(ask: Explain) -> None:
    tunnels = model.Server(name="tunnels", listeners=("l",), backend=model.TunnelsBackend(("site-a",)))
    config = dataclasses.replace(CONFIG, servers=(server("east"), tunnels))
    status, told = ask("GET", "/version", config=config)
    assert (status, told["server"]) == (0, ['"east"'])
    status, told = ask("GET", "/version", "--server", "tunnels", config=config)
    assert (status, told) == (2, {"error": ['mcproxy check: server "tunnels" accepts tunnels, and has no API']})
