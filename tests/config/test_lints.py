"""The names of warnings, and the comments that switch them off."""

import re
from pathlib import Path

import pytest

import mcproxy.config
from mcproxy.config.load import load
from mcproxy.config.problem import LINTS, ConfigErrors, allowed_by

SOURCE = Path(mcproxy.config.__file__).parent


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("a: b  # mcproxy: allow unused", ("unused",)),
        ("a: b # mcproxy: allow unused, in-clear , expired", ("unused", "in-clear", "expired")),
        ("# mcproxy: allow unused", ("unused",)),
        ("a: b #mcproxy:allow unused and more", ("unused",)),
        ("a: b#mcproxy: allow unused", ()),
        ("a: b  # allow unused", ()),
        ("a: b  # mcproxy: allow", ()),
        ("a: b  # mcproxy: forbid unused", ()),
    ],
)
def test_a_comment_names_the_warnings_that_it_allows(line: str, names: tuple[str, ...]) -> None:
    assert allowed_by(line) == names


def test_every_name_is_that_of_a_warning_and_every_warning_has_one() -> None:
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "lints.py")
    assert {name for name in LINTS if f'"{name}"' not in text} == set()
    assert re.findall(r"\.warn\([^\"\n]*\n?\s*f\"", text) == []  # a message where the name should be


TEXT = """version: 1
listeners: [{name: l, bind: "127.0.0.1:0"}]
clusters: [{name: a, endpoints: [{url: "http://127.0.0.1:1"}], identity: Passthrough}]
servers: [{name: a, default: true, backend: {cluster: a}, authentication: none}]
flowControls:
  - {name: a, type: Exempt}
"""


def warnings(folder: Path, text: str) -> list[str | None]:
    (folder / "f.yaml").write_text(text)
    return [warning.lint for warning in load(str(folder / "f.yaml"), environ={}).warnings]


def test_a_warning_is_switched_off_on_its_line_alone_and_by_its_name(tmp_path: Path) -> None:
    assert warnings(tmp_path, TEXT) == ["unused"]
    assert warnings(tmp_path, TEXT.replace("Exempt}", "Exempt}  # mcproxy: allow unused")) == []
    assert warnings(tmp_path, TEXT.replace("Exempt}", "Exempt}  # mcproxy: allow in-clear, unused")) == []
    assert warnings(tmp_path, TEXT.replace("Exempt}", "Exempt}  # mcproxy: allow in-clear")) == ["unused"]
    assert warnings(tmp_path, TEXT.replace("Controls:", "Controls:  # mcproxy: allow unused")) == ["unused"]


def test_a_warning_names_the_comment_that_disables_it(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(TEXT)
    [warning] = load(str(tmp_path / "f.yaml"), environ={}).warnings
    assert str(warning).endswith(" (or keep it: # mcproxy: allow unused)")


def test_errors_cannot_be_switched_off(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("version: 2  # mcproxy: allow unused\n")
    with pytest.raises(ConfigErrors):
        load(str(tmp_path / "f.yaml"))


def test_a_name_that_no_warning_has_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(TEXT + "# mcproxy: allow unusde\n")
    with pytest.raises(ConfigErrors, match="there is no warning unusde to allow; did you mean unused") as caught:
        load(str(tmp_path / "f.yaml"), environ={})
    assert len(caught.value.problems) == 1
