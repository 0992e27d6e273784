"""ListOptions of lists and watches: parsing and validation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.kube import list_options
from mcproxy.kube.list_options import ListOptions
from mcproxy.kube.query_parameters import parse_query
from mcproxy.kube.status import StatusError

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
    with pytest.raises(StatusError) as caught:
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
    with pytest.raises(StatusError) as caught:
        list_options.parse(query)
    assert caught.value.code == 422
    assert caught.value.message.startswith("ListOptions.meta.k8s.io")
    assert message in caught.value.message


def test_all_errors_are_reported_at_once() -> None:
    with pytest.raises(StatusError) as caught:
        list_options.parse({"resourceVersionMatch": "x", "continue": "y", "sendInitialEvents": "1"})
    assert caught.value.details is not None
    assert len(caught.value.details["causes"]) == 4


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "9" * 5000])
def test_numbers_beyond_64_bits_are_400(text: str) -> None:
    with pytest.raises(StatusError) as caught:
        list_options.parse({"limit": text})
    assert caught.value.message == f'strconv.ParseInt: parsing "{text}": value out of range'


def test_the_greatest_number_is_one() -> None:
    assert list_options.parse({"limit": "+09223372036854775807"}).limit == (1 << 63) - 1


RECORDED = sorted((Path(__file__).parent.parent / "golden" / "errors").glob("422-query-*.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_refusals_are_those_of_a_kube_apiserver(path: Path) -> None:
    recorded = json.loads(path.read_text())
    query = parse_query(recorded["request"]["path"].partition("?")[2].encode())
    with pytest.raises(StatusError) as caught:
        list_options.parse(query)
    assert caught.value.body().decode() == recorded["response"]["body"]


def test_the_refusals_were_recorded() -> None:
    assert len(RECORDED) > 3


@pytest.mark.parametrize(
    ("text", "read"), [("", ""), ("0", "0"), ("00", "0"), ("0" * 40, "0"), ("010", "010"), ("a0", "a0")]
)
def test_a_resource_version_of_zeros_is_0(text: str, read: str) -> None:
    assert list_options.parse({"resourceVersion": text}).resource_version == read
