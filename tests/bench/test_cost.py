"""Processor time per request: which cases a round has, how ratios are taken, and what counts as reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import cost, identity, pki, wrk
from bench.cost import CHAIN, LOGGED, Case, Round, Sample
from bench.meter import Usage
from bench.subjects import Place, pairs
from mcproxy.config import model
from mcproxy.config.load import load


def sample(requests: int, microseconds: float, errors: str = "", p99: float = 0.001) -> Sample:
    """A window of one second in which each request took so much processor time."""
    usage = Usage(requests * microseconds / 1e6, 0.9, 0.0)
    return Sample(wrk.Report(requests, requests, p99, errors), requests, 1.0, usage)


def taken(**costs: float) -> Round:
    """A round: `nginx_16=30.0` is nginx at 16 connections with 30 us a request."""
    cases: dict[Case, float] = {}
    for key, microseconds in costs.items():
        name, _, count = key.rpartition("_")
        cases[name.replace("_", "-"), int(count)] = microseconds
    return {case: sample(10_000, microseconds) for case, microseconds in cases.items()}


def test_direct_and_twisted_are_measured_at_few_connections_only() -> None:
    assert cost.cases(["direct", "nginx", "twisted.web"], (16, 100)) == [
        ("direct", 16),
        ("nginx", 16),
        ("nginx", 100),
        ("twisted.web", 16),
    ]


def test_ratios_are_of_the_same_round_and_number_of_connections() -> None:
    rounds = [
        taken(nginx_16=30 * speed, nginx_100=40 * speed, mcproxy_16=50 * speed, mcproxy_100=52 * speed)
        for speed in (1.0, 3.0)
    ]
    section = cost.summarise(["nginx", "mcproxy"], rounds)
    rows = {(row[0], row[1]): row for row in section.rows}
    assert section.columns[3] == "nginx / it"
    assert rows["mcproxy", "16"][3] == "0.60 [0.60 to 0.60]"
    assert rows["mcproxy", "100"][3] == "0.77 [0.77 to 0.77]"
    assert rows["nginx", "16"][3] == "-"
    assert rows["mcproxy", "500"][2] == "-"  # was not measured


def test_the_targets_of_the_issue() -> None:
    section = cost.summarise(
        ["nginx", "mcproxy", CHAIN, LOGGED],
        [
            taken(
                nginx_16=33, mcproxy_16=50, mcproxy_100=57, mcproxy_500=60,
                mcproxy_chain_16=55, mcproxy_chain_100=55, mcproxy_chain_500=55,
                mcproxy_chain_logged_16=55, mcproxy_chain_logged_100=55, mcproxy_chain_logged_500=55,
            )
        ],
    )  # fmt: skip
    assert {target.what: target.met for target in section.targets if target.what.startswith("CPU")} == {
        "CPU per request, nginx / mcproxy": True,
        "CPU per request, nginx / mcproxy-chain": False,
        "CPU per request, nginx / mcproxy-chain-logged": True,
        "CPU per request, mcproxy at 100 / at 16 connections": True,
        "CPU per request, mcproxy at 500 / at 16 connections": False,
        "CPU per request, mcproxy-chain at 100 / at 16 connections": True,
        "CPU per request, mcproxy-chain at 500 / at 16 connections": True,
        "CPU per request, mcproxy-chain-logged at 100 / at 16 connections": True,
        "CPU per request, mcproxy-chain-logged at 500 / at 16 connections": True,
    }


def test_a_round_with_an_error_gives_no_ratio_and_misses_a_target() -> None:
    broken = taken(nginx_16=30, mcproxy_16=10, mcproxy_100=50, mcproxy_500=50)
    broken["mcproxy", 16] = sample(10_000, 10, "Non-2xx or 3xx responses: 9")
    good = taken(nginx_16=30, mcproxy_16=40, mcproxy_100=40, mcproxy_500=40)
    section = cost.summarise(["nginx", "mcproxy"], [broken, good])
    assert section.targets[0].measured == "0.75 [0.75 to 0.75]"
    last = section.targets[-1]
    assert (last.what, last.measured, last.met) == ("rounds of mcproxy with an error", "1 of 6", False)
    assert "errors of mcproxy at 16: Non-2xx or 3xx responses: 9" in section.comparisons


@pytest.mark.parametrize(("others", "warned"), [(0.02, False), (0.4, True)])
def test_a_machine_that_is_not_quiet_is_said_to_be_so(others: float, warned: bool) -> None:
    one = sample(10_000, 30)
    usage = Usage(0.3, 0.5, others)
    section = cost.summarise(["nginx"], [{("nginx", 16): Sample(one.report, one.requests, one.seconds, usage)}])
    assert any("40% of the subjects' core" in line for line in section.comparisons) is warned


def test_every_candidate_meets_each_reference_and_each_other() -> None:
    names = ["direct", "nginx", "go", "mcproxy", "old"]
    assert pairs(names) == [
        ("mcproxy", "nginx"), ("mcproxy", "go"), ("old", "nginx"), ("old", "go"), ("mcproxy", "old")
    ]  # fmt: skip


@pytest.mark.parametrize("number", [0, 1])
def test_the_chains_have_token_impersonation_policies_and_a_bucket(tmp_path: Path, number: int) -> None:
    subject = cost.chains()[number]
    argv = subject.argv(Place(tmp_path, pki.make_identity(tmp_path, "localhost", "localhost"), 8443, 9443))
    assert argv is not None
    config = load(argv[-1]).config
    (server,) = config.servers
    assert config.authentication[0].token_review is not None
    assert config.clusters[0].identity is model.UpstreamIdentity.IMPERSONATE
    assert server.dispatch is not None
    assert len(server.dispatch) == identity.POLICIES
    assert config.flow_controls[0].type is model.FlowControlType.TOKEN_BUCKET
    assert bool(server.access_log) is (subject.name == LOGGED)
