"""The resource versions that an aggregate of two members answers with: 128 bits everywhere, as Kubernetes' conformance
specs demand of every object, and what they are good for over reloads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.aggregate.resource_version.comparison import compare
from tests.e2e.aggregate_environment import AggregateEnvironment
from tests.e2e.http_client import Answer, ask
from tests.e2e.processes import wait_until
from tests.e2e.test_aggregate_members import CLUSTER, MAPS, TABLE, Watch, config_map, deployment, get, objects, of

PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
WATCH_LIST = (
    "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=300"
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregateEnvironment]:
    # Controllers write on while a test goes on: a version from before a member left is too old once they did.
    options = ("--no-controllers",)
    environment = AggregateEnvironment(Path(tmp_path_factory.mktemp("versions")), options=options)
    try:
        yield environment.start()
    finally:
        environment.stop()


@pytest.fixture
def fleet(environment: AggregateEnvironment) -> Iterator[AggregateEnvironment]:
    """Two members, in the order and with the settings that a test begins with; it may leave others."""
    clusters, members, aggregate = dict(environment.clusters), environment.members, environment.aggregate
    yield environment
    environment.clusters, environment.members, environment.aggregate = clusters, members, aggregate
    if environment.daemon.file.read_text() != environment.config():
        environment.reload()


def send(
    fleet: AggregateEnvironment,
    method: str,
    target: str,
    body: Any = None,
    *,
    kind: str = "application/json",
    accept: str = "application/json",
) -> Answer:
    head = [("Authorization", "Bearer admin"), ("Accept", accept), ("Content-Type", kind)]
    return ask(
        fleet.address, target, method=method, headers=head, body=None if body is None else json.dumps(body).encode()
    )


def versions(document: Any) -> Iterator[str]:
    """Yield every version of an object or list in a document."""
    if isinstance(document, dict):
        metadata = document.get("metadata")
        if isinstance(metadata, dict) and metadata.get("resourceVersion"):
            yield metadata["resourceVersion"]
        for key, value in document.items():
            if key != "managedFields":
                yield from versions(value)
    elif isinstance(document, list):
        for item in document:
            yield from versions(item)


def check(document: Any, least: int = 1) -> None:
    found = list(versions(document))
    assert len(found) >= least, document
    assert [
        text for text in found if not (text.isdecimal() and len(text) == 39 and int(text).bit_length() == 128)
    ] == []


def written_back(fleet: AggregateEnvironment, target: str) -> Answer:
    """Write what is there now, which a controller of the cluster may change meanwhile."""
    for _ in range(20):
        answer = send(fleet, "PUT", target, get(fleet, target).json)
        if answer.status != 409:
            break
    return answer


def labelled(name: str, cluster: str) -> dict[str, Any]:
    made = config_map(name)
    made["metadata"]["labels"] = {CLUSTER: cluster}
    return made


def test_every_answer_has_versions_of_128_bits(fleet: AggregateEnvironment) -> None:
    for target in (MAPS, "/api/v1/pods", "/apis/apps/v1/deployments", "/api/v1/namespaces"):
        check(get(fleet, target).json, 3)
        check(get(fleet, f"{target}?limit=1").json, 2)
        check(get(fleet, target, accept=TABLE).json, 3)
        check(get(fleet, f"{target}?includeObject=Object", accept=TABLE).json, 3)
        check(get(fleet, target, accept=PARTIAL_LIST).json, 3)
    created = send(fleet, "POST", MAPS, labelled("bits", "west"))
    assert created.status == 201
    check(created.json)
    one = f"{MAPS}/bits"
    for accept in ("application/json", TABLE, PARTIAL):
        check(get(fleet, one, accept=accept).json)
    check(send(fleet, "PUT", one, created.json).json)
    for kind in ("application/merge-patch+json", "application/strategic-merge-patch+json"):
        check(send(fleet, "PATCH", one, {"data": {"a": kind}}, kind=kind).json)
        check(send(fleet, "PATCH", f"{one}?dryRun=All", {"data": {"b": kind}}, kind=kind).json)
        check(send(fleet, "PATCH", one, {"data": {"c": kind}}, kind=kind, accept=TABLE).json)
        check(send(fleet, "PATCH", one, {"data": {"d": kind}}, kind=kind, accept=PARTIAL).json)
    apply = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bits"}, "data": {"e": "1"}}
    check(send(fleet, "PATCH", f"{one}?fieldManager=t&force=true", apply, kind="application/apply-patch+yaml").json)
    send(fleet, "PATCH", one, {"metadata": {"finalizers": ["a.b/c"]}}, kind="application/merge-patch+json")
    check(send(fleet, "DELETE", one).json)
    send(fleet, "PATCH", one, {"metadata": {"finalizers": None}}, kind="application/merge-patch+json")
    assert send(fleet, "POST", DEPLOYMENTS, deployment("bits")).status == 201
    scale = f"{DEPLOYMENTS}/bits/scale"
    check(get(fleet, scale).json)
    check(written_back(fleet, scale).json)
    check(get(fleet, f"{DEPLOYMENTS}/bits/status").json)
    for number, cluster in enumerate(("east", "west")):
        made = labelled(f"gone-{number}", cluster)
        made["metadata"]["labels"]["gone"] = "yes"
        assert send(fleet, "POST", MAPS, made).status == 201
    check(send(fleet, "DELETE", f"{MAPS}?labelSelector=gone%3Dyes&dryRun=All").json, 3)
    check(send(fleet, "DELETE", f"{MAPS}?labelSelector=gone%3Dyes", accept=TABLE).json, 1)


@pytest.mark.slow
def test_every_event_has_a_version_of_128_bits_and_its_object_can_be_written_back(fleet: AggregateEnvironment) -> None:
    for number in range(3):
        for cluster in ("east", "west"):
            assert send(fleet, "POST", MAPS, labelled(f"{cluster}-{number}", cluster)).status == 201
    for form, query in (("Number", WATCH_LIST), ("Karmada", WATCH_LIST), ("Number", "watch=1&timeoutSeconds=300")):
        fleet.aggregate = f"resourceVersions: {form}"
        fleet.reload()
        write_back(fleet, form, query, check if form == "Number" else lambda document, least: None)
    fleet.aggregate = ""
    fleet.reload()


def write_back(fleet: AggregateEnvironment, form: str, query: str, check: Callable[[Any, int], None]) -> None:
    """Write back what a watch begins with, then the events of that."""
    with Watch(fleet, f"{MAPS}?{query}") as watch:
        count = len(objects(get(fleet, MAPS)))
        watch.wait_for(lambda: len(watch.raw) >= count + ("send" in query))
        check(watch.raw, count)
        for event in watch.raw[:count]:
            obj = {**event["object"], "data": {form: query}}
            written = send(fleet, "PUT", f"{MAPS}/{obj['metadata']['name']}", obj)
            assert written.status == 200, written.body
        watch.wait_for(lambda: len(watch.events) >= 2 * count)
        check(watch.raw, 2 * count)
        events = [event for event in watch.raw if event["type"] == "MODIFIED"]
        for event in events[-count:]:
            obj = event["object"]
            assert send(fleet, "PUT", f"{MAPS}/{obj['metadata']['name']}", obj).status == 200


def test_a_plain_number_and_zeros(fleet: AggregateEnvironment) -> None:
    assert get(fleet, f"{MAPS}?resourceVersion=00").status == 200
    assert get(fleet, f"{MAPS}?resourceVersion=1").status == 410
    name = "plain"
    assert send(fleet, "POST", MAPS, labelled(name, "west")).status == 201
    plain = get(fleet, f"/clusters/west{MAPS}/{name}").json["metadata"]["resourceVersion"]
    assert get(fleet, f"{MAPS}/{name}?resourceVersion={plain}").status == 200
    assert get(fleet, f"{MAPS}?resourceVersion={plain}&fieldSelector=metadata.name%3D{name}").status == 200
    assert get(fleet, f"{MAPS}?resourceVersion={plain}").status == 410


def test_a_former_member_keeps_its_place(fleet: AggregateEnvironment) -> None:
    before = objects(get(fleet, MAPS))
    name = min(of("east", before))
    old = get(fleet, f"{MAPS}/{name}").json["metadata"]["resourceVersion"]
    whole = get(fleet, MAPS).json["metadata"]["resourceVersion"]
    west = fleet.clusters["west"]
    try:
        with Watch(fleet, f"{MAPS}?watch=1&resourceVersion={whole}") as watch:
            fleet.aggregate = "formerMembers: [west]"
            del fleet.clusters["west"]
            fleet.reload()
            watch.wait_for(lambda: len(watch.events) == len(of("west", before)))
            assert {kind for kind, _, _ in watch.events} == {"DELETED"}
            assert objects(get(fleet, MAPS)) == {("east", name) for name in of("east", before)}
            check(get(fleet, MAPS).json)
            assert get(fleet, f"{MAPS}?watch=1&resourceVersion={whole}").status == 410
            patch = {"data": {"former": uuid4().hex}}
            assert send(fleet, "PATCH", f"{MAPS}/{name}", patch, kind="application/merge-patch+json").status == 200
            watch.wait_for(lambda: watch.events[-1] == ("MODIFIED", "east", name))
            check(watch.raw, 2)
            wait_until("newer", lambda: get(fleet, f"{MAPS}/{name}").json["metadata"]["resourceVersion"] != old)
            assert compare(old, get(fleet, f"{MAPS}/{name}").json["metadata"]["resourceVersion"]) == -1
    finally:
        fleet.clusters["west"] = west
    fleet.aggregate = ""
    fleet.reload()
    wait_until("back", lambda: of("west", objects(get(fleet, MAPS))) == of("west", before))
    assert get(fleet, f"{MAPS}?watch=1&resourceVersion={whole}&timeoutSeconds=1").status == 200


def test_a_reload_that_takes_a_member_out_warns(fleet: AggregateEnvironment) -> None:
    fleet.members = ("west", "east")
    fleet.daemon.file.write_text(fleet.config())
    done = fleet.daemon.reload()
    assert done.returncode == 0
    assert "a reload would change the places of members in resource versions (east, west)" in done.stderr
