"""Every command of README.md and docs/ runs, in the order of its page; links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcproxy.cli.demo_files import commands as demo_commands
from tests.docs.page import blocks, commands, is_command_block, links, unknown_blocks
from tests.docs.sandbox import ROOT, Sandbox

PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
ELSEWHERE = {
    "docs/edge.md": "tests/docs/test_edge_page.py",
    "docs/migrate-kubegateway.md": "tests/importing/test_guides.py",
    "docs/migrate-karmada.md": "the same",
}
"""Pages whose commands another test runs, since they need other sites."""
WITH_COMMANDS = [page for page in PAGES if page not in ELSEWHERE and commands((ROOT / page).read_text("utf-8"))]

SLOW = ("README.md", "air-gapped.md", "install.md", "joining-a-cluster.md", "services.md", "upgrade.md")
"""Pages whose commands take more than 5 s together."""

# What runs before a page: the daemon of README.md, with an Admin listener, users and room for more clusters.
CONFIG = """\
version: 1
include: [conf.d/*.yaml]
daemon: {controlSocket: /run/mcproxy/control.sock, stateDir: /var/lib/mcproxy}
listeners:
  - {name: public, bind: "0.0.0.0:6443", tls: {certificates: [k8s]}}
  - {name: admin, serves: Admin, bind: "127.0.0.1:9901"}
certificates:
  - {name: k8s, certFile: tls/k8s.crt, keyFile: tls/k8s.key}
authentication:
  - {name: corp, clientCertificates: {caFile: tls/clients-ca.crt}, tokenFile: users.csv}
logging:
  access: {file: /var/log/mcproxy/access.log}
  audit: {file: /var/log/mcproxy/audit.log, level: Metadata}
"""
EAST = """\
version: 1
clusters:
  - name: east
    endpoints: [{name: a, url: "https://10.1.0.11:6443"}]
    tls: {caFile: ../east/ca.crt}
    credentials: {tokenFile: ../east/token}
servers:
  - {name: east, default: true, backend: {cluster: east}, authentication: corp}
"""
WITHOUT_EAST = frozenset({"docs/install.md", "docs/joining-a-cluster.md"})
"""Pages that add the cluster."""
EXPECTED: dict[str, dict[str, int]] = {}
"""Exit statuses other than 0, by page and command."""
NOT_RUN = ("mcproxy demo", "make demo", "kubectl --kubeconfig …/kubeconfig", "curl -sS 'http://127.0.0.1:…/")
"""Beginnings of commands that another test runs: tests/cli/test_demo.py."""


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("d")) as sandbox:
        yield sandbox


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_code_are_known(page: str) -> None:
    assert [(block.line, block.lines[0]) for block in unknown_blocks(text_of(page))] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in links(text_of(page)):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, link


def test_no_page_and_no_message_names_an_index_for_this_program() -> None:
    """What is named mcproxy there may be a stranger's: this program comes from its own files, with hashes."""
    texts = {page: (ROOT / page).read_text("utf-8") for page in PAGES}
    for folder, pattern in (
        ("mcproxy", "*.py"),
        ("man", "mcproxy*"),
        ("etc", "*"),
        ("systemd", "*"),
        ("packaging", "*"),
    ):
        files = (path for path in (ROOT / folder).rglob(pattern) if path.is_file() and "__pycache__" not in path.parts)
        texts |= {str(path.relative_to(ROOT)): path.read_text("utf-8", "replace") for path in files}
    by_name = re.compile(r"mcproxy\[|(?:pip3?|pipx|uv|uvx)\s+(?:install|run|tool)\b[^`\n]*\s['\"]?mcproxy(?![\w./-])")
    assert [(page, found[0]) for page, text in texts.items() if (found := by_name.search(text))] == []
    installs = re.compile(r"^.*\bpip3? (?:install|download) .*$", re.MULTILINE)
    for page in PAGES:
        for line in installs.findall(texts[page]):
            assert "--require-hashes" in line or re.search(r"--no-deps (?:--force-reinstall )?\S+\.whl", line), (
                page,
                line,
            )


def test_the_index_has_every_page() -> None:
    linked = set(links(text_of("docs/README.md")))
    pages = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")} - {"README.md"}
    assert linked == pages | {"../README.md"}


def test_commands_of_the_demo_are_those_that_it_prints() -> None:
    shown = [each.text.partition("    #")[0] for each in commands(text_of("README.md"))]
    shown = [each.removeprefix("kubectl --kubeconfig …/kubeconfig") for each in shown if "…/kubeconfig" in each]
    printed = "\n".join(
        command.line
        for _, each in demo_commands(Path("/nowhere"), {"proxy": 6443, "admin": 9901, "web": 8080})
        for command in each
    )
    assert shown
    for each in shown:
        assert each.strip() in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * page.endswith(SLOW)) for page in WITH_COMMANDS]
)
def test_commands_run(sandbox: Sandbox, page: str) -> None:
    text = text_of(page)
    sandbox.configure(CONFIG)
    if page not in WITHOUT_EAST:
        sandbox.write("/etc/mcproxy/conf.d/east.yaml", EAST)
    sandbox.start_daemon()
    for block in blocks(text):
        file = re.match(r"# (/etc/\S+)$", block.lines[0])
        if file is not None:
            sandbox.write(file[1], block.text)
        if not is_command_block(block):
            continue
        sandbox.go_to_clone()
        for command in commands("\n" * (block.line - 1) + "```sh\n" + block.text + "```\n"):
            if command.text.startswith(NOT_RUN):
                continue
            result = sandbox.run(command.text)
            if "/readyz" in command.text:  # a cluster's checks may not be over, or have timed out on a busy machine
                patience = time.monotonic() + 60
                while result.returncode and time.monotonic() < patience:
                    result = sandbox.run(command.text)
            expected = 124 if command.text.endswith((" -w", " -f")) else EXPECTED.get(page, {}).get(command.text, 0)
            assert result.returncode == expected, f"{page}:{command.line - 1}: {command.text}\n{result.stdout}"
            if "--service-account | kubectl apply" in command.text:
                fill_token(sandbox)


def fill_token(sandbox: Sandbox) -> None:
    """Do what the token controller of a cluster does, which the simulated one has not."""
    patch = shlex.quote(json.dumps({"stringData": {"token": sandbox.site.tokens["mcproxy"]}}))
    assert sandbox.run(f"kubectl -n mcproxy patch secret mcproxy-token -p {patch}").returncode == 0
