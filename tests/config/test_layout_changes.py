"""The warnings of a reload that takes members out of resource versions, or gives them other places there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcproxy.config.config_changes import layout_warnings, layouts_of
from mcproxy.config.loaded import Loaded, Location
from mcproxy.config.model import Aggregate, Config, Mark, ResourceVersions

PLACE: dict[tuple[str, ...], Location] = {
    ("aggregates", "fleet", "clusters"): Location(Mark("f.yaml", 7, 5), "aggregates[0].clusters")
}


def warned(old: tuple[str, ...], new: tuple[str, ...], former: tuple[str, ...] = (), *, karmada: bool = False) -> str:
    form = ResourceVersions.KARMADA if karmada else ResourceVersions.NUMBER
    fleet = Aggregate(
        name="fleet",
        clusters=tuple(name for name in new if name not in former),
        listed=new if former else (),
        resource_versions=form,
    )
    before = layouts_of(Config(aggregates=(replace(fleet, clusters=old, listed=()),)))
    return "".join(map(str, layout_warnings(before, Loaded(Config(aggregates=(fleet,)), locations=PLACE))))


@pytest.mark.parametrize(
    ("old", "new", "former"),
    [
        (("east", "west"), ("east", "west"), ()),
        (("east", "west"), ("east", "west", "north"), ()),
        (("east", "west"), ("east", "west", "north"), ("west",)),
        ((), ("east",), ()),
    ],
)
def test_places_that_stay(old: tuple[str, ...], new: tuple[str, ...], former: tuple[str, ...]) -> None:
    assert warned(old, new, former) == ""


def test_a_member_that_is_taken_out() -> None:
    assert warned(("east", "west", "north"), ("east", "north")) == (
        "f.yaml:7:5: aggregates[0].clusters: a reload would take west out of resource versions, so later versions do "
        "not compare with those from before; keep west in clusters, where it was, and add formerMembers: [west]"
    )


@pytest.mark.parametrize("new", [("west", "east"), ("north", "east", "west")])
def test_members_in_other_places(new: tuple[str, ...]) -> None:
    assert warned(("east", "west"), new) == (
        "f.yaml:7:5: aggregates[0].clusters: a reload would change the places of members in resource versions "
        "(east, west), so later versions do not compare with those from before; keep that order, and add members at "
        "the end"
    )


def test_many_names_are_cut_and_karmadas_form_has_no_places() -> None:
    old = tuple(f"n{number}" for number in range(20))
    assert "take n1, n2, n3, n4, n5, n6, n7, n8, … out of" in warned(old, ("n0",))
    assert warned(old, ("n0",), karmada=True) == ""
