"""`mcproxy status`: what is printed of a status document, and the exit status."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mcproxy.cli.main import main
from mcproxy.cli.status import BROKEN
from tests.cli.status_document import (
    CERTIFICATE,
    ENDPOINT,
    HUB_OF_EDGE,
    TUNNEL_OF_EDGE,
    TUNNEL_OF_HUB,
    StandIn,
    document,
)

Daemon = Callable[..., str]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Starts a stand-in that answers a document; returns its configuration file."""
    started: list[StandIn] = []

    def start(**changes: Any) -> str:
        started.append(StandIn(tmp_path, lambda number: document(**changes)))
        return str(started[0].file)

    yield start
    for each in started:
        each.close()


def cluster(*endpoints: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    (east,) = document()["clusters"]
    return [{**east, "endpoints": [{**ENDPOINT, **each} for each in endpoints], **fields}]


def out(name: str = "a") -> dict[str, Any]:
    return {"name": name, "ready": False, "state": "out", "cause": "connection refused"}


def test_a_daemon_that_is_well(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "-c", daemon()]) == 0
    text, errors = capsys.readouterr()
    assert errors == ""
    lines = text.splitlines()
    assert lines[0].startswith("mcproxy 0.1.0 serves ")
    assert lines[1] == "pid 4711, compiled, up 1h02m since 2026-11-22T12:00:00Z, configuration 9568c7c03973"
    assert lines[2] == (
        "3 requests open, 1000 ended since the start, 15/s (3.3% errors) in the last minute, 2.0 KiB/s, p99 50 ms"
    )
    assert lines[3] == "▄█  requests, 10 s"
    assert lines[4] == "not reloaded since the start"
    assert "broken" not in text
    titles = [line for line in lines if line.isupper() and " " not in line]
    assert titles[:4] == ["ENDPOINTS", "SERVERS", "LISTENERS", "REFUSALS"]
    assert titles[4:9] == ["LIMITS", "APISERVICES", "INGRESSES", "EXPORTS", "IMPORTERS"]
    assert titles[9:] == ["AGGREGATES", "SERVICES", "CERTIFICATES", "PROCESSES"]
    rows = [" ".join(line.split()) for line in lines]
    assert "public 0.0.0.0:6443 API accepting 7 20000 3" in rows
    assert "east cluster east 1.5 31 ms 2 900 3 7 east.example.com" in rows
    assert any(row.startswith("v1beta1.metrics.k8s.io metrics web True ") and row.endswith("Passed") for row in rows)
    assert "403 the server's authorizer 6 7% 7" in rows
    assert "fleet aggregate fleet 0 - 1 100 0 0 (default)" in rows
    assert "interactive MaxRequestsInflight max 200, long-running 5000, queue 100 All 10% 20 300 0 0" in rows
    assert "east 3 12 1 0 0 0" in rows
    assert "fleet 1 synced 17 29 KiB 4 0 B" in rows
    assert "fleet server 365d 2027-11-22T12:00:00Z CN=fleet /etc/mcproxy/tls/fleet.crt" in rows
    assert "mcproxy 4711 1h02m 3 58 MiB 13 s 40 4 ms 0" in rows
    assert "\x1b" not in text


def test_sections_and_wide(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    file = daemon()
    assert main(["status", "certificates", "caches", "-o", "wide", "-c", file]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "CACHES",
        "AGGREGATE CLUSTER RESOURCE NAMESPACE STATE OBJECTS SIZE LAG EVENT CAUSE",
        "fleet east deployments.apps - synced 17 29 KiB 12 s -",
        "",
        "CERTIFICATES",
        "CERTIFICATE KIND EXPIRES IN AT SUBJECT FILE NAMES IN IT",
        "fleet server 365d 2027-11-22T12:00:00Z CN=fleet /etc/mcproxy/tls/fleet.crt fleet.example.com",
    ]
    assert main(["status", "endpoints", "servers", "listeners", "limits", "processes", "-o", "wide", "-c", file]) == 0
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(row.endswith("4.2 ms tokenFile Impersonate https://10.0.0.2:6443") for row in rows)
    assert "public 0.0.0.0:6443 API accepting 7 20000 3 2 5 1 -" in rows


def test_tunnels(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    away = {**HUB_OF_EDGE, "url": "https://hub-2.example:6443", "connected": False, "cause": "no answer"}
    found = [TUNNEL_OF_HUB, {**TUNNEL_OF_EDGE, "hubs": [HUB_OF_EDGE, away]}]
    assert main(["status", "tunnels", "-c", daemon(tunnels=found)]) == BROKEN
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == (
        "broken: tunnel site-b of listener hub: hub https://hub-2.example:6443 is not connected: no answer"
    )
    assert lines[2:4] == ["TUNNELS", "TUNNEL DIALLED BY PEER STATE FOR RTT CONNS CAUSE"]
    assert [(line.split(" connected ")[0], line.endswith(" 3 -")) for line in lines[4:6]] == [
        ("site-a an edge 192.0.2.7", True),
        ("site-b listener hub https://hub-1.example:6443", True),
    ]
    assert "21 ms" in lines[4]
    assert lines[6].startswith("site-b listener hub https://hub-2.example:6443 not connected ")
    assert lines[6].endswith(" no answer")


def test_reviews(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    reviewer = {"kind": "tokens", "name": "corp", "waiting": 2, "running": 3, "cached": 4500}
    reviews = {"waiting": 2, "running": 3, "reviewers": [reviewer]}
    assert main(["status", "reviews", "-c", daemon(reviews=reviews)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == ["REVIEWS", "REVIEWER REVIEWS WAITING RUNNING CACHED", "corp tokens 2 3 4500"]


@pytest.mark.parametrize(
    ("section", "right"),
    [
        ("endpoint", "did you mean endpoints?"),
        ("xyz", "known are endpoints, tunnels, servers, "),
        ("site.yaml", "name the file with -c site.yaml"),
    ],
)
def test_a_section_that_there_is_not_is_wrong_usage(
    section: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["status", section])
    assert end.value.code == 2
    assert f"there is no section '{section}'; {right}" in capsys.readouterr().err


def test_listeners_have_the_requests_in_flight(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "listeners", "-c", daemon()]) == 0
    titles = capsys.readouterr().out.splitlines()[1]
    assert titles.split("  ")[-1].strip() == "IN FLIGHT"


def test_json_is_the_document(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    file = daemon(clusters=cluster(out()))
    assert main(["status", "-o", "json", "-c", file]) == 3
    shown = json.loads(capsys.readouterr().out)
    assert shown == document(clusters=cluster(out()), file=file)


def test_what_is_broken_is_said_and_is_status_3(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    cause = "\x1b[2Jtls: \u202ebad certificate"
    assert main(["status", "-c", daemon(clusters=cluster({**out(), "cause": cause}, {"name": "b"}))]) == 3
    text = capsys.readouterr().out
    assert "broken: cluster east: endpoint a is out: ?[2Jtls: ?bad certificate\n" in text
    assert "\x1b" not in text


def test_quiet_prints_only_what_is_wrong(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    soon = {**CERTIFICATE, "daysLeft": 12.0}
    assert main(["status", "-q", "-c", daemon(certificates=[soon])]) == 0
    assert capsys.readouterr().out == (
        "warning: the certificate in /etc/mcproxy/tls/fleet.crt (server fleet) expires in 12 days, "
        "on 2027-11-22T12:00:00Z\n"
    )


def test_colours_on_a_terminal_and_lines_that_fit(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = daemon(clusters=cluster(out()))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["status", "-c", file]) == 3
    coloured = capsys.readouterr().out
    assert "\x1b[31mout\x1b[0m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["status", "-c", file]) == 3
    plain = capsys.readouterr().out
    assert "\x1b" not in plain
    tables = plain.split("\n\n", 2)[2]
    assert all(len(line) <= 60 for line in tables.splitlines())


def test_no_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mcproxy.yaml"
    file.write_text("daemon: {controlSocket: control.sock}\n", encoding="utf-8")
    assert main(["status", "-c", str(file)]) == 1
    text, errors = capsys.readouterr()
    assert text == ""
    assert errors.startswith(f"mcproxy status: no daemon runs: {tmp_path}/control.sock: No such file or directory")


def test_an_older_daemon_is_told_from_this_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older = {"ok": True, "version": "0.0.9", "state": "serving", "listeners": [], "clusters": []}
    with StandIn(tmp_path, lambda number: older) as daemon:
        assert main(["status", "-c", str(daemon.file)]) == 1
    assert "is an older mcproxy" in capsys.readouterr().err


def test_the_last_reload(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    done = {"ok": True, "at": "2026-11-22T12:30:00Z", "seconds": 0.12, "errors": [], "warnings": ["soon"]}
    changes = [f"cluster c{number}: added" for number in range(10)]
    assert main(["status", "-c", daemon(lastReload={**done, "changes": changes})]) == 0
    text = capsys.readouterr().out
    assert "done in 0.12 s, 10 changes\n  cluster c0: added\n" in text
    assert "  and 2 more (-o json has all)\n  warning: soon\n" in text


def test_a_refused_reload(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    refused = {"ok": False, "at": "2026-11-22T12:30:00Z", "seconds": 0.1, "warnings": [], "changes": []}
    assert main(["status", "-c", daemon(lastReload={**refused, "errors": ["f:1:1: a: wrong", "another"]})]) == 3
    text = capsys.readouterr().out
    assert "refused after 0.1 s, the configuration before it stays\n  f:1:1: a: wrong\n  another\n" in text
    assert (
        "broken: the last reload was refused; the previous configuration stays in force: f:1:1: a: wrong (and 1 more)"
        in text
    )


def test_who_sends_most(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    file = daemon()
    assert main(["status", "--top", "-c", file]) == 0
    text = capsys.readouterr().out
    assert [line.split()[0] for line in text.splitlines() if "runner" in line or "jane" in line] == [
        "jane",
        "system:serviceaccount:ci:runner",
    ]
    assert "ENDPOINTS" not in text
    assert "\x1b" not in text
    assert main(["status", "refusals", "--top", "refused", "-c", file]) == 0
    text = capsys.readouterr().out
    assert "system:serviceaccount:ci:runner        40   100%" in text
    assert "REFUSALS" in text


def test_a_daemon_that_does_not_tell_who_sends_most(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--top", "-c", daemon(senders=None, refusals=None)]) == 0
    assert "does not report who sends most" in capsys.readouterr().out
