"""The index of OpenAPI v3: the union of paths, each with the hash of its owner's document."""

from __future__ import annotations

import json

import pytest

from mcproxy.aggregate.discovery.merge import merge
from mcproxy.aggregate.discovery.openapi_documents import MemberDocument, Published, publish, read_index, write_index
from mcproxy.kube.discovery import DiscoveryError
from tests.aggregate.discovery.recorded import EVERYTHING, body, east, west


def index(**paths: str) -> dict[str, str]:
    return dict(paths)


EAST = read_index(body("openapi/v3-root"))
WEST = read_index(body("aggregated-down/openapi-v3"))


def test_the_recorded_index_is_written_again() -> None:
    owners = merge(east(), [east()], EVERYTHING).owners
    published = publish({"east": EAST}, owners, "east", ["east"])
    assert json.loads(write_index(published)) == json.loads(body("openapi/v3-root"))


def test_the_union_of_two_members() -> None:
    merged = merge(None, [east(), west()], EVERYTHING)
    published = publish({"east": EAST, "west": WEST}, merged.owners, None, ["east", "west"])
    assert published["apis/west.example.com/v1beta1"].parts[0].cluster == "west"
    assert published["apis/apps/v1"] == Published(EAST["apis/apps/v1"], (MemberDocument("east", EAST["apis/apps/v1"]),))
    assert {"api", "apis", "version"} <= set(published)
    assert ".well-known/openid-configuration" not in published


def test_what_is_not_served_has_no_document() -> None:
    merged = merge(None, [west()], EVERYTHING)
    published = publish(
        {"west": {**WEST, "apis/secret.io/v1": "AB", "apis/secret.io": "AB"}}, merged.owners, None, ["west"]
    )
    assert not [path for path in published if "secret.io" in path]


def test_a_group_version_of_several_owners_has_a_hash_of_its_own() -> None:
    owners = {("x.io", "v1"): ("a", "b")}
    indexes = {"a": {"apis/x.io/v1": "A1"}, "b": {"apis/x.io/v1": "B1"}}
    one = publish(indexes, owners, None, ["a", "b"])["apis/x.io/v1"]
    assert one.parts == (MemberDocument("a", "A1"), MemberDocument("b", "B1"))
    assert one.hash not in ("A1", "B1", "")
    assert one == publish(indexes, owners, None, ["a", "b"])["apis/x.io/v1"]
    indexes["b"]["apis/x.io/v1"] = "B2"
    assert publish(indexes, owners, None, ["a", "b"])["apis/x.io/v1"].hash != one.hash
    del indexes["b"]["apis/x.io/v1"]
    assert publish(indexes, owners, None, ["a", "b"])["apis/x.io/v1"] == Published("A1", (MemberDocument("a", "A1"),))


@pytest.mark.parametrize(
    "path", ["../x", "apis/../version", "apis//v1", "a b", "apis/x.io/v1?x", "", "/apis", "apis/x/v1/a/b/c", "."]
)
def test_a_path_that_leads_elsewhere_is_left_out(path: str) -> None:
    content = {
        "paths": {path: {"serverRelativeURL": "/openapi/v3/x?hash=AB"}, "api/v1": {"serverRelativeURL": "?hash=1"}}
    }
    assert read_index(json.dumps(content).encode()) == {"api/v1": "1"}


@pytest.mark.parametrize("url", ["https://evil.example.com/x", "/openapi/v3/api/v1", "/x?hash=a\r\nb", "/x?hash="])
def test_of_a_url_only_the_hash_is_used(url: str) -> None:
    read = read_index(json.dumps({"paths": {"api/v1": {"serverRelativeURL": url}}}).encode())
    published = publish({"a": read}, {("", "v1"): ("a",)}, None, ["a"])
    location = json.loads(write_index(published))["paths"]["api/v1"]["serverRelativeURL"]
    assert location in ("/openapi/v3/api/v1", "/openapi/v3/api/v1?hash=a")


@pytest.mark.parametrize("broken", [b"", b"[]", b'{"paths":[]}', b'{"paths":{"a":7}}', b"\xff", b'{"a":' * 5000])
def test_what_is_no_index_is_refused(broken: bytes) -> None:
    with pytest.raises(DiscoveryError):
        read_index(broken)


def test_an_index_is_bounded() -> None:
    paths = {f"apis/g{number}/v1": {"serverRelativeURL": "?hash=1"} for number in range(10_001)}
    with pytest.raises(DiscoveryError, match="more than 10000"):
        read_index(json.dumps({"paths": paths}).encode())
