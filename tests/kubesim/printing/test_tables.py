"""Tables: ages, columns and cells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubesim.apimachinery.resources import Registry, ResourceInfo
from kubesim.apimachinery.status import StatusError
from kubesim.printing import tables
from kubesim.printing.cells import since

REGISTRY = Registry()
NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
CREATED = "2026-11-21T09:57:00Z"


def resource(group: str, version: str, plural: str) -> ResourceInfo:
    found = REGISTRY.get(group, version, plural)
    assert found is not None
    return found


def cells(group: str, plural: str, obj: dict[str, Any], version: str = "v1") -> list[Any]:
    obj = {**obj, "metadata": {"name": "x", "creationTimestamp": CREATED, **obj.get("metadata", {})}}
    table = tables.table(
        resource(group, version, plural), [obj], include_object="None", list_metadata={"resourceVersion": "7"}, now=NOW
    )
    assert len(table["columnDefinitions"]) == len(table["rows"][0]["cells"])
    found: list[Any] = table["rows"][0]["cells"]
    return found


def container(**state: Any) -> dict[str, Any]:
    return {"name": "c", "restartCount": 0, "ready": False, "state": {}, "lastState": {}, **state}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({"status": {"phase": "Pending"}}, ["0/1", "Pending", "0"]),
        (
            {"status": {"phase": "Running", "containerStatuses": [container(ready=True, state={"running": {}})]}},
            ["1/1", "Running", "0"],
        ),
        (
            {
                "status": {
                    "phase": "Running",
                    "containerStatuses": [
                        container(
                            restartCount=7,
                            state={"waiting": {"reason": "CrashLoopBackOff"}},
                            lastState={"terminated": {"finishedAt": "2026-11-21T09:58:02Z"}},
                        )
                    ],
                }
            },
            ["0/1", "CrashLoopBackOff", "7 (118s ago)"],
        ),
        (
            {"status": {"phase": "Failed", "containerStatuses": [container(state={"terminated": {"exitCode": 3}})]}},
            ["0/1", "ExitCode:3", "0"],
        ),
        (
            {"metadata": {"deletionTimestamp": CREATED}, "status": {"phase": "Running"}},
            ["0/1", "Terminating", "0"],
        ),
    ],
)
def test_pod_status_is_what_kubectl_get_pods_shows(pod: dict[str, Any], expected: list[str]) -> None:
    found = cells("", "pods", {"spec": {"containers": [{}]}, **pod})
    assert found[1:4] == expected
    assert found[4:] == ["3m", "<none>", "<none>", "<none>", "<none>"]


@pytest.mark.parametrize(
    ("group", "plural", "obj", "expected"),
    [
        ("", "configmaps", {"data": {"a": "1"}, "binaryData": {"b": ""}}, ["x", 2, "3m"]),
        ("", "secrets", {"type": "Opaque", "data": {"a": ""}}, ["x", "Opaque", 1, "3m"]),
        (
            "",
            "services",
            {"spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "ports": [{"port": 80, "nodePort": 30001}]}},
            ["x", "NodePort", "10.0.0.1", "<none>", "80:30001/TCP", "3m", "<none>"],
        ),
        (
            "",
            "services",
            {"spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1", "selector": {"b": "2", "a": "1"}}},
            ["x", "LoadBalancer", "10.0.0.1", "<pending>", "<none>", "3m", "a=1,b=2"],
        ),
        (
            "apps",
            "replicasets",
            {
                "spec": {
                    "replicas": 2,
                    "selector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["z"]}]},
                }
            },
            ["x", 2, 0, 0, "3m", "", "", "a in (z)"],
        ),
        (
            "batch",
            "jobs",
            {
                "spec": {"completions": 3},
                "status": {"succeeded": 3, "conditions": [{"type": "Complete", "status": "True"}]},
            },
            ["x", "Complete", "3/3", "", "3m", "", "", "<none>"],
        ),
        ("rbac.authorization.k8s.io", "clusterroles", {}, ["x", CREATED]),
        ("policy", "poddisruptionbudgets", {"spec": {"maxUnavailable": "30%"}}, ["x", "N/A", "30%", 0, "3m"]),
        (
            "networking.k8s.io",
            "ingresses",
            {"spec": {"rules": [{"host": str(number)} for number in range(5)], "tls": [{}]}},
            ["x", "<none>", "0,1,2 + 2 more...", "", "80, 443", "3m"],
        ),
    ],
)
def test_cells_of_a_kind(group: str, plural: str, obj: dict[str, Any], expected: list[Any]) -> None:
    assert cells(group, plural, obj) == expected


def test_events_begin_with_when_they_were_seen() -> None:
    found = cells(
        "",
        "events",
        {
            "lastTimestamp": "2026-11-21T09:59:00Z",
            "firstTimestamp": CREATED,
            "involvedObject": {"kind": "Pod", "name": "web"},
            "source": {"component": "kubelet", "host": "n1"},
            "message": " text\n",
            "count": 4,
        },
    )
    assert found == ["60s", "", "", "pod/web", "", "kubelet, n1", "text", "3m", 4, "x"]


def test_every_builtin_resource_can_be_printed_when_it_is_empty() -> None:
    for info in REGISTRY:
        printer = tables.printer_for(info)
        row = printer.cells({"metadata": {}}, NOW)
        assert len(row) == len(printer.definitions()), info.qualified
        assert all(item["description"] for item in printer.definitions()), info.qualified


def widgets(*columns: dict[str, Any]) -> ResourceInfo:
    return ResourceInfo(
        "example.com",
        "v1",
        "Widget",
        "widgets",
        "widget",
        True,
        (),
        builtin=False,
        crd_version={"additionalPrinterColumns": list(columns)},
    )


def test_custom_columns_are_typed() -> None:
    kinds = [("s", "string"), ("i", "integer"), ("b", "boolean"), ("d", "date"), ("n", "number"), ("none", "string")]
    info = widgets(*({"name": key, "type": kind, "jsonPath": f".spec.{key}"} for key, kind in kinds))
    obj = {"metadata": {"name": "w"}, "spec": {"s": {"a": 1}, "i": 3.0, "b": "no", "d": CREATED, "n": 2}}
    found = tables.table(info, [obj], include_object="Object", list_metadata={}, now="2026-11-21T10:00:00Z")
    assert found["rows"][0] == {"cells": ["w", '{"a":1}', 3, None, "3m", 2.0, None], "object": obj}
    assert found["columnDefinitions"][1]["description"].endswith("(in JSONPath format): .spec.s")


def test_custom_resources_without_columns_have_an_age() -> None:
    names = [item["name"] for item in tables.printer_for(widgets()).definitions()]
    assert names == ["Name", "Age"]


def test_an_unknown_include_object_is_refused() -> None:
    with pytest.raises(StatusError, match=r"must be 'Metadata', 'Object', 'None', or empty") as caught:
        tables.check_include_object("Bogus")
    assert (caught.value.code, caught.value.indented) == (400, True)


def test_partial_metadata_keeps_nothing_but_metadata() -> None:
    obj = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"a": 1}}
    found = tables.partial_metadata(obj)
    assert found == {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "p"}}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".a.b", [1]),
        (".list[0].n", ["x"]),
        (".list[*].n", ["x", "y"]),
        ('.list[?(@.n=="y")].v', [2]),
        (".map['k.l']", [5]),
        (".map.k\\.l", [5]),
        (".a.zzz", []),
        (".list[7]", []),
        ("..odd", []),
    ],
)
def test_json_paths_of_columns(path: str, expected: list[Any]) -> None:
    document = {"a": {"b": 1}, "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}], "map": {"k.l": 5}}
    assert tables.json_path(document, path) == expected


def test_since_reads_micro_times() -> None:
    moment = (NOW - timedelta(seconds=3)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert since(moment, NOW) == "3s"


def test_objects_in_a_table_of_custom_resources_have_their_keys_in_the_order_of_the_alphabet() -> None:
    # recorded: golden table/widgets-includeObject-Object
    widget = {"kind": "Widget", "apiVersion": "example.com/v1", "metadata": {"name": "w", "creationTimestamp": CREATED}}
    table = tables.table(
        resource("", "v1", "pods"), [widget], include_object="Object", list_metadata={}, now=NOW, columns=[]
    )
    shown = table["rows"][0]["object"]
    assert list(shown) == ["apiVersion", "kind", "metadata"]
    assert list(shown["metadata"]) == ["creationTimestamp", "name"]
