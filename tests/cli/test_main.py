"""The command line: exit statuses, and that only what is needed is imported."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mcproxy import __version__
from mcproxy.cli import main as cli
from mcproxy.cli.main import COMMANDS, build_parser, load_command, main


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


def fake_command(monkeypatch: pytest.MonkeyPatch, error: BaseException | None = None, status: int = 0) -> None:
    """Make `check` do what the test wants."""

    def run(args: object) -> int:
        if error is not None:
            raise error
        return status

    module = SimpleNamespace(add_parser=lambda subparsers: subparsers.add_parser("check"), run=run)
    monkeypatch.setattr(cli, "load_command", lambda name: module)


def test_module_run_is_the_command() -> None:
    done = python("-m", "mcproxy", "--version")
    assert (done.returncode, done.stdout) == (0, f"mcproxy {__version__}\n")


def test_help_lists_every_command_and_imports_neither_twisted_nor_yaml() -> None:
    done = python("-X", "importtime", "-m", "mcproxy", "--help")
    assert done.returncode == 0
    for name, summary in COMMANDS.items():
        assert name in done.stdout
        assert summary.split()[0] in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "argparse" in imported
    assert imported.isdisjoint({"twisted", "yaml", "jsonschema", "OpenSSL", "mcproxy.cli.check"})


@pytest.mark.parametrize("arguments", [[], ["fly"], ["run", "--fly"], ["reload", "--timeout", "soon"]])
def test_wrong_usage_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("usage: mcproxy")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chekc"], "there is no command chekc; did you mean check?"),
        (["validate", "x.yaml"], "there is no command validate; did you mean check?"),
        (["fly"], "there is no command fly; see mcproxy --help"),
        (["-c", "x.yaml", "check"], "options follow the command: mcproxy check -c ..."),
        (["help", "chekc"], "there is no command chekc; did you mean check?"),
    ],
)
def test_an_unknown_command_is_told_with_the_one_that_is_meant(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"mcproxy: error: {said}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["reload", "site.yaml"],
            "mcproxy reload: error: there is no argument site.yaml; name the file with -c site.yaml",
        ),
        (["dump", "--runing"], "mcproxy dump: error: there is no option --runing; did you mean --running?"),
        (["check", "a.yaml", "--conect"], "mcproxy check: error: there is no option --conect; did you mean --connect?"),
        (["check", "--xyzzy=1"], "mcproxy check: error: there is no option --xyzzy=1; see --help"),
        (["version", "now"], "mcproxy version: error: there is no argument now; see --help"),
        (
            ["import", "kubeconfig", "k", "--secrts", "s"],
            "mcproxy import kubeconfig: error: there is no option --secrts; did you mean --secrets?",
        ),
    ],
)
def test_an_argument_that_is_not_known_is_told_with_what_is_meant(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    shown = capsys.readouterr().err
    assert shown.splitlines()[-1] == said
    assert shown.startswith(f"usage: {said.partition(': error')[0]}")


def test_without_a_command_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert [name for name in COMMANDS if re.search(rf"^    {name}\s", said, re.MULTILINE) is None] == []


@pytest.mark.parametrize(
    ("arguments", "usage"), [(["help"], "usage: mcproxy [-h]"), (["help", "check"], "usage: mcproxy check")]
)
def test_help_is_a_command_too(arguments: list[str], usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith(usage)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_and_a_module_that_can_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(load_command(name).run)
    with pytest.raises(SystemExit) as stopped:
        build_parser(name).parse_args([name, "--help"])
    assert stopped.value.code == 0
    assert f"usage: mcproxy {name}" in capsys.readouterr().out


def test_status_is_the_command_s(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, status=78)
    assert main(["check"]) == 78


def test_system_error_is_one_sentence_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_command(monkeypatch, PermissionError(13, "Permission denied", "/etc/x"))
    assert main(["check"]) == 1
    assert capsys.readouterr().err == "mcproxy check: /etc/x: Permission denied\n"


def test_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, KeyboardInterrupt())
    assert main(["check"]) == 130


def test_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["check"])


def test_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom types import SimpleNamespace\nfrom mcproxy.cli import main as cli\n"
        "def run(args):\n    sys.stdout.write('x' * 1000000)\n    return 0\n"
        "cli.load_command = lambda n: SimpleNamespace(add_parser=lambda s: s.add_parser('check'), run=run)\n"
        "sys.exit(cli.main(['check']))\n"
    )
    command = f'"{sys.executable}" -c "$PROGRAM" | head -c 1 >/dev/null; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ["bash", "-c", command], env={"PROGRAM": program, "PATH": "/usr/bin:/bin"}, capture_output=True, timeout=60,
        cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_has_examples_that_can_be_typed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    below = ("kubeconfig", "upstreamcluster", "resourceregistry", "apiservice") if name == "import" else ()
    examples = ""
    for words in ([name], *([name, each] for each in below)):
        with pytest.raises(SystemExit):
            build_parser(name).parse_args([*words, "--help"])
        examples += capsys.readouterr().out.partition("examples:\n")[2]
    lines = [line.strip() for line in examples.splitlines()]
    commands = [line[line.index("mcproxy ") :] for line in lines if "mcproxy " in line]
    assert commands
    for command in commands:
        words = shlex.split(re.split(r" [|>#]|\)", command)[0])[1:]
        build_parser(words[0]).parse_args(words)


def test_no_signal_of_the_unit_ends_the_daemon_while_it_is_still_imported() -> None:
    program = (
        "import signal\n"
        "from mcproxy.cli import main as cli\n"
        "numbers = signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2\n"
        "for number in numbers: signal.signal(number, signal.SIG_DFL)\n"
        "def seen(name):\n"
        "    print(all(signal.getsignal(number) is signal.SIG_IGN for number in numbers))\n"
        "    raise SystemExit(0)\n"
        "cli.load_command = seen\n"
        "cli.main(['run'])\n"
    )
    assert python("-c", program).stdout == "True\n"
    assert python("-c", program.replace("'run'", "'check'")).stdout == "False\n"
