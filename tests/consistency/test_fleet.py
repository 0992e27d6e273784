"""A reload that is not answered in time leaves the tester and the daemon with the same layout, or ends the run."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.consistency import run
from tests.consistency.checker import Checker
from tests.consistency.faults import FAULTS
from tests.consistency.fleet import RELOADS, NotInForce, Proxy, put_in_force
from tests.consistency.records import Disturbances
from tests.consistency.run import Options, Run
from tests.e2e.processes import Daemon

SILENT: dict[str, Any] = {}
DONE = {"ok": True, "changes": []}


@contextmanager
def control_socket(tmp_path: Path, answers: Sequence[dict[str, Any]]) -> Iterator[tuple[Proxy, list[str]]]:
    """A proxy whose control socket gives these answers, one to each connection; and the commands that it got."""
    got: list[str] = []
    held: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "control.sock"))
        listening.listen()

        def serve() -> None:
            for answer in answers:
                connection, _ = listening.accept()
                held.append(connection)
                got.append(json.loads(connection.makefile("rb").readline())["command"])
                if answer is not SILENT:
                    connection.sendall(json.dumps(answer).encode() + b"\n")

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield Proxy("one", Daemon(tmp_path, ""), 0, ssl.create_default_context()), got
        finally:
            serving.join(60)
            for connection in held:
                connection.close()


def test_a_reload_that_is_not_answered_in_time_is_made_again(tmp_path: Path) -> None:
    """The late one may be made at any time: only the one that is answered shows what is in force."""
    with control_socket(tmp_path, (SILENT, DONE)) as (proxy, got):
        put_in_force(proxy, 0.2)
    assert got == ["reload", "reload"]


def test_a_proxy_that_answers_no_reload_is_not_known_to_have_the_layout(tmp_path: Path) -> None:
    with (
        control_socket(tmp_path, [SILENT] * RELOADS) as (proxy, _),
        pytest.raises(NotInForce, match=r"proxy one answers no reload, 3 were asked for in 0\.2 s each: TimeoutError"),
    ):
        put_in_force(proxy, 0.2)


def test_a_reload_that_is_refused_is_not_made_again(tmp_path: Path) -> None:
    refused = {"ok": False, "errors": ["mcproxy is stopping"]}
    with (
        control_socket(tmp_path, (refused,)) as (proxy, got),
        pytest.raises(NotInForce, match=r"proxy one refuses to reload: .*mcproxy is stopping"),
    ):
        put_in_force(proxy)
    assert got == ["reload"]


def test_a_run_ends_with_one_line_where_it_is_not_known_what_is_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(scene: Any) -> None:
        raise NotInForce("proxy one answers no reload")

    monkeypatch.setattr(run, "CALM", 0.0)
    monkeypatch.setitem(FAULTS, "reload_order", fails)
    one, checker, nothing = Run(tmp_path, Options(600.0, 1)), Checker({}, Disturbances()), cast(Any, None)
    one._lane(nothing, (), checker, "processes", ("reload_order",), 0.0, time.monotonic() + 600)
    one._check(checker, nothing)
    one._settle(nothing, (), (), checker, nothing)
    line = "the run ends at reload_order, nothing is judged from there on: proxy one answers no reload"
    assert one._report.wrong == [line]
    assert one._over.is_set()
