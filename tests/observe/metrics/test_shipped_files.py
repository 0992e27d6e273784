"""The page of all metrics, the alert rules and the dashboard: complete, and with no metric that does not exist."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcproxy.cli.docs import sections
from mcproxy.observe.events import EVENTS
from mcproxy.observe.metrics.families import COUNTED, Family
from mcproxy.observe.metrics.gauges import GAUGES

ROOT = Path(__file__).parents[3]
RULES = ROOT / "etc" / "alert-rules.yaml"
DASHBOARD = ROOT / "etc" / "grafana-dashboard.json"
FAMILIES = {family.name: family for family in (*COUNTED, *(gauge.family for gauge in GAUGES))}

_NAME = re.compile(r"\b(?:mcproxy|process)_[a-z_]+\b")
_SELECTOR = re.compile(r"\b((?:mcproxy|process)_[a-z_]+)\{([^}]*)\}")


def series_of(family: Family) -> set[str]:
    if family.kind != "histogram":
        return {family.name}
    return {f"{family.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")}


SERIES = {name: family for family in FAMILIES.values() for name in series_of(family)}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def dashboard_expressions() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [entry["definition"] for entry in dashboard["templating"]["list"] if "definition" in entry]
    labels = [re.sub(r"label_values\((.*), \w+\)", r"\1", query) for query in queries]
    reloads = [entry["expr"] for entry in dashboard["annotations"]["list"]]
    return [target["expr"] for panel in panels() for target in panel.get("targets", ())] + labels + reloads


def unknown(expression: str) -> set[str]:
    """Return the metrics in a query that do not exist, and the labels that they do not have."""
    found = _NAME.findall(re.sub(r'"[^"]*"', '""', expression))
    names = {name for name in found if name not in SERIES}
    for name, selector in _SELECTOR.findall(expression):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        allowed = {*SERIES[name].labels, "instance", "job", "le"} if name in SERIES else labels
        names |= {f"{name}{{{label}}}" for label in labels - allowed}
    return names


def test_what_is_unknown_is_found() -> None:
    assert unknown("rate(mcproxy_requests_totl[5m])") == {"mcproxy_requests_totl"}
    assert unknown('mcproxy_requests_total{cod="200"}') == {"mcproxy_requests_total{cod}"}
    assert unknown("mcproxy_request_duration_seconds") == {
        "mcproxy_request_duration_seconds"
    }  # a histogram has no such
    assert unknown('sum by (le) (mcproxy_request_duration_seconds_bucket{server="a"})') == set()


def test_the_page_has_each_metric_with_type_labels_and_help() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    listed = re.findall(
        r"^\| `((?:aggregator|mcproxy|process)_\w+)` \| (\w+) \| ([\w, ]*) \| (.*) \|$", page, re.MULTILINE
    )
    assert sorted(name for name, *_ in listed) == sorted(FAMILIES)
    for name, kind, labels, text in listed:
        family = FAMILIES[name]
        assert (kind, labels.strip(), text) == (family.kind, ", ".join(family.labels), family.help), name


def test_names_follow_the_rules_of_prometheus() -> None:
    assert len(FAMILIES) == len(COUNTED) + len(GAUGES)
    for family in FAMILIES.values():
        assert re.fullmatch(r"(aggregator|mcproxy|process)_[a-z_]+", family.name)
        assert family.name.endswith("_total") is (family.kind == "counter"), family.name
        assert all(re.fullmatch(r"[a-z_]+", label) and label != "le" for label in family.labels)
        assert len(set(family.labels)) == len(family.labels)
        assert family.help.endswith(".")
        assert list(family.bounds) == sorted(set(family.bounds))
        assert bool(family.bounds) is (family.kind == "histogram")


@pytest.mark.parametrize("expression", [rule["expr"] for rule in rules()] + dashboard_expressions())
def test_each_query_is_of_metrics_that_exist(expression: str) -> None:
    assert unknown(expression) == set()
    assert _NAME.search(expression) or expression.startswith("up{")


def test_each_alert_says_what_it_means_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert re.fullmatch(r"Mcproxy[A-Z]\w+", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        text = " ".join(rule["annotations"][key] for key in ("summary", "description"))
        events = set(re.findall(r"event (\w+)", text))
        assert events <= set(EVENTS)
        assert set(_NAME.findall(text)) - events <= {*FAMILIES, *SERIES}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_each_alert_leads_into_the_manual(rule: dict[str, Any]) -> None:
    folder, page, anchor = re.fullmatch(r"(.*/)([\w.-]+)\.html#([\w-]+)", rule["annotations"]["runbook_url"]).groups()  # type: ignore[union-attr]
    assert folder == "file:///usr/share/doc/mcproxy/html/"  # where packages have it
    assert anchor in sections((ROOT / "docs" / f"{page}.md").read_text())


def test_a_panel_of_counts_shows_zero_where_nothing_happened() -> None:
    """A rate of a series that does not exist is no value: "No data" looks as if mcproxy could not be scraped."""
    counts = [each for each in dashboard_expressions() if re.search(r"\b(rate|increase)\(mcproxy_", each)]
    counts = [each for each in counts if "histogram_quantile" not in each and " / " not in each]
    assert len(counts) > 20
    assert [
        each for each in counts if not each.endswith(" or vector(0)") and not each.endswith(" or on() vector(0)")
    ] == []
    (errors,) = (
        target["expr"] for panel in panels() if panel["title"] == "Errors (5xx)" for target in panel["targets"]
    )
    assert errors.endswith("> 0) or vector(0)")  # not a number where nobody asks


def test_prometheus_takes_rules_and_queries(tmp_path: Path) -> None:
    variables = {"$__rate_interval": "5m", "$instance": ".*", "$server": ".*", "$cluster": ".*"}
    queries = []
    for number, expression in enumerate(dashboard_expressions()):
        for name, value in variables.items():
            expression = expression.replace(name, value)
        queries.append({"record": f"query:{number}", "expr": expression})
    (tmp_path / "queries.yaml").write_text(json.dumps({"groups": [{"name": "queries", "rules": queries}]}))
    checked = subprocess.run(
        ["promtool", "check", "rules", str(RULES), str(tmp_path / "queries.yaml")],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"SUCCESS: {len(queries)} rules found" in checked.stdout


def test_no_two_panels_are_in_one_place() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())
    assert all(target["expr"] for panel in panels() for target in panel.get("targets", ()))
