"""Writes through an aggregate of two simulated clusters, byte by byte: what members get, and what clients get back."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from mcproxy.kube import protobuf
from mcproxy.kube.json_edit import MetadataEdit
from tests.e2e.aggregate_environment import CLUSTERS, AggregateEnvironment
from tests.e2e.http_client import Answer, ask
from tests.e2e.processes import wait_until
from tests.simulated_cluster.control_client import header_values

LABEL, ANNOTATION = "mcproxy.io/cluster", "resource.karmada.io/cached-from-cluster"
CONFIG_MAPS = "/api/v1/namespaces/demo/configmaps"
KUBECTL = Path(__file__).parents[1] / "golden" / "clients" / "kubectl-1.36"
NUMBERS = itertools.count()
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
APPLY, JSON_PATCH = "application/apply-patch+yaml", "application/json-patch+json"


class Api:
    """The aggregate for one user."""

    def __init__(self, fleet: AggregateEnvironment, user: str = "admin") -> None:
        self._fleet = fleet
        self._user = user

    def __call__(
        self, method: str, target: str, body: Any = None, media_type: str = "application/json", accept: str = ""
    ) -> Answer:
        headers = [("Authorization", f"Bearer {self._user}"), ("Accept", accept or "application/json")]
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        if data is not None:
            headers.append(("Content-Type", media_type))
        return ask(self._fleet.address, target, method=method, headers=headers, body=data)

    def good(self, method: str, target: str, body: Any = None, media_type: str = "application/json") -> Any:
        answer = self(method, target, body, media_type)
        assert 200 <= answer.status < 300, answer
        return answer.json


@pytest.fixture
def api(fleet: AggregateEnvironment) -> Api:
    return Api(fleet)


@pytest.fixture(params=CLUSTERS)
def made(api: Api, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """A ConfigMap in one of the clusters, as it was answered."""
    obj = api.good("POST", CONFIG_MAPS, config_map(cluster=request.param))
    yield obj
    api("DELETE", path_of(obj))


def config_map(name: str = "", cluster: str = "", **data: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name or f"written-{next(NUMBERS)}"}
    if cluster:
        metadata["labels"] = {LABEL: cluster}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": "one", **data}}


def path_of(obj: dict[str, Any]) -> str:
    return f"{CONFIG_MAPS}/{obj['metadata']['name']}"


def cluster_of(obj: dict[str, Any]) -> str:
    cluster: str = obj["metadata"]["labels"][LABEL]
    assert obj["metadata"]["annotations"][ANNOTATION] == cluster
    return cluster


def version_of(obj: dict[str, Any]) -> str:
    version: str = obj["metadata"]["resourceVersion"]
    return version


def own(api: Api, obj: dict[str, Any]) -> Any:
    """The object as its member has it."""
    return api.good("GET", f"/clusters/{cluster_of(obj)}{path_of(obj)}")


def newer(version: str, than: str) -> bool:
    return (len(version), version) > (len(than), than)


def test_a_create_by_label_is_seen_at_once_and_nothing_of_ours_is_stored(api: Api, made: dict[str, Any]) -> None:
    assert api.good("GET", path_of(made) + "?resourceVersion=0")["metadata"]["uid"] == made["metadata"]["uid"]
    stored = own(api, made)
    assert "labels" not in stored["metadata"]
    assert "annotations" not in stored["metadata"]
    assert len(version_of(stored)) < len(version_of(made))


def test_what_was_read_can_be_written_and_read_and_written(api: Api, made: dict[str, Any]) -> None:
    """The loop of every controller. Versions in a get, an answer and a list are all taken back."""
    seen = made
    for value in ("two", "three", "four"):
        seen["data"]["key"] = value
        written = api.good("PUT", path_of(made), seen)
        assert newer(version_of(written), version_of(seen))
        seen = api.good("GET", path_of(made) + "?resourceVersion=0")
        assert seen["data"]["key"] == value
        (listed,) = api.good("GET", f"{CONFIG_MAPS}?fieldSelector=metadata.name={made['metadata']['name']}")["items"]
        assert version_of(listed) == version_of(seen)
        seen = {**listed, "kind": "ConfigMap", "apiVersion": "v1"} if value == "three" else seen
    stale = api("PUT", path_of(made), made)
    assert (stale.status, stale.json["reason"]) == (409, "Conflict")
    assert own(api, seen)["data"]["key"] == "four"


@pytest.mark.parametrize("media_type", [MERGE, STRATEGIC])
def test_patches_with_a_version(api: Api, made: dict[str, Any], media_type: str) -> None:
    patch = {"metadata": {"resourceVersion": version_of(made), "labels": {"app": "x", LABEL: None}}}
    patched = api.good("PATCH", path_of(made), patch, media_type)
    assert patched["metadata"]["labels"] == {"app": "x", LABEL: cluster_of(made)}
    assert own(api, made)["metadata"]["labels"] == {"app": "x"}
    assert api("PATCH", path_of(made), patch, media_type).status == 409


def test_a_json_patch_on_what_the_client_has_seen(api: Api, made: dict[str, Any]) -> None:
    patch = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version_of(made)},
        {"op": "test", "path": "/metadata/labels/mcproxy.io~1cluster", "value": cluster_of(made)},
        {"op": "add", "path": "/metadata/labels/app", "value": "x"},
        {"op": "add", "path": "/metadata/annotations/note", "value": "y"},
    ]
    patched = api.good("PATCH", path_of(made), patch, JSON_PATCH)
    assert patched["metadata"]["labels"]["app"] == "x"
    stored = own(api, made)["metadata"]
    assert (stored["labels"], stored["annotations"]) == ({"app": "x"}, {"note": "y"})
    assert api("PATCH", path_of(made), patch, JSON_PATCH).status == 422


@pytest.mark.parametrize(
    "text",
    [
        '{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","labels":{{"mcproxy.io/cluster":"{cluster}"}}}},'
        '"data":{{"key":"applied"}}}}',
        "# by hand\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  labels:\n"
        "    mcproxy.io/cluster: {cluster}  # where\ndata:\n  key: applied\n",
    ],
    ids=["json", "yaml"],
)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_server_side_apply_creates_and_updates(api: Api, text: str, cluster: str) -> None:
    name = f"applied-{next(NUMBERS)}"
    target = f"{CONFIG_MAPS}/{name}?fieldManager=test&force=true"
    for key in ("applied", "again"):
        body = (
            text.format(name=name, cluster=cluster).replace('"applied"', f'"{key}"').replace(" applied\n", f" {key}\n")
        )
        applied = api.good("PATCH", target, body.encode(), APPLY)
        assert cluster_of(applied) == cluster
        stored = own(api, applied)
        assert (stored["data"], stored["metadata"].get("labels")) == ({"key": key}, None)
        assert "mcproxy" not in json.dumps(stored["metadata"]["managedFields"])
    api.good("DELETE", path_of(applied))


def test_a_protobuf_body_as_kubectl_sends_it(api: Api) -> None:
    (request,) = [
        each["request"]
        for each in json.loads((KUBECTL / "create-cm.json").read_text())["exchanges"]
        if each["request"]["method"] == "POST"
    ]
    encoded = request.get("body_base64")
    body = base64.b64decode(encoded) if encoded else request["body"].encode()
    labelled = protobuf.edit_metadata(body, MetadataEdit({LABEL: "west"}))
    accept = "application/vnd.kubernetes.protobuf,application/json"
    answer = api("POST", CONFIG_MAPS, labelled, "application/vnd.kubernetes.protobuf", accept)
    assert answer.status == 201
    assert cluster_of(answer.json) == "west"
    assert "labels" not in own(api, answer.json)["metadata"]
    api.good("DELETE", path_of(answer.json))
    without = api("POST", CONFIG_MAPS, body, "application/vnd.kubernetes.protobuf", accept)
    assert (without.status, without.json["reason"]) == (422, "Invalid")


class TestDelete:
    def test_preconditions(self, api: Api, made: dict[str, Any]) -> None:
        other = next(name for name in CLUSTERS if name != cluster_of(made))
        stale = api.good("GET", CONFIG_MAPS)["items"]
        wrong = next(item for item in stale if cluster_of(item) == other)
        options = {"preconditions": {"resourceVersion": version_of(wrong)}}
        assert api("DELETE", path_of(made), options).status == 409
        api.good("PATCH", path_of(made), {"data": {"a": "b"}}, MERGE)
        assert api("DELETE", path_of(made), {"preconditions": {"resourceVersion": version_of(made)}}).status == 409
        now = version_of(api.good("GET", path_of(made)))
        api.good("DELETE", path_of(made), {"preconditions": {"resourceVersion": now}})
        gone = api("GET", path_of(made) + "?resourceVersion=0")
        assert gone.status == 404

    def test_a_dry_run_deletes_nothing(self, api: Api, made: dict[str, Any]) -> None:
        api.good("DELETE", path_of(made) + "?dryRun=All")
        assert api.good("GET", path_of(made))

    def test_a_collection_by_selector_and_cluster(self, api: Api) -> None:
        mark = f"mark{next(NUMBERS)}"
        for cluster in CLUSTERS:
            for _ in range(2):
                obj = config_map(cluster=cluster)
                obj["metadata"]["labels"]["mark"] = mark
                api.good("POST", CONFIG_MAPS, obj)
        selector = quote(f"mark={mark}")
        deleted = api.good("DELETE", f"{CONFIG_MAPS}?labelSelector={selector},{LABEL}=east")
        assert [cluster_of(item) for item in deleted["items"]] == ["east", "east"]
        left = api.good("GET", f"{CONFIG_MAPS}?labelSelector={selector}&resourceVersion=0")
        assert [cluster_of(item) for item in left["items"]] == ["west", "west"]
        deleted = api.good("DELETE", f"{CONFIG_MAPS}?labelSelector={selector}")
        assert [cluster_of(item) for item in deleted["items"]] == ["west", "west"]
        assert api.good("GET", f"{CONFIG_MAPS}?labelSelector={selector}&resourceVersion=0")["items"] == []


def test_what_two_clusters_have_needs_a_choice(api: Api) -> None:
    name = f"twice-{next(NUMBERS)}"
    for cluster in CLUSTERS:
        api.good("POST", f"/clusters/{cluster}{CONFIG_MAPS}", config_map(name))
    # A write goes to where the cache has the object: a list of now waits until it has both.
    assert len(api.good("GET", f"{CONFIG_MAPS}?fieldSelector=metadata.name={name}")["items"]) == 2
    target = f"{CONFIG_MAPS}/{name}"
    answer = api("PATCH", target, {"data": {"key": "two"}}, MERGE)
    assert answer.status == 409
    assert "east, west" in answer.json["message"]
    patch = {"metadata": {"labels": {LABEL: "west"}}, "data": {"key": "two"}}
    for media_type in (MERGE, STRATEGIC):  # a client works it out from what it has read, which may be the other object
        assert api("PATCH", target, patch, media_type).status == 409
    applied = {**config_map(name, "west"), "data": {"key": "two"}}
    assert cluster_of(api.good("PATCH", f"{target}?fieldManager=me&force=true", applied, APPLY)) == "west"
    assert [api.good("GET", f"/clusters/{each}{target}")["data"]["key"] for each in CLUSTERS] == ["one", "two"]
    assert api("DELETE", target).status == 409
    for cluster in CLUSTERS:
        api.good("DELETE", f"/apis/cluster.karmada.io/v1alpha1/clusters/{cluster}/proxy{target}")
    assert api("GET", target).status == 404


class TestSubresources:
    def test_a_scale_that_was_read_is_put_back(self, api: Api) -> None:
        labels = {"app": f"scaled-{next(NUMBERS)}"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": labels["app"], "labels": {LABEL: "west"}},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        }
        api.good("POST", "/apis/apps/v1/namespaces/demo/deployments", deployment)
        target = f"/apis/apps/v1/namespaces/demo/deployments/{labels['app']}"
        for replicas in (2, 0):
            scale = api.good("GET", target + "/scale")
            scale["spec"]["replicas"] = replicas
            written = api("PUT", target + "/scale", scale)
            if written.status == 409:  # its controller was faster
                scale["metadata"]["resourceVersion"] = ""
                written = api("PUT", target + "/scale", scale)
            assert written.json["kind"] == "Scale"
            assert written.json["spec"]["replicas"] == replicas
            assert api.good("GET", target + "?resourceVersion=0")["spec"]["replicas"] == replicas
        api.good("DELETE", target, {"propagationPolicy": "Background"})

    def test_status(self, api: Api, made: dict[str, Any]) -> None:
        answer = api("PUT", path_of(made) + "/status", made)
        assert answer.status == 404  # as a cluster has it: a ConfigMap has none

    def test_an_eviction(self, api: Api) -> None:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"evicted-{next(NUMBERS)}", "labels": {LABEL: "west"}},
            "spec": {"containers": [{"name": "a", "image": "a"}], "terminationGracePeriodSeconds": 0},
        }
        made = api.good("POST", "/api/v1/namespaces/demo/pods", pod)
        target = f"/api/v1/namespaces/demo/pods/{made['metadata']['name']}"
        # Once it runs nothing changes it any more, and so its version stays what is read here.
        wait_until("it runs", lambda: api.good("GET", target).get("status", {}).get("phase") == "Running")
        options = {"preconditions": {"resourceVersion": version_of(api.good("GET", target))}}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": made["metadata"]["name"]}}
        api.good("POST", target + "/eviction", {**eviction, "deleteOptions": options})
        seen = api("GET", target + "?resourceVersion=0")
        assert seen.status == 404 or "deletionTimestamp" in seen.json["metadata"]


class TestIdentity:
    """The credentials of the proxy are never used where the user's rights are meant."""

    def test_members_see_the_user_in_every_request(self, fleet: AggregateEnvironment, made: dict[str, Any]) -> None:
        marks = {name: fleet.control(name).mark() for name in CLUSTERS}
        editor = Api(fleet, "nobody")
        refused = editor("PATCH", path_of(made), {"data": {"key": "stolen"}}, MERGE)
        assert refused.status == 403
        assert 'User "nobody" cannot patch resource "configmaps"' in refused.json["message"]
        assert own(Api(fleet), made)["data"] == made["data"]
        owner = cluster_of(made)
        # It is asked whether it would allow the patch, and does not get it.
        assert fleet.control(owner).audit(marks[owner], path=path_of(made), method="PATCH") == []
        for name in CLUSTERS:
            for record in fleet.control(name).audit(marks[name], path=path_of(made)):
                assert header_values(record, "impersonate-user") in (["nobody"], ["admin"])

    def test_what_exists_and_what_does_not_are_refused_alike(
        self, fleet: AggregateEnvironment, made: dict[str, Any]
    ) -> None:
        nobody = Api(fleet, "nobody")
        absent = {"metadata": {"name": "x" * len(made["metadata"]["name"])}}
        answers = [nobody("DELETE", path_of(obj)) for obj in (made, absent)]
        texts = [answer.body.replace(made["metadata"]["name"].encode(), b"?") for answer in answers]
        assert answers[0].status == answers[1].status == 403
        assert texts[0] == texts[1].replace(absent["metadata"]["name"].encode(), b"?")

    def test_a_client_cannot_name_another_user_to_a_member(
        self, fleet: AggregateEnvironment, made: dict[str, Any]
    ) -> None:
        headers = [
            ("Authorization", "Bearer nobody"),
            ("X-Remote-User", "admin"),
            ("X-Remote-Group", "system:masters"),
            ("Content-Type", MERGE),
        ]
        body = json.dumps({"data": {"key": "stolen"}}).encode()
        answer = ask(fleet.address, path_of(made), method="PATCH", headers=headers, body=body)
        assert answer.status == 403


class TestReviews:
    def test_who_am_i(self, fleet: AggregateEnvironment) -> None:
        answer = Api(fleet, "editor")("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
        assert answer.status == 201
        assert answer.json["status"]["userInfo"]["username"] == "editor"
        assert "shop-editors" in answer.json["status"]["userInfo"]["groups"]

    @pytest.mark.parametrize(("user", "allowed"), [("admin", True), ("nobody", False)])
    def test_can_i(self, fleet: AggregateEnvironment, user: str, allowed: bool) -> None:
        spec = {"resourceAttributes": {"namespace": "demo", "verb": "delete", "resource": "configmaps"}}
        target = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        assert Api(fleet, user).good("POST", target, {"spec": spec})["status"]["allowed"] is allowed

    def test_rules(self, fleet: AggregateEnvironment) -> None:
        target = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        rules = Api(fleet).good("POST", target, {"spec": {"namespace": "demo"}})["status"]["resourceRules"]
        assert any("*" in rule["verbs"] and "*" in rule["resources"] for rule in rules)
        assert len({json.dumps(rule, sort_keys=True) for rule in rules}) == len(rules)


def test_karmadas_path_for_all_clusters(api: Api) -> None:
    prefix = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy"
    obj = api.good("POST", prefix + CONFIG_MAPS, config_map(cluster="east"))
    assert api.good("GET", prefix + path_of(obj))["metadata"]["uid"] == obj["metadata"]["uid"]
    api.good("DELETE", prefix + path_of(obj))


def test_who_takes_yaml_alone_gets_the_same_answer(api: Api, made: dict[str, Any]) -> None:
    answer = api("PUT", path_of(made), {**made, "data": {"key": "two"}}, accept="application/yaml")
    assert answer.header("content-type") == "application/yaml"
    written = yaml.safe_load(answer.body)
    assert written["metadata"]["labels"] == made["metadata"]["labels"]
    same = api("PUT", path_of(made), written)  # changes nothing: the version is a get's
    assert same.json["metadata"]["resourceVersion"] == api.good("GET", path_of(made))["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", f"{CONFIG_MAPS}/absent", None),
        ("DELETE", f"{CONFIG_MAPS}/absent", None),
        ("PUT", f"{CONFIG_MAPS}/absent", {"metadata": {"name": "absent"}}),
        ("POST", CONFIG_MAPS, {"metadata": {"name": "no-cluster"}}),
        ("GET", f"{CONFIG_MAPS}?labelSelector=a+in+b", None),
        ("GET", f"{CONFIG_MAPS}?watch=1", None),
        ("GET", f"{CONFIG_MAPS}?timeout=abc", None),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", b"{"),
    ],
)
def test_refusals_are_in_yaml_too(api: Api, method: str, target: str, body: Any) -> None:
    """As recorded of a kube-apiserver (watch/cm-yaml.json)."""
    answer = api(method, target, body, accept="application/yaml")
    assert answer.header("content-type") == "application/yaml"
    assert yaml.safe_load(answer.body)["code"] == answer.status
    for accept in () if "watch" in target else ("application/yaml;q=0.5,application/json", "*/*"):
        assert api(method, target, body, accept=accept).header("content-type") == "application/json"


@pytest.mark.parametrize("accept", ["text/html", "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io"])
def test_a_media_type_that_cannot_be_made_is_406_and_nothing_is_done(
    api: Api, made: dict[str, Any], accept: str
) -> None:
    assert api("DELETE", path_of(made), accept=accept).status == 406
    assert api.good("GET", path_of(made))


def test_a_body_of_more_than_3_mib_is_413(api: Api, made: dict[str, Any]) -> None:
    answer = api("PUT", path_of(made), b'{"data":{"a":"' + b"x" * (3 * 1024 * 1024) + b'"}}')
    assert (answer.status, answer.json["message"]) == (413, "Request entity too large: limit is 3145728")


def test_reads_never_show_the_past(api: Api, made: dict[str, Any]) -> None:
    """`kubectl apply && kubectl get`, from the caches alone."""
    for number in range(30):
        written = api.good("PATCH", path_of(made), {"data": {"n": str(number)}}, MERGE)
        seen = api.good("GET", path_of(made) + "?resourceVersion=0")
        assert seen["data"]["n"] == str(number)
        assert not newer(version_of(seen), version_of(written))


class TestWhatCannotBeWatched:
    """componentstatuses has neither watch nor versions: each request asks both clusters."""

    @pytest.fixture
    def statuses(self, fleet: AggregateEnvironment, api: Api) -> str:
        for name in CLUSTERS:
            if api("GET", f"/clusters/{name}/api/v1/componentstatuses/only-{name}").status == 404:
                own = [
                    {"apiVersion": "v1", "kind": "ComponentStatus", "metadata": {"name": each}}
                    for each in ("etcd-0", f"only-{name}")
                ]
                fleet.control(name).create(own)
        return "/api/v1/componentstatuses"

    def test_the_list_is_that_of_all(self, api: Api, statuses: str) -> None:
        found = api.good("GET", statuses)
        assert (found["kind"], found["apiVersion"]) == ("ComponentStatusList", "v1")
        names = [(item["metadata"]["name"], cluster_of(item)) for item in found["items"]]
        assert names == [("etcd-0", "east"), ("only-east", "east"), ("etcd-0", "west"), ("only-west", "west")]

    def test_by_cluster_and_as_a_table(self, api: Api, statuses: str) -> None:
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
        table = api("GET", f"{statuses}?labelSelector={LABEL}%3Dwest", accept=accept).json
        assert table["kind"] == "Table"
        assert [row["cells"][0] for row in table["rows"]] == ["etcd-0", "only-west"]
        assert {cluster_of(row["object"]) for row in table["rows"]} == {"west"}

    def test_one_of_them(self, api: Api, statuses: str) -> None:
        assert cluster_of(api.good("GET", f"{statuses}/only-west")) == "west"
        answer = api("GET", f"{statuses}/etcd-0")
        assert cluster_of(answer.json) == "east"
        assert "is also in: west" in answer.header("Warning")
        assert api("GET", f"{statuses}/absent").status == 404

    def test_who_may_not_is_refused(self, fleet: AggregateEnvironment, statuses: str) -> None:
        assert Api(fleet, "nobody")("GET", statuses).status == 403

    def test_a_write_is_405(self, api: Api, statuses: str) -> None:
        assert api("DELETE", statuses).status == 405
        assert api("POST", statuses, {"metadata": {"name": "x"}}).status == 405


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregateEnvironment]:
    """An aggregate whose cluster west takes connections and says nothing, with an object in east."""
    environment = AggregateEnvironment(tmp_path_factory.mktemp("silent"))
    try:
        environment.start()
        api = Api(environment)
        api.good("POST", CONFIG_MAPS, config_map("here", "east"))
        api.good("POST", CONFIG_MAPS, config_map("there", "west"))
        environment.control("east").create(
            [{"apiVersion": "v1", "kind": "ComponentStatus", "metadata": {"name": "etcd-0"}}]
        )
        environment.control("west").hang_endpoint()
        yield environment
    finally:
        environment.stop()


SOON = 25.0
"""Seconds: less than the client's patience, and several times what the daemon gives a member that is silent."""


class TestASilentMember:
    """Elsewhere one member that did not answer held up requests to all."""

    @pytest.mark.slow
    def test_a_write_to_another_is_not_held_up(self, halved: AggregateEnvironment) -> None:
        took = []
        for value in "abcde":  # one that is held up is so each time; a busy machine delays some
            begun = time.monotonic()
            Api(halved).good("PATCH", CONFIG_MAPS + "/here", {"data": {"a": value}}, MERGE)
            took.append(time.monotonic() - begun)
        assert min(took) < 2.0

    def test_what_it_alone_may_have_is_503_soon(self, halved: AggregateEnvironment) -> None:
        """A controller takes 404 for "gone"."""
        begun = time.monotonic()
        answer = Api(halved)("DELETE", CONFIG_MAPS + "/absent")
        assert answer.status == 503
        assert "cluster west" in answer.json["message"]
        assert answer.header("Retry-After")
        assert time.monotonic() - begun < SOON

    def test_a_write_to_it_fails_and_says_why(self, halved: AggregateEnvironment) -> None:
        answer = Api(halved)("PATCH", CONFIG_MAPS + "/there?timeout=3s", {"data": {"a": "b"}}, MERGE)
        assert answer.status in (503, 504)
        assert "west" in answer.json["message"]

    @pytest.mark.slow
    def test_a_fan_out_shows_the_others(self, halved: AggregateEnvironment) -> None:
        answer = Api(halved)("GET", "/api/v1/componentstatuses")
        assert [cluster_of(item) for item in answer.json["items"]] == ["east"]
        assert "cluster west: its objects are left out" in answer.header("Warning")

    def test_a_collection_is_said_not_to_be_deleted_everywhere(self, halved: AggregateEnvironment) -> None:
        answer = Api(halved)("DELETE", CONFIG_MAPS + "?labelSelector=none%3Dnone&timeout=3s")
        assert answer.status == 500
        east, west = answer.json["details"]["causes"]
        assert (east["reason"], west["message"].partition(":")[0]) == ("Success", "cluster west")

    def test_reviews_are_answered(self, halved: AggregateEnvironment) -> None:
        begun = time.monotonic()
        spec = {"resourceAttributes": {"namespace": "demo", "verb": "delete", "resource": "configmaps"}}
        target = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        assert Api(halved).good("POST", target, {"spec": spec})["status"]["allowed"] is True
        assert time.monotonic() - begun < SOON
