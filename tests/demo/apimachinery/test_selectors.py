"""Label and field selectors: matches, and error messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.demo.apimachinery import selectors
from mcproxy.demo.apimachinery.resources import Registry, ResourceInfo
from mcproxy.demo.apimachinery.status import APIError


def resource(group: str, plural: str) -> ResourceInfo:
    found = Registry().preferred(group, plural)
    assert found is not None
    return found


PODS, EVENTS, CONFIG_MAPS = resource("", "pods"), resource("", "events"), resource("", "configmaps")
WEB = {"app": "web", "tier": "front", "weight": "10", "empty": ""}


def by_label(text: str, labels: dict[str, str]) -> bool:
    matcher = selectors.label_matcher(text)
    return matcher is None or matcher({"metadata": {"name": "x", "labels": labels}})


@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        (" app = web , tier=front ", True),
        ("app=api", False),
        ("app!=api", True),
        ("missing!=api", True),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("!app", False),
        ("app in (api,web)", True),
        ("app in (api)", False),
        ("app notin (api)", True),
        ("missing notin (api)", True),
        ("empty=", True),
        ("weight>9", True),
        ("weight>10", False),
        ("weight<11", True),
        ("app<11", False),
        ("missing<11", False),
        ("app=web,tier=back", False),
    ],
)
def test_label_selectors(text: str, matched: bool) -> None:
    assert by_label(text, WEB) is matched


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("app=web,", "found '', expected: identifier after ','"),
        ("=web", "found '=', expected: !, identifier, or 'end of string'"),
        ("app web", "found 'web', expected: in, notin, =, ==, !=, gt, lt"),
        ("app in web", "found 'web' expected: '('"),
        ("app=web tier", "found 'tier', expected: ',' or 'end of string'"),
        ("!", "found '', expected: identifier"),
        ("app=-x", 'values[0][app]: Invalid value: "-x"'),
        (f"app={'x' * 64}", "values[0][app]: Invalid value"),
        ("weight>many", "for 'Gt', 'Lt' operators, the value must be an integer"),
    ],
)
def test_bad_label_selectors_are_400(text: str, message: str) -> None:
    with pytest.raises(APIError) as caught:
        selectors.label_matcher(text)
    assert caught.value.code == 400
    assert caught.value.message.startswith("unable to parse requirement: ")
    assert message in caught.value.message


NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,8}[a-z0-9])?", fullmatch=True).filter(lambda x: x not in ("in", "notin"))


@given(st.dictionaries(NAMES, NAMES, max_size=4), NAMES, st.lists(NAMES, min_size=1, max_size=3))
def test_in_and_notin_are_opposites(labels: dict[str, str], key: str, values: list[str]) -> None:
    inside = by_label(f"{key} in ({','.join(values)})", labels)
    assert inside is (labels.get(key) in values)
    assert by_label(f"{key} notin ({','.join(values)})", labels) is not inside
    assert by_label(",".join(f"{name}={value}" for name, value in labels.items()), labels)


@given(st.text(alphabet="ab1 =!,()<>-.", max_size=14))
def test_any_text_is_a_selector_or_a_400(text: str) -> None:
    code = 200
    try:
        by_label(text, {"a": "1", "b": "a"})
    except APIError as error:
        code = error.code
    assert code in (200, 400)


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
        ("metadata.name", PODS, "invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
        ("metadata.name=a=b", PODS, "invalid field selector: unescaped character in value: 61"),
        ("metadata.name=a\\b", PODS, "invalid field selector: invalid escape sequence: 98"),
    ],
)
def test_bad_field_selectors_are_400(text: str, of: ResourceInfo, message: str) -> None:
    with pytest.raises(APIError) as caught:
        selectors.field_matcher(text, of)
    assert (caught.value.code, caught.value.message) == (400, message)


@given(st.text(alphabet="ab\\,=! ", max_size=12))
def test_escaped_values_are_found_again(value: str) -> None:
    escaped = value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
    matcher = selectors.field_matcher(f"reason={escaped}", EVENTS)
    assert matcher is not None
    assert matcher({"metadata": {"name": "e"}, "reason": value})
    assert not matcher({"metadata": {"name": "e"}, "reason": value + "x"})


def test_custom_resources_are_selected_by_the_fields_that_their_crd_names() -> None:
    version = {"selectableFields": [{"jsonPath": ".spec.color"}]}
    widgets = ResourceInfo("e.com", "v1", "Widget", "widgets", "widget", True, (), builtin=False, crd_version=version)
    matcher = selectors.field_matcher("spec.color=red", widgets)
    assert matcher is not None
    assert matcher(pod(spec={"color": "red"}))
    with pytest.raises(APIError, match=r"field label not supported: spec\.size"):
        selectors.field_matcher("spec.size=1", widgets)
