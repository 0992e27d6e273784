"""The file that is shipped as etc/mcproxy.yaml starts as it is once its certificates are there."""

import re
from pathlib import Path

import pytest

from mcproxy.config.load import load
from mcproxy.config.model import Config
from tests.config import pki
from tests.config.pki import NOW

EXAMPLE = Path(__file__).parents[2] / "etc/mcproxy.yaml"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    ca = pki.make("Test CA")
    leaf = pki.make("k8s", names=("k8s.example.com", "*.k8s.example.com"), issuer=ca)
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls/k8s.crt").write_bytes(pki.cert_pem(leaf[0], ca[0]))
    (tmp_path / "tls/k8s.key").write_bytes(pki.key_pem(leaf[1]))
    (tmp_path / "tls/east-ca.crt").write_bytes(pki.cert_pem(ca[0]))
    (tmp_path / "tls/clients-ca.crt").write_bytes(pki.cert_pem(pki.make("Clients CA")[0]))
    (tmp_path / "tls/front-proxy-ca.crt").write_bytes(pki.cert_pem(pki.make("Front CA")[0]))
    (tmp_path / "east").mkdir()
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "east/token").write_text("t")
    (tmp_path / "users.csv").write_text('hush,alice,1,"dev,ops"\n')
    (tmp_path / "webhook.kubeconfig").write_text(
        "clusters: [{name: c, cluster: {server: 'https://10.0.0.1'}}]\n"
        "contexts: [{name: x, context: {cluster: c}}]\n"
        "current-context: x\n"
    )
    file = tmp_path / "mcproxy.yaml"
    file.write_text(EXAMPLE.read_text())
    return file


def test_it_is_good_without_a_warning(example: Path) -> None:
    loaded = load(str(example), environ={}, now=NOW)
    assert loaded.warnings == ()
    assert [server.name for server in loaded.config.servers] == ["east", "all"]


def test_the_defaults_that_it_shows_are_the_defaults(example: Path) -> None:
    """Uncommented, `# key: value` lines that show defaults change nothing."""
    before = load(str(example), environ={}, now=NOW).config
    text = example.read_text()
    shown = (
        "identity",
        "shutdownDelay",
        "drainTimeout",
        "workers",
        "minVersion",
        "protocols",
        "goawayChance",
        "limits",
        "healthCheck",
        "connections",
    )
    for key in shown:
        text, count = re.subn(rf"^( +)# ({key}: )", r"\1\2", text, flags=re.M)
        assert count == 1, key
    for rest in ("bodyBytes: 0, handshakeTimeout", "responseTimeout"):  # what does not fit into the line of its key
        text, count = re.subn(rf"^ +#( +{rest})", r"     \1", text, flags=re.M)
        assert count == 1, rest
    example.write_text(text)
    assert load(str(example), environ={}, now=NOW).config == before


def test_what_it_shows_besides_defaults_can_be_used_as_it_stands(example: Path) -> None:
    text = example.read_text()
    who = ("impersonateExtras", "tokenFile", "webhook", "requestHeader", "anonymous", "authorization")
    for key in (
        "proxyProtocol",
        "trustedProxies",
        "serverNames",
        "serverName",
        "access",
        "cors",
        "sessions",
        "stateDir",
        *who,
    ):
        text, count = re.subn(rf"^( +)# ({key}: )", r"\1\2", text, flags=re.M)
        assert count == 1, key
    text, count = re.subn(r"^    # (oidc:\n    )#", r"    \1", text, flags=re.M)
    assert count == 1
    for indent, section in (("", "authorization"), ("", "flowControls"), ("", "aggregates"), ("", "ingresses"),
                            ("    ", "dispatch")):  # fmt: skip
        block = re.search(rf"^{indent}# {section}:\n(?:{indent}#.*\n)+", text, re.M)
        assert block is not None
        text = text.replace(block[0], re.sub(rf"^{indent}# ", indent, block[0], flags=re.M))
    text, count = re.subn(r"^  # (- {name: fleet,)", r"  \1", text, flags=re.M)
    assert count == 1
    example.write_text(text)
    loaded = load(str(example), environ={}, now=NOW)
    # The names of east and fleet, with serverNames; the ingress, without its listener.
    assert sorted(warning.lint or "" for warning in loaded.warnings) == ["certificate-names"] * 2 + ["no-listener"]
    config: Config = loaded.config
    assert config.listeners[0].trusted_proxies
    assert config.logging.access is not None
    assert config.clusters[0].tls.server_name == "kubernetes"
    [corp] = config.authentication
    assert None not in (corp.client_ca, corp.token_file, corp.token_review, corp.webhook, corp.request_header)
    assert len(corp.oidc) == 1
    assert corp.anonymous.enabled
    assert config.servers[0].authorization == config.authorization[0].name
    assert config.servers[0].dispatch is not None
    [fleet] = config.aggregates
    assert config.servers[-1].clusters == fleet.clusters == ("east",)
    named = {policy.flow_control for policy in config.servers[0].dispatch}
    assert named == {None, *(control.name for control in config.flow_controls)}
