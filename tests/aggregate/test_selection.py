"""Both selectors over cached objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.cache.sequence import ObjectSequence
from mcproxy.aggregate.selection import Selection, parse_selection, scalar_at
from mcproxy.kube.field_labels import value_at
from mcproxy.kube.status import StatusError
from tests.aggregate.objects import EVENTS, JOBS, PODS, WIDGETS, decoded, pod

GOLDEN = Path(__file__).parent.parent / "golden"
WEB = decoded(
    pod(
        "web",
        labels={"app": "web", "tier": "front"},
        spec={"nodeName": "n1", "hostNetwork": True, "priority": 0, "containers": [{"name": "c"}]},
        status={"phase": "Running", "message": 'a "b" <c>', "ratio": 1.5, "none": None},
    )
)
API = decoded(pod("api", "prod", labels={"app": "api"}, spec={"nodeName": "n2"}, status={"phase": "Pending"}))


def select(labels: str = "", fields: str = "") -> Selection:
    return parse_selection(labels, fields, PODS.gvr)


@pytest.mark.parametrize(
    ("labels", "fields", "matched"),
    [
        ("", "", [WEB, API]),
        ("app=web", "", [WEB]),
        ("app=web,tier=front", "", [WEB]),
        ("app=web,tier!=front", "", []),
        ("app in (web,api)", "", [WEB, API]),
        ("tier", "", [WEB]),
        ("!tier", "", [API]),
        ("mcproxy.io/cluster=east", "", [WEB, API]),
        ("mcproxy.io/cluster=west", "", []),
        ("", "metadata.name=web", [WEB]),
        ("", "metadata.name!=web", [API]),
        ("", "metadata.namespace=prod", [API]),
        ("", "metadata.name=web,metadata.namespace=prod", []),
        ("", "spec.nodeName=n1", [WEB]),
        ("", "spec.nodeName!=n1", [API]),
        ("", "status.phase=Running", [WEB]),
        ("", "status.phase!=Running", [API]),
        ("", "spec.hostNetwork=false", [API]),
        ("", "spec.hostNetwork=true", [WEB]),
        ("", "spec.priority=0", [WEB]),
        ("", "status.ratio=1.5", [WEB]),
        ("", "status.none=", [WEB, API]),
        ("", 'status.message=a "b" <c>', [WEB]),
        ("", "spec.containers=", [WEB, API]),
        ("", "spec=", [WEB, API]),
        ("", "metadata.labels.app=api", [API]),
        ("", "metadata.uid=uid-demo-web", [WEB]),
        ("", "metadata.resourceVersion=7", [WEB, API]),
        ("", "spec.nodeName.more=", [WEB, API]),
        ("app=web", "status.phase=Pending", []),
    ],
)
def test_selections(labels: str, fields: str, matched: list[Any]) -> None:
    selection = select(labels, fields)
    assert selection.filter([WEB, API]) == matched
    assert [obj for obj in (WEB, API) if selection.matches(obj)] == matched
    sequence = ObjectSequence.from_sorted([WEB, WEB, API])
    twice = [obj for obj in (WEB, WEB, API) if obj in matched]
    assert selection.filter_chunk(sequence, 0) == twice
    assert bool(selection) is bool(labels or fields)


def test_the_values_of_a_field_are_read_once_and_a_changed_object_again() -> None:
    pods = [decoded(pod(f"pod-{number:04d}", spec={"nodeName": f"n{number % 3}"})) for number in range(600)]
    sequence = ObjectSequence.from_sorted(pods)

    def listed(sequence: ObjectSequence, fields: str) -> list[str]:
        selection = select("", fields)
        assert selection.by_chunk
        found = [obj for index in range(len(sequence.chunks)) for obj in selection.filter_chunk(sequence, index)]
        assert found == selection.filter([obj for chunk in sequence.chunks for obj in chunk])
        return [obj.name for obj in found]

    assert len(listed(sequence, "spec.nodeName=n1")) == 200
    moved = sequence.put(decoded(pod("pod-0001", spec={"nodeName": "n2"})))
    assert "pod-0001" in listed(moved, "spec.nodeName=n2")
    assert "pod-0001" not in listed(moved, "spec.nodeName=n1")
    assert "pod-0001" in listed(sequence, "spec.nodeName=n1")
    assert len(listed(moved, "spec.nodeName!=n1,status.phase=")) == 401
    assert listed(moved.remove("demo/pod-0004"), "spec.nodeName=n1,metadata.name!=pod-0007")[:2] == [
        "pod-0010",
        "pod-0013",
    ]


@pytest.mark.parametrize("length", [252, 253, 254, 255, 300])
def test_values_of_any_length_are_compared_as_a_whole(length: int) -> None:
    names = ["n" * each for each in (252, 253, 254, 255, 300)]
    pods = [decoded(pod(f"pod-{number}", spec={"nodeName": name})) for number, name in enumerate(names)]
    sequence = ObjectSequence.from_sorted(pods)
    for operator in ("=", "!="):
        selection = select("", f"spec.nodeName{operator}{'n' * length}")
        found = [obj.name for obj in selection.filter_chunk(sequence, 0)]
        assert found == [obj.name for obj in selection.filter(pods)]
        assert len(found) == (1 if operator == "=" else 4)


def test_a_long_value_is_not_kept_as_a_whole() -> None:
    sequence = ObjectSequence.from_sorted([decoded(pod(spec={"nodeName": "n" * 100_000}))])
    select("", "spec.nodeName=n1").filter_chunk(sequence, 0)
    (column,) = sequence._columns.values()
    assert [len(value) for chunk in column.chunks if chunk for value in chunk] == [254]


def test_field_labels_of_a_resource_stand_where_kubernetes_finds_them() -> None:
    done = decoded({**pod("done"), "status": {"succeeded": 3}}, JOBS)
    new = decoded(pod("new"), JOBS)
    assert parse_selection("", "status.successful=3", JOBS.gvr).filter([done, new]) == [done]
    assert parse_selection("", "status.successful=0", JOBS.gvr).filter([done, new]) == [new]
    event = decoded({**pod("e"), "source": {}, "reportingComponent": "kubelet"}, EVENTS)
    assert parse_selection("", "source=kubelet", EVENTS.gvr).matches(event)
    assert not parse_selection("", "source=scheduler", EVENTS.gvr).matches(event)


def test_demanded_names_can_be_looked_up() -> None:
    selection = select("", "metadata.name=web,metadata.namespace=demo,metadata.name!=x")
    assert (selection.name, selection.namespace, selection.impossible) == ("web", "demo", False)
    assert select("", "metadata.name=a,metadata.name=b").impossible
    assert (select("app=web").name, select("app=web").namespace) == (None, None)


def test_a_path_that_the_schema_does_not_have_is_400() -> None:
    def known(path: str) -> bool | None:
        return path in ("spec.color",)

    assert parse_selection("", "spec.color=red", WIDGETS.gvr, custom=True, known_field=known)
    with pytest.raises(StatusError) as caught:
        parse_selection("", "spec.size=3", WIDGETS.gvr, custom=True, known_field=known)
    recorded = json.loads((GOLDEN / "selectors" / "widgets-field-unknown.json").read_text())["response"]
    assert caught.value.body().decode() == recorded["body"]


def test_the_same_for_a_built_in_resource() -> None:
    with pytest.raises(StatusError) as caught:
        parse_selection("", "spec.bogus=x", JOBS.gvr._replace(resource="configmaps"), known_field=lambda _: False)
    recorded = json.loads((GOLDEN / "errors" / "400-query-unknown-field-label.json").read_text())["response"]
    assert caught.value.body().decode() == recorded["body"]


def test_a_path_of_which_the_schema_is_not_known_is_looked_for() -> None:
    assert parse_selection("", "spec.size=3", WIDGETS.gvr, known_field=lambda _: None)


@pytest.mark.parametrize("fields", ["=x", ".a=x", "a..b=x", ".".join("a" * 40) + "=x", ",".join(["a=x"] * 100)])
def test_what_is_no_path_or_too_many_is_400(fields: str) -> None:
    with pytest.raises(StatusError) as caught:
        select("", fields)
    assert caught.value.code == 400


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda children: st.lists(children, max_size=2) | st.dictionaries(st.sampled_from("abc"), children, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3), st.lists(st.sampled_from("abc"), min_size=1))
def test_scalars_are_those_of_the_decoded_object(obj: dict[str, Any], path: list[str]) -> None:
    assert scalar_at(json.dumps(obj).encode(), path) == value_at(obj, ".".join(path))


@given(st.sampled_from("abc"), st.text(max_size=4), st.text(max_size=4), st.booleans())
def test_the_search_for_the_text_misses_nothing(field: str, value: str, wanted: str, negated: bool) -> None:
    obj = decoded(pod(spec={field: value}))
    escaped = wanted.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
    selection = select("", f"spec.{field}{'!=' if negated else '='}{escaped}")
    assert selection.matches(obj) is ((value == wanted) is not negated)
