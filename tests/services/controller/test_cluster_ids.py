"""The ids of clusters in a clusterset: no cluster gets one by which another one is known."""

from __future__ import annotations

import pytest

from mcproxy.services.api_types import UnreadableObject
from mcproxy.services.controller.cluster_views import ClusterSetIdentity, identities, read_property

NAMES = frozenset(("east", "west", "north"))


def test_a_cluster_has_the_id_that_it_claims_and_else_its_name() -> None:
    claims = {"east": ("site-1", "prod"), "west": ("", ""), "north": ("north", "")}
    assert identities(claims, NAMES) == {
        "east": ClusterSetIdentity("site-1", "prod"),
        "west": ClusterSetIdentity("west"),
        "north": ClusterSetIdentity("north"),
    }


def test_neither_of_two_clusters_that_claim_one_id_has_it() -> None:
    found = identities({"east": ("site", ""), "west": ("site", ""), "north": ("other", "")}, NAMES)
    assert [found[name].id for name in ("east", "west", "north")] == ["east", "west", "other"]
    assert found["east"].problem == "site is claimed by west too"


def test_no_cluster_is_called_like_another_one_of_the_configuration_in_the_clusterset_or_not() -> None:
    found = identities({"east": ("west", ""), "north": ("x", "")}, NAMES)
    assert found["east"] == ClusterSetIdentity("east", "", "west is the name of another cluster of the configuration")


@pytest.mark.parametrize("claim", ["A", "a.b", "-a", "a-", "a" * 64, "a b", "a\n", "\u00e4", "a" * 100_000])
def test_an_id_is_a_dns_label(claim: str) -> None:
    found = identities({"east": (claim, "")}, NAMES)["east"]
    assert found.id == "east"
    assert "is not a DNS label" in found.problem
    assert len(found.problem) < 200
    assert found.problem.isprintable()


def test_a_name_that_is_no_label_value_is_shortened_as_it_is_in_labels() -> None:
    name = "n" * 70
    assert len(identities({name: ("", "")}, frozenset((name,)))[name].id) == 63


def test_what_a_clusterset_is_called_is_bounded_and_printable() -> None:
    assert identities({"east": ("", "a\x1b[2J")}, NAMES)["east"].clusterset == ""
    assert len(identities({"east": ("", "a" * 1000)}, NAMES)["east"].clusterset) == 253


def test_a_property_is_read_with_types() -> None:
    assert read_property(b'{"metadata": {}, "spec": {"value": "site-1"}}') == "site-1"
    assert read_property(b"{}") == ""
    with pytest.raises(UnreadableObject):
        read_property(b'{"spec": {"value": 7}}')
