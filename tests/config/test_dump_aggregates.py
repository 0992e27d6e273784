"""Aggregates in the form of the file, and what a reload says of a changed one."""

from dataclasses import replace

from mcproxy.config.config_changes import changes
from mcproxy.config.dump import effective
from mcproxy.config.model import (
    Aggregate,
    AggregateBackendConfig,
    Cache,
    CachedResource,
    Config,
    ConflictRule,
    CreateRule,
    DaemonConfig,
    ReadsConfig,
    ResourceVersions,
    Server,
    Show,
    UnavailableMembers,
)

PODS = CachedResource(group="", version="v1", resource="pods", namespaces=("demo",), clusters=("east",))
FLEET = Aggregate(
    name="fleet",
    clusters=("east", "west"),
    primary="hub",
    cache=Cache(resources=(PODS,), max_staleness=1.5),
    create=(CreateRule(api_groups=("*",), resources=("*",), to="Label"),),
    conflicts=(
        ConflictRule(
            api_groups=("",), resources=("configmaps",), namespaces=("kube-system",), to="west", show=Show.ONE
        ),
        ConflictRule(api_groups=("*",), resources=("*",), to="east"),
    ),
)
SERVER = Server(name="fleet", listeners=(), backend=AggregateBackendConfig("fleet", ("east", "west"), "hub"))
CONFIG = Config(daemon=DaemonConfig(state_dir="/var/lib/mcproxy"), aggregates=(FLEET,), servers=(SERVER,))


def test_every_key_is_shown() -> None:
    document = effective(CONFIG)
    assert document["aggregates"] == [
        {
            "name": "fleet",
            "clusters": ["east", "west"],
            "primary": "hub",
            "resourceVersions": "Number",
            "unavailable": "Stale",
            "reads": {"authorize": "Members", "cacheAllowed": "5m", "cacheDenied": "30s", "staleDecisions": "24h"},
            "cache": {
                "resources": [
                    {"group": "", "version": "v1", "resource": "pods", "namespaces": ["demo"], "clusters": ["east"]}
                ],
                "maxStaleness": "1s500ms",
                "initialSyncTimeout": "10s",
                "dropManagedFields": False,
                "persistSecrets": False,
            },
            "create": [{"apiGroups": ["*"], "resources": ["*"], "to": "Label"}],
            "conflicts": [
                {
                    "apiGroups": [""],
                    "resources": ["configmaps"],
                    "namespaces": ["kube-system"],
                    "to": "west",
                    "show": "One",
                },
                {"apiGroups": ["*"], "resources": ["*"], "namespaces": [], "to": "east", "show": "All"},
            ],
            "formerMembers": [],
        }
    ]
    assert document["servers"][0]["backend"] == {"aggregate": "fleet"}
    assert document["daemon"]["stateDir"] == "/var/lib/mcproxy"


def test_a_change_of_an_aggregate_is_named_key_by_key() -> None:
    changed = replace(
        FLEET,
        clusters=("east", "west", "north"),
        unavailable=UnavailableMembers.FAIL,
        resource_versions=ResourceVersions.KARMADA,
        reads=ReadsConfig(stale_decisions=0.0),
    )
    assert [str(change) for change in changes(CONFIG, replace(CONFIG, aggregates=(changed,)))] == [
        'changed aggregates[fleet].clusters: ["east", "west"] -> ["east", "west", "north"]',
        "changed aggregates[fleet].resourceVersions: Number -> Karmada",
        "changed aggregates[fleet].unavailable: Stale -> Fail",
        "changed aggregates[fleet].reads.staleDecisions: 24h -> 0s",
    ]
    server = replace(SERVER, backend=AggregateBackendConfig("fleet", changed.clusters, "hub"))
    assert changes(CONFIG, replace(CONFIG, aggregates=(changed,), servers=(server,))) == changes(
        CONFIG, replace(CONFIG, aggregates=(changed,))
    )
    assert [str(change) for change in changes(CONFIG, replace(CONFIG, aggregates=()))] == ["removed aggregates[fleet]"]


def test_a_server_of_an_aggregate_reaches_its_members_and_its_primary() -> None:
    assert SERVER.clusters == ("east", "west", "hub")
    assert replace(SERVER, backend=AggregateBackendConfig("fleet", ("east", "west"), "west")).clusters == (
        "east",
        "west",
    )
    assert replace(SERVER, backend=AggregateBackendConfig("fleet", ("east",))).clusters == ("east",)
