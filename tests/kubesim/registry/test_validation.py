"""Validation with Kubernetes' messages; strict decoding; defaults."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from kubesim.apimachinery.resources import ResourceInfo
from kubesim.apimachinery.status import StatusError
from kubesim.cluster import SimulatedCluster
from kubesim.registry import crd, defaults, schema_validation, validation
from kubesim.workloads import demo_objects


@pytest.fixture
def cluster() -> SimulatedCluster:
    made = SimulatedCluster("east")
    definition = demo_objects.widget_definition()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    schema["x-kubernetes-validations"] = [
        {"rule": "self.color != 'green' || self.size < 50", "message": "green widgets must be smaller than 50"}
    ]
    made.resources.add(crd.resource_infos(definition))
    return made


def resource(cluster: SimulatedCluster, group: str, version: str, plural: str) -> ResourceInfo:
    found = cluster.resources.get(group, version, plural)
    assert found is not None
    return found


def deployment(**spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template, **spec},
    }


def refused(cluster: SimulatedCluster, group: str, plural: str, obj: dict[str, Any]) -> StatusError:
    with pytest.raises(StatusError) as caught:
        validation.validate_create(cluster, resource(cluster, group, "v1", plural), obj)
    assert caught.value.code == 422
    return caught.value


@pytest.mark.parametrize("name", ["Bad_Name", "-a", "a.", "a..b", "ä"])
def test_names_must_be_dns_names(cluster: SimulatedCluster, name: str) -> None:
    error = refused(cluster, "", "configmaps", {"metadata": {"name": name}})
    assert "a lowercase RFC 1123 subdomain must consist of" in error.message


def test_a_name_is_required(cluster: SimulatedCluster) -> None:
    error = refused(cluster, "", "configmaps", {"metadata": {}})
    assert error.message == 'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required'


def test_a_deployment_is_refused_with_all_causes(cluster: SimulatedCluster) -> None:
    obj = deployment(replicas=-1)
    obj["spec"]["template"] = {"metadata": {"labels": {"a": "c"}}, "spec": {"containers": []}}
    error = refused(cluster, "apps", "deployments", obj)
    assert error.message == (
        'Deployment.apps "web" is invalid: [spec.replicas: Invalid value: -1: must be greater than or equal to 0, '
        'spec.template.metadata.labels: Invalid value: {"a":"c"}: `selector` does not match template `labels`, '
        "spec.template.spec.containers: Required value]"
    )


def test_a_selector_may_not_be_changed(cluster: SimulatedCluster) -> None:
    new = deployment()
    new["spec"]["selector"] = {"matchLabels": {}}
    with pytest.raises(StatusError, match=r"spec.selector: Invalid value: .* field is immutable"):
        validation.validate_update(cluster, resource(cluster, "apps", "v1", "deployments"), deployment(), new)


def test_an_immutable_config_map_cannot_be_changed(cluster: SimulatedCluster) -> None:
    old = {"metadata": {"name": "c"}, "data": {"x": "1"}, "immutable": True}
    with pytest.raises(StatusError, match="data: Forbidden: field is immutable when `immutable` is set"):
        validation.validate_update(cluster, resource(cluster, "", "v1", "configmaps"), old, {**old, "data": {"x": "2"}})


def test_a_custom_resource_is_checked_by_its_schema(cluster: SimulatedCluster) -> None:
    obj = {"metadata": {"name": "bad"}, "spec": {"color": "purple", "size": 1000}}
    error = refused(cluster, "example.com", "widgets", obj)
    assert error.message.startswith(
        'Widget.example.com "bad" is invalid: [spec.color: Unsupported value: "purple": supported values: "red", '
        '"green", "blue", spec.size: Invalid value: 1000: spec.size in body should be less than or equal to 100, '
        "<nil>: "
    )


def test_a_rule_is_checked_when_the_schema_holds(cluster: SimulatedCluster) -> None:
    obj = {"metadata": {"name": "bad"}, "spec": {"color": "green", "size": 60}}
    error = refused(cluster, "example.com", "widgets", obj)
    assert error.message == (
        'Widget.example.com "bad" is invalid: spec: Invalid value: green widgets must be smaller than 50'
    )


@pytest.mark.parametrize(
    ("obj", "text"),
    [
        ({"spec": {}}, "spec.color: Required value"),
        ({"spec": {"color": "red", "size": "5"}}, 'must be of type integer: "string"'),
        ({"spec": {"color": "red", "size": True}}, 'must be of type integer: "boolean"'),
    ],
)
def test_more_of_a_custom_schema(cluster: SimulatedCluster, obj: dict[str, Any], text: str) -> None:
    assert text in refused(cluster, "example.com", "widgets", {"metadata": {"name": "bad"}, **obj}).message


def test_unknown_and_repeated_fields_are_named(cluster: SimulatedCluster) -> None:
    body = (
        b'{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"s","name":"s"},"spec":{"bogus":true,'
        b'"template":{"spec":{"containers":[{"name":"c","typo":1}]}}}}'
    )
    info = resource(cluster, "apps", "v1", "deployments")
    texts = [
        'duplicate field "metadata.name"',
        'unknown field "spec.bogus"',
        'unknown field "spec.template.spec.containers[0].typo"',
    ]
    obj = json.loads(body)
    assert schema_validation.decode_strictly(info, obj, body, "Warn") == texts
    assert "bogus" not in obj["spec"]
    assert schema_validation.decode_strictly(info, json.loads(body), body, "Ignore") == []
    with pytest.raises(StatusError, match="strict decoding error: duplicate field") as caught:
        schema_validation.decode_strictly(info, json.loads(body), body, "Strict")
    assert caught.value.code == 400
    assert caught.value.message.endswith(", ".join(texts))


def test_free_form_fields_are_never_unknown(cluster: SimulatedCluster) -> None:
    info = resource(cluster, "", "v1", "configmaps")
    obj = {"metadata": {"labels": {"x/y": "1"}, "annotations": {"a": "b"}}, "data": {"any.thing": "1"}}
    assert schema_validation.unknown_fields(info, obj) == []


def test_a_value_of_a_wrong_type_is_refused(cluster: SimulatedCluster) -> None:
    info = resource(cluster, "", "v1", "configmaps")
    with pytest.raises(StatusError) as caught:
        schema_validation.check_types(info, {"metadata": {"name": "x"}, "data": {"a": 1}})
    assert caught.value.message == (
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go '
        "struct field ConfigMap.data of type string"
    )


def test_quantities_and_ports_may_be_numbers(cluster: SimulatedCluster) -> None:
    container = {"name": "c", "resources": {"limits": {"cpu": 1}}, "livenessProbe": {"httpGet": {"port": 80}}}
    obj = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}
    schema_validation.check_types(resource(cluster, "", "v1", "pods"), obj)


def test_quota_counts_objects(cluster: SimulatedCluster) -> None:
    quota = {"metadata": {"name": "q", "namespace": "n"}, "spec": {"hard": {"configmaps": "1"}}}
    cluster.store.put(("", "resourcequotas"), quota)
    info = resource(cluster, "", "v1", "configmaps")
    validation.check_quota(cluster, info, "n", "x")
    cluster.store.put(("", "configmaps"), {"metadata": {"name": "a", "namespace": "n"}})
    validation.check_quota(cluster, info, "other", "x")
    with pytest.raises(StatusError) as caught:
        validation.check_quota(cluster, info, "n", "x")
    assert caught.value.message == (
        'configmaps "x" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=1, limited: '
        "configmaps=1"
    )


def test_defaults_are_set_once_and_stay(cluster: SimulatedCluster) -> None:
    info = resource(cluster, "apps", "v1", "deployments")
    obj = deployment()
    defaults.apply(info, obj)
    assert obj["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": "25%", "maxSurge": "25%"}
    assert obj["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] == "Always"
    again = copy.deepcopy(obj)
    defaults.apply(info, again)
    assert again == obj


def test_defaults_of_a_crd_are_set(cluster: SimulatedCluster) -> None:
    obj: dict[str, Any] = {"metadata": {"name": "w"}, "spec": {"color": "red"}}
    defaults.apply(resource(cluster, "example.com", "v1", "widgets"), obj)
    assert obj["spec"]["size"] == 1


def test_a_service_gets_a_free_address(cluster: SimulatedCluster) -> None:
    info = resource(cluster, "", "v1", "services")
    taken = {"metadata": {"name": "kubernetes", "namespace": "default"}, "spec": {"clusterIP": "10.96.0.1"}}
    cluster.store.put(("", "services"), taken)
    obj: dict[str, Any] = {"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}
    defaults.apply(info, obj)
    defaults.fill(cluster, info, obj)
    assert obj["spec"]["clusterIPs"] == [obj["spec"]["clusterIP"]] != ["10.96.0.1"]
    assert 30000 <= obj["spec"]["ports"][0]["nodePort"] <= 32767
    wrong: dict[str, Any] = {"metadata": {"name": "s"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}}
    defaults.apply(info, wrong)
    with pytest.raises(StatusError, match=r"failed to allocate IP 10\.96\.0\.1: provided IP is already allocated"):
        defaults.fill(cluster, info, wrong)
