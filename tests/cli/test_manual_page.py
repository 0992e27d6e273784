"""A manual page in mdoc(7) as text: as mandoc shows it, but for the frame and where lines break."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from mcproxy.cli.docs import as_text, blocks

MAN = Path(__file__).parents[2] / "man"


@pytest.mark.parametrize("page", ["mcproxy.8", "mcproxy.yaml.5"])
def test_every_word_is_there_as_mandoc_has_it(page: str) -> None:
    """A word of the page that mandoc does not show, or shows elsewhere, is a macro that is not understood."""
    command = ["mandoc", "-T", "utf8", "-O", "width=1000", str(MAN / page)]
    shown = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.decode()
    shown = re.sub(".\b", "", shown)
    lines = shown.strip("\n").splitlines()[1:-1]  # without head and foot
    expected = " ".join(lines).replace("\u2013", "\u2014").split()
    assert as_text(blocks((MAN / page).read_text("utf-8"))).split() == expected


def text(source: str) -> str:
    return as_text(blocks(source))


def test_usage_has_a_line_for_each_command() -> None:
    page = ".Sh SYNOPSIS\n.Nm mcproxy\n.Cm run\n.Op Fl c Ar file\n.Nm mcproxy\n.Fl -version\n.Sh DESCRIPTION\n"
    assert text(page) == "SYNOPSIS\n\n    mcproxy run [-c file]\n    mcproxy --version\n\nDESCRIPTION\n"


def test_entries_of_lists_are_deeper_and_numbered_where_they_have_no_words() -> None:
    page = ".Bl -tag\n.It Fl q , Fl -quiet\nA.\n.Bl -enum\n.It\nB.\n.It\nC.\n.El\n.El\nD.\n"
    assert text(page) == (
        "    -q, --quiet\n        A.\n\n        1.\n            B.\n\n        2.\n            C.\n\n    D.\n"
    )


def test_literal_text_is_left_as_it_is() -> None:
    page = '.Bd -literal\n  a:\\(dq1\\(dq   b\n.Ed\n.Dl cat   "x y"\n'
    assert text(page) == '          a:"1"   b\n\n        cat x y\n'


@pytest.mark.parametrize(
    ("macros", "shown"),
    [
        ("Xr mcproxy 8 .", "mcproxy(8)."),
        ("Pq Va a.b ,", "(a.b),"),
        ("Va ( a.b ,", "(a.b,"),
        ("Fl ( c ) .", "(-c)."),
        ("Op Fl -address Ar host Ns Op : Ns Ar port", "[--address host[:port]]"),
        ("Fl o Cm table | wide , Fl -output Cm table", "-o table | wide, --output table"),
        ("Ql kubectl apply", "\u2018kubectl apply\u2019"),
        ("Unknown words", ""),
    ],
)
def test_macros_in_a_line(macros: str, shown: str) -> None:
    assert text(f".{macros}\n").strip() == shown


def test_a_parenthesis_may_be_over_several_lines() -> None:
    assert text("See\n.Po\n.Va a ,\nelse\n.Va b\n.Pc .\nThen\n.Oo\n.Fl c\n.Oc\n") == "    See (a, else b). Then [-c]\n"


@pytest.mark.parametrize("source", [".El\n", ".Ed\n", ".It x\n", ".\n", ".Bd\nopen\n", ".Bl\n.It\n", "", ".Nm\n"])
def test_a_page_that_is_not_well_formed_is_read(source: str) -> None:
    text(source)
