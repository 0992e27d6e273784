"""Decoding of members' lists and watches: real ones byte for byte, and what no kube-apiserver sends."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.cache.cached_object import CLUSTER_ANNOTATION, CLUSTER_LABEL, CachedObject, EventType
from mcproxy.aggregate.cache.decoder import (
    Bookmark,
    MalformedItem,
    MalformedResponse,
    ObjectDecoder,
    ObjectEvent,
    WatchError,
)
from mcproxy.aggregate.cache.object_splitter import MAX_DEPTH
from mcproxy.kube.resource import APIResource, GroupVersionResource
from tests.aggregate.cache.objects import CONFIGMAPS, NODES, PODS, VERBS, WIDGETS, recorded
from tests.support.processor_time import processor_time

DEPLOYMENTS = APIResource(GroupVersionResource("apps", "v1", "deployments"), "Deployment", "deployment", True, VERBS)
EVENTS = APIResource(GroupVersionResource("", "v1", "events"), "Event", "event", True, VERBS)
NOW = 1_700_000_000.0

LISTS = [
    ("list/east/pods-all.json", PODS),
    ("list/east/configmaps-demo.json", CONFIGMAPS),
    ("list/east/deployments-demo.json", DEPLOYMENTS),
    ("list/east/events-demo.json", EVENTS),
    ("list/east/nodes.json", NODES),
    ("list/east/widgets-all.json", WIDGETS),
]


def decoder(resource: APIResource = CONFIGMAPS, **options: Any) -> ObjectDecoder:
    return ObjectDecoder("east", resource, **options)


def expected(item: dict[str, Any]) -> dict[str, Any]:
    """Return an object as an aggregate shows it."""
    metadata = item["metadata"]
    labels = {**metadata.get("labels", {}), CLUSTER_LABEL: "east"}
    annotations = {**metadata.get("annotations", {}), CLUSTER_ANNOTATION: "east"}
    return {**item, "metadata": {**metadata, "labels": labels, "annotations": annotations}}


def same(found: CachedObject, item: dict[str, Any], type_prefix: bytes) -> None:
    """Check everything that is known of an object against its JSON."""
    text = found.json(type_prefix, b"%d" % found.version)
    assert json.loads(text) == expected(item)
    metadata = item["metadata"]
    assert (found.namespace, found.name) == (metadata.get("namespace", ""), metadata["name"])
    assert (found.uid, found.version) == (metadata["uid"], int(metadata["resourceVersion"]))
    assert found.labels == expected(item)["metadata"]["labels"]
    assert found.created == datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
    assert json.loads(found.metadata_json(b"77")) == {**expected(item)["metadata"], "resourceVersion": "77"}
    assert json.loads(found.json(b"", b"77"))["metadata"]["resourceVersion"] == "77"


def without_marks(text: str) -> str:
    """Take the label and the annotation off, as bytes."""
    label, annotation = f'"{CLUSTER_LABEL}":"east"', f'"{CLUSTER_ANNOTATION}":"east"'
    assert (text.count(label), text.count(annotation)) == (1, 1)
    for mark, field in ((label, "labels"), (annotation, "annotations")):
        for form in (f',"{field}":{{{mark}}}', f'"{field}":{{{mark}}},', f",{mark}", f"{mark},"):
            if form in text:
                text = text.replace(form, "")
                break
    return text


@pytest.mark.parametrize(("name", "resource"), LISTS)
def test_a_recorded_list_keeps_every_byte_but_the_marks(name: str, resource: APIResource) -> None:
    body = recorded(name)["body"]
    decode = decoder(resource)
    page = decode.decode_page(body.encode(), NOW)
    found = [item for item in page if isinstance(item, CachedObject)]
    whole = json.loads(body)
    assert (page.version, page.continue_token) == (int(whole["metadata"]["resourceVersion"]), "")
    assert (decode.list_kind, len(page), len(found)) == (whole["kind"], len(whole["items"]), len(whole["items"]))
    prefix = decode.type_prefix if decode.items_typed else b""
    assert decode.items_typed == ("kind" in whole["items"][0])
    for item, parsed in zip(found, whole["items"], strict=True):
        same(item, parsed, prefix)
        assert without_marks(item.json(prefix, b"%d" % item.version).decode()) in body


@pytest.mark.parametrize(
    ("name", "resource"),
    [
        ("table/pods-includeObject-Object.json", PODS),
        ("table/widgets-includeObject-Object.json", WIDGETS),
    ],
)
def test_a_recorded_table_gives_the_same_objects_and_their_cells(name: str, resource: APIResource) -> None:
    body = recorded(name)["body"]
    decode = decoder(resource)
    page = decode.decode_page(body.encode(), NOW)
    whole = json.loads(body)
    assert page.columns is not None
    assert json.loads(page.columns) == whole["columnDefinitions"]
    for item, row in zip(page, whole["rows"], strict=True):
        assert isinstance(item, CachedObject)
        same(item, row["object"], decode.type_prefix)
        assert item.cells is not None
        assert json.loads(item.cells) == row["cells"]
        assert item.printed == NOW
        assert not item.head.startswith((b'"kind"', b'"apiVersion"'))


def test_the_type_prefix_is_in_the_order_in_which_the_member_writes_it() -> None:
    for name, resource, prefix in (
        ("table/pods-includeObject-Object.json", PODS, b'"kind":"Pod","apiVersion":"v1",'),
        ("table/widgets-includeObject-Object.json", WIDGETS, b'"apiVersion":"example.com/v1","kind":"Widget",'),
    ):
        decode = decoder(resource)
        assert decode.type_prefix == prefix
        list(decode.decode_page(recorded(name)["body"].encode(), NOW))
        assert decode.type_prefix == prefix


@pytest.mark.parametrize("name", ["watch/cm-from-rv-bookmarks.json", "watch/cm-table-object.json"])
def test_a_recorded_watch(name: str) -> None:
    decode = decoder()
    lines = [event["line"] for event in recorded(name)["stream"]]
    types = []
    columns = []
    for line in lines:
        found = decode.decode_event(line.encode(), NOW)
        parsed = json.loads(line)
        if isinstance(found, Bookmark):
            assert found == Bookmark(int(parsed["object"]["metadata"]["resourceVersion"]), False)
            continue
        assert isinstance(found, ObjectEvent)
        types.append(found.type.value)
        columns.append(found.columns)
        item = parsed["object"]
        if item["kind"] == "Table":
            assert found.object.cells is not None
            assert json.loads(found.object.cells) == item["rows"][0]["cells"]
            item = item["rows"][0]["object"]
        same(found.object, item, decode.type_prefix)
    assert types == [json.loads(line)["type"] for line in lines if "BOOKMARK" not in line]
    if "table" in name:
        assert columns[0] is not None
        assert set(columns[1:]) == {None}


@pytest.mark.parametrize(
    ("name", "resource"),
    [
        ("watch/cm-watchlist.json", CONFIGMAPS),
        ("watch/cm-table-watchlist.json", CONFIGMAPS),
        ("watch/widgets-watchlist.json", WIDGETS),
    ],
)
def test_the_end_of_the_initial_events(name: str, resource: APIResource) -> None:
    decode = decoder(resource)
    found = [decode.decode_event(event["line"].encode(), NOW) for event in recorded(name)["stream"]]
    ends = [event for event in found if isinstance(event, Bookmark) and event.initial_events_end]
    assert len(ends) == 1
    assert ends[0].version > 0


def test_the_bookmark_of_a_watch_list_of_nothing_has_the_columns() -> None:
    stream = recorded("watch/cm-table-watchlist.json")["stream"]
    [line] = [event["line"] for event in stream if "BOOKMARK" in event["line"]]
    definitions = json.loads(stream[0]["line"])["object"]["columnDefinitions"]
    first = line.replace('"columnDefinitions":null', f'"columnDefinitions":{json.dumps(definitions)}')
    found = decoder().decode_event(first.encode(), NOW)
    assert isinstance(found, Bookmark)
    assert found.initial_events_end
    assert found.columns is not None
    assert json.loads(found.columns) == definitions
    later = decoder().decode_event(line.encode(), NOW)
    assert isinstance(later, Bookmark)
    assert later.columns is None


def test_columns_of_an_event_whose_object_is_left_out() -> None:
    table = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "columnDefinitions": [{"name": "A", "type": "string"}]}
    line = json.dumps({"type": "ADDED", "object": table}, separators=(",", ":"))
    found = decoder().decode_event(line.encode(), NOW)
    assert found == MalformedItem(
        "a Table without exactly one row", b'[{"name":"A","type":"string"}]', type=EventType.ADDED
    )
    broken = decoder().decode_event(line.replace('"string"', '"\ud800"').encode("utf-8", "surrogatepass"), NOW)
    assert isinstance(broken, MalformedItem)


def test_an_error_event() -> None:
    line = recorded("expired/restarted-watch.json")["stream"][0]["line"]
    found = decoder().decode_event(line.encode(), NOW)
    assert isinstance(found, WatchError)
    assert (found.code, found.reason, found.retry_after) == (410, "Expired", 0)
    assert found.message == json.loads(line)["object"]["message"]


def make(metadata: str = "", rest: str = "") -> str:
    return f'{{"metadata":{{"name":"a","namespace":"demo","uid":"u","resourceVersion":"7"{metadata}}}{rest}}}'


def decode_one(text: str | bytes, **options: Any) -> CachedObject | MalformedItem:
    return decoder(**options).decode_item(text.encode() if isinstance(text, str) else text, NOW)


def good(text: str | bytes, **options: Any) -> CachedObject:
    found = decode_one(text, **options)
    assert isinstance(found, CachedObject), found
    return found


LABEL, ANNOTATION = f'"{CLUSTER_LABEL}":"east"', f'"{CLUSTER_ANNOTATION}":"east"'


@pytest.mark.parametrize(
    ("metadata", "marked"),
    [
        ("", f',"labels":{{{LABEL}}},"annotations":{{{ANNOTATION}}}'),
        (',"labels":{}', f',"labels":{{{LABEL}}},"annotations":{{{ANNOTATION}}}'),
        (',"labels":null,"annotations":null', f',"labels":{{{LABEL}}},"annotations":{{{ANNOTATION}}}'),
        (',"labels":{"a":"b","z":"y"}', f',"labels":{{"a":"b",{LABEL},"z":"y"}},"annotations":{{{ANNOTATION}}}'),
        (
            ',"annotations":{"a":"b\\n\\u003c","z":"y"},"finalizers":["f"]',
            f',"labels":{{{LABEL}}},"annotations":{{"a":"b\\n\\u003c",{ANNOTATION},"z":"y"}},"finalizers":["f"]',
        ),
        (',"managedFields":[{}]', f',"labels":{{{LABEL}}},"annotations":{{{ANNOTATION}}},"managedFields":[{{}}]'),
        (
            f',"labels":{{"{CLUSTER_LABEL}":"west"}},"annotations":{{"{CLUSTER_ANNOTATION}":"west"}}',
            f',"labels":{{{LABEL}}},"annotations":{{{ANNOTATION}}}',
        ),
        (
            ',"labels":{"mcproxy.io\\/cluster":"west","mcproxy.io/cluster":"north"}',
            f',"labels":{{{LABEL}}},"annotations":{{{ANNOTATION}}}',
        ),
        (
            ',"annotations":{"resource.karmada.io\\u002fcached-from-cluster":"west"}',
            f',"labels":{{{LABEL}}},"annotations":{{{ANNOTATION}}}',
        ),
    ],
)
def test_the_marks_stand_where_a_kube_apiserver_would_write_them_and_are_never_doubled(
    metadata: str, marked: str
) -> None:
    found = good(make(metadata))
    assert found.json(b"", b"7").decode() == make(marked)
    assert found.labels[CLUSTER_LABEL] == "east"


def test_the_marks_of_custom_resources_are_in_the_order_of_the_alphabet() -> None:
    text = '{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"creationTimestamp":null,"name":"a",'
    text += '"namespace":"demo","resourceVersion":"7","uid":"u"},"spec":{}}'
    decode = decoder(WIDGETS)
    found = decode.decode_item(text.encode(), NOW)
    assert isinstance(found, CachedObject)
    assert found.json(decode.type_prefix, b"7").decode() == text.replace(
        '{"creationTimestamp":null,', f'{{"annotations":{{{ANNOTATION}}},"creationTimestamp":null,"labels":{{{LABEL}}},'
    )


def test_managed_fields_are_dropped_if_asked_for() -> None:
    for metadata, left in (
        (',"managedFields":[{"a":"b"}]', ""),
        (',"finalizers":["f"],"managedFields":[{"a":"b"}]', ',"finalizers":["f"]'),
        ("", ""),
    ):
        found = good(make(metadata), drop_managed_fields=True)
        assert found.json(b"", b"7").decode() == make(f',"labels":{{{LABEL}}},"annotations":{{{ANNOTATION}}}{left}')
    first = '{"metadata":{"managedFields":[],"resourceVersion":"7","name":"a","namespace":"demo"}}'
    assert b"managedFields" not in good(first, drop_managed_fields=True).json(b"", b"7")


def test_objects_with_equal_labels_share_them() -> None:
    decode = decoder()
    one, other = (
        decode.decode_item(make(',"labels":{"app":"web"}').replace('"a"', name).encode(), NOW)
        for name in ('"x"', '"y"')
    )
    assert isinstance(one, CachedObject)
    assert isinstance(other, CachedObject)
    assert one.labels is other.labels


UNUSUAL = [
    make().replace(":", " : ").replace(",", " , "),
    make().replace("{", "{\n\t"),
    json.dumps(json.loads(make(',"labels":{"a":"b"}', ',"data":{"k":"v"}')), indent=2),
    make().replace("metadata", "meta\\u0064ata"),
    make().replace('"resourceVersion"', '"resource\\u0056ersion"'),
    make().replace('"resourceVersion":"7"', '"resourceVersion":"3","resourceVersion":"7"'),
    '{"metadata":{"name":"x","resourceVersion":"3"},' + make()[1:],
    make("", ',"data":{"metadata":{"resourceVersion":"99"},"x":"\\"resourceVersion\\":\\"98\\""}'),
    make(',"annotations":{"last":"{\\"metadata\\":{\\"resourceVersion\\":\\"99\\"}}"}'),
    make(',"labels":{"a":"b","a":"c"}'),
    '{"data":{"metadata":{"resourceVersion":"5"}},' + make()[1:],
    '{"kind":"ConfigMap","apiVersion":"v1",' + make()[1:],
    '{"apiVersion":"v1","kind":"ConfigMap",' + make()[1:],
    '{ "kind":"ConfigMap","apiVersion":"v1",' + make()[1:],
    make()[:-1] + ',"kind":"ConfigMap","apiVersion":"v1"}',
    '{"kind":"ConfigMap",' + make()[1:],
    '{"kind":"Evil","kind":"ConfigMap","apiVersion":"v1",' + make()[1:],
    make("", ',"größe":{"ü":"ß"}'),
    make("", ',"a\\"b":1,"metadatas":{}'),
    make(',"größe":1,"a\\"b":2'),
    '{"metadata":{"resourceVersion":"7","name":"a","namespace":"demo","uid":"u"}}',
    '{"metadata":{"name":"a","namespace":"demo","uid":"u","resourceVersion":"\\u0037"}}',
]


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs), f"a key twice in {pairs}"
    return dict(pairs)


@pytest.mark.parametrize("text", UNUSUAL[:-1])
def test_an_unusual_object_is_read_as_any_parser_would_and_served_in_one_way(text: str) -> None:
    found = good(text)
    parsed = json.loads(text)
    parsed.pop("kind", None)
    parsed.pop("apiVersion", None)
    served = found.json(decoder().type_prefix, b"7")
    assert b"\n" not in served
    assert {**expected(parsed), "kind": "ConfigMap", "apiVersion": "v1"} == json.loads(served)
    # In the part that the proxy writes every key stands once, so no parser can read it otherwise.
    json.loads(found.metadata_json(b"7"), object_pairs_hook=once)
    top = msgspec.json.decode(served, type=dict[str, msgspec.Raw])
    assert sum(len(key.encode()) for key in top) <= len(served)
    assert json.loads(found.metadata_json(b"8"))["resourceVersion"] == "8"


MALFORMED: list[str | bytes] = [
    "",
    "null",
    "[]",
    "3",
    '"x"',
    "{}",
    "{",
    '{"metadata":null}',
    '{"metadata":[]}',
    '{"metadata":{}}',
    '{"metadata":{"name":"a","namespace":"demo","resourceVersion":"7"}',
    UNUSUAL[-1].replace("\\u0037", "\\u0041"),
    make().replace('"7"', "7"),
    make().replace('"7"', '""'),
    make().replace('"7"', '"0"'),
    make().replace('"7"', '"-7"'),
    make().replace('"7"', '"07"'),
    make().replace('"7"', '"7a"'),
    make().replace('"7"', '"7\\""'),
    make().replace('"7"', '"18446744073709551616"'),
    make().replace('"7"', '"99999999999999999999999999"'),
    make().replace('"7"', "null"),
    make().replace('"a"', '""'),
    make().replace('"a"', '".."'),
    make().replace('"a"', '"."'),
    make().replace('"a"', '"a/b"'),
    make().replace('"a"', '"a%2fb"'),
    make().replace('"a"', '"a\\nb"'),
    make().replace('"a"', '"a\\u0000b"'),
    make().replace('"a"', '"%s"' % ("a" * 5000)),
    make().replace('"a"', "5"),
    make().replace('"a"', "null"),
    make().replace('"demo"', '"a/b"'),
    make().replace('"demo"', '".."'),
    make().replace('"demo"', '""'),
    make().replace('"demo"', "[]"),
    make().replace('"namespace":"demo",', ""),
    make().replace('"u"', "{}"),
    make(',"labels":{"a":1}'),
    make(',"labels":{"a":null}'),
    make(',"labels":["a"]'),
    make(',"labels":"a"'),
    make(',"annotations":{"a":{"b":"c"}}'),
    make(',"annotations":{"a":1}'),
    make(',"annotations":[]'),
    make(',"creationTimestamp":"yesterday"'),
    make(',"creationTimestamp":{}'),
    '{"kind":"Secret","apiVersion":"v1",' + make()[1:],
    '{"kind":"ConfigMap","apiVersion":"v2",' + make()[1:],
    '{"kind":"ConfigMap","apiVersion":"v1",' + make("", ',"kind":"Secret"')[1:],
    '{"kind":5,"apiVersion":"v1",' + make()[1:],
    make("", ',"data":"\x01"'),
    make("", ',"data":'),
    make("", ',"data":[1,,2]'),
    make() + make(),
    make().encode() + b"\xff",
    make("", ',"data":"?"').encode().replace(b"?", b"\xff\xfe"),
    make("", ',"data":"?"').encode().replace(b"?", b"\xed\xa0\x80"),
    make(',"x?":1').encode().replace(b"?", b"\xff"),
    make("", ',"data":' + "[" * 200_000 + "]" * 200_000),
    make("", ',"data":' + '{"a":' * 50_000 + "1" + "}" * 50_000),
    make(',"labels":' + "[" * 200_000),
    make("", ',"data":1e999\n'),
]


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_object_is_one_value_with_a_short_message(text: str | bytes) -> None:
    found = decode_one(text)
    assert isinstance(found, MalformedItem)
    assert 0 < len(found.message) < 300
    assert "\n" not in found.message


@pytest.mark.parametrize(
    ("opening", "inner", "closing"), [("[", "", "]"), ('{"a":', "1", "}"), ('[{"a":[],"b":', "{}", ',"]]]}}}":0}]')]
)
def test_an_object_is_nested_at_most_as_deep_as_clients_can_read(opening: str, inner: str, closing: str) -> None:
    levels = opening.count("[") + opening.count("{") - opening.count("[]")
    most = (MAX_DEPTH - 1) // levels  # the object itself is a level
    brackets = '"' + "[{" * 5000 + '\\"' + "}" * 5000 + '"'  # in a string they are none
    for count, kept in ((most - 1, True), (most + 1, False)):
        text = make("", f',"text":{brackets},"data":{opening * count}{inner}{closing * count}')
        assert isinstance(decode_one(text), CachedObject) == kept
        json.loads(text)


LARGE = 2_000_000


@pytest.mark.parametrize(
    "data",
    [
        json.dumps({f"k{number}": {"a": [1, {"b": []}]} for number in range(LARGE // 40)}),
        "[" * LARGE + "]" * LARGE,
        '{"a":' * (LARGE // 5) + "1" + "}" * (LARGE // 5),
        "[" + "[],{}," * (LARGE // 6) + "0]",
        '"' + '\\"' * LARGE + '"',
        '"' + '\\"' * LARGE,
        "[" * 300 + '"' + '\\"' * LARGE,
        '"' + "\\\\" * LARGE,
    ],
)
def test_no_object_is_slow_to_check(data: str) -> None:
    text = make("", f',"data":{data}')
    with processor_time() as taken:
        decode_one(text)
    assert taken.seconds < 3


def test_an_object_that_is_too_large_is_left_out() -> None:
    found = decode_one(make("", ',"data":"%s"' % ("x" * 8 * 1024 * 1024)))
    assert isinstance(found, MalformedItem)
    assert "bytes" in found.message


@pytest.mark.parametrize(
    ("resource", "namespace", "text"),
    [
        (CONFIGMAPS, "prod", make()),
        (NODES, "", make()),
        (CONFIGMAPS, "", make().replace('"namespace":"demo",', "")),
    ],
)
def test_an_object_of_a_namespace_that_was_not_asked_for_is_left_out(
    resource: APIResource, namespace: str, text: str
) -> None:
    assert isinstance(decoder(resource, namespace=namespace).decode_item(text.encode(), NOW), MalformedItem)


def page_of(*items: str, version: str = "9", more: str = "") -> bytes:
    metadata = f'"metadata":{{"resourceVersion":"{version}"{more}}}'
    return f'{{"kind":"ConfigMapList","apiVersion":"v1",{metadata},"items":[{",".join(items)}]}}\n'.encode()


def test_one_malformed_item_costs_the_list_nothing_else() -> None:
    page = decoder().decode_page(page_of(make(), make().replace('"7"', '"x"'), make().replace('"a"', '"b"')), NOW)
    found = list(page)
    assert [type(item) for item in found] == [CachedObject, MalformedItem, CachedObject]


def test_a_page_that_has_a_next_one() -> None:
    page = decoder().decode_page(page_of(make(), more=',"continue":"token","remainingItemCount":5'), NOW)
    assert (page.version, page.continue_token, len(page)) == (9, "token", 1)
    assert list(decoder().decode_page(page_of().replace(b'"items":[]', b'"items":null'), NOW)) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"404 page not found\n",
        b"[]",
        b"null",
        b"{}",
        page_of(version="x"),
        page_of(version=""),
        page_of(version="0"),
        page_of(more=',"continue":"%s"' % ("x" * 20_000)),
        page_of(more=',"continue":5'),
        page_of().replace(b"ConfigMapList", b"ConfigMap"),
        page_of().replace(b"ConfigMapList", b"List<evil>List"),
        page_of().replace(b'"v1"', b'"v2"'),
        page_of().replace(b'"items":[]', b'"items":{}'),
        page_of().replace(b'"items":[]', b'"items":[}'),
        page_of().replace(b"]}", b"]"),
        page_of().replace(b'"kind":"ConfigMapList","apiVersion":"v1"', b'"kind":"Table","apiVersion":"evil/v1"'),
        b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no","code":403}',
        b'{"kind":"ConfigMapList","apiVersion":"v1","items":[]}',
        b'{"a":' * 100_000,
        b"\xff\xfe",
    ],
)
def test_what_is_no_list_is_one_error(data: bytes) -> None:
    with pytest.raises(MalformedResponse) as raised:
        decoder().decode_page(data, NOW)
    assert len(str(raised.value)) < 1500


@pytest.mark.parametrize(
    "row",
    [
        "3",
        "{}",
        '{"cells":null,"object":?}',
        '{"cells":{},"object":?}',
        '{"cells":["x"],"object":null}',
        '{"object":?}',
    ],
)
def test_a_malformed_row_is_one_value(row: str) -> None:
    row = row.replace("?", make())
    table = f'{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"9"}},"rows":[{row}]}}'
    page = decoder().decode_page(table.encode(), NOW)
    assert [type(item) for item in page] == [MalformedItem]
    line = f'{{"type":"ADDED","object":{table}}}'
    assert isinstance(decoder().decode_event(line.encode(), NOW), MalformedItem)


@pytest.mark.parametrize("rows", ["", ',"rows":null', ',"rows":[]', ',"rows":[?,?]', ',"rows":[?,null]'])
@pytest.mark.parametrize("event_type", ["ADDED", "DELETED"])
def test_a_table_event_without_exactly_one_row_is_one_value_and_names_no_object(rows: str, event_type: str) -> None:
    """Nobody can say which of them the event is about; its columns are those of the watch all the same."""
    row = f'{{"cells":["x"],"object":{make()}}}'
    columns = '"columnDefinitions":[{"name":"Name"}]'
    table = f'{{"kind":"Table","apiVersion":"meta.k8s.io/v1",{columns}{rows.replace("?", row)}}}'
    found = decoder().decode_event(f'{{"type":"{event_type}","object":{table}}}'.encode(), NOW)
    assert isinstance(found, MalformedItem)
    assert found.message == "a Table without exactly one row"
    assert (found.key, found.version) == ("", 0)
    assert found.columns == b'[{"name":"Name"}]'
    assert found.type is EventType[event_type]


@pytest.mark.parametrize("rows", ["null", "[]", "[{}]", '[{"cells":["x"],"object":null}]'])
def test_a_table_event_whose_row_has_no_object_names_none(rows: str) -> None:
    table = f'{{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":{rows}}}'
    found = decoder().decode_event(f'{{"type":"MODIFIED","object":{table}}}'.encode(), NOW)
    assert isinstance(found, MalformedItem)
    assert (found.key, found.version, found.columns) == ("", 0, None)


def test_cells_are_served_in_one_line() -> None:
    row = f'{{"cells":[\n"x"\n],"object":{make()}}}'
    found = decoder().decode_row(row.encode(), NOW)
    assert isinstance(found, CachedObject)
    assert found.cells == b'["x"]'


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}",
        b"[]",
        b'{"type":"ADDED"}',
        b'{"type":"RENAMED","object":{}}',
        b'{"type":5,"object":{}}',
        b'{"type":"BOOKMARK","object":{}}',
        b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"x"}}}',
        b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"5"},"rows":[{}]}}',
        b'{"type":"ERROR","object":{}}',
        b'{"type":"ERROR","object":{"kind":"Pod"}}',
        b'{"type":"ERROR","object":[]}',
        b'{"type":"ADDED","object":{}',
        b"\xff",
        b'{"type":"ERROR","object":' + b'{"a":' * 100_000,
    ],
)
def test_what_is_no_event_is_one_error(line: bytes) -> None:
    with pytest.raises(MalformedResponse) as raised:
        decoder().decode_event(line, NOW)
    assert len(str(raised.value)) < 1500


def test_an_event_with_a_malformed_object_is_one_value() -> None:
    found = decoder().decode_event(b'{"type":"ADDED","object":{"metadata":{}}}', NOW)
    assert isinstance(found, MalformedItem)


def test_a_table_event_is_known_however_it_is_written() -> None:
    row = f'{{"cells":["x"],"object":{make()}}}'
    for start in (
        '{"kind":"Table","apiVersion":"meta.k8s.io/v1"',
        '{"apiVersion":"meta.k8s.io/v1","kind":"Table"',
        '{ "kind" : "Table", "apiVersion":"meta.k8s.io/v1"',
    ):
        line = f'{{"type":"MODIFIED","object":{start},"metadata":{{"resourceVersion":"7"}},"rows":[{row}]}}}}'
        found = decoder().decode_event(line.encode(), NOW)
        assert isinstance(found, ObjectEvent)
        assert (found.type, found.object.cells) == (EventType.MODIFIED, b'["x"]')


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,  # more takes long to generate, and is nothing else to a decoder
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
METADATA = st.fixed_dictionaries(
    {
        "name": st.just("a"),
        "namespace": st.just("demo"),
        "uid": TEXTS,
        "resourceVersion": st.integers(1, 2**64 - 1).map(str),
    },
    optional={
        "labels": st.dictionaries(TEXTS | st.just(CLUSTER_LABEL), TEXTS) | st.none(),
        "annotations": st.dictionaries(TEXTS | st.just(CLUSTER_ANNOTATION), TEXTS) | st.none(),
        "managedFields": st.lists(JSON),
        "größe": JSON,
    },
).flatmap(lambda fields: st.permutations(list(fields.items())).map(dict))


@pytest.mark.slow
@given(
    METADATA, st.dictionaries(TEXTS.filter(lambda key: key not in ("kind", "apiVersion", "metadata")), JSON), st.data()
)
def test_any_object_is_served_as_it_was_but_for_the_marks(
    metadata: dict[str, Any], rest: dict[str, Any], data: st.DataObject
) -> None:
    item = dict(data.draw(st.permutations([*rest.items(), ("metadata", metadata)])))
    dumps: Callable[..., str] = data.draw(
        st.sampled_from(
            [
                lambda item: json.dumps(item, separators=(",", ":"), ensure_ascii=False),
                lambda item: json.dumps(item, separators=(",", ":")),
                lambda item: json.dumps(item, indent=1),
            ]
        )
    )
    metadata = {**metadata, "labels": metadata.get("labels") or {}, "annotations": metadata.get("annotations") or {}}
    decode = decoder()
    found = decode.decode_item(dumps(item).encode("utf-8", "surrogatepass"), NOW)
    try:
        json.dumps(item, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    assert isinstance(found, CachedObject)
    shown = expected({**item, "metadata": metadata})
    assert json.loads(found.json(b"", metadata["resourceVersion"].encode())) == shown
    assert found.labels == shown["metadata"]["labels"]
    version = found.json(decode.type_prefix, b"123")
    assert json.loads(version)["metadata"]["resourceVersion"] == "123"


@given(st.binary(), st.integers(0, 200), st.integers(0, 40))
def test_damaged_bytes_never_crash(noise: bytes, place: int, length: int) -> None:
    text = make(',"labels":{"a":"b"},"annotations":{"a":"b"},"managedFields":[{"a":{}}]').encode()
    damaged = text[:place] + noise + text[place + length :]
    found = decoder().decode_item(damaged, NOW)
    assert isinstance(found, CachedObject | MalformedItem)
    if isinstance(found, CachedObject):
        json.loads(found.json(b"", b"7"))


def test_a_custom_resource_with_a_field_before_api_version_is_one() -> None:
    gadgets = APIResource(GroupVersionResource("east.example.com", "v1beta1", "gadgets"), "Gadget", "", False, VERBS)
    decode = ObjectDecoder("east", gadgets)
    list(decode.decode_page(recorded("list/east/gadgets-cluster-scoped.json")["body"].encode(), 0.0))
    assert decode.items_typed
    assert decode.type_prefix == b'"apiVersion":"east.example.com/v1beta1","kind":"Gadget",'


def test_elements_that_cost_more_memory_than_bytes_are_bounded() -> None:
    crowd = "0," * 1_000_001 + "0"
    found = decode_one(make("", f',"data":[{crowd}]'))
    assert isinstance(found, MalformedItem)
    assert "elements" in found.message
    with pytest.raises(MalformedResponse, match="elements"):
        decoder().decode_event(f'{{"type":"ADDED","object":{{"kind":"Table","rows":[{crowd}]}}}}'.encode(), NOW)
    with pytest.raises(MalformedResponse, match="elements"):
        decoder().decode_page(page_of(*["0" for _ in range(4_000_002)]), NOW)
    text = '"' + "0," * 1_000_000 + '"'  # commas in a string are none
    page = decoder().decode_page(page_of(*[make("", f',"data":{text}')] * 5), NOW)
    assert [type(item) for item in page] == [CachedObject] * 5


PAGE = page_of(make(), make(',"labels":{"a":"b"}'))
ROW = f'{{"cells":["x"],"object":{make()}}}'
TABLE = f'{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"9"}},"rows":[{ROW}]}}'.encode()
BOOKMARK = b'{"metadata":{"resourceVersion":"5","annotations":{"k8s.io/initial-events-end":"true"}}}'
STATUS = b'{"kind":"Status","code":410,"reason":"Expired","details":{"retryAfterSeconds":5}}'
LINES = [
    b'{"type":"MODIFIED","object":%s}' % make().encode(),
    b'{"type":"ADDED","object":%s}' % TABLE,
    b'{"type":"BOOKMARK","object":%s}' % BOOKMARK,
    b'{"type":"ERROR","object":%s}' % STATUS,
]
NOISE = st.binary(max_size=10) | st.sampled_from(
    [
        b"null",
        b"[]",
        b"{}",
        b'"x"',
        b"1e999",
        b"9" * 40,
        b'"\\u0000"',
        b"[" * 50,
        b"\n",
        b",",
        b'"metadata":',
        b'"rows":',
    ]
)


@given(st.sampled_from([PAGE, TABLE, *LINES]), NOISE, st.integers(0, 500), st.integers(0, 30))
def test_damaged_pages_and_lines_never_crash(data: bytes, noise: bytes, place: int, length: int) -> None:
    place %= len(data)
    damaged = data[:place] + noise + data[place + length :]
    found: list[object] = []
    try:
        if data in LINES:
            found.append(decoder().decode_event(damaged, NOW))
        else:
            found += decoder().decode_page(damaged, NOW)
    except MalformedResponse as error:
        found.append(error)
    for item in found:
        assert not isinstance(item, CachedObject) or json.loads(item.json(b"", b"7"))
