"""Mistakes that other systems made with aggregates (reference "list-watch"), each tried on a daemon over two clusters.

Those that need a member to fail or to go: `test_aggregate_members`. Definitions that only one member has:
`test_aggregate_custom_resources`. Continue tokens of a removed member: `tests/aggregate/reads/test_paging.py`.
"""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest

from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
from mcproxy.aggregate.resource_version.reader import VersionReader
from tests.e2e.aggregate_environment import CLUSTERS, AggregateEnvironment
from tests.e2e.http_client import Answer
from tests.e2e.test_aggregate_writes import (
    CONFIG_MAPS,
    JSON_PATCH,
    LABEL,
    MERGE,
    Api,
    config_map,
    made,
    own,
    path_of,
    version_of,
)

__all__ = ["made"]  # a fixture

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
WATCH_LIST = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"


@pytest.fixture
def api(fleet: AggregateEnvironment) -> Api:
    return Api(fleet)


def events(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer
    return [json.loads(line) for line in answer.body.splitlines()]


def test_reads_without_a_version_do_not_go_to_members_although_cached(fleet: AggregateEnvironment, api: Api) -> None:
    for resource in ("nodes", "pods"):
        api.good("GET", f"/api/v1/{resource}")  # the caches are filled
    marks = {name: fleet.control(name).mark() for name in CLUSTERS}
    api.good("GET", "/api/v1/namespaces/demo/pods")
    api.good("GET", "/api/v1/nodes?limit=500")
    for name in CLUSTERS:
        reads = [
            record["path"]
            for record in fleet.control(name).audit(marks[name], method="GET")
            if ("/pods" in record["path"] or "/nodes" in record["path"]) and "watch=true" not in record["path"]
        ]
        # KEP-2340: the version of the collection now is asked for, by a list of one object, and nothing else.
        assert sorted(reads) == ["/api/v1/nodes?limit=1", "/api/v1/pods?limit=1"]


def test_patches_and_delete_preconditions_do_not_keep_the_composite_version(api: Api, made: dict[str, Any]) -> None:
    merged = api.good("PATCH", path_of(made), {"metadata": {"resourceVersion": version_of(made)}}, MERGE)
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": version_of(merged)}
    change = {"op": "replace", "path": "/data/key", "value": "two"}
    patched = api.good("PATCH", path_of(made), [test, change], JSON_PATCH)
    assert own(api, made)["data"]["key"] == "two"
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"resourceVersion": version_of(patched)}}
    api.good("DELETE", path_of(made), options)


def test_scale_does_not_keep_the_composite_version(api: Api) -> None:
    found = api.good("GET", "/apis/apps/v1/namespaces/demo/deployments")["items"]
    path = f"/apis/apps/v1/namespaces/demo/deployments/{found[0]['metadata']['name']}/scale"
    answer = api("GET", path)
    if answer.status == 409:  # both clusters have one of that name
        cluster = found[0]["metadata"]["labels"][LABEL]
        path = f"/clusters/{cluster}{path}"
        answer = api("GET", path)
    assert api.good("PUT", path, answer.json)["spec"] == answer.json["spec"]


def test_deletecollection_is_no_500(api: Api) -> None:
    for cluster in CLUSTERS:
        obj = config_map(f"swept-{cluster}", cluster)
        obj["metadata"]["labels"]["sweep"] = "me"
        api.good("POST", CONFIG_MAPS, obj)
    deleted = api.good("DELETE", f"{CONFIG_MAPS}?labelSelector=sweep%3Dme")
    assert {item["metadata"]["labels"][LABEL] for item in deleted["items"]} == set(CLUSTERS)
    assert api.good("GET", f"{CONFIG_MAPS}?labelSelector=sweep%3Dme")["items"] == []


@pytest.mark.parametrize(
    "path", ["/apis/apps/v1/deployments", "/api/v1/configmaps", "/api/v1/services", "/api/v1/namespaces"]
)
def test_tables_are_made_of_more_than_pods_and_nodes(api: Api, path: str) -> None:
    table = api("GET", path, accept=TABLE).json
    assert table["kind"] == "Table"
    assert {row["object"]["metadata"]["labels"][LABEL] for row in table["rows"]} == set(CLUSTERS)
    assert {len(row["cells"]) for row in table["rows"]} == {len(table["columnDefinitions"])}


def test_watch_list_is_supported(api: Api) -> None:
    seen = events(api("GET", f"{CONFIG_MAPS}?{WATCH_LIST}&timeoutSeconds=1"))
    added = [event["object"] for event in seen if event["type"] == "ADDED"]
    assert {obj["metadata"]["labels"][LABEL] for obj in added} == set(CLUSTERS)
    ends = [
        event for event in seen if "k8s.io/initial-events-end" in (event["object"]["metadata"].get("annotations") or {})
    ]
    assert [event["type"] for event in ends] == ["BOOKMARK"]


def test_several_copies_of_one_name_are_no_500(api: Api) -> None:
    obj = config_map("copied")
    paths = [f"/clusters/{cluster}{CONFIG_MAPS}" for cluster in CLUSTERS]
    for path in paths:
        api.good("POST", path, obj)
    try:
        answer = api("GET", f"{CONFIG_MAPS}/copied")
        assert (answer.status, answer.json["metadata"]["labels"][LABEL]) == (200, CLUSTERS[0])
        assert [value for name, value in answer.headers if name.lower() == "warning" and CLUSTERS[1] in value]
        refused = api("DELETE", f"{CONFIG_MAPS}/copied")
        assert refused.status == 409
        assert all(cluster in refused.json["message"] for cluster in CLUSTERS)
    finally:
        for path in paths:
            api.good("DELETE", f"{path}/copied")


def test_the_proxys_credentials_are_not_used_where_the_users_rights_are_meant(
    fleet: AggregateEnvironment, made: dict[str, Any]
) -> None:
    stranger = Api(fleet, "stranger")
    answers = [
        stranger("GET", CONFIG_MAPS),
        stranger("GET", path_of(made)),
        stranger("GET", f"{CONFIG_MAPS}?watch=true"),
        stranger("GET", f"/clusters/{CLUSTERS[0]}{CONFIG_MAPS}"),
        stranger("DELETE", CONFIG_MAPS),
        stranger("POST", CONFIG_MAPS, config_map("never", CLUSTERS[0])),
    ]
    assert [answer.status for answer in answers] == [403] * len(answers)
    assert 'User "stranger" cannot' in answers[0].json["message"]


@pytest.mark.parametrize("alphabet", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_composite_version_in_another_form_resumes(api: Api, alphabet: Any) -> None:
    version = api.good("GET", CONFIG_MAPS)["metadata"]["resourceVersion"]
    parts = VersionReader(LayoutHistory(Layout(CLUSTERS))).read(version)
    assert parts is not None
    karmada = alphabet(json.dumps({name: str(part) for name, part in parts.items()}).encode()).decode()
    created = api.good("POST", CONFIG_MAPS, config_map(cluster=CLUSTERS[1]))
    try:
        seen = events(api("GET", f"{CONFIG_MAPS}?watch=true&timeoutSeconds=1&resourceVersion={quote(karmada)}"))
        assert [(event["type"], event["object"]["metadata"]["uid"]) for event in seen] == [
            ("ADDED", created["metadata"]["uid"])
        ]
    finally:
        api.good("DELETE", path_of(created))
