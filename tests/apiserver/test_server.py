"""The API server itself, asked as the front proxy, as others, and with tokens."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver.process import APIServerProcess
from tests.e2e.http_client import Address, Answer, Client, ask

GROUP = "things.example.com"
ALICE = [("X-Remote-User", "alice"), ("X-Remote-Group", "dev"), ("X-Remote-Group", "ops"), ("X-Remote-Uid", "u-1")]
WIDGETS = f"/apis/{GROUP}/v1alpha1/namespaces/demo/widgets"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[APIServerProcess]:
    with APIServerProcess(GROUP, tmp_path_factory.mktemp("apiserver")) as server:
        yield server


def address(server: APIServerProcess, pair: tuple[Path, Path] | None) -> Address:
    context = ssl.create_default_context(cafile=str(server.ca))
    if pair is not None:
        context.load_cert_chain(*pair)
    return Address(server.port, context)


def asked(server: APIServerProcess, path: str, method: str = "GET", body: object = None) -> Answer:
    data = None if body is None else json.dumps(body).encode()
    headers = [*ALICE, ("X-Remote-Extra-Example.com%2Fscope", "a"), ("Content-Type", "application/merge-patch+json")]
    return ask(address(server, server.front_proxy), path, method=method, headers=headers, body=data)


def test_the_front_proxy_names_the_user(server: APIServerProcess) -> None:
    server.forget()
    assert asked(server, f"/apis/{GROUP}/v1alpha1").json["resources"][0]["kind"] == "Widget"
    (seen,) = server.seen()
    assert seen["user"] == {
        "name": "alice",
        "uid": "u-1",
        "groups": ["dev", "ops"],
        "extra": {"example.com/scope": ["a"]},
        "by": "front proxy",
    }


def test_headers_of_anybody_else_are_ignored(server: APIServerProcess) -> None:
    for pair in (None, server.other_proxy):
        assert ask(address(server, pair), "/apis", headers=ALICE).status == 401
    assert ask(address(server, None), "/readyz").status == 200


def test_objects_are_made_changed_watched_and_deleted(server: APIServerProcess) -> None:
    made = asked(server, WIDGETS, "POST", {"metadata": {"name": "a"}, "spec": {"size": 1}})
    assert (made.status, made.json["kind"], made.json["metadata"]["namespace"]) == (201, "Widget", "demo")
    assert asked(server, WIDGETS, "POST", {"metadata": {"name": "a"}}).json["reason"] == "AlreadyExists"
    since = asked(server, WIDGETS).json["metadata"]["resourceVersion"]
    assert asked(server, f"{WIDGETS}/a", "PATCH", {"spec": {"size": 2}}).json["spec"] == {"size": 2}
    with Client(address(server, server.front_proxy)) as client:
        response = client.begin("GET", f"{WIDGETS}?watch=true&resourceVersion={since}", ALICE)
        assert json.loads(response.readline())["type"] == "MODIFIED"
        assert asked(server, f"{WIDGETS}/a", "DELETE").status == 200
        assert json.loads(response.readline())["type"] == "DELETED"
    assert asked(server, f"{WIDGETS}/a").status == 404


def test_it_misbehaves_on_demand_and_comes_back(server: APIServerProcess) -> None:
    for mode, status in (("500", 500), ("html", 200), ("truncated", 200)):
        server.misbehave(mode)
        assert asked(server, "/apis").status == status
    server.misbehave("foreign")
    assert [each["name"] for each in asked(server, "/apis").json["groups"]] == ["apps", GROUP, "metrics.k8s.io"]
    server.misbehave("")
    server.have({"name": "gadgets", "kind": "Gadget", "namespaced": False})
    assert asked(server, WIDGETS).status == 404
    assert asked(server, f"/apis/{GROUP}/v1alpha1/gadgets").json["kind"] == "GadgetList"
    server.have({"name": "widgets", "kind": "Widget"})
    server.stop()
    with pytest.raises(OSError, match="refused"):
        asked(server, "/apis")
    server.start()
    assert asked(server, "/apis").status == 200
