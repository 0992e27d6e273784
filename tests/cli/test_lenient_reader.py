"""The control socket is found in a file that has errors everywhere else."""

from pathlib import Path

import pytest

from mcproxy.cli.lenient_reader import find_control_socket

ENVIRON = {"RUN": "/run/site"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("daemon:\n  controlSocket: /run/m.sock\n", "/run/m.sock"),
        ("daemon: {controlSocket: /run/m.sock, drainTimeout: 3}\n", "/run/m.sock"),
        ('daemon: {controlSocket: "/run/m.sock"}\n', "/run/m.sock"),
        ("daemon:\n  controlSocket: ${RUN}/m.sock\n", "/run/site/m.sock"),
        ("daemon:\n  controlSocket: /run/$$m.sock\n", "/run/$m.sock"),
        ("daemon:\n  controlSocket: m.sock\n", "{directory}/m.sock"),
        ("servers: 7\nnonsense: true\ndaemon:\n  controlSocket: /run/m.sock\n", "/run/m.sock"),
        ("daemon:\n  controlSocket: /run/m.sock # here\nservers: [}\n", "/run/m.sock"),
        ("daemon: {controlSocket: '/run/m.sock', drainTimeout: 3\nservers: [}\n", "/run/m.sock"),
        ("daemon:\n\tcontrolSocket: /run/m.sock\n", "/run/m.sock"),
        ("# controlSocket: /run/old.sock\nservers: [}\n", None),
        ("daemon: {}\n", None),
        ("daemon: 7\n", None),
        ("- a\n- list\n", None),
        ("", None),
    ],
)
def test_socket_is_found(tmp_path: Path, text: str, found: str | None) -> None:
    file = tmp_path / "mcproxy.yaml"
    file.write_text(text)
    expected = found and found.format(directory=tmp_path)
    assert find_control_socket(str(file), ENVIRON) == expected


def test_socket_is_found_in_an_included_file(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "a.yaml").write_text("servers: [}\n")
    (tmp_path / "conf.d" / "b.yaml").write_text("daemon: {controlSocket: m.sock}\n")
    file = tmp_path / "mcproxy.yaml"
    file.write_text("include: [conf.d/*.yaml]\n")
    assert find_control_socket(str(file), {}) == str(tmp_path / "conf.d" / "m.sock")


def test_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        find_control_socket(str(tmp_path / "gone.yaml"), {})
