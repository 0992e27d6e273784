"""What `bench ingress` makes of its samples, and that its files are valid."""

from __future__ import annotations

import json
from pathlib import Path

from bench import configs, fake_service_cluster, ingress
from bench.meter import Usage
from bench.pki import make_identity
from bench.subjects import MCPROXY, NGINX
from mcproxy.config.load import load


def sample(cpu: float, errors: str = "") -> ingress.Sample:
    return ingress.Sample(errors, 1000, 2.0, Usage(cpu=cpu, busy=0.5, others=0.0))


def test_ratios_are_of_one_round_and_a_round_of_ours_with_errors_is_none() -> None:
    good = {(name, load): sample(cost) for load in ingress.LOADS for name, cost in ((NGINX, 0.02), (MCPROXY, 0.025))}
    bad = {**good, (MCPROXY, ingress.KB): sample(0.001, "1 failed")}
    section = ingress.summarise([good, bad])
    assert [(target.what, target.met) for target in section.targets] == [
        ("1 KB over TLS, nginx / mcproxy", True),
        ("1 MB over TLS, nginx / mcproxy", True),
    ]
    row = next(row for row in section.rows if row[:2] == [ingress.KB, MCPROXY])
    assert row[-1] == "1"
    assert row[3].startswith("0.80")
    assert section.comparisons == ["errors of mcproxy, 1 KB over TLS: 1 failed"]


def test_mcproxys_file_is_valid(tmp_path: Path) -> None:
    identity = make_identity(tmp_path / "tls", "localhost", "localhost")
    config = load(str(configs.mcproxy_ingress(tmp_path, 8443, 6443, identity))).config
    assert [path.shares[0][0].service for path in config.ingresses[0].rules[0].paths] == ["shop", "echo"]


def test_the_fake_cluster_has_a_service_and_a_slice_for_each_pod() -> None:
    found = fake_service_cluster.objects({"shop": ("192.0.2.7", 80)})
    assert json.loads(json.dumps(found["endpointslices"]))[0]["endpoints"][0]["addresses"] == ["192.0.2.7"]
    assert b'"endpointslices"' in fake_service_cluster.discovery("discovery.k8s.io")
