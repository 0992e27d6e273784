"""managedFields after creates and updates."""

from __future__ import annotations

from typing import Any

from kubesim.apimachinery.resources import Registry
from kubesim.registry import managed_fields

NOW, LATER = "2026-11-21T09:38:02Z", "2026-11-21T10:00:00Z"
REGISTRY = Registry()


def update(old: Any, new: dict[str, Any], manager: str = "lab", *, now: str = NOW, sub: str = "") -> list[Any]:
    resource = REGISTRY.get("", "v1", "pods" if "spec" in new else "configmaps")
    assert resource is not None
    managed_fields.update(old, new, manager=manager, operation="Update", subresource=sub, now=now, resource=resource)
    return list(new["metadata"].get("managedFields", ()))


def config(data: dict[str, str], **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", **metadata}, "data": data}


def test_a_create_owns_all_that_was_sent() -> None:
    assert update(None, config({"a": "1"}, labels={"app": "wr"})) == [
        {
            "manager": "lab",
            "operation": "Update",
            "apiVersion": "v1",
            "time": NOW,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {".": {}, "f:a": {}}, "f:metadata": {"f:labels": {".": {}, "f:app": {}}}},
        }
    ]


def test_a_changed_field_gets_another_owner() -> None:
    old = config({"a": "1"})
    update(None, old)
    entries = update(old, config({"a": "2"}), "other", now=LATER)
    assert [(item["manager"], item["fieldsV1"], item["time"]) for item in entries] == [
        ("lab", {"f:data": {}}, NOW),
        ("other", {"f:data": {"f:a": {}}}, LATER),
    ]


def test_an_update_that_changes_nothing_makes_no_entry() -> None:
    old = config({"a": "1"})
    before = update(None, old)
    assert update(old, config({"a": "1"}), "other", now=LATER) == before


def test_a_removed_field_has_no_owner() -> None:
    old = config({"a": "1", "b": "2"})
    update(None, old)
    assert update(old, config({"a": "1"}), "other")[0]["fieldsV1"] == {"f:data": {".": {}, "f:a": {}}}


def test_empty_managed_fields_clear_them() -> None:
    old = config({"a": "1"})
    update(None, old)
    assert update(old, config({"a": "1"}, managedFields=[{}])) == []


def test_a_status_write_owns_the_status_alone() -> None:
    old: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    update(None, old)
    new = {**old, "metadata": dict(old["metadata"]), "status": {"phase": "Running"}}
    entry = update(old, new, "kubelet", sub="status", now=LATER)[1]
    assert (entry["subresource"], entry["fieldsV1"]) == ("status", {"f:status": {"f:phase": {}}})


def test_lists_of_a_pod_are_owned_by_their_keys() -> None:
    ports = [{"containerPort": 80, "protocol": "TCP"}]
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "ports": ports}]}}
    fields = update(None, pod)[0]["fieldsV1"]["f:spec"]["f:containers"]
    assert fields == {
        'k:{"name":"c"}': {
            ".": {},
            "f:name": {},
            "f:ports": {
                ".": {},
                'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}, "f:protocol": {}},
            },
        }
    }
