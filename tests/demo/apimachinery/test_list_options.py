"""ListOptions of lists and watches: parsing and validation."""

from __future__ import annotations

import pytest

from mcproxy.demo.apimachinery import list_options
from mcproxy.demo.apimachinery.list_options import ListOptions
from mcproxy.demo.apimachinery.status import APIError

OLD, NEW = "NotOlderThan", "Exact"


def test_an_empty_query() -> None:
    assert list_options.parse({}) == ListOptions()
    assert list_options.parse({"limit": "", "timeoutSeconds": "", "watch": ""}).limit == 0


def test_all_parameters() -> None:
    query = {
        "labelSelector": "a=b",
        "fieldSelector": "metadata.name=x",
        "resourceVersion": "7",
        "resourceVersionMatch": OLD,
        "sendInitialEvents": "true",
        "allowWatchBookmarks": "1",
        "timeoutSeconds": "30",
        "watch": "true",
        "limit": "5",
    }
    wanted = ListOptions("a=b", "metadata.name=x", "7", OLD, 5, "", 30, True, True, True)
    assert list_options.parse(query) == wanted


def test_a_negative_limit_is_none() -> None:
    assert list_options.parse({"limit": "-1"}).limit == 0


def test_a_mistyped_boolean_is_true() -> None:
    assert list_options.parse({"watch": "maybe"}).watch
    assert not list_options.parse({"watch": "false"}).watch
    assert not list_options.parse({"watch": "0"}).watch


def test_the_watch_path_needs_no_parameter() -> None:
    assert list_options.parse({}, watch=True).watch


@pytest.mark.parametrize("key", ["limit", "timeoutSeconds"])
@pytest.mark.parametrize("text", ["x", "1.5", " 1", "0x10", "--1"])
def test_numbers_that_are_none_are_400(key: str, text: str) -> None:
    with pytest.raises(APIError) as caught:
        list_options.parse({key: text})
    assert (caught.value.code, caught.value.message) == (
        400,
        f'strconv.ParseInt: parsing "{text}": invalid syntax',
    )


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"resourceVersionMatch": OLD}, "forbidden unless resourceVersion is provided"),
        ({"resourceVersionMatch": OLD, "resourceVersion": "1", "continue": "x"}, "when continue is provided"),
        ({"resourceVersionMatch": "Newer", "resourceVersion": "1"}, 'supported values: "Exact", "NotOlderThan", ""'),
        ({"resourceVersionMatch": NEW, "resourceVersion": "0"}, '"exact" is forbidden for resourceVersion "0"'),
        ({"sendInitialEvents": "true"}, "sendInitialEvents is forbidden for list"),
        ({"watch": "1", "sendInitialEvents": "true"}, "requires setting resourceVersionMatch to NotOlderThan"),
        ({"watch": "1", "resourceVersionMatch": OLD}, "unless sendInitialEvents is provided"),
        (
            {"watch": "1", "resourceVersionMatch": NEW, "sendInitialEvents": "false"},
            'supported values: "NotOlderThan"',
        ),
    ],
)
def test_combinations_that_make_no_sense_are_422(query: dict[str, str], message: str) -> None:
    with pytest.raises(APIError) as caught:
        list_options.parse(query)
    assert caught.value.code == 422
    assert caught.value.message.startswith("ListOptions.meta.k8s.io")
    assert message in caught.value.message


def test_all_errors_are_reported_at_once() -> None:
    with pytest.raises(APIError) as caught:
        list_options.parse({"resourceVersionMatch": "x", "continue": "y", "sendInitialEvents": "1"})
    assert caught.value.details is not None
    assert len(caught.value.details["causes"]) == 4


def test_revisions() -> None:
    assert [list_options.revision(text) for text in ("", "0", "12")] == [0, 0, 12]
    with pytest.raises(ValueError, match='parsing "-1": invalid syntax'):
        list_options.revision("-1")
