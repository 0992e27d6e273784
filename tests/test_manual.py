"""The manual pages document every option and every key, no others, and their examples are valid configurations."""

import argparse
import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import trustme

from mcproxy.cli.main import COMMANDS, build_parser
from mcproxy.config import model
from mcproxy.config.load import load
from mcproxy.observe.access_log import json_formatter
from mcproxy.observe.record import AccessRecord

ROOT = Path(__file__).parents[1]
COMMAND_PAGE = (ROOT / "man" / "mcproxy.8").read_text("utf-8")
FILE_PAGE = (ROOT / "man" / "mcproxy.yaml.5").read_text("utf-8")
SCHEMA = json.loads((ROOT / "schema" / "mcproxy.schema.json").read_text("utf-8"))


EVERYTHING = AccessRecord(
    time=1.0, client="c", method="GET", uri="/", status=200, request_id="r", impersonated="i", policy="p", verb="get",
    resource="pods", user_agent="u", first_byte=0.1, cached=True, groups=1, upstream=0.1, upstream_status=200,
    attempts=1, trace_id="t", api_service="a/v1", ingress="i", rule="r", service="s", host="h",
)  # fmt: skip


def parser_of(command: str) -> argparse.ArgumentParser:
    subparsers = next(
        action for action in build_parser(command)._actions if isinstance(action, argparse._SubParsersAction)
    )
    found = subparsers.choices[command]
    assert isinstance(found, argparse.ArgumentParser)
    return found


def actions_in(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The options and arguments of a parser and of the commands below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from actions_in(below)


def options_of(command: str) -> set[str]:
    """The options of a command as they are written in mdoc: `-c` is `Fl c`, `--strict` is `Fl -strict`."""
    return {"Fl " + option[1:] for action in actions_in(parser_of(command)) for option in action.option_strings}


def part_about(command: str) -> str:
    """What the page says of one command in its description."""
    start = re.search(rf"^\.It Cm {command}$", COMMAND_PAGE, re.MULTILINE)
    assert start, f"man/mcproxy.8 does not describe {command}"
    return re.split(r"^\.(?:It Cm|Ss) ", COMMAND_PAGE[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def flags(text: str) -> set[str]:
    return set(re.findall(r"\bFl [-\w]+", text))


@pytest.mark.parametrize("command", COMMANDS)
def test_page_has_every_option_and_no_other(command: str) -> None:
    common = {"Fl h", "Fl -help", "Fl c", "Fl -config"}
    assert options_of(command) - common == flags(part_about(command)) - common


@pytest.mark.parametrize("command", COMMANDS)
def test_the_synopsis_has_every_option_in_one_of_its_forms(command: str) -> None:
    synopsis = COMMAND_PAGE.partition(".Sh SYNOPSIS\n")[2].partition(".Sh ")[0]
    written = flags("".join(part for part in synopsis.split(".Nm mcproxy\n") if part.startswith(f".Cm {command}")))
    for action in actions_in(parser_of(command)):
        forms = {"Fl " + option[1:] for option in action.option_strings}
        assert not forms or forms & (written | {"Fl h"}), forms


def test_page_has_the_options_that_commands_share() -> None:
    assert {"Fl h", "Fl -help", "Fl c", "Fl -config", "Fl -version"} <= flags(COMMAND_PAGE)


@pytest.mark.parametrize("heading", ["SIGNALS", "ENVIRONMENT", "FILES", "EXIT STATUS", "EXAMPLES"])
def test_page_has_the_parts_that_operators_look_for(heading: str) -> None:
    assert f".Sh {heading}\n" in COMMAND_PAGE


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("man_keys", ROOT / "man" / "keys.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_schema_is_written_from_the_model(writer: ModuleType) -> None:
    assert json.dumps(writer.schema()) == json.dumps(SCHEMA), "run: python man/keys.py"


def test_each_form_is_that_of_a_class_of_the_model() -> None:
    forms = json.loads((ROOT / "schema" / "forms.json").read_text("utf-8"))
    classes = {name.removesuffix("Config") or name for name in model.__all__}
    assert [name for name in forms if name != "$defs" and name not in classes] == []


def test_page_has_the_keys_of_the_schema(writer: ModuleType) -> None:
    assert writer.renewed(FILE_PAGE, SCHEMA) == FILE_PAGE, "run: python man/keys.py"


def test_every_key_of_the_schema_is_found_and_described(writer: ModuleType) -> None:
    documented = {path: node for path, node, _ in writer.keys(SCHEMA, SCHEMA)}
    assert {"daemon.controlSocket", "listeners[].limits.headBytes", "clusters[].credentials.exec.args"} <= set(
        documented
    )
    for path, node in documented.items():
        assert f".It Va {path}\n" in FILE_PAGE
        assert node.get("description"), f"{path} has no description"


def test_every_key_of_the_access_log_is_documented() -> None:
    line = json_formatter("worker-0")(EVERYTHING)
    for key in json.loads(line):
        assert re.search(rf"^\.It Li (?:[\w ,]*\b)?{key}\b", FILE_PAGE, re.MULTILINE), key


def examples() -> list[str]:
    readme = (ROOT / "README.md").read_text("utf-8")
    return [
        *re.findall(r"\.Bd -literal[^\n]*\n(version: .*?)\.Ed", FILE_PAGE, re.DOTALL),
        *re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL),
    ]


def test_page_and_readme_have_examples() -> None:
    assert len(examples()) == 10


@pytest.mark.parametrize("number", range(len(examples())))
def test_examples_are_good_configurations(tmp_path: Path, number: int) -> None:
    authority = trustme.CA()
    pair = authority.issue_cert("fleet.example.com")
    for folder in ("tls", "east", "west", "metrics"):
        (tmp_path / folder).mkdir()
        authority.cert_pem.write_to_path(str(tmp_path / folder / "ca.crt"))
    for name in ("east-ca", "clients-ca"):
        authority.cert_pem.write_to_path(str(tmp_path / "tls" / f"{name}.crt"))
    for name in ("east", "west", "metrics"):
        (tmp_path / name / "token").write_text("t")
    (tmp_path / "users.csv").write_text('t,alice,1,"dev,ops"\n')
    for name in ("fleet", "k8s", "front-proxy"):
        pair.private_key_pem.write_to_path(str(tmp_path / "tls" / f"{name}.key"))
        pair.cert_chain_pems[0].write_to_path(str(tmp_path / "tls" / f"{name}.crt"))
    for name in ("east", "west"):
        (tmp_path / f"{name}.kubeconfig").write_text(
            "clusters: [{name: e, cluster: {server: 'https://10.1.0.11:6443'}}]\n"
            "users: [{name: u, user: {token: t}}]\n"
            "contexts: [{name: x, context: {cluster: e, user: u}}]\n"
            "current-context: x\n"
        )
    file = tmp_path / "mcproxy.yaml"
    file.write_text(examples()[number])
    config = load(str(file)).config
    assert config.servers or config.ingresses


def test_page_has_every_key_of_the_access_log_and_no_other() -> None:
    documented = FILE_PAGE[FILE_PAGE.index(".Sh THE ACCESS LOG") :].split(".El")[0]
    keys = [key for line in re.findall(r"^\.It Li (.*)$", documented, re.MULTILINE) for key in line.split(" , ")]
    assert sorted(keys) == sorted(json.loads(json_formatter("worker-0")(EVERYTHING)))


@pytest.mark.parametrize("page", ["mcproxy.8", "mcproxy.yaml.5"])
def test_pages_are_shown_without_a_warning(page: str) -> None:
    path = str(ROOT / "man" / page)
    groff = ["man", "--warnings", "--encoding", "UTF-8", "--local-file", "--troff-device=utf8", "--ditroff", path]
    for command in (["mandoc", "-T", "lint", "-W", "warning", path], groff):
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "MANWIDTH": "80"}
        )
        warnings = [each for each in (result.stdout + result.stderr).splitlines() if path in each or page in each]
        assert (result.returncode, warnings) == (0, []), command
        assert result.stdout or command[0] == "mandoc"


def test_readme_has_every_command() -> None:
    table = re.findall(r"^\| `mcproxy (\w+)", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert table == list(COMMANDS)


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_places_that_the_pages_name_exist(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    rooms = "cli|config|daemon|demo|dispatch|http|identity|kube|net|observe|proxy|services|upstream"
    for name in re.findall(rf"`((?:{rooms})/[\w/.]*)`", text):
        assert (ROOT / "mcproxy" / name).exists(), name
    for name in re.findall(r"`((?:docs|etc|man|schema|systemd|tests)/[\w/.]*)`", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"\]\(([\w/.]+)\)", text):
        assert (ROOT / page).parent.joinpath(name).exists() or (ROOT / name).exists(), name
