"""What `apiServices` say when they are right; errors are in cases/."""

from pathlib import Path

import pytest

from mcproxy.config.config_changes import changes
from mcproxy.config.dump import effective
from mcproxy.config.load import load
from mcproxy.config.loaded import Loaded
from mcproxy.config.model import APIService
from tests.config.pki import NOW

CLUSTERS = """version: 1
listeners: [{name: l, bind: "127.0.0.1:1"}]
clusters:
  - {name: east, endpoints: [{url: "https://10.0.0.1"}], credentials: {token: t}}
  - {name: west, endpoints: [{url: "https://10.0.0.2"}], credentials: {token: t}}
  - {name: told, endpoints: [{url: "https://10.0.0.3"}], credentials: {token: t}}
  - {name: proxied, endpoints: [{url: "https://10.0.0.5"}], identity: Proxy, credentials: {token: t}}
  - {name: passed, endpoints: [{url: "https://10.0.0.6"}], identity: Passthrough, credentials: {token: t}}
  - name: metrics
    endpoints: [{url: "https://10.0.0.4"}]
    identity: RequestHeader
    frontProxy: {certFile: client.crt, keyFile: client.key}
    credentials: {token: t}
authentication: [{name: all, anonymous: {enabled: true}}]
"""
AGGREGATE = (
    "{name: fleet, clusters: [west, east]PRIMARY, cache: {resources: [{group: '', version: v1, resource: pods}]}}"
)


def loaded(folder: Path, services: str, backend: str = "{cluster: east}", primary: str = "") -> Loaded:
    aggregates = f"aggregates: [{AGGREGATE.replace('PRIMARY', primary)}]\n" if "aggregate" in backend else ""
    server = f"{{name: a, default: true, backend: {backend}, authentication: all, apiServices: [{services}]}}"
    path = folder / "api-services-right.yaml"
    path.write_text(f"{CLUSTERS}{aggregates}servers: [{server}]\n")
    return load(str(path), environ={}, now=NOW)


def services(folder: Path, text: str, backend: str = "{cluster: east}", primary: str = "") -> tuple[APIService, ...]:
    return loaded(folder, text, backend, primary).config.servers[0].api_services


def test_the_default_priorities_are_those_of_custom_resources(folder: Path) -> None:
    (one,) = services(folder, "{group: metrics.k8s.io, version: v1beta1, cluster: metrics}")
    assert (one.group_priority_minimum, one.version_priority) == (1000, 100)
    assert (one.group_version, one.object_name) == ("metrics.k8s.io/v1beta1", "v1beta1.metrics.k8s.io")


def test_priorities_are_taken(folder: Path) -> None:
    text = "{group: a.b, version: v1, cluster: metrics, groupPriorityMinimum: 20000, versionPriority: 1}"
    (one,) = services(folder, text)
    assert (one.group_priority_minimum, one.version_priority) == (20000, 1)


@pytest.mark.parametrize(
    ("cluster", "backend", "primary", "authority"),
    [
        ("metrics", "{cluster: east}", "", "east"),
        ("metrics", "{aggregate: fleet}", "", "west"),
        ("metrics", "{aggregate: fleet}", ", primary: east", "east"),
        ("told", "{cluster: east}", "", "told"),
        ("told", "{aggregate: fleet}", ", primary: east", "told"),
        ("proxied", "{cluster: east}", "", "east"),
        ("passed", "{cluster: east}", "", "east"),
    ],
)
def test_the_backend_decides_unless_the_api_server_is_a_cluster_of_its_own(
    folder: Path, cluster: str, backend: str, primary: str, authority: str
) -> None:
    (one,) = services(folder, f"{{group: a.b, version: v1, cluster: {cluster}}}", backend, primary)
    assert (one.cluster, one.authority) == (cluster, authority)


def test_requests_may_go_to_its_cluster(folder: Path) -> None:
    server = loaded(folder, "{group: a.b, version: v1, cluster: metrics}").config.servers[0]
    assert (server.clusters, server.reached_clusters) == (("east",), ("east", "metrics"))


def test_the_dump_has_it_with_its_defaults(folder: Path) -> None:
    config = loaded(folder, "{group: a.b, version: v1, cluster: metrics}").config
    assert effective(config)["servers"][0]["apiServices"] == [
        {"group": "a.b", "version": "v1", "cluster": "metrics", "groupPriorityMinimum": 1000, "versionPriority": 100}
    ]


def test_a_change_says_which_group_version_it_is_of(folder: Path) -> None:
    first = loaded(
        folder, "{group: a.b, version: v1, cluster: metrics}, {group: c.d, version: v1, cluster: metrics}"
    ).config
    then = loaded(
        folder, "{group: c.d, version: v1, cluster: told}, {group: e.f, version: v2, cluster: metrics}"
    ).config
    assert [str(change) for change in changes(first, then)] == [
        "removed servers[a].apiServices[a.b/v1]",
        "changed servers[a].apiServices[c.d/v1].cluster: metrics -> told",
        "added servers[a].apiServices[e.f/v2]",
    ]


def test_another_order_is_said_in_words(folder: Path) -> None:
    one, other = "{group: a.b, version: v1, cluster: metrics}", "{group: c.d, version: v1, cluster: metrics}"
    before, after = loaded(folder, f"{one}, {other}").config, loaded(folder, f"{other}, {one}").config
    assert [str(change) for change in changes(before, after)] == [
        "changed servers[a].apiServices: the order of its entries"
    ]
