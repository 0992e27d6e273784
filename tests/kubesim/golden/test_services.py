"""What a kube-apiserver refuses of Services, EndpointSlices and Leases, row by row, and what it takes.

Each request is sent to a simulated cluster of its own, after those that it stands on. A refusal is the recorded one,
word for word, with its causes; what was accepted is.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kubesim.cluster import SimulatedCluster
from kubesim.registry import crd, objects
from kubesim.workloads import populate
from tests.kubesim.conftest import Lab
from tests.kubesim.raw_client import fetch

SERVICES = Path(__file__).parents[2] / "golden" / "services"
NAMES = sorted(
    str(path.relative_to(SERVICES)).split(".json")[0] for path in SERVICES.rglob("*.json*") if path.is_file()
)
STANDS_ON: dict[str, tuple[str, ...]] = {
    "apply/conflict": ("apply/create",),
    "apply/conflict-label": ("apply/create",),
    "apply/address-type": ("apply/create",),
    "apply/force": ("apply/create",),
    "apply/after-force-conflict": ("apply/create", "apply/force"),
    "apply/delete-precondition-rv": ("apply/create",),
    "apply/delete-precondition-uid": ("apply/create",),
    "apply/resource-version-stale": ("apply/create",),
    "lease/conflict": ("lease/create",),
    "lease/release": ("lease/create",),
    "service/create-clusterip-taken": ("service/create-clusterip",),
    "service/patch-clusterip": ("service/create-selectorless",),
    "service/patch-to-headless": ("service/create-selectorless",),
    "mcs/export-status-bad-reason": ("mcs/east-export-create",),
    "mcs/export-status-bad-status": ("mcs/east-export-create",),
    "mcs/export-status-no-message": ("mcs/east-export-create",),
    "mcs/export-status-stale": ("mcs/east-export-create",),
    "mcs/export-status-strategic": ("mcs/east-export-create",),
    "lease/create-exists": ("lease/create",),
    "lease/duration-0": ("lease/create",),
    "lease/no-resource-version": ("lease/create",),
    "lease/put-uid-other": ("lease/create",),
    "lease/time-no-micro": ("lease/create",),
    "lease/transitions-negative": ("lease/create",),
}
"""The requests that make what a request is about."""


def load(name: str) -> dict[str, Any]:
    path = SERVICES / f"{name}.json"
    text = path.read_bytes() if path.exists() else gzip.decompress(path.with_suffix(".json.gz").read_bytes())
    found: dict[str, Any] = json.loads(text)
    return found


LIVE = frozenset(("lease/duration-0", "lease/transitions-negative", "lease/release"))
"""Requests that name the object as it was: with uid and resourceVersion that it has here."""
NO_CRDS = "mcs/no-crd"


def schema(spec: dict[str, Any], **status: Any) -> dict[str, Any]:
    """Return the schema of one of the kinds of the MCS API, as far as what is refused says."""
    condition = {
        "type": "object",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "type": {"type": "string"},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": {"type": "string", "minLength": 1},
            "message": {"type": "string"},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": {"type": "integer"},
        },
    }
    conditions = {"type": "array", "items": condition, "x-kubernetes-list-type": "map"}
    state = {"conditions": {**conditions, "x-kubernetes-list-map-keys": ["type"]}, **status}
    return {"type": "object", "properties": {"spec": spec, "status": {"type": "object", "properties": state}}}


IMPORT_SPEC = {
    "type": "object",
    "required": ["ports", "type"],
    "properties": {
        "type": {"type": "string", "enum": ["ClusterSetIP", "Headless"]},
        "ips": {"type": "array", "maxItems": 2, "items": {"type": "string"}},
        "ports": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    },
    "x-kubernetes-preserve-unknown-fields": True,
}


def definition(kind: str, found: dict[str, Any]) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    version = {"served": True, "storage": True, "schema": {"openAPIV3Schema": found}, "subresources": {"status": {}}}
    return {
        "metadata": {"name": f"{plural}.multicluster.x-k8s.io"},
        "spec": {
            "group": "multicluster.x-k8s.io",
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [{"name": "v1beta1", **version}],
        },
    }


def cluster_of(name: str) -> SimulatedCluster:
    cluster = SimulatedCluster("east")
    populate.bootstrap(cluster)
    namespaces = cluster.resources.get("", "v1", "namespaces")
    assert namespaces is not None
    objects.create(cluster, namespaces, "", {"metadata": {"name": "mcs-lab"}})
    if name.startswith("mcs/") and name != NO_CRDS:
        cluster.resources.add(crd.resource_infos(definition("ServiceExport", schema({"type": "object"}))))
        cluster.resources.add(crd.resource_infos(definition("ServiceImport", schema(IMPORT_SPEC))))
    if name == "dual-stack/patch-primary-family":
        addresses = ["10.97.87.170", "fd01:97::2:359f"]
        spec = {
            "clusterIP": addresses[0],
            "clusterIPs": addresses,
            "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{"port": 80}],
        }
        metadata = {"name": "d1", "namespace": "mcs-lab", "uid": "u"}
        cluster.store.put(
            ("", "services"), {"metadata": metadata, "spec": {**spec, "ipFamilyPolicy": "PreferDualStack"}}
        )
    return cluster


def normal(text: str) -> Any:
    """Return a Status without what differs between runs."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uid>", text)
    text = re.sub(r"in record \(\d+\)", "in record (<n>)", text)
    found = json.loads(text)
    return {key: found.get(key) for key in ("code", "reason", "message", "details")}


def ask(lab: Lab, target: Any, recording: dict[str, Any]) -> Any:
    request = recording["request"]
    headers = [(name, value) for name, value in request["headers"]]
    body = request["body"].encode() if request.get("body") else None
    return lab.run(fetch(target, request["method"], request["path"], headers, body))


@pytest.mark.parametrize("name", NAMES)
def test_it_is_answered_as_by_a_real_api_server(lab: Lab, name: str) -> None:
    recording = load(name)
    target = lab.serve(cluster_of(name))("admin")
    for before in STANDS_ON.get(name, ()):
        assert ask(lab, target, load(before)).status in (200, 201), before
    if name in LIVE:
        path = recording["request"]["path"]
        live = json.loads(lab.run(fetch(target, "GET", path, [], None)).text())["metadata"]
        sent = json.loads(recording["request"]["body"])
        sent["metadata"] |= {key: live[key] for key in ("uid", "resourceVersion")}
        recording["request"]["body"] = json.dumps(sent)
    answer = ask(lab, target, recording)
    expected = recording["response"]
    assert answer.status == expected["status"], answer.text()
    if answer.status >= 400 and expected["body"].startswith("{"):
        assert normal(answer.text()) == normal(expected["body"])
