"""The programs of a simulated container, and its shell."""

from __future__ import annotations

import asyncio

import pytest

from kubesim.streaming.commands import CommandNotFound, Process, run
from kubesim.streaming.containers import FileSystem


class Fixed:
    """An input of given bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self) -> bytes:
        data, self._data = self._data, b""
        return data


class Buffer:
    """An output that keeps everything."""

    def __init__(self) -> None:
        self.data = bytearray()

    async def write(self, data: bytes) -> None:
        self.data += data


def execute(
    *argv: str,
    stdin: bytes = b"",
    tty: bool = False,
    files: FileSystem | None = None,
    services: dict[str, str] | None = None,
) -> tuple[int, bytes, bytes]:
    """Run a command; return (exit code, stdout, stderr). `services` are what pods of services answer."""

    async def ask_service(host: str) -> str | None:
        return (services or {}).get(host)

    out, err = Buffer(), Buffer()
    process = Process(
        files=files or FileSystem(),
        stdin=Fixed(stdin),
        stdout=out,
        stderr=err,
        environment={"HOSTNAME": "web"},
        now=lambda: 1_700_000_000.0,
        tty=tty,
        ask_service=ask_service,
    )
    return asyncio.run(run(process, list(argv))), bytes(out.data), bytes(err.data)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo out;echo err 1>&2;exit 3", (3, b"out\n", b"err\n")),
        ("echo a && echo b || echo c; nope || echo d", (0, b"a\nb\nd\n", b"sh: nope: not found\n")),
        ("nope || echo 'c $X' \"$HOSTNAME\"", (0, b"c $X web\n", b"sh: nope: not found\n")),
        ("head -n 1; echo problem >&2", (0, b"one\n", b"problem\n")),
        ("rm /nope", (1, b"", b"rm: /nope: No such file or directory\n")),
        ("echo a | cat", (2, b"", b"sh: syntax error: unexpected '|'\n")),
    ],
)
def test_scripts(script: str, expected: tuple[int, bytes, bytes]) -> None:
    assert execute("sh", "-c", script, stdin=b"one\ntwo\n") == expected


def test_an_unclosed_quote_is_a_syntax_error() -> None:
    code, _, error = execute("sh", "-c", 'echo "x')
    assert code == 2
    assert b"unterminated" in error


def test_an_unknown_executable_is_not_the_shells_error() -> None:
    with pytest.raises(CommandNotFound):
        execute("no-such-command")


def test_cat_ends_with_its_input() -> None:
    assert execute("cat", stdin=b"hello\n") == (0, b"hello\n", b"")


def test_a_shell_without_a_terminal_reads_commands_from_stdin() -> None:
    assert execute("sh", stdin=b"echo 1\nexit 7\necho 2\n") == (7, b"1\n", b"")


def test_a_terminal_has_prompt_echo_and_line_editing() -> None:
    code, out, _ = execute("sh", stdin=b"echo ab\x7fc\rexit 2\r", tty=True)
    assert code == 2
    assert out.startswith(b"/ # ")
    assert b"ab\x08 \x08c\r\n" in out
    assert b"\r\nac\r\n/ # " in out


def test_tar_gives_back_what_it_took_in() -> None:
    files = FileSystem()
    files.write("/tmp/d/e/f", b"x" * 100_000)
    files.write("/tmp/d/" + "n" * 120, b"long name")
    _, archive, _ = execute("tar", "cf", "-", "-C", "/tmp", "d", files=files)
    other = FileSystem()
    assert execute("tar", "-xmf", "-", "-C", "/var", stdin=archive, files=other)[0] == 0
    assert other.read("/var/d/e/f") == b"x" * 100_000
    assert other.read("/var/d/" + "n" * 120) == b"long name"


def test_a_cut_archive_is_an_error() -> None:
    files = FileSystem()
    files.write("/tmp/f", b"x" * 5000)
    _, archive, _ = execute("tar", "cf", "-", "/tmp/f", files=files)
    assert execute("tar", "xf", "-", stdin=archive[:3000])[0] == 1


def test_a_container_cannot_leave_its_file_system() -> None:
    assert execute("cat", "/../../etc/passwd")[0] == 1


def test_a_program_asks_a_service_which_pod_answers() -> None:
    services = {"search": "search-1 in west\n", "none": ""}
    assert execute("wget", "-qO-", "http://search/hostname", services=services) == (0, b"search-1 in west\n", b"")
    assert execute("wget", "-qO-", "http://search:80/other", services=services)[0] == 1
    assert execute("wget", "-qO-", "http://none/hostname", services=services)[0] == 1
    assert execute("wget", "-qO-", "http://absent/hostname")[2] == b"wget: bad address 'absent'\n"
