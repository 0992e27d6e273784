"""The pages about the logs are complete, in both directions: events, their remedies, fields and reasons."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from mcproxy.observe.access_log import json_formatter
from mcproxy.observe.events import EVENTS
from mcproxy.observe.record import AccessRecord
from mcproxy.requests.reasons import REASONS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def writer() -> Any:
    spec = importlib.util.spec_from_file_location("man_log_events", ROOT / "man" / "log_events.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    table = page.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_page_of_events_is_that_of_the_registry() -> None:
    assert (DOCS / "log-events.md").read_text() == writer().page(), "run: python man/log_events.py"


def test_troubleshooting_has_an_entry_for_each_event_that_asks_for_action_and_for_no_other() -> None:
    page = (DOCS / "troubleshooting.md").read_text()
    asking = {name for name, event in EVENTS.items() if event.todo}
    assert set(writer().entries(page)) == asking
    assert len(writer().entries(page)) == sum(len(found.split(", ")) for found in re.findall(r"(?m)^### (.+)$", page))
    for entry in page.split("\n### ")[1:]:
        assert re.search(r"(?m)^1\. ", entry), entry.splitlines()[0]


def test_each_reason_of_the_access_log_has_its_meaning_and_what_to_do() -> None:
    found = {row[0].strip("`"): row[1:] for row in rows((DOCS / "access-log.md").read_text(), "Reasons")}
    assert {reason: cells[0] for reason, cells in found.items()} == dict(REASONS)
    assert all(len(cells) == 2 and len(cells[1]) > 5 for cells in found.values())


def test_each_field_of_the_access_log_is_on_its_page_and_in_the_manual() -> None:
    record = AccessRecord(
        0.0, "x", "GET", "/", 200, groups=1, first_byte=0.0, upstream=0.0, upstream_status=200, attempts=1
    )
    record.cached = False
    for name in [each for each in dir(AccessRecord) if not each.startswith("_")]:
        if getattr(record, name) == "":
            setattr(record, name, "x")
    fields = set(json.loads(json_formatter("main")(record)))
    page = (DOCS / "access-log.md").read_text()
    listed = {name for row in rows(page, "Fields") for name in re.findall(r"`(\w+)`", row[0])}
    assert listed == fields
    manual = (ROOT / "man" / "mcproxy.yaml.5").read_text().split(".Sh THE ACCESS LOG", 1)[1].split(".Ss Reasons", 1)[0]
    in_manual = {word for line in re.findall(r"(?m)^\.It Li (.*)$", manual) for word in line.split(" , ")}
    assert in_manual == fields


def test_each_event_that_a_page_names_is_one() -> None:
    for name in ("access-log.md", "troubleshooting.md"):
        text = (DOCS / name).read_text()
        named = {word for each in re.findall(r"\(events? ([^)]*)\)", text) for word in re.findall(r"`(\w+)`", each)}
        assert named <= set(EVENTS)
