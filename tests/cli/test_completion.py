"""Completion scripts in the shells themselves: what pressing Tab gives."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mcproxy.cli.completion import bash, fish, section_names, zsh
from mcproxy.cli.completion.command_line import Option, Value, command_line, walk
from mcproxy.cli.main import COMMANDS, main

CONFIG = """
version: 1
include: [more.yaml]
clusters: [{name: east}, {name: west}, {name: "$(reboot)"}, {nom: x}, 7]
servers: [{name: fleet, apiServices: [{group: metrics.k8s.io, version: v1beta1}, {group: half}]}]
"""
PATIENCE = 120.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a configuration, a file, a folder, and `bin/mcproxy`."""
    (tmp_path / "mcproxy.yaml").write_text(CONFIG)
    (tmp_path / "more.yaml").write_text("clusters: [{name: edge}]\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "mcproxy"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mcproxy "$@"\n')
    program.chmod(0o755)
    return tmp_path


def environ(folder: Path) -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": root, "HOME": str(folder)}


LINES = {
    "mcproxy du": {"dump"},
    "mcproxy dump --format ": {"yaml", "json"},
    "mcproxy dump --format j": {"json"},
    "mcproxy rbac -c mcproxy.yaml --cluster e": {"east", "edge"},
    "mcproxy rbac --cluster w -c nothing": set(),
    "mcproxy rbac -c mcproxy.yaml --apiservice m": {"metrics.k8s.io/v1beta1"},
    "mcproxy kubeconfig --config mcproxy.yaml --server ": {"fleet"},
    "mcproxy check mo": {"more.yaml"},
    "mcproxy demo --dir fo": {"folder"},
    "mcproxy check --explain GET /api --qu": {"--quiet"},
    "mcproxy completion ": {"bash", "zsh", "fish"},
    "mcproxy import kube": {"kubeconfig"},
    "mcproxy import upstreamcluster --as-run --se": {"--secrets"},
    "mcproxy import resourceregistry --force mo": {"more.yaml"},
    "mcproxy import kubeconfig x --secrets fo": {"folder"},
}
"""Command lines, and what is offered for their last word."""


def test_bash(folder: Path) -> None:
    script = [bash.script(command_line())]
    for line in LINES:
        words = line.split(" ")
        quoted = " ".join(f"'{word}'" for word in words)
        script.append(f"COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1} COMPREPLY=()\n_mcproxy\n")
        script.append('echo "= ${COMPREPLY[*]}"\n')
    assert answers(["bash", "--norc", "--noprofile"], "compopt() { :; }\n" + "".join(script), folder) == [
        *LINES.values()
    ]


def test_bash_splits_an_option_from_its_value(folder: Path) -> None:
    script = bash.script(command_line()) + (
        "COMP_WORDS=(mcproxy dump --format = j) COMP_CWORD=4\n_mcproxy\necho \"= ${COMPREPLY[*]}\"\n"
        "COMP_WORDS=(mcproxy rbac --config = mcproxy.yaml --cluster = '') COMP_CWORD=7\n_mcproxy\n"
        'echo "= ${COMPREPLY[*]}"\n'
    )  # fmt: skip
    assert answers(["bash", "--norc"], script, folder) == [{"json"}, {"east", "west", "edge"}]


def test_fish(folder: Path) -> None:
    script = [fish.script(command_line())]
    script += [f'echo = (complete -C "{line}" | string split -f1 \\t | string trim -c /)\n' for line in LINES]
    assert answers(["fish", "--no-config"], "".join(script), folder) == [*LINES.values()]


def answers(shell: list[str], script: str, folder: Path) -> list[set[str]]:
    (folder / "script").write_text(script)
    done = subprocess.run(
        [*shell, str(folder / "script")], cwd=folder, env=environ(folder), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return [set(line[1:].split()) for line in done.stdout.splitlines() if line.startswith("=")]


class Terminal:
    """An interactive zsh with the script loaded, on a pseudoterminal."""

    def __init__(self, folder: Path, load: str) -> None:
        """`load` is what a user's .zshrc says."""
        program = shutil.which("zsh")
        assert program, "zsh is not installed: .ci/tools zsh"
        (folder / "_mcproxy").write_text(zsh.script(command_line()))
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve(program, ["zsh", "-f", "-i"], {**environ(folder), "TERM": "dumb", "PS1": "", "COLUMNS": "200"})
        self.read = b""
        self.type(f"unsetopt zle_bracketed_paste prompt_cr; PS1=; stty -echo; ZDOTDIR=$PWD; {load}\n")
        self.type("show() { print -r -- \"<$*>\" }; bindkey '^I' complete-word; unsetopt beep\n")
        # ^X inserts every match, and ^T prints the line instead of running it.
        self.type("zstyle ':completion:*' completer _complete; zle -C all complete-word insert_all; bindkey '^X' all\n")
        self.type("insert_all() { compstate[insert]=all; _main_complete }\n")
        self.type("accept() { print -r -- ''; print -r -- \"<$BUFFER>\"; BUFFER= }\n")
        self.type("zle -N accept; bindkey '^T' accept; print -r -- '<re''ady>'\n")
        self.wait(rb"<ready>")

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def wait(self, pattern: bytes) -> bytes:
        deadline = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self.read)) is None:
            assert time.monotonic() < deadline, self.read
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.read += os.read(self.terminal, 65536)
        self.read = self.read[found.end() :]
        return found[0]

    def close(self) -> None:
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


@pytest.mark.parametrize(
    "load",
    [
        "autoload -U compinit && compinit -u -D; source ./_mcproxy",
        "autoload -U compinit && compinit -u -D; source <(mcproxy completion zsh)",
        'autoload -U compinit && compinit -u -D; eval "$(mcproxy completion zsh)"',
        "fpath=($PWD $fpath); autoload -U compinit && compinit -u -D",
        "fpath=($PWD $fpath); setopt ksh_autoload; autoload -U compinit && compinit -u -D",
        "source <(mcproxy completion zsh)",
    ],
    ids=["source", "source of the output", "eval", "fpath", "fpath as ksh", "source before compinit"],
)
def test_zsh(folder: Path, load: str) -> None:
    terminal = Terminal(folder, load)
    try:
        offered = []
        for line in LINES:
            terminal.type(f"{line}\x18\x14")
            shown = terminal.wait(rb"<mcproxy [^>]*>")[1:-1].decode()
            before = line.rpartition(" ")[0]
            words = shown.removeprefix(before).split()
            unchanged = line.rpartition(" ")[2]
            offered.append({word.rstrip("/") for word in words} - ({unchanged} if words == [unchanged] else set()))
    finally:
        terminal.close()
    assert offered == [*LINES.values()]


def test_every_command_and_option_is_in_every_script() -> None:
    root = command_line()
    assert {command.path[0] for command in walk(root) if command.path} == set(COMMANDS)
    for script in (bash.script(root), zsh.script(root), fish.script(root)):
        for command in walk(root):
            for option in command.options:
                assert option.names[-1].lstrip("-") in script


def test_values_of_options_are_read_from_the_parsers() -> None:
    commands = {command.path: command for command in walk(command_line())}
    options = {option.names[-1]: option for option in commands["rbac",].options}
    assert options["--cluster"].values == (Value("names", ("clusters",)),)
    assert options["--service-account"].values == ()
    assert options["--config"].values == (Value("file"),)
    assert options["--cluster"] == Option(("--cluster",), "only for this cluster", (Value("names", ("clusters",)),))


def test_names_come_from_included_files_too_and_odd_ones_are_left_out(folder: Path) -> None:
    assert section_names(str(folder / "mcproxy.yaml"), "clusters") == ["east", "west", "edge"]


@pytest.mark.parametrize("text", ["clusters: [", "- 1", "", "clusters: 7", "[" * 500, "a: &a [*a]\nclusters: *a"])
def test_a_file_that_is_wrong_has_no_names(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert section_names(str(tmp_path / "c.yaml"), "clusters") == []
    assert section_names(str(tmp_path / "missing.yaml"), "clusters") == []


def test_a_shell_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 2
    assert "bash, zsh or fish" in capsys.readouterr().err
    assert main(["completion", "fish"]) == 0
    assert capsys.readouterr().out.startswith("# Completion of mcproxy for fish")
