"""What is made of Karmada's objects: clusters, and one aggregate of what all registries cache."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.importing.fragment import Fragment, check
from mcproxy.importing.karmada import ClusterProperties, affinity, built_in, translate_all
from mcproxy.importing.object_files import Fields, UnusableError
from tests.importing.builders import b64, karmada_cluster, karmada_secret, one, registry

POD = {"apiVersion": "v1", "kind": "Pod"}
WIDGET = {"apiVersion": "example.io/v1", "kind": "Widget"}


def status(*kinds: tuple[str, str, str], complete: bool = True) -> dict[str, Any]:
    versions: dict[str, list[dict[str, str]]] = {}
    for version, kind, name in kinds:
        versions.setdefault(version, []).append({"kind": kind, "name": name})
    return {
        "apiEnablements": [{"groupVersion": version, "resources": found} for version, found in versions.items()],
        "conditions": [{"type": "CompleteAPIEnablements", "status": str(complete)}],
    }


def result(*documents: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return the aggregate that is made, and all that is said."""
    fragments, left_out, complete = translate_all(map(one, documents), "fleet")
    checked = check(fragments, complete)
    aggregates = [entry for each in checked.fragments for entry in each.sections.get("aggregates", ())]
    return (aggregates[0] if aggregates else None), "\n".join(map(str, [*left_out, *checked.notes]))


def members(*names: str, **extra: Any) -> list[dict[str, Any]]:
    return [each for name in names for each in ({**karmada_cluster(name), **extra}, karmada_secret(name))]


def test_a_cluster() -> None:
    document = karmada_cluster("east", apiEndpoint="10.1.0.1:6443", region="eu", impersonatorSecretRef={"name": "x"})
    fragments, left_out, _ = translate_all([one(document), one(karmada_secret("east"))], "fleet")
    assert left_out == []
    assert fragments[0].sections["clusters"] == [
        {
            "name": "east",
            "labels": {"env": "prod"},
            "endpoints": [{"url": "https://10.1.0.1:6443"}],
            "tls": {"caFile": "east_ca.crt"},
            "credentials": {"tokenFile": "east_token"},
        }
    ]
    assert fragments[0].files["east_token"] == b"very-secret-token"
    assert [note.field for note in fragments[0].notes] == ["spec.impersonatorSecretRef"]


def test_registries_add_up() -> None:
    aggregate, _ = result(
        *members("east", "west"),
        registry("all", {"apiVersion": "apps/v1", "kind": "Deployment"}, {**POD, "namespace": "demo"}),
        registry("prod", POD, {**POD, "namespace": "more"}, labelSelector={"matchLabels": {"env": "prod"}}),
        registry("dev", {**POD, "namespace": "more"}, clusterNames=["west"]),
    )
    assert aggregate is not None
    assert aggregate["clusters"] == ["east", "west"]
    assert aggregate["unavailable"] == "Partial"
    assert aggregate["cache"]["resources"] == [
        {"group": "apps", "version": "v1", "resource": "deployments"},
        {"group": "", "version": "v1", "resource": "pods", "clusters": ["east"]},
        {"group": "", "version": "v1", "resource": "pods", "namespaces": ["demo", "more"], "clusters": ["west"]},
    ]


def test_what_a_member_does_not_serve_is_not_cached_from_it() -> None:
    has = {"status": status(("example.io/v1", "Widget", "widgets"), ("v1", "Pod", "pods"))}
    lacks = {"status": status(("v1", "Pod", "pods"))}
    unknown = {"status": status(("v1", "Pod", "pods"), complete=False)}
    documents = [*members("east", **has), *members("south", **unknown), *members("west", **lacks)]
    aggregate, said = result(*documents, registry("r", WIDGET, POD))
    assert aggregate is not None
    assert aggregate["cache"]["resources"][0] == {
        "group": "example.io", "version": "v1", "resource": "widgets", "clusters": ["east", "south"],
    }  # fmt: skip
    assert "Widget of example.io/v1 is not served by west" in said


def test_a_member_cannot_say_that_pods_are_secrets() -> None:
    lie = {"status": status(("v1", "Pod", "secrets"), ("v1", "Widget", "secrets"), ("example.io/v1", "Widget", "../x"))}
    selectors = (POD, {"apiVersion": "v1", "kind": "Widget"}, WIDGET)
    aggregate, said = result(*members("east", **lie), registry("r", *selectors))
    assert aggregate is not None
    assert [entry["resource"] for entry in aggregate["cache"]["resources"]] == ["pods"]
    assert "is not served by east" in said
    assert "nothing says what Widget of v1 is called" in said


def test_registries_that_select_nothing_make_no_aggregate_over_everything() -> None:
    aggregate, said = result(*members("east"), registry("none", POD, clusterNames=["elsewhere"]), registry("empty"))
    assert aggregate is None
    assert "selects none of the clusters" in said
    assert "no registry selects a resource" in said


def test_an_unknown_field_of_a_selector_might_narrow_it() -> None:
    aggregate, said = result(
        *members("east"),
        registry("r", {**POD, "name": "one"}),
        registry("s", POD, clusterTolerations=[]),
    )
    assert aggregate is None
    assert "spec.resourceSelectors[0].name: is not known" in said
    assert "spec.targetCluster.clusterTolerations: is not known" in said


@pytest.mark.parametrize(
    ("spec", "secret", "message"),
    [
        ({"apiEndpoint": ""}, {}, "apiEndpoint: is missing"),
        ({"apiEndpoint": "https://user:pw@host"}, {}, "spec.apiEndpoint"),
        ({"proxyURL": "socks5://proxy:1080"}, {}, "spec.proxyURL: is a proxy of the kind socks5"),
        ({"proxyURL": "http://user@proxy"}, {}, "spec.proxyURL: has an empty user name or password"),
        ({"proxyURL": "http://proxy", "proxyHeader": {"x": "y"}}, {}, "spec.proxyHeader"),
        ({"secretRef": None}, {}, "names no Secret"),
        ({"secretRef": {"namespace": "other", "name": "east"}}, {}, "the Secret other/east is not there"),
        ({"insecureSkipTLSVerification": "true"}, {}, "neither true nor false"),
        ({}, {"token": ""}, "has no token"),
        ({}, {"caBundle": ""}, "has no caBundle"),
        ({}, {"caBundle": b64(b"not PEM")}, "tls.caFile"),
        ({}, {"token": b64(b"two\nlines")}, "tokenFile"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_left_out(spec: dict[str, Any], secret: dict[str, str], message: str) -> None:
    broken = [karmada_cluster("east", **spec), karmada_secret("east", **secret)]
    aggregate, said = result(*broken, *members("west"), registry("r", POD))
    assert aggregate is not None
    assert aggregate["clusters"] == ["west"]
    assert "Cluster east: left out: " in said
    assert message in said


def test_a_proxy_is_carried_over_with_its_password_in_a_file() -> None:
    documents = [karmada_cluster("east", proxyURL="http://edge:p%40ss@proxy"), karmada_secret("east")]
    fragments, _, _ = translate_all(map(one, documents), "fleet")
    file = "east_proxy-password"
    expected = {"url": "http://proxy:80", "user": "edge", "passwordFile": file}
    assert fragments[0].sections["clusters"][0]["proxy"] == expected
    assert fragments[0].files[file] == b"p@ss"


def test_insecure_is_carried_over_loudly() -> None:
    documents = [karmada_cluster("east", insecureSkipTLSVerification=True), karmada_secret("east", caBundle="")]
    fragments, _, _ = translate_all(map(one, documents), "fleet")
    assert fragments[0].sections["clusters"][0]["tls"] == {"insecureSkipVerify": True}
    assert "INSECURE" in str(fragments[0].notes[0])


@pytest.mark.parametrize(
    ("given", "selected"),
    [
        ({}, "abc"),
        ({"clusterNames": []}, "abc"),
        ({"clusterNames": ["a", "c"]}, "ac"),
        ({"exclude": ["a"]}, "bc"),
        ({"clusterNames": ["a"], "exclude": ["a"]}, ""),
        ({"labelSelector": {}}, "abc"),
        ({"labelSelector": {"matchLabels": {"env": "prod"}}}, "a"),
        ({"labelSelector": {"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["prod"]}]}}, "bc"),
        ({"labelSelector": {"matchExpressions": [{"key": "env", "operator": "Exists"}]}}, "ab"),
        ({"labelSelector": {"matchExpressions": [{"key": "env", "operator": "DoesNotExist"}]}}, "c"),
        ({"fieldSelector": {"matchExpressions": [{"key": "region", "operator": "In", "values": ["eu"]}]}}, "ab"),
        ({"fieldSelector": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z2", "z9"]}]}}, "b"),
        ({"fieldSelector": {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["z1"]}]}}, "c"),
        ({"fieldSelector": {"matchExpressions": [{"key": "provider", "operator": "DoesNotExist"}]}}, "bc"),
        ({"clusterNames": ["b"], "labelSelector": {"matchLabels": {"env": "prod"}}}, ""),
    ],
)
def test_affinity(given: dict[str, Any], selected: str) -> None:
    clusters = [
        ClusterProperties("a", {"env": "prod"}, "aws", "eu", ["z1"]),
        ClusterProperties("b", {"env": "dev"}, "", "eu", ["z1", "z2"]),
        ClusterProperties("c", {}, "", "", []),
    ]
    selects = affinity(Fields(given, "spec.targetCluster"))
    assert "".join(cluster.name for cluster in clusters if selects(cluster)) == selected


@pytest.mark.parametrize(
    "given",
    [
        {"labelSelector": {"matchExpressions": [{"key": "env", "operator": "Gt", "values": ["1"]}]}},
        {"labelSelector": {"matchExpressions": [{"key": "env", "operator": "NotIn", "values": []}]}},
        {"fieldSelector": {"matchExpressions": [{"key": "country", "operator": "NotIn", "values": ["x"]}]}},
        {"labelSelector": {"matchNothing": {}}},
    ],
)
def test_an_affinity_that_is_not_understood_selects_nothing(given: dict[str, Any]) -> None:
    with pytest.raises(UnusableError):
        affinity(Fields(given, "spec.targetCluster"))


def test_plurals_of_kubernetes_own_kinds() -> None:
    found = {
        ("", "Pod"): "pods", ("", "Endpoints"): "endpoints", ("networking.k8s.io", "Ingress"): "ingresses",
        ("networking.k8s.io", "NetworkPolicy"): "networkpolicies",
        ("networking.k8s.io", "IngressClass"): "ingressclasses",
        ("", "ComponentStatus"): "componentstatuses", ("scheduling.k8s.io", "PriorityClass"): "priorityclasses",
        ("discovery.k8s.io", "EndpointSlice"): "endpointslices", ("", "Widget"): None, ("apps", "Pod"): None,
    }  # fmt: skip
    assert {key: built_in(*key) for key in found} == found


def test_other_objects_are_said_and_a_second_cluster_of_a_name_is_left_out() -> None:
    first, second = karmada_cluster("east"), karmada_cluster("east", apiEndpoint="https://evil.example.com")
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    fragments, left_out, _ = translate_all(map(one, [first, karmada_secret("east"), second, other]), "fleet")
    assert fragments[0].sections["clusters"][0]["endpoints"] == [{"url": "https://10.1.0.1:6443"}]
    assert len(left_out) == 2
    with pytest.raises(UnusableError, match="no Cluster"):
        translate_all([one(other)], "fleet")
    assert isinstance(fragments[0], Fragment)
