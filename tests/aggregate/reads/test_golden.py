"""An aggregate of one cluster answers as that cluster does, but for the label and the annotation: recordings replayed.

The store is filled with the recorded objects, the recorded requests are sent, and the answers compared: status, type,
bodies with the order of their fields. Continue tokens are the aggregate's own.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import yaml

from mcproxy.aggregate.cache.cached_object import CachedObject, EventType
from mcproxy.aggregate.reads.continue_token import decode_token
from mcproxy.kube import requestinfo
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.kube.status import StatusError
from tests.aggregate.objects import VERBS
from tests.aggregate.reads.harness import Fleet, query

GOLDEN = Path(__file__).parent.parent.parent / "golden"
LABEL, ANNOTATION = "mcproxy.io/cluster", "resource.karmada.io/cached-from-cluster"


def load(name: str) -> Any:
    path = GOLDEN / name
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_text())


def body_of(name: str) -> str:
    return str(load(name)["response"]["body"])


def dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


CLUSTER_WIDE = {
    "nodes": "Node",
    "namespaces": "Namespace",
    "gadgets": "Gadget",
    "clusterroles": "ClusterRole",
    "clusterrolebindings": "ClusterRoleBinding",
    "apiservices": "APIService",
    "customresourcedefinitions": "CustomResourceDefinition",
}


def resource_of(path: str, kind: str = "") -> APIResource:
    info = requestinfo.parse(b"GET", path.encode())
    gvr = GroupVersionResource(info.group, info.version, info.resource)
    return APIResource(gvr, kind or CLUSTER_WIDE.get(info.resource, ""), "", info.resource not in CLUSTER_WIDE, VERBS)


def stripped(pairs: list[tuple[str, Any]]) -> Any:
    """A JSON object without what an aggregate adds, its fields in order."""
    found = {key: value for key, value in pairs if key not in (LABEL, ANNOTATION)}
    for key in ("labels", "annotations"):
        if found.get(key) == []:
            del found[key]
    return list(found.items())


def comparable(body: str | bytes) -> Any:
    """JSON as lists of pairs, so that the order counts; tokens only by their presence."""
    value = json.loads(body, object_pairs_hook=stripped)
    return json.loads(json.dumps(value).replace("\\\\u0000", ""), object_hook=dict)


def without_tokens(value: Any) -> Any:
    if isinstance(value, list):
        if len(value) == 2 and value[0] == "continue" and isinstance(value[1], str):
            return ["continue", bool(value[1])]
        return [without_tokens(item) for item in value]
    return value


def unordered(value: Any) -> Any:
    """The same without the order of the fields of metadata, which in custom resources differs between forms."""
    if isinstance(value, list):
        items = [unordered(item) for item in value]
        pairs = bool(items) and all(isinstance(item, list) and len(item) == 2 for item in items)
        return sorted(items, key=json.dumps) if pairs else items
    return value


class Cluster:
    """An aggregate of the recorded cluster `east`."""

    def __init__(self, source: str, cells: str = "", *, version: int = 0, history: bool = False) -> None:
        """`source` is a recorded list, `cells` a recorded Table of the same objects."""
        recorded = load(source)
        found = json.loads(recorded["response"]["body"])
        kind = found["kind"].removesuffix("List")
        self.fleet = Fleet(("east",), resource_of(recorded["request"]["path"], kind))
        self.store = self.fleet.stores["east"]
        body, now = recorded["response"]["body"].encode(), self.fleet.clock.wall_seconds()
        if cells:
            table = json.loads(body_of(cells))
            by_name = {row["object"]["metadata"]["name"]: row["cells"] for row in table["rows"]}
            of = {"kind": kind, "apiVersion": found["apiVersion"]}
            rows = [
                {"cells": by_name[item["metadata"]["name"]], "object": {**of, **item} if "kind" not in item else item}
                for item in found["items"]
                if item["metadata"]["name"] in by_name
            ]
            body = dumps({**table, "rows": rows})
        page = self.store.decoder.decode_page(body, now)
        objects = [obj for obj in page if isinstance(obj, CachedObject)]
        assert len(objects) == len(page)
        replacement = self.store.replace()
        replacement.columns = page.columns
        if not history:
            for obj in objects:
                replacement.add(obj)
            replacement.commit(version or page.version)
            return
        replacement.commit(1)
        for obj in sorted(objects, key=lambda obj: obj.version):
            self.store.apply(EventType.ADDED, obj)
        self.store.progress(version or page.version)

    def replay(self, recorded: Any, *, token: str = "", known: bool = True) -> tuple[int, bytes]:
        """Send a recorded request; `token` stands for its continue token."""
        request = recorded["request"]
        path, _, text = request["path"].partition("?")
        parameters = dict(parse_qsl(text, keep_blank_values=True))
        if token:
            parameters["continue"] = token
        work = self.fleet.begin(
            query(path, **parameters),
            method=request["method"].encode(),
            known_field=None if known else lambda _: False,
            **{key.replace("-", "_"): value for key, value in request["headers"] if key == "Accept"},
        )
        self.fleet.clock.advance(3.5 if recorded["response"]["status"] == 504 else 0)
        try:
            response = self.fleet.finish(*work)
        except StatusError as error:
            return error.code, error.body()
        wanted = [value for key, value in recorded["response"]["headers"] if key == "Content-Type"]
        if "protobuf" not in wanted[0]:
            assert response.field("Content-Type") == wanted
        return response.status, response.body


def compare(found: tuple[int, bytes], recorded: Any, *, ordered: bool = True) -> None:
    response = recorded["response"]
    code, body = found
    assert code == response["status"]
    if code >= 400:
        assert body.decode() == response["body"]
        return
    got, wanted = without_tokens(comparable(body)), without_tokens(comparable(response["body"]))
    assert got == wanted if ordered else unordered(got) == unordered(wanted)
    assert body.endswith(b"\n")


LISTS = [
    f"list/{cluster}/{path.name}"
    for cluster in ("east", "west")
    for path in sorted((GOLDEN / "list" / cluster).glob("*.json"))
    if not path.name.startswith(("table-", "pretty", "clusterroles-table", "empty-list"))
]


def test_the_lists_were_recorded() -> None:
    assert len(LISTS) > 30


@pytest.mark.parametrize("name", LISTS)
def test_lists(name: str) -> None:
    # A field of a custom resource that sorts before apiVersion stands behind it here.
    compare(Cluster(name).replay(load(name)), load(name), ordered="gadgets" not in name)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("list/east/empty-list-no-such-ns.json", "list/east/pods-all.json"),
        ("list/east/empty-list-cr-no-such-ns.json", "list/east/widgets-all.json"),
    ],
)
def test_empty_lists(name: str, source: str) -> None:
    recorded = load(name)
    version = int(json.loads(recorded["response"]["body"])["metadata"]["resourceVersion"])
    found = Cluster(source, version=version).replay(recorded)
    assert found == (200, recorded["response"]["body"].encode())


PODS, CONFIG_MAPS = "list/east/pods-all.json", "list/east/configmaps-demo.json"
WIDGETS, EVENTS = "list/east/widgets-all.json", "list/east/events-demo.json"


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("get/get-configmap-protobuf-or-json.json", CONFIG_MAPS),
        ("get/get-deployment.json", "list/east/deployments-demo.json"),
        ("get/get-namespace.json", "list/east/namespaces.json"),
        ("get/get-node.json", "list/east/nodes.json"),
        ("get/get-pod-accept-browser.json", PODS),
        ("get/get-pod-accept-star.json", PODS),
        ("get/get-pod-no-accept.json", PODS),
        ("get/get-pod-partialmeta.json", PODS),
        ("get/get-pod.json", PODS),
        ("get/get-rv0.json", CONFIG_MAPS),
        ("get/get-widget-protobuf-or-json.json", WIDGETS),
        ("get/get-widget.json", WIDGETS),
        ("get/get-configmap-cbor.json", CONFIG_MAPS),
        ("rv/get-old.json", CONFIG_MAPS),
        ("errors/404-object.json", CONFIG_MAPS),
        ("table/404.json", PODS),
        ("errors/406-unknown-accept.json", CONFIG_MAPS),
        ("errors/406-xml.json", CONFIG_MAPS),
        ("partialmeta/pods-asked-single-kind-for-list.json", PODS),
        ("table/pods-includeObject-Bogus.json", PODS),
    ],
)
def test_gets_and_refusals(name: str, source: str) -> None:
    recorded = load(name)
    if "body" not in recorded["response"]:  # protobuf, which is not made from cache
        assert Cluster(source).replay(recorded)[0] == recorded["response"]["status"]
        return
    compare(Cluster(source).replay(recorded), recorded)


@pytest.mark.parametrize(
    ("name", "source", "cells"),
    [
        ("table/pods-empty.json", PODS, "list/east/table-pods-demo.json"),
        ("table/pods-includeObject-Metadata.json", PODS, "list/east/table-pods-demo.json"),
        ("table/pods-includeObject-None.json", PODS, "list/east/table-pods-demo.json"),
        ("table/pods-includeObject-Object.json", PODS, "list/east/table-pods-demo.json"),
        ("table/pods-limit2-page1.json", PODS, "list/east/table-pods-demo.json"),
        ("table/pods-v1beta1.json", PODS, "list/east/table-pods-demo.json"),
        ("table/widgets-includeObject-Object.json", WIDGETS, "list/east/table-widgets-demo.json"),
        ("list/east/table-pods-demo.json", PODS, "list/east/table-pods-demo.json"),
        ("list/east/table-nodes.json", "list/east/nodes.json", "list/east/table-nodes.json"),
        ("list/east/table-namespaces.json", "list/east/namespaces.json", "list/east/table-namespaces.json"),
        ("list/east/table-events-demo.json", EVENTS, "list/east/table-events-demo.json"),
        ("get/get-pod-table.json", PODS, "get/get-pod-table.json"),
        ("get/get-widget-table.json", WIDGETS, "get/get-widget-table.json"),
        ("list/east/table-widgets-demo.json", WIDGETS, "list/east/table-widgets-demo.json"),
        ("partialmeta/widgets.json", WIDGETS, ""),
        ("partialmeta/pods.json", PODS, ""),
    ],
)
def test_tables(name: str, source: str, cells: str) -> None:
    recorded = load(name)
    answer = json.loads(recorded["response"]["body"])
    version = 363 if name.startswith("get/") else int(answer["metadata"]["resourceVersion"])
    if name.startswith("table/") and answer.get("rows"):  # the ages are those of the moment
        cells = name if answer["rows"][-1]["object"] and "limit" not in name else cells
    found = Cluster(source, cells, version=version).replay(recorded)
    if name in ("table/pods-includeObject-None.json", "table/pods-limit2-page1.json"):
        ages = {f'"{number}s' for number in range(110, 125)}
        texts = [found[1].decode(), recorded["response"]["body"]]
        for age in ages:
            texts = [text.replace(age, '"*s').replace("(" + age[1:] + " ", "(*s ") for text in texts]
        assert without_tokens(comparable(texts[0])) == without_tokens(comparable(texts[1]))
        return
    compare(found, recorded, ordered="widget" not in name)


@pytest.mark.parametrize("path", sorted((GOLDEN / "selectors").glob("*.json")), ids=lambda path: path.stem)
def test_selectors(path: Path) -> None:
    name = f"selectors/{path.name}"
    recorded = load(name)
    resource = requestinfo.parse(b"GET", recorded["request"]["path"].encode()).resource
    source = {"pods": PODS, "widgets": WIDGETS, "events": EVENTS, "secrets": "list/east/secrets-demo.json"}[resource]
    answer = json.loads(recorded["response"]["body"])
    version = int(answer["metadata"].get("resourceVersion", 0))
    known = "field-unknown" not in name
    compare(Cluster(source, version=version).replay(recorded, known=known), recorded)


@pytest.mark.parametrize("path", sorted((GOLDEN / "rv").glob("configmaps-*.json")), ids=lambda path: path.stem)
def test_resource_versions(path: Path) -> None:
    recorded = load(f"rv/{path.name}")
    answer = json.loads(recorded["response"]["body"])
    version = int(answer["metadata"].get("resourceVersion", 363))
    if "current: " in answer.get("message", ""):
        version = int(answer["message"].rpartition(" ")[2])
    cluster = Cluster(CONFIG_MAPS, version=max(version, 363), history=True)
    compare(cluster.replay(recorded), recorded)


PAGES = [
    ("configmaps-selector-limit10", CONFIG_MAPS, 3),
    ("configmaps-table-limit10", CONFIG_MAPS, 3),
    ("pods-limit2", PODS, 3),
    ("widgets-limit2", WIDGETS, 2),
    ("west-pods-all-limit4", "list/west/pods-all.json", 3),
]


@pytest.mark.parametrize(("name", "source", "count"), PAGES)
def test_pages(name: str, source: str, count: int) -> None:
    version = int(json.loads(body_of(f"paging/{name}-page1.json"))["metadata"]["resourceVersion"])
    table = "table" in name
    cluster = Cluster(source, version=version)
    token = ""
    for number in range(1, count + 1):
        recorded = load(f"paging/{name}-page{number}.json")
        found = cluster.replay(recorded, token=token)
        answer = json.loads(found[1])
        token = answer["metadata"].get("continue", "")
        if table:  # the columns are not recorded with these objects
            wanted = json.loads(recorded["response"]["body"])
            assert [row["object"]["metadata"]["name"] for row in answer["rows"]] == [
                row["object"]["metadata"]["name"] for row in wanted["rows"]
            ]
            assert answer["metadata"].get("remainingItemCount") == wanted["metadata"].get("remainingItemCount")
        else:
            compare(found, recorded)
    assert not token


@pytest.mark.parametrize("name", ["limit-equals-count", "limit-rv0", "continue-with-rv", "continue-with-match"])
def test_limits(name: str) -> None:
    recorded = load(f"paging/{name}.json")
    info = requestinfo.parse(b"GET", recorded["request"]["path"].encode())
    source = {"pods": PODS, "widgets": WIDGETS, "configmaps": CONFIG_MAPS}[info.resource]
    answer = json.loads(recorded["response"]["body"])
    version = int(answer["metadata"].get("resourceVersion", 363))
    compare(Cluster(source, version=version).replay(recorded), recorded)


@pytest.mark.parametrize("name", ["restarted-exact", "restarted-exact-limit"])
def test_what_is_older_than_the_history_has_expired(name: str) -> None:
    recorded = load(f"expired/{name}.json")
    compare(Cluster(CONFIG_MAPS).replay(recorded), recorded)


@pytest.mark.parametrize(("name", "source"), [("restarted-continue", CONFIG_MAPS), ("restarted-continue-cr", WIDGETS)])
def test_an_old_token_has_expired_with_one_to_go_on_with(name: str, source: str) -> None:
    recorded = load(f"expired/{name}.json")
    path = recorded["request"]["path"].partition("?")[0]
    first = Cluster(source).fleet.read(query(path, limit=3)).json()["metadata"]["continue"]
    later = Cluster(source, version=100_000)
    code, body = later.replay(recorded, token=first)
    status, wanted = json.loads(body), json.loads(recorded["response"]["body"])
    token = status["metadata"].pop("continue")
    assert wanted["metadata"].pop("continue")
    assert (code, status) == (410, wanted)
    rest = later.fleet.read(query(path, **{"continue": token}))
    everything = later.fleet.read(path)
    assert rest.json()["items"] == everything.json()["items"][3:]
    assert decode_token(token).cluster == "east"


ERRORS = [
    "400-query-bad-fieldselector",
    "400-query-bad-labelselector",
    "400-query-bad-labelselector-value",
    "400-query-fieldselector-syntax",
    "400-query-invalid-continue",
    "400-query-invalid-continue-json",
    "400-query-invalid-continue-version",
    "400-query-invalid-limit",
    "400-query-invalid-timeout",
    "400-query-unknown-field-label",
    "422-query-sie-on-list",
]


@pytest.mark.parametrize("name", ERRORS)
def test_invalid_queries(name: str) -> None:
    recorded = load(f"errors/{name}.json")
    compare(Cluster(CONFIG_MAPS).replay(recorded, known=False), recorded)


def test_what_can_be_made_is_named_where_nothing_else_is_taken() -> None:
    code, body = Cluster(PODS).replay(load("table/v2-406.json"))
    wanted = body_of("table/v2-406.json").replace(", application/vnd.kubernetes.protobuf", "")
    assert (code, body.decode()) == (406, wanted)


@pytest.mark.parametrize(
    ("name", "source", "cells"),
    [("get/get-configmap-yaml.json", CONFIG_MAPS, ""), ("table/yaml.json", PODS, "list/east/table-pods-demo.json")],
)
def test_yaml(name: str, source: str, cells: str) -> None:
    recorded = load(name)
    code, body = Cluster(source, cells, version=363).replay(recorded)
    got, wanted = yaml.safe_load(body), yaml.safe_load(recorded["response"]["body"])
    assert code == 200
    if cells:
        assert got["metadata"].pop("continue")
        assert wanted["metadata"].pop("continue")
        for table in (got, wanted):
            table["rows"][0]["cells"].pop(4)  # the age
    as_json = [without_tokens(unordered(comparable(json.dumps(value)))) for value in (got, wanted)]
    assert as_json[0] == as_json[1]


def test_pretty() -> None:
    recorded = load("list/east/pretty.json")
    code, body = Cluster(PODS).replay(recorded)
    assert code == 200
    wanted = recorded["response"]["body"].replace(
        '"app": "pending"\n', '"app": "pending",\n      "mcproxy.io/cluster": "east"\n'
    )
    annotations = f'"annotations": {{\n      "{ANNOTATION}": "east"\n    }},\n    "managedFields"'
    assert body.decode() == wanted.replace('"managedFields"', annotations)


def test_head_is_405() -> None:
    assert Cluster(CONFIG_MAPS).replay(load("get/head-configmap.json"))[0] == 405
