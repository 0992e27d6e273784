"""What `bench identity` compares: configurations that load, impersonated users, and ratios to bare forwarding."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bench import identity, pki
from bench.identity import BARE, CERTIFICATE, CHAIN, LOG, LOGGED, SENT, TOKEN, Sample
from bench.meter import Usage
from bench.subjects import Place
from bench.wrk import Report
from mcproxy.config import model
from mcproxy.config.load import load
from mcproxy.dispatch.compiled_rules import PolicyIndex
from mcproxy.kube.requestinfo import parse
from mcproxy.kube.user import UserInfo


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, model.Config]:
    """Each setting's file, as the daemon reads it."""
    directory = tmp_path_factory.mktemp("identity")
    client = pki.make_client(directory, "client", "alice", ["dev"])
    server = pki.make_identity(directory, "localhost", "localhost")
    configs = {}
    for setting in identity.settings(client.authority):
        place = Place(directory / setting.name.replace(" ", "-"), server, 8443, 9443)
        place.directory.mkdir()
        configs[setting.name] = load(setting.argv(place)[-1]).config
    return configs


def test_all_have_the_same_listener_and_differ_in_what_is_known_of_the_client(loaded: dict[str, model.Config]) -> None:
    assert list(loaded) == [BARE, SENT, TOKEN, CERTIFICATE, CHAIN, LOGGED, LOG]
    assert len({config.listeners for config in loaded.values()}) == 1
    assert loaded[BARE].servers[0].authentication is None
    impersonating = {
        name for name, config in loaded.items() if config.clusters[0].identity is model.UpstreamIdentity.IMPERSONATE
    }
    assert impersonating == {TOKEN, CERTIFICATE, CHAIN, LOGGED}
    assert loaded[TOKEN].authentication[0].token_review is not None
    assert loaded[CERTIFICATE].authentication[0].client_ca is not None
    assert [name for name, config in loaded.items() if config.servers[0].access_log] == [LOGGED, LOG]


@pytest.mark.parametrize("name", [CHAIN, LOGGED])
def test_the_whole_chain_has_policies_and_a_bucket_for_each_user(loaded: dict[str, model.Config], name: str) -> None:
    config = loaded[name]
    (server,) = config.servers
    assert server.dispatch is not None
    assert len(server.dispatch) == identity.POLICIES
    info = parse(b"GET", b"/api/v1/namespaces/default/configmaps/bench")
    number = PolicyIndex(server.dispatch).find(UserInfo("alice", ("dev",)), info, "bench")
    assert number == identity.POLICIES - 1
    assert server.dispatch[number].flow_control == "each"
    (control,) = config.flow_controls
    assert (control.type, control.per) == (model.FlowControlType.TOKEN_BUCKET, model.Per.USER)


def test_written_files_are_those_of_one_directory_each(tmp_path: Path) -> None:
    client = pki.make_client(tmp_path, "client", "alice", [])
    server = pki.make_identity(tmp_path, "localhost", "localhost")
    bare, _, token, *_ = identity.settings(client.authority)
    bare.argv(Place(tmp_path, server, 1, 2))
    assert "authentication" not in yaml.safe_load((tmp_path / "mcproxy.yaml").read_text())
    assert bare.fields == ""
    assert token.fields.startswith("Authorization: Bearer ")
    assert token.fields.endswith("\r\n")


def sample(rate: float, cpu: float, errors: str = "") -> Sample:
    return Sample(Report(1000, rate, 0.002, errors), Usage(cpu, 1.0, 0.0))


def test_targets_are_judged_by_ratios_within_a_round() -> None:
    rounds = [
        {
            BARE: sample(speed * 1000, 0.10 / speed),
            SENT: sample(speed * 950, 0.11 / speed),
            TOKEN: sample(speed * 900, 0.115 / speed),
            CERTIFICATE: sample(speed * 800, 0.125 / speed),
            CHAIN: sample(speed * 790, 0.13 / speed),
            LOGGED: sample(speed * 810, 0.12 / speed),
        }
        for speed in (1.0, 0.5)
    ]
    section = identity.summarise(rounds)
    assert {target.what: target.met for target in section.targets} == {
        "rate, token / token, not reviewed": True,
        "CPU per request, token, not reviewed / token": True,
        "rate, certificate / bare": False,
        "CPU per request, bare / certificate": False,
        "rate, whole chain / bare": False,
        "CPU per request, bare / whole chain": False,
        "rate, whole chain, logged / bare": True,
        "CPU per request, bare / whole chain, logged": True,
    }
    assert "token adds to a request: 22.5 [15.0 to 30.0] us of processor time" in section.comparisons


def test_a_sample_with_an_error_counts_in_nothing_and_is_shown() -> None:
    broken = sample(2000, 0.01, "a connection ended")
    section = identity.summarise([{BARE: sample(1000, 0.1), TOKEN: broken}])
    assert next(row for row in section.rows if row[0] == TOKEN)[1] == "-"
    assert "errors of token: a connection ended" in section.comparisons
    assert not any(target.met for target in section.targets)
