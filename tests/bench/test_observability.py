"""What `bench observability` compares: files that load, with the observers that their names say, and its targets."""

from __future__ import annotations

from pathlib import Path

from bench import observability, pki
from bench.identity import Sample
from bench.meter import Usage
from bench.observability import ACCESS, ALL, AUDIT, METRICS, OFF
from bench.observed import SERIES
from bench.subjects import Place
from bench.wrk import Report
from mcproxy.config.load import load


def test_each_setting_has_the_observers_of_its_name(tmp_path: Path) -> None:
    client = pki.make_client(tmp_path, "client", "alice", ["dev"])
    server = pki.make_identity(tmp_path, "localhost", "localhost")
    found = {}
    for setting in observability.settings(client.authority):
        place = Place(tmp_path / setting.name.replace(" ", "-"), server, 8443, 9443)
        place.directory.mkdir()
        argv = setting.argv(place)
        logging = load(argv[-1]).config.logging
        found[setting.name] = ("off" not in argv, logging.access is not None, logging.audit is not None)
    assert found == {
        OFF: (False, False, False),
        METRICS: (True, False, False),
        ACCESS: (False, True, False),
        AUDIT: (False, False, True),
        ALL: (True, True, True),
    }


def test_the_scraped_daemon_has_an_admin_listener(tmp_path: Path) -> None:
    server = pki.make_identity(tmp_path, "localhost", "localhost")
    argv = observability.Scraped("scraped", admin=9901).argv(Place(tmp_path, server, 8443, 9443))
    assert [listener.name for listener in load(argv[-1]).config.listeners] == ["bench", "admin"]
    assert argv[2:4] != ["-m", "mcproxy"]
    assert SERIES == 10_000


def sample(cost: float, rate: float) -> Sample:
    return Sample(Report(1000, rate, 0.001, ""), Usage(cpu=cost * 1000, busy=1.0, others=0.0))


def test_all_three_together_may_cost_a_tenth() -> None:
    good = {OFF: sample(50e-6, 1000), ALL: sample(54e-6, 950)}
    bad = {OFF: sample(50e-6, 1000), ALL: sample(56e-6, 800)}
    assert [target.met for target in observability.summarise([good]).targets] == [True, True]
    assert [target.met for target in observability.summarise([bad]).targets] == [False, False]
