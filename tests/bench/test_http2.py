"""Processor time over HTTP/2: which cases a round has, how ratios are taken, and what counts as reached."""

from __future__ import annotations

from pathlib import Path

from bench import configs, h2load, http2, pki
from bench.cost import CHAIN
from bench.http2 import GO_HTTP1, HTTP1, HTTP2, STREAMS, TO_HTTP1, Round, Sample
from bench.meter import Usage
from bench.subjects import Place
from mcproxy.config import model
from mcproxy.config.load import load


def sample(microseconds: float, errors: str = "") -> Sample:
    """A window of one second with 10,000 requests that took so much processor time each."""
    return Sample(h2load.Report(10_000, 0.001, errors), 10_000, 1.0, Usage(microseconds / 100, 0.9, 0.0))


def taken(nginx: float, go: float, bare: float, chain: float) -> Round:
    return {
        ("nginx", STREAMS): sample(nginx),
        ("go", STREAMS): sample(go),
        ("mcproxy", STREAMS): sample(bare),
        (CHAIN, STREAMS): sample(chain),
    }


def test_http1_is_measured_only_through_what_speaks_it_to_the_upstream() -> None:
    found = http2.cases(["nginx", "go", "mcproxy", f"mcproxy{TO_HTTP1}"])
    assert [name for name, shape in found if shape == STREAMS] == ["nginx", "go", "mcproxy", f"mcproxy{TO_HTTP1}"]
    assert [name for name, shape in found if shape == HTTP1[2]] == ["nginx", f"mcproxy{TO_HTTP1}"]
    assert len(found) == 4 * len(HTTP2) + 2 * len(HTTP1)


def test_the_targets_are_multiples_of_the_references_in_the_same_round() -> None:
    names = ["nginx", "go", "mcproxy", CHAIN]
    rounds = [taken(30 * speed, 100 * speed, 41 * speed, 24 * speed) for speed in (1.0, 3.0)]
    section = http2.summarise(names, rounds)
    found = {target.what: (target.measured, target.met) for target in section.targets}
    assert found == {
        "CPU per request, HTTP/2, 4 x 25, mcproxy-chain / nginx": ("0.80 [0.80 to 0.80]", False),
        "CPU per request, HTTP/2, 4 x 25, mcproxy-chain / go": ("0.24 [0.24 to 0.24]", True),
        "CPU per request, HTTP/2, 16 x 1, mcproxy-chain / nginx": ("not measured", False),
        "CPU per request, HTTP/2, 16 x 1, mcproxy-chain / go": ("not measured", False),
    }


def test_http1_has_a_limit_at_each_number_of_connections_and_between_them() -> None:
    name = CHAIN + TO_HTTP1
    one: Round = {(name, shape): sample(cost) for shape, cost in zip(HTTP1, (40, 44, 60), strict=True)}
    one |= {("nginx", shape): sample(cost) for shape, cost in zip(HTTP1, (30, 30, 40), strict=True)}
    one |= {(GO_HTTP1, shape): sample(63.5) for shape in HTTP1}
    section = http2.summarise(["nginx", "go", GO_HTTP1, name], [one])
    measured = [(target.measured.partition(" ")[0], target.met) for target in section.targets[:-1]]
    assert measured == [
        ("1.33", True),  # of nginx at 16 connections
        ("0.63", True),  # of Go
        ("1.47", False),
        ("0.69", False),
        ("1.50", False),
        ("0.94", False),
        ("1.10", True),  # at 100 connections, of 16
        ("1.12", False),  # growth to 500, of nginx's
    ]
    assert section.targets[-1].measured == str(2 * len(HTTP2))


def test_a_sample_with_an_error_counts_in_no_ratio() -> None:
    broken = taken(30, 100, 41, 45)
    broken[CHAIN, STREAMS] = sample(1, "3 of 9 requests failed")
    section = http2.summarise(["nginx", "go", CHAIN], [broken, taken(30, 100, 41, 45)])
    assert section.targets[1].measured == "0.45 [0.45 to 0.45]"
    assert f"errors of {CHAIN}, HTTP/2, 4 x 25: 3 of 9 requests failed" in section.comparisons


def test_subjects_to_http1_say_so_in_their_file(tmp_path: Path) -> None:
    known = {subject.name: subject for subject in http2.subjects()}
    place = Place(tmp_path, pki.make_identity(tmp_path, "localhost", "localhost"), 8443, 9443)
    for name, protocol in ((CHAIN, model.UpstreamProtocol.AUTO), (CHAIN + TO_HTTP1, model.UpstreamProtocol.HTTP1)):
        argv = known[name].argv(place)
        assert argv is not None
        (cluster,) = load(argv[-1]).config.clusters
        assert cluster.connections.protocol is protocol
        assert cluster.identity is model.UpstreamIdentity.IMPERSONATE


def test_the_paths_are_so_many_different_ones() -> None:
    paths = configs.object_paths(http2.PATHS)
    assert len(set(paths)) == http2.PATHS
    assert all(path.startswith(configs.OBJECTS_PATH) for path in paths)
