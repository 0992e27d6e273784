"""Label and field selectors: matches, and error messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubesim.apimachinery import selectors
from kubesim.apimachinery.resources import Registry, ResourceInfo
from kubesim.apimachinery.status import StatusError


def resource(group: str, plural: str) -> ResourceInfo:
    found = Registry().preferred(group, plural)
    assert found is not None
    return found


PODS, EVENTS, CONFIG_MAPS = resource("", "pods"), resource("", "events"), resource("", "configmaps")


def pod(**fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": "n"}, **fields}


@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ("", True),
        ("metadata.name=p", True),
        ("metadata.name==p,metadata.namespace=n", True),
        ("metadata.name!=p", False),
        ("spec.nodeName=n1", True),
        ("status.phase!=Running", False),
        ("status.podIP=", True),
        ("spec.hostNetwork=false", True),
        ("spec.hostNetwork!=true,", True),
    ],
)
def test_field_selectors(text: str, matched: bool) -> None:
    matcher = selectors.field_matcher(text, PODS)
    obj = pod(spec={"nodeName": "n1"}, status={"phase": "Running"})
    assert (matcher is None or matcher(obj)) is matched


@pytest.mark.parametrize(
    ("text", "of", "message"),
    [
        ("data=x", CONFIG_MAPS, '"data" is not a known field selector: only "metadata.name", "metadata.namespace"'),
        ("spec.color=x", PODS, "field label not supported: spec.color"),
    ],
)
def test_bad_field_selectors_are_400(text: str, of: ResourceInfo, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        selectors.field_matcher(text, of)
    assert (caught.value.code, caught.value.message) == (400, message)


@given(st.text(alphabet="ab\\,=! ", max_size=12))
def test_escaped_values_are_found_again(value: str) -> None:
    escaped = value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
    matcher = selectors.field_matcher(f"reason={escaped}", EVENTS)
    assert matcher is not None
    assert matcher({"metadata": {"name": "e"}, "reason": value})
    assert not matcher({"metadata": {"name": "e"}, "reason": value + "x"})


def test_labels_of_an_object() -> None:
    matcher = selectors.label_matcher("app=web")
    assert matcher is not None
    assert matcher({"metadata": {"name": "p", "labels": {"app": "web"}}})
    assert not matcher({"metadata": {"name": "p"}})
    assert selectors.label_matcher("") is None


def test_events_of_both_groups_are_selected_in_their_stored_form() -> None:
    matcher = selectors.field_matcher("regarding.name=x", resource("events.k8s.io", "events"))
    assert matcher is not None
    assert matcher({"metadata": {"name": "e"}, "involvedObject": {"name": "x"}})
    matcher = selectors.field_matcher("source=kubelet", EVENTS)
    assert matcher is not None
    assert matcher({"metadata": {"name": "e"}, "source": {}, "reportingComponent": "kubelet"})


def test_custom_resources_are_selected_by_the_fields_that_their_crd_names() -> None:
    version = {"selectableFields": [{"jsonPath": ".spec.color"}]}
    widgets = ResourceInfo("e.com", "v1", "Widget", "widgets", "widget", True, (), builtin=False, crd_version=version)
    matcher = selectors.field_matcher("spec.color=red", widgets)
    assert matcher is not None
    assert matcher(pod(spec={"color": "red"}))
    with pytest.raises(StatusError, match=r"field label not supported: spec\.size"):
        selectors.field_matcher("spec.size=1", widgets)
