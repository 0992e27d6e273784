"""Aggregates as they are built from the file: defaults, selectors, and what servers get of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from mcproxy.config.dump import effective, to_yaml
from mcproxy.config.load import load
from mcproxy.config.model import (
    Aggregate,
    AggregateBackendConfig,
    Cache,
    CachedResource,
    Config,
    ConflictRule,
    CreateRule,
    ReadAuthorization,
    ReadsConfig,
    ResourceVersions,
    Show,
    UnavailableMembers,
)
from tests.config.pki import NOW

CLUSTERS = """
version: 1
listeners: [{name: local, bind: "127.0.0.1:6443"}]
authentication: [{name: corp, tokenFile: tokens/good.csv}]
authorization: [{name: local, rules: [{verbs: ["*"], users: [a], apiGroups: ["*"], resources: [pods]}]}]
clusters:
  - {name: east, labels: {region: eu, tier: a}, endpoints: [{url: "https://10.1.0.11"}], credentials: {token: t}}
  - {name: west, labels: {region: eu, tier: b}, endpoints: [{url: "https://10.1.0.12"}], credentials: {token: t}}
  - {name: hub, endpoints: [{url: "https://10.1.0.13"}], credentials: {token: t}}
servers:
  - {name: fleet, default: true, backend: {aggregate: fleet}, authentication: corp, authorization: local}
"""
PODS = '{resources: [{group: "", version: v1, resource: pods}]}'


def read(folder: Path, aggregate: str, more: str = "") -> Config:
    file = folder / "aggregate.yaml"
    file.write_text(f"{CLUSTERS}{more}\naggregates: [{aggregate}]\n")
    loaded = load(str(file), environ={}, now=NOW)
    assert loaded.warnings == ()
    return loaded.config


def test_what_is_left_out_has_its_default(folder: Path) -> None:
    config = read(folder, f"{{name: fleet, clusters: [west, east], cache: {PODS}}}")
    pods = CachedResource(group="", version="v1", resource="pods", namespaces=(), clusters=())
    assert config.aggregates == (
        Aggregate(
            name="fleet",
            clusters=("west", "east"),
            primary=None,
            resource_versions=ResourceVersions.NUMBER,
            unavailable=UnavailableMembers.STALE,
            reads=ReadsConfig(
                authorize=ReadAuthorization.MEMBERS, cache_allowed=300.0, cache_denied=30.0, stale_decisions=86400.0
            ),
            cache=Cache(
                resources=(pods,),
                max_staleness=0.0,
                initial_sync_timeout=10.0,
                drop_managed_fields=False,
                persist_secrets=False,
            ),
            create=(),
            conflicts=(),
        ),
    )
    assert config.servers[0].backend == AggregateBackendConfig("fleet", ("west", "east"), None)
    assert config.daemon.state_dir is None


def test_every_key_is_read(folder: Path) -> None:
    config = read(
        folder,
        """{
        name: fleet, clusters: [east, west], primary: hub, resourceVersions: Karmada, unavailable: Fail,
        reads: {authorize: Members, cacheAllowed: 1m, cacheDenied: 1s, staleDecisions: 1h},
        cache: {resources: [{group: apps, version: v1, resource: "*", namespaces: [a, b], clusters: [west]},
                            {group: "", version: v1, resource: secrets}],
                maxStaleness: 500ms, initialSyncTimeout: 0, dropManagedFields: true, persistSecrets: true},
        create: [{apiGroups: [apps], resources: [deployments], to: west},
                 {apiGroups: ["*"], resources: [secrets], to: Primary},
                 {apiGroups: ["*"], resources: ["*"], to: Label}],
        conflicts: [{apiGroups: [""], resources: [secrets], namespaces: [a], to: west, show: One},
                    {apiGroups: ["*"], resources: ["*"], to: east}]}""",
        "daemon: {stateDir: state}",
    )
    assert config.aggregates == (
        Aggregate(
            name="fleet",
            clusters=("east", "west"),
            primary="hub",
            resource_versions=ResourceVersions.KARMADA,
            unavailable=UnavailableMembers.FAIL,
            reads=ReadsConfig(cache_allowed=60.0, cache_denied=1.0, stale_decisions=3600.0),
            cache=Cache(
                resources=(
                    CachedResource(group="apps", version="v1", resource="*", namespaces=("a", "b"), clusters=("west",)),
                    CachedResource(group="", version="v1", resource="secrets"),
                ),
                max_staleness=0.5,
                initial_sync_timeout=0.0,
                drop_managed_fields=True,
                persist_secrets=True,
            ),
            create=(
                CreateRule(api_groups=("apps",), resources=("deployments",), to="west"),
                CreateRule(api_groups=("*",), resources=("secrets",), to="Primary"),
                CreateRule(api_groups=("*",), resources=("*",), to="Label"),
            ),
            conflicts=(
                ConflictRule(api_groups=("",), resources=("secrets",), namespaces=("a",), to="west", show=Show.ONE),
                ConflictRule(api_groups=("*",), resources=("*",), namespaces=(), to="east", show=Show.ALL),
            ),
        ),
    )
    assert config.servers[0].backend == AggregateBackendConfig("fleet", ("east", "west"), "hub")
    assert config.servers[0].clusters == ("east", "west", "hub")
    assert config.daemon.state_dir == str(folder / "state")
    again = folder / "again.yaml"
    again.write_text(to_yaml(effective(config, masked=False)))
    assert replace(load(str(again), environ={}, now=NOW).config, files=config.files) == config


@pytest.mark.parametrize(
    ("selector", "members"),
    [
        ("{region: eu}", ("east", "west")),
        ("{region: eu, tier: b}", ("west",)),
        ("{}", ("east", "west", "hub")),
    ],
)
def test_a_selector_is_resolved_in_the_order_of_the_file(folder: Path, selector: str, members: tuple[str, ...]) -> None:
    config = read(folder, f"{{name: fleet, clusterSelector: {selector}, cache: {PODS}}}")
    assert config.aggregates[0].clusters == members
    backend = config.servers[0].backend
    assert isinstance(backend, AggregateBackendConfig)
    assert backend.members == members


def test_former_members_keep_their_places_and_need_not_be_defined(folder: Path) -> None:
    config = read(
        folder, f"{{name: fleet, clusters: [gone, east, old, west], formerMembers: [old, gone], cache: {PODS}}}"
    )
    fleet = config.aggregates[0]
    assert fleet.clusters == ("east", "west")
    assert fleet.layout == ("gone", "east", "old", "west")
    assert fleet.former_members == ("gone", "old")
    backend = config.servers[0].backend
    assert isinstance(backend, AggregateBackendConfig)
    assert backend.members == ("east", "west")
    again = folder / "again.yaml"
    again.write_text(to_yaml(effective(config, masked=False)))
    assert load(str(again), environ={}, now=NOW).config.aggregates == config.aggregates
    assert (
        read(folder, f"{{name: fleet, clusters: [east], formerMembers: [], cache: {PODS}}}").aggregates[0].listed == ()
    )


def test_the_server_may_decide_who_reads_if_it_has_an_authorizer(folder: Path) -> None:
    config = read(folder, f"{{name: fleet, clusters: [east], reads: {{authorize: Server}}, cache: {PODS}}}")
    assert config.aggregates[0].reads.authorize is ReadAuthorization.SERVER


def test_rules_distinguish_members_and_the_primary(folder: Path) -> None:
    rule = 'verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusters: [west, hub]'
    server = f"""
  - name: other
    serverNames: [other.example.com]
    backend: {{aggregate: fleet}}
    authentication: corp
    dispatch: [{{rules: [{{{rule}}}]}}]
"""
    file = folder / "aggregate.yaml"
    text = CLUSTERS.replace("default: true", "serverNames: [fleet.example.com]") + server
    file.write_text(f"{text}aggregates: [{{name: fleet, clusters: [east, west], primary: hub, cache: {PODS}}}]\n")
    loaded = load(str(file), environ={}, now=NOW)
    assert loaded.warnings == ()
    dispatch = loaded.config.servers[1].dispatch
    assert dispatch is not None
    assert dispatch[0].rules[0].clusters == ("west", "hub")


def test_names_in_two_files_are_one_section(folder: Path) -> None:
    (folder / "aggregate-part.yaml").write_text(f"aggregates: [{{name: part, clusters: [hub], cache: {PODS}}}]\n")
    text = CLUSTERS.replace("backend: {aggregate: fleet}", "backend: {aggregate: part}")
    (folder / "aggregate.yaml").write_text(f"{text}include: [aggregate-part.yaml]\n")
    config = load(str(folder / "aggregate.yaml"), environ={}, now=NOW).config
    assert config.servers[0].backend == AggregateBackendConfig("part", ("hub",), None)
