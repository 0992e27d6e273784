"""Columns and cells of Tables, from several members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcproxy.aggregate.encoding.column_definitions import DEFAULT_COLUMNS, parse_columns
from mcproxy.aggregate.encoding.columns import Columns
from mcproxy.kube.resource import APIResource
from tests.aggregate.objects import CREATED, EVENTS, JOBS, PODS, WIDGETS, decoded, pod

GOLDEN = Path(__file__).parent.parent.parent / "golden"


def columns(*names: str, kinds: dict[str, str] | None = None) -> bytes:
    definitions = [
        {"name": name, "type": (kinds or {}).get(name, "string"), "format": "", "description": "", "priority": 0}
        for name in names
    ]
    return json.dumps(definitions, separators=(",", ":")).encode()


def cells(source: bytes | None, obj: Any, now: float, *others: bytes | None, of: APIResource = PODS) -> list[Any]:
    table = Columns([source, *others], of.gvr, custom="." in of.gvr.group)
    found = json.loads(table.printer(source).cells(obj, now))
    assert isinstance(found, list)
    return found


def test_columns_of_one_member_are_its_bytes() -> None:
    recorded = json.loads((GOLDEN / "table" / "pods-includeObject-None.json").read_text())["response"]["body"]
    source = json.dumps(json.loads(recorded)["columnDefinitions"], separators=(",", ":")).encode()
    assert Columns([source, source], PODS.gvr, custom=False).definitions is source


def test_the_union_has_every_column_once_where_its_member_puts_it() -> None:
    table = Columns(
        [columns("Name", "Status", "Age"), columns("Name", "Ready", "Status", "Age")], PODS.gvr, custom=False
    )
    assert [column["name"] for column in json.loads(table.definitions)] == ["Name", "Ready", "Status", "Age"]


def test_cells_stand_below_their_columns() -> None:
    old, new = columns("Name", "Status", "Age"), columns("Name", "Ready", "Status", "Age")
    obj = decoded(pod(), cells=["web", "Running", "5m"], printed=CREATED + 300)
    assert cells(old, obj, CREATED + 360, new) == ["web", None, "Running", "6m"]
    obj = decoded(pod(), cells=["web", "1/1", "Running", "5m"], printed=CREATED + 300)
    assert cells(new, obj, CREATED + 360, old) == ["web", "1/1", "Running", "6m"]


def test_an_object_that_the_member_printed_no_cells_for_has_name_and_age() -> None:
    assert cells(None, decoded(pod()), CREATED + 86400 * 3) == ["web", "3d"]
    names = [column["name"] for column in json.loads(Columns([None], PODS.gvr, custom=False).definitions)]
    assert names == [column.name for column in DEFAULT_COLUMNS] == ["Name", "Age"]
    shown = cells(columns("Name", "Status", "Age"), decoded(pod()), CREATED + 60)
    assert shown == ["web", None, "60s"]


def test_cells_printed_for_other_columns_are_not_used() -> None:
    obj = decoded(pod(), cells=["web", "5m"], printed=CREATED)
    assert cells(columns("Name", "Status", "Age"), obj, CREATED + 60) == ["web", None, "60s"]


def test_restarts_age_with_the_container_that_ended() -> None:
    obj = decoded(
        pod(status={"containerStatuses": [{"lastState": {"terminated": {"finishedAt": "2023-11-14T23:13:20Z"}}}]}),
        cells=["web", "7 (118s ago)", "62m"],
        printed=CREATED + 3600 + 118,
    )
    assert cells(columns("Name", "Restarts", "Age"), obj, CREATED + 3600 + 600) == ["web", "7 (10m ago)", "70m"]


def test_events_age_with_their_last_time() -> None:
    obj = decoded(
        {**pod("e"), "lastTimestamp": "2023-11-14T23:13:20Z", "firstTimestamp": "2023-11-14T22:13:20Z"},
        EVENTS,
        cells=["10s", "60m", "x"],
        printed=CREATED + 3610,
    )
    assert cells(columns("Last Seen", "First Seen", "Name"), obj, CREATED + 7200, of=EVENTS) == ["60m", "120m", "x"]


def test_the_duration_of_a_job_ends_with_it() -> None:
    source = columns("Name", "Duration", "Age")
    status = {"startTime": "2023-11-14T22:13:20Z"}
    running = decoded({**pod("j"), "status": status}, JOBS, cells=["j", "60s", "60s"], printed=CREATED + 60)
    assert cells(source, running, CREATED + 7200, of=JOBS) == ["j", "120m", "120m"]
    status = {**status, "completionTime": "2023-11-14T22:14:20Z"}
    ended = decoded({**pod("j"), "status": status}, JOBS, cells=["j", "60s", "60s"], printed=CREATED + 60)
    assert cells(source, ended, CREATED + 7200, of=JOBS) == ["j", "60s", "120m"]


def test_text_of_custom_resources_that_looks_like_an_age_stays() -> None:
    source = columns("Name", "Interval", "Age", "Synced", kinds={"Synced": "date"})
    obj = decoded(
        {"apiVersion": "example.com/v1", "kind": "Widget", **pod(), "status": {"at": "2023-11-14T22:13:20Z"}},
        WIDGETS,
        cells=["web", "5m", "5m", "5m"],
        printed=CREATED + 300,
    )
    assert cells(source, obj, CREATED + 3600, of=WIDGETS) == ["web", "5m", "5m", "60m"]


def test_cells_are_escaped_as_go_does() -> None:
    table = Columns([columns("Name", "IP")], PODS.gvr, custom=False)
    obj = decoded(pod(), cells=["web", "<none>"])
    assert table.printer(columns("Name", "IP")).cells(obj, CREATED) == b'["web","\\u003cnone\\u003e"]'


@pytest.mark.parametrize("source", [None, b"[]", b"{", b'[{"name":1}]', columns(*map(str, range(1001)))])
def test_columns_that_cannot_be_read(source: bytes | None) -> None:
    assert parse_columns(source) is None
    definitions = Columns([source], PODS.gvr, custom=False).definitions
    assert [column["name"] for column in json.loads(definitions)] == ["Name", "Age"]


def test_cells_for_columns_that_are_not_in_the_union_are_not_used() -> None:
    """A store may have others by the time that its rows are made."""
    table = Columns([columns("Name", "Status", "Age")], PODS.gvr, custom=False)
    obj = decoded(pod(), cells=["web", "Running", "5m"], printed=CREATED + 300)
    assert json.loads(table.printer(b"[]").cells(obj, CREATED + 60)) == ["web", None, "60s"]
    bare = Columns([columns("Color")], PODS.gvr, custom=True)
    assert json.loads(bare.printer(None).cells(obj, CREATED + 60)) == [None]
