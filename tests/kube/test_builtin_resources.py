"""The table of Kubernetes' own resources is that of a real kube-apiserver's discovery."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcproxy.kube.builtin_resources import BUILT_IN_RESOURCES, groups_of, singular

GOLDEN = Path(__file__).parents[1] / "golden" / "discovery"


def recorded() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in ("api-aggregated-v2", "apis-aggregated-v2"):
        body = json.loads((GOLDEN / f"{name}.json").read_text())["response"]["body"]
        for group in (json.loads(body) if isinstance(body, str) else body)["items"]:
            name = group["metadata"].get("name", "")
            if not name.endswith("example.com"):  # custom resources
                yield from ((name, resource) for version in group["versions"] for resource in version["resources"])


def test_every_recorded_resource_is_known_with_its_other_names() -> None:
    found = list(recorded())
    assert len(found) > 60
    for group, resource in found:
        plural = resource["resource"]
        assert BUILT_IN_RESOURCES[group][plural] == tuple(resource.get("shortNames", ())), (group, plural)
        if plural != "endpoints":
            assert singular(plural) == resource["singularResource"]


@pytest.mark.parametrize(
    ("plural", "groups"),
    [("pods", ("",)), ("events", ("", "events.k8s.io")), ("deployments", ("apps",)), ("widgets", ())],
)
def test_the_groups_of_a_resource(plural: str, groups: tuple[str, ...]) -> None:
    assert groups_of(plural) == groups
