"""docs/edge.md, followed: the certificates, the hub and the edge as the page has them, a request through the tunnel."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubesim.auth.certificates import Authority
from tests.docs.page import Block, blocks, commands
from tests.e2e.processes import Daemon, mcproxy
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.ports import reserved_port

PAGE = (Path(__file__).parents[2] / "docs/edge.md").read_text("utf-8")
TOKEN = "edge-site-a-token"


def yaml_blocks() -> list[Block]:
    return [block for block in blocks(PAGE) if block.language == "yaml"]


class Site:
    """The machines of the page, as folders."""

    def __init__(self, directory: Path) -> None:
        self.cluster = SimulatedClusterProcess("site-a", directory=directory / "cluster")
        self.cluster.spawn()
        self.port = reserved_port()
        self.hub, self.edge, self.client = (directory / name for name in ("hub", "edge", "client"))
        for folder in (self.hub / "tls", self.edge / "tls", self.edge / "local", self.edge / "site", self.client):
            folder.mkdir(parents=True)
        (self.edge / "state").mkdir(mode=0o700)
        hubs, users = Authority("hubs"), Authority("corp")
        hubs.server(["127.0.0.1", "hub-1.example.com", "tunnels.example.com"]).write(self.hub / "tls", "hub")
        (self.hub / "tls/clients-ca.crt").write_bytes(users.pem)
        (self.edge / "tls/hub-ca.crt").write_bytes(hubs.pem)
        users.client("alice", ["dev"]).write(self.client, "alice")
        self.cluster.wait_ready()
        for name in ("local", "site"):
            shutil.copy(self.cluster.ca, self.edge / name / "ca.crt")
        for file, token in (
            ("local/token", self.cluster.tokens["mcproxy"]),
            ("site/token", self.cluster.tokens["mcproxy"]),
            ("tls/edge-token", TOKEN),
            ("users.csv", "bob-token,bob,,"),
        ):
            self.secret(self.edge / file, token)
        self._sign(directory / "openssl")

    @staticmethod
    def secret(file: Path, text: str) -> None:
        file.write_text(text + "\n")
        file.chmod(0o600)

    def _sign(self, folder: Path) -> None:
        """Run the commands of the page that make certificates."""
        folder.mkdir()
        script = "\n".join(block.text for block in blocks(PAGE) if block.language == "sh")
        assert script.count("openssl ") == 3
        done = subprocess.run(["bash", "-euc", script], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done
        shutil.copy(folder / "edges/edges-ca.crt", self.hub / "tls")
        for name in ("edge-site-a.crt", "edge-site-a.key"):
            shutil.copy(folder / "edges" / name, self.edge / "tls")

    def localized(self, text: str) -> str:
        text = text.replace("0.0.0.0:6443", f"127.0.0.1:{self.port}")
        text = text.replace("hub-1.example.com:6443", f"127.0.0.1:{self.port}")
        text = text.replace("127.0.0.1:6443", f"127.0.0.1:{self.port}")
        text = text.replace("/var/lib/mcproxy", str(self.edge / "state"))
        return text.replace("https://192.168.7.10:6443", self.cluster.urls[0])

    def text(self, part: str, number: int = 0) -> str:
        """Return the file of the page that has `part`; the one of that number."""
        found = [block.text for block in yaml_blocks() if part in block.text]
        return self.localized(found[number])

    def kubeconfig(self) -> Path:
        """Run the page's `mcproxy kubeconfig`, and add the user."""
        (command,) = [each.text for each in commands(PAGE) if each.text.startswith("mcproxy kubeconfig")]
        arguments = self.localized(command).replace("tls/hub-ca.crt", str(self.edge / "tls/hub-ca.crt")).split()[1:]
        done = mcproxy(*arguments, "-c", str(self.hub / "mcproxy.yaml"))
        assert done.returncode == 0, done
        file = self.client / "kubeconfig"
        file.write_text(done.stdout)
        return file

    def kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        pair = ("--client-certificate", str(self.client / "alice.crt"), "--client-key", str(self.client / "alice.key"))
        return subprocess.run(
            ["kubectl", "--kubeconfig", str(self.kubeconfig()), *pair, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("s"))
    yield site
    site.cluster.cleanup()


def test_every_file_of_the_page_passes_the_check(site: Site) -> None:
    for number, block in enumerate(yaml_blocks()):
        folder = site.hub if "\ntunnels:" in block.text else site.edge
        file = folder / f"file-{number}.yaml"
        file.write_text(site.localized(block.text))
        done = mcproxy("check", "--strict", "-c", str(file))
        assert done.returncode == 0, (block.line, done.stderr)


@pytest.mark.slow  # kubectl repeats a request that gets 503 with Retry-After, for most of a minute
def test_the_page_leads_to_a_tunnel(site: Site) -> None:
    with Daemon(site.hub, site.text("\ntunnels:")) as hub, Daemon(site.edge, site.text("certFile: tls/edge")) as edge:
        hub.wait_for("event=endpoint_ready")
        edge.wait_for("event=tunnel_up")
        asked = [each.text.split()[2:] for each in commands(PAGE) if each.text.startswith("sudo mcproxy ")]
        assert ["check", "--connect"] in asked
        for arguments in asked:
            done = mcproxy(*arguments, "-c", str(edge.file))
            assert done.returncode == 0, (arguments, done)
        assert site.kubectl("get", "pods", "-n", "demo").returncode == 0
        refused = site.kubectl("get", "secrets", "-n", "demo")
        assert 'secrets is forbidden: User "alice" cannot list resource "secrets"' in refused.stderr
        edge.wait_for("event=request_forbidden")
        edge.stop()
        hub.wait_for("event=tunnel_down")
        away = site.kubectl("get", "pods", "-n", "demo")
        assert "no tunnel site-a is connected since " in away.stderr


def test_a_token_instead_of_the_certificate(site: Site) -> None:
    site.secret(site.hub / "edges.csv", f"{TOKEN},edge-site-a,,")
    certificates = "- {name: edges, clientCertificates: {caFile: tls/edges-ca.crt}}"
    token = "- {name: edges, tokenFile: edges.csv}"
    assert f"`{token}`" in PAGE
    text = site.text("\ntunnels:")
    assert certificates in text
    with Daemon(site.hub, text.replace(certificates, token)) as hub, Daemon(site.edge, site.text("edge-token")):
        hub.wait_for("event=endpoint_ready")
        assert site.kubectl("get", "pods", "-n", "demo").returncode == 0
