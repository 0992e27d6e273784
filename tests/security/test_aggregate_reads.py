"""Attacks on an aggregate by users who have some rights, in one namespace or to one name, and want others' objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.aggregate_environment import CLUSTERS, AggregateEnvironment
from tests.e2e.http_client import Answer, ask
from tests.e2e.processes import wait_until

SECRETS = "/api/v1/namespaces/demo/secrets"
JSON = "application/json"
TABLE, PARTIAL, PARTIALS = (
    f"{JSON};as={kind};v=v1;g=meta.k8s.io" for kind in ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
)
FORMS = [JSON, TABLE, f"{PARTIALS},{PARTIAL}"]
WATCH = "timeoutSeconds=1&allowWatchBookmarks=true&watch=1"
STREAM = WATCH + "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
RBAC = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"namespace": "demo"}}


def secret(name: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "demo", "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"password": "aHVudGVyMg=="}}


def granted(name: str, user: str, rule: dict[str, Any], *, cluster_wide: bool = False) -> list[dict[str, Any]]:
    """A role and its binding."""
    prefix = "Cluster" if cluster_wide else ""
    metadata = {"name": name} if cluster_wide else {"name": name, "namespace": "demo"}
    role = {"apiVersion": RBAC["apiVersion"], "kind": f"{prefix}Role", "metadata": metadata, "rules": [rule]}
    binding = {
        "apiVersion": RBAC["apiVersion"],
        "kind": f"{prefix}RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": f"{prefix}Role", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    return [role, binding]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregateEnvironment]:
    """Both clusters have the secrets `mine`, which nobody may read, and `theirs`; in east, alice may do all in demo."""
    environment = AggregateEnvironment(tmp_path_factory.mktemp("attacked"))
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["get", "list", "watch"]}
    try:
        environment.start()
        for name in CLUSTERS:
            control = environment.control(name)
            control.create([secret("mine"), secret("theirs", tier="top"), *granted("one", "nobody", rule)])
            control.create(granted("one-everywhere", "nobody", rule, cluster_wide=True))
        everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
        environment.control("east").create(granted("tenant", "alice", everything))
        wait_until("the rights", lambda: get(environment, f"{SECRETS}/mine", "nobody").status == 200)
        yield environment
    finally:
        environment.stop()


def get(fleet: AggregateEnvironment, target: str, user: str, accept: str = JSON) -> Answer:
    return ask(fleet.address, target, headers=[("Authorization", f"Bearer {user}"), ("Accept", accept)])


def shown(answer: Answer) -> set[str]:
    """Every name in an answer, of objects in a list, rows, or events."""
    names: set[str] = set()

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            metadata = value.get("metadata")
            if isinstance(metadata, dict) and "name" in metadata:
                names.add(metadata["name"])
            for each in value.values():
                visit(each)
        elif isinstance(value, list):
            for each in value:
                visit(each)

    for line in answer.body.splitlines():
        visit(json.loads(line))
    return names


ESCAPED = [
    r"metadata.namespace!=a\,metadata.name=mine",
    r"metadata.name!=a\,metadata.name=mine",
    r"type!=\\\,metadata.name=mine",
    r"metadata.name!=mine",
    r"metadata.name==mine\,",
    "metadata.namespace=demo",
    "",
]


@pytest.mark.parametrize("accept", FORMS)
@pytest.mark.parametrize("options", ["", "resourceVersion=0", "limit=1", WATCH, STREAM])
@pytest.mark.parametrize("path", [SECRETS, "/api/v1/secrets"])
def test_a_right_to_one_name_shows_that_alone(
    fleet: AggregateEnvironment, path: str, options: str, accept: str
) -> None:
    own = get(fleet, f"{path}?fieldSelector=metadata.name%3Dmine&{options}", "nobody", accept)
    assert own.status == 200
    assert shown(own) <= {"mine", "Name"}
    for selector in ESCAPED:
        answer = get(fleet, f"{path}?fieldSelector={quote(selector, safe='')}&{options}", "nobody", accept)
        assert answer.status in (400, 403), (selector, answer.body[:300])  # 400: a watch's options are read first
    twice = f"fieldSelector=metadata.namespace%3Ddemo&fieldSelector=metadata.name%3Dmine&{options}"
    assert get(fleet, f"{path}?{twice}", "nobody", accept).status == 403
    for broken in ("fieldSelector=metadata.name%3Dmine%", "field%53elector=;metadata.name%3Dmine"):
        assert get(fleet, f"{path}?{broken}&{options}", "nobody", accept).status in (400, 403)


def test_a_token_of_ones_own_list_goes_nowhere_else(fleet: AggregateEnvironment) -> None:
    listed = get(fleet, f"{SECRETS}?limit=1", "admin").json["metadata"]
    token, version = listed["continue"], listed["resourceVersion"]
    for query in (
        f"limit=5&continue={token}",
        f"limit=5&continue={token}&fieldSelector=metadata.name%3Dmine",
        f"resourceVersion={version}&resourceVersionMatch=Exact",
        f"{WATCH}&resourceVersion={version}",
    ):
        for user in ("nobody", "alice"):
            answer = get(fleet, f"{SECRETS}?{query}", user)
            if answer.status == 200:
                names = {item["metadata"]["labels"]["mcproxy.io/cluster"] for item in answer.json.get("items", ())}
                assert user == "alice"
                assert names <= {"east"}, (query, answer.body[:300])
            else:
                assert answer.status in (400, 403, 410), (query, answer.body[:300])
                assert b"theirs" not in answer.body


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/demo/nodes",
        "/api/v1/namespaces/demo/persistentvolumes",
        "/api/v1/namespaces/demo/namespaces",
        "/api/v1/namespaces/demo/namespaces/kube-system",
        "/api/v1/watch/namespaces/demo/nodes",
        "/apis/metrics.k8s.io/v1beta1/namespaces/demo/nodes",
        "/api/v1/nodes",
        "/api/v1/namespaces",
        "/api/v1/secrets",
        "/api/v1/namespaces/kube-system/secrets",
        "/api/v1/namespaces/demo/../kube-system/secrets",
        "/api/v1/namespaces/demo%2f..%2fkube-system/secrets",
        "/api/v1/namespaces/demo//secrets",
        "//api/v1/secrets",
        "/api/v1/namespaces/demo/secrets/../../kube-system/secrets",
    ],
)
@pytest.mark.parametrize("options", ["", WATCH, "fieldSelector=metadata.namespace%3Ddemo"])
def test_all_rights_in_a_namespace_show_nothing_outside_it(
    fleet: AggregateEnvironment, path: str, options: str
) -> None:
    answer = get(fleet, f"{path}?{options}", "alice")
    assert answer.status in (400, 403, 404, 405), answer.body[:300]


@pytest.mark.slow
def test_all_rights_in_one_cluster_show_nothing_of_another(fleet: AggregateEnvironment) -> None:
    for query in ("", "resourceVersion=0", "labelSelector=mcproxy.io%2Fcluster%3Dwest", "labelSelector=tier%3Dtop"):
        answer = get(fleet, f"{SECRETS}?{query}", "alice")
        assert answer.status == 200
        assert {item["metadata"]["labels"]["mcproxy.io/cluster"] for item in answer.json["items"]} <= {"east"}
        for stream in (WATCH, STREAM):
            answer = get(fleet, f"{SECRETS}?{query}&{stream}".replace("resourceVersion=0&", ""), "alice")
            assert answer.status == 200
            assert b'"mcproxy.io/cluster":"west"' not in answer.body


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "GET"])
@pytest.mark.parametrize("below", ["", "/status"])
def test_names_cannot_be_tried_out_by_who_has_no_right(fleet: AggregateEnvironment, method: str, below: str) -> None:
    if method == "GET" and not below:
        return
    answers = []
    for name in ("theirs", "absent"):
        for version in ("", "123456789", "bm8", "eyJlYXN0IjoiMSJ9"):
            body = json.dumps({"metadata": {"name": name, "resourceVersion": version}}).encode()
            media_type = "application/merge-patch+json" if method == "PATCH" else JSON
            head = [("Authorization", "Bearer editor"), ("Content-Type", media_type)]
            target = f"{SECRETS}/{name}{below}?resourceVersion={version}"
            answer = ask(fleet.address, target, method=method, headers=head, body=None if method == "GET" else body)
            fields = {key.lower() for key, _ in answer.headers}
            answers.append((name, version, answer.status, answer.body.replace(name.encode(), b"NAME"), fields))
    known = {
        (version, status, body, *sorted(fields)) for name, version, status, body, fields in answers if name == "theirs"
    }
    unknown = {
        (version, status, body, *sorted(fields)) for name, version, status, body, fields in answers if name == "absent"
    }
    assert known == unknown


def test_labels_and_annotations_of_tenants_do_not_change_the_cluster(fleet: AggregateEnvironment) -> None:
    forged = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "demo", "name": "forged"}}
    forged["metadata"] |= {  # type: ignore[operator]
        "labels": {"mcproxy.io/cluster": "east"},
        "annotations": {"resource.karmada.io/cached-from-cluster": "east"},
    }
    fleet.control("west").create([forged])
    path = "/api/v1/namespaces/demo/configmaps/forged"
    wait_until("the object", lambda: get(fleet, path, "admin").status == 200)
    for accept in FORMS[:2]:
        body = get(fleet, path, "admin", accept).body
        assert b'"mcproxy.io/cluster":"west"' in body
        assert b'"east"' not in body
    selected = get(fleet, "/api/v1/namespaces/demo/configmaps?labelSelector=mcproxy.io%2Fcluster%3Deast", "admin")
    assert "forged" not in shown(selected)
    # A client's own forgery in a write is neither followed nor kept.
    for status, body in (
        (409, rb'{"metadata":{"labels":{"mcproxy.io\/cluster":"east"}}}'),
        (400, rb'{"metadata":{"labels":{"\u006dcproxy.io/cluster":"east","mcproxy.io/cluster":"west"}}}'),
        (400, rb'{"metadata":{"labels":{"a":"b"}},"metadata":{"labels":{"mcproxy.io\u002fcluster":"nowhere"}}}'),
    ):
        head = [("Authorization", "Bearer admin"), ("Content-Type", "application/merge-patch+json")]
        answer = ask(fleet.address, path, method="PATCH", headers=head, body=body)
        assert answer.status == status, answer.body  # 400: a key stands twice
        kept = get(fleet, f"/clusters/west{path}", "admin").json["metadata"].get("labels", {})
        assert kept.get("mcproxy.io/cluster") == "east"  # as its owner wrote it there: not changed through here


def test_the_access_log_has_nothing_of_objects_and_credentials(fleet: AggregateEnvironment) -> None:
    assert get(fleet, f"{SECRETS}/theirs", "admin").status == 200
    log = fleet.directory / "access.log"
    wait_until("the line", lambda: f"{SECRETS}/theirs" in log.read_text())
    for text in ("hunter2", "aHVudGVyMg", "Bearer"):
        assert text not in log.read_text()
