"""The APIService objects of a server over the wire: over the backend's own, as the client, read-only."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mcproxy.config import model
from tests.proxy.harness import NAME, Harness, Upstream, UpstreamEnd, always, cluster, config, get

PATH = b"/apis/apiregistration.k8s.io/v1/apiservices"
OURS = b"v1.zoo.io"
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
TABLE = b"Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
Answer = tuple[int, Any]


def api_service(name: str, version: str = "5") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}, "spec": {}}


def listed(*names: str) -> dict[str, Any]:
    items = [api_service(name) for name in names]
    return {
        "kind": "APIServiceList",
        "apiVersion": "apiregistration.k8s.io/v1",
        "metadata": {"resourceVersion": "77"},
        "items": items,
    }


def refusal(code: int, reason: str) -> Answer:
    return code, {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "of the backend",
        "reason": reason,
        "code": code,
    }


FORBIDDEN, MISSING = refusal(403, "Forbidden"), refusal(404, "NotFound")


class Backend:
    """A kube-apiserver that answers by path, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {PATH.decode(): (200, listed("v1.", "v1.apps"))}
        self.asked: list[tuple[str, str, str]] = []  # method, target, Accept; not what the proxy asks for itself

    def __call__(self, end: UpstreamEnd) -> None:
        while True:
            head, separator, rest = end.received.partition(b"\r\n\r\n")
            lines = head.decode().split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            size = int(fields.get("content-length", "0"))
            if not separator or len(rest) < size:
                return
            end.received = rest[size:]
            method, target, _ = lines[0].split(" ")
            if "x-forwarded-for" in fields:
                self.asked.append((method, target, fields.get("accept", "")))
            code, body = self.answers.get(target.partition("?")[0], MISSING)
            text = json.dumps(body).encode()
            end.send(
                b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (code, len(text), b"" if method == "HEAD" else text)
            )


async def served(harness: Harness) -> Backend:
    backend = Backend()
    core, zoo = harness.upstream(), harness.upstream()
    core.reply, zoo.reply = backend, always(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    core.has_reviews = True
    await serve(harness, core, zoo)
    known = harness.service._availability.known
    await harness.until(lambda: all(condition.status == "True" for _, condition in known.all()), "the probe")
    await answer(harness, get(b"/version"))  # else the harness answers reviews on a new connection itself
    backend.asked.clear()
    return backend


async def serve(harness: Harness, core: Upstream, zoo: Upstream) -> None:
    server = model.Server(
        name="main",
        listeners=("tls",),
        server_names=(NAME,),
        backend=model.ClusterBackend("east"),
        api_services=(model.APIService(group="zoo.io", version="v1", cluster="zoo", authority="east"),),
    )
    await harness.serve(config([cluster(core.endpoint()), cluster(zoo.endpoint(), name="zoo")], (server,)))


async def answer(harness: Harness, raw: bytes) -> tuple[int, dict[str, str], Any]:
    client = await harness.asks(raw)
    await harness.until(lambda: b"\r\n\r\n" in client.received, "the answer")
    status, fields, body = client.answer()
    return status, fields, json.loads(body)


def names(found: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in found["items"]]


async def test_a_list_has_the_backends_objects_and_ours(harness: Harness) -> None:
    backend = await served(harness)
    status, fields, found = await answer(harness, get(PATH + b"?limit=500&labelSelector="))
    assert (status, fields["content-type"]) == (200, "application/json")
    assert names(found) == ["v1.", "v1.apps", "v1.zoo.io"]
    assert found["metadata"]["resourceVersion"] == "77"
    assert found["items"][2]["status"]["conditions"][0]["reason"] == "Passed"
    assert backend.asked == [("GET", PATH.decode() + "?labelSelector=", "application/json")]


async def test_ours_hides_an_object_of_its_name(harness: Harness) -> None:
    backend = await served(harness)
    backend.answers[PATH.decode()] = 200, listed("v1.zoo.io")
    _, _, found = await answer(harness, get(PATH))
    assert [item["metadata"].get("labels") for item in found["items"]] == [{"app.kubernetes.io/managed-by": "mcproxy"}]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"?fieldSelector=metadata.name%3Dv1.zoo.io", True),
        (b"?fieldSelector=metadata.name%3Dv1.apps", False),
        (b"?fieldSelector=metadata.name!%3Dv1.apps", True),
        (b"?labelSelector=app.kubernetes.io/managed-by%3Dmcproxy", True),
        (b"?labelSelector=a%3Db", False),
    ],
)
async def test_selectors_select_ours_too(harness: Harness, query: bytes, expected: bool) -> None:
    backend = await served(harness)
    backend.answers[PATH.decode()] = 200, listed()
    _, _, found = await answer(harness, get(PATH + query))
    assert names(found) == (["v1.zoo.io"] if expected else [])


async def test_a_table_is_asked_for_and_given(harness: Harness) -> None:
    backend = await served(harness)
    table = {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "77"},
        "columnDefinitions": [{"name": name, "type": "string"} for name in ("Name", "Service", "Available", "Age")],
        "rows": [{"cells": ["v1.", "Local", "True", "3d"], "object": {"metadata": {"name": "v1."}}}],
    }
    backend.answers[PATH.decode()] = 200, table
    _, _, found = await answer(harness, get(PATH, TABLE))
    assert [row["cells"][:3] for row in found["rows"]] == [
        ["v1.", "Local", "True"],
        ["v1.zoo.io", "mcproxy/zoo", "True"],
    ]
    assert backend.asked[-1][2] == "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize("target", [PATH, PATH + b"/" + OURS, PATH + b"/" + OURS + b"/status", PATH + b"/v1.apps"])
async def test_a_refusal_of_the_backend_is_the_answer(harness: Harness, target: bytes) -> None:
    backend = await served(harness)
    backend.answers = {target.decode(): FORBIDDEN}
    status, _, found = await answer(harness, get(target))
    assert (status, found) == FORBIDDEN


@pytest.mark.parametrize("below", [b"", b"/status"])
async def test_one_of_ours(harness: Harness, below: bytes) -> None:
    backend = await served(harness)
    status, _, found = await answer(harness, get(PATH + b"/" + OURS + below))
    assert (status, found["kind"], found["metadata"]["name"]) == (200, "APIService", "v1.zoo.io")
    assert found["metadata"]["resourceVersion"] == "77"  # from which the backend can be watched
    backend.answers[(PATH + b"/" + OURS + below).decode()] = 200, api_service("v1.zoo.io", "6")
    _, _, found = await answer(harness, get(PATH + b"/" + OURS + below))
    assert found["metadata"]["resourceVersion"] == "6"
    assert found["metadata"]["labels"]


async def test_ours_alone_where_the_backend_has_no_such_resource(harness: Harness) -> None:
    backend = await served(harness)
    backend.answers = {}
    _, _, found = await answer(harness, get(PATH))
    assert names(found) == ["v1.zoo.io"]
    status, _, one = await answer(harness, get(PATH + b"/" + OURS))
    assert (status, one["metadata"]["name"]) == (200, "v1.zoo.io")
    assert int(one["metadata"]["resourceVersion"]) > 0


async def test_an_object_of_the_backend_alone_passes_as_it_is(harness: Harness) -> None:
    backend = await served(harness)
    protobuf = b"Accept: application/vnd.kubernetes.protobuf"
    backend.answers[(PATH + b"/v1.apps").decode()] = 200, api_service("v1.apps")
    status, _, found = await answer(harness, get(PATH + b"/v1.apps", protobuf))
    assert (status, found) == (200, api_service("v1.apps"))
    assert backend.asked[-1][2] == "application/vnd.kubernetes.protobuf"


@pytest.mark.parametrize("below", [b"", b"?watch=1&resourceVersion=77", b"/v1.zoo.io"])
async def test_head_is_the_backends_to_refuse_whatever_the_name(harness: Harness, below: bytes) -> None:
    backend = await served(harness)
    backend.answers[(PATH + below.partition(b"?")[0]).decode()] = 405, None
    client = await harness.asks(get(PATH + below).replace(b"GET", b"HEAD", 1))
    await harness.until(lambda: b"\r\n\r\n" in client.received, "the answer")
    head, _, body = client.received.partition(b"\r\n\r\n")
    assert (head.split()[1], body) == (b"405", b"")
    assert [method for method, _, _ in backend.asked] == ["HEAD"]


async def test_protobuf_falls_back_to_json_if_the_client_takes_it(harness: Harness) -> None:
    await served(harness)
    status, _, _ = await answer(harness, get(PATH, b"Accept: application/vnd.kubernetes.protobuf,application/json"))
    assert status == 200
    status, _, found = await answer(harness, get(PATH, b"Accept: application/vnd.kubernetes.protobuf"))
    assert (status, found["reason"]) == (406, "NotAcceptable")


@pytest.mark.parametrize("method", [b"PUT", b"PATCH", b"DELETE"])
async def test_a_write_to_one_of_ours_says_where_it_is_from(harness: Harness, method: bytes) -> None:
    backend = await served(harness)
    backend.answers[REVIEW] = 201, {"kind": "SelfSubjectAccessReview", "status": {"allowed": True}}
    status, _, found = await answer(harness, get(PATH + b"/" + OURS, b"Content-Length: 9999999", method=method))
    assert (status, found["reason"]) == (405, "MethodNotAllowed")
    assert "apiServices of server main" in found["message"]
    assert backend.asked[-1][:2] == ("POST", REVIEW)


async def test_who_may_not_write_is_refused_in_the_words_for_any_name(harness: Harness) -> None:
    backend = await served(harness)
    backend.answers[REVIEW] = 201, {"status": {"allowed": False, "reason": "no role"}}
    status, _, found = await answer(harness, get(PATH + b"/" + OURS, method=b"DELETE"))
    assert status == 403
    assert found["message"].startswith('apiservices.apiregistration.k8s.io "v1.zoo.io" is forbidden: User ')
    backend.answers[REVIEW] = FORBIDDEN
    assert (await answer(harness, get(PATH + b"/" + OURS, method=b"DELETE")))[0] == 503


async def test_writes_to_the_backends_objects_pass(harness: Harness) -> None:
    backend = await served(harness)
    backend.answers[(PATH + b"/v1.apps").decode()] = 200, {"kind": "Status", "status": "Success"}
    status, _, _ = await answer(harness, get(PATH + b"/v1.apps", method=b"DELETE"))
    assert status == 200
    assert backend.asked[-1][:2] == ("DELETE", PATH.decode() + "/v1.apps")


@pytest.mark.parametrize("body", [[], {"kind": "x"}, {"kind": "Table", "metadata": {}, "rows": [{"cells": []}]}])
async def test_a_backend_that_sends_rubbish(harness: Harness, body: Any) -> None:
    backend = await served(harness)
    backend.answers[PATH.decode()] = 200, body
    assert (await answer(harness, get(PATH)))[0] == 502


async def test_the_clients_end_ends_the_request_to_the_backend(harness: Harness) -> None:
    backend = await served(harness)
    asked = len(backend.asked)
    hold: list[UpstreamEnd] = []
    silent: Callable[[UpstreamEnd], None] = hold.append
    for upstream in harness._upstreams[:1]:
        upstream.reply = silent
    client = await harness.asks(get(PATH))
    await harness.until(lambda: hold, "the request")
    client.abort()
    await harness.until(lambda: not harness.service.requests, "its end")
    assert len(backend.asked) == asked
